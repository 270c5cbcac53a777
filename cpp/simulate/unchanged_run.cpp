#include "simulate/unchanged_run.hpp"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "support/index.hpp"

namespace tacos::simulation {

namespace {

class Lookup {
 public:
  Lookup(const Schedule& schedule, const Routes& routes, const Progress& progress)
      : schedule_(schedule),
        routes_(routes),
        topology_(schedule.topology()),
        collective_(schedule.collective()),
        stored_(schedule.stored()),
        progress_(progress) {}

  std::optional<Result> run() {
    if (schedule_.symmetry() || !(routes_.topology() == topology_) || !sort_lanes()) return {};
    const auto npus = at(topology_.npus());
    result_.finish.assign(npus, 0);
    result_.busy.assign(at(topology_.links()), 0);
    there_.assign(at(collective_.chunks()), kNever);
    // Group chunks by the NPUs that hold them initially.
    std::vector<std::size_t> begin(npus + 2, 0);
    for (ChunkId chunk = 0; chunk < collective_.chunks(); ++chunk) {
      for (const NodeId npu : collective_.inputs(chunk)) ++begin[at(npu) + 2];
    }
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    std::vector<ChunkId> own(begin.back());
    for (ChunkId chunk = 0; chunk < collective_.chunks(); ++chunk) {
      for (const NodeId npu : collective_.inputs(chunk)) own[begin[at(npu) + 1]++] = chunk;
    }
    for (std::size_t npu = 0; npu < npus; ++npu) {
      if (progress_ && npu % 16 == 0) {
        progress_(static_cast<double>(npu) / static_cast<double>(npus));
      }
      const auto held = std::span(own).subspan(begin[npu], begin[npu + 1] - begin[npu]);
      for (const ChunkId chunk : held) there_[chunk] = 0;
      if (!receive(npu) || !send(npu)) return {};
      forget(npu, held);
    }
    return std::move(result_);
  }

 private:
  // Groups lanes by their ends; returns false unless each lane copies chunks over its own link between NPUs.
  bool sort_lanes() {
    std::vector<std::uint8_t> used(at(topology_.links()), 0);
    const auto npus = topology_.npus();
    in_begin_.assign(at(npus) + 2, 0);
    out_begin_ = in_begin_;
    for (std::int32_t lane = 0; lane < schedule_.lanes(); ++lane) {
      const auto links = routes_.links(lane);
      const auto theirs = schedule_.routes().links(stored_.lane_route[at(lane)]);
      if (links.size() != 1 || theirs.size() != 1 || links[0] != theirs[0] ||
          stored_.lane_op[at(lane)] != static_cast<std::uint8_t>(Op::copy) ||
          topology_.src(links[0]) >= npus || topology_.dst(links[0]) >= npus) {
        return false;
      }
      if (stored_.lane_begin[at(lane)] == stored_.lane_begin[at(lane) + 1]) continue;
      if (std::exchange(used[at(links[0])], 1) != 0) return false;
      ++in_begin_[at(topology_.dst(links[0])) + 2];
      ++out_begin_[at(topology_.src(links[0])) + 2];
    }
    std::partial_sum(in_begin_.begin(), in_begin_.end(), in_begin_.begin());
    std::partial_sum(out_begin_.begin(), out_begin_.end(), out_begin_.begin());
    in_.resize(in_begin_.back());
    out_.resize(out_begin_.back());
    for (std::int32_t lane = 0; lane < schedule_.lanes(); ++lane) {
      if (stored_.lane_begin[at(lane)] == stored_.lane_begin[at(lane) + 1]) continue;
      const LinkId link = routes_.links(lane)[0];
      in_[in_begin_[at(topology_.dst(link)) + 1]++] = lane;
      out_[out_begin_[at(topology_.src(link)) + 1]++] = lane;
    }
    return true;
  }

  // How long a chunk of a lane takes, and how long it occupies the link; most lanes have chunks of one size.
  struct Takes {
    std::int64_t bytes = -1;
    Time arrives = 0, busy = 0;
  };
  const Takes& takes(std::int32_t lane, ChunkId chunk, Takes& known) {
    if (const auto bytes = collective_.bytes(chunk); bytes != known.bytes) {
      windows_.clear();
      routes_.windows(lane, 0, bytes, windows_);
      known = {bytes, routes_.leg_time(lane, 0, bytes), windows_[0].busy};
    }
    return known;
  }

  // Calls visit(chunk, start) for the transfers of a lane, until it returns false: a run would differ.
  template <typename Visit>
  bool each(std::int32_t lane, const Visit& visit) const {
    const auto first = at(stored_.lane_begin[at(lane)]),
               last = at(stored_.lane_begin[at(lane) + 1]);
    for (auto i = first; i < last; ++i) {
      // All lanes have one leg, so starts and chunks have the same indices.
      if (!visit(stored_.chunk[i], static_cast<Time>(stored_.start[i]) * stored_.quantum)) {
        return false;
      }
    }
    return true;
  }

  // Computes when each chunk is at an NPU; returns false if a chunk arrives twice.
  bool receive(std::size_t npu) {
    for (auto k = in_begin_[npu]; k < in_begin_[npu + 1]; ++k) {
      Takes known;
      const bool once = each(in_[k], [&](ChunkId chunk, Time start) {
        if (there_[chunk] != kNever) return false;
        there_[chunk] = start + takes(in_[k], chunk, known).arrives;
        result_.finish[npu] = std::max(result_.finish[npu], there_[chunk]);
        return true;
      });
      if (!once) return false;
    }
    return true;
  }

  // Whether the links out of an NPU send each chunk as early as possible, in the order in which chunks arrived.
  bool send(std::size_t npu) {
    for (auto k = out_begin_[npu]; k < out_begin_[npu + 1]; ++k) {
      const auto lane = out_[k];
      const bool input = stored_.lane_reads[at(lane)] == static_cast<std::uint8_t>(Reads::input);
      auto& busy = result_.busy[at(routes_.links(lane)[0])];
      Takes known;
      Time ready = 0, free = 0;
      const bool same = each(lane, [&](ChunkId chunk, Time start) {
        const Time there = there_[chunk];
        if (there < ready || there == kNever || (input && there > 0)) return false;
        ready = there;
        if (start != std::max(ready, free)) return false;
        const Time taken = takes(lane, chunk, known).busy;
        free = start + taken;
        busy += taken;
        return true;
      });
      if (!same) return false;
    }
    return true;
  }

  void forget(std::size_t npu, std::span<const ChunkId> held) {
    std::int64_t received = 0;
    for (auto k = in_begin_[npu]; k < in_begin_[npu + 1]; ++k) {
      received += stored_.lane_begin[at(in_[k]) + 1] - stored_.lane_begin[at(in_[k])];
    }
    if (at(received) > there_.size() / 4) {
      std::fill(there_.begin(), there_.end(), kNever);
      return;
    }
    for (const ChunkId chunk : held) there_[chunk] = kNever;
    for (auto k = in_begin_[npu]; k < in_begin_[npu + 1]; ++k) {
      each(in_[k], [&](ChunkId chunk, Time) {
        there_[chunk] = kNever;
        return true;
      });
    }
  }

  const Schedule& schedule_;
  const Routes& routes_;
  const Topology& topology_;
  const Collective& collective_;
  const Transfers& stored_;
  const Progress& progress_;
  std::vector<std::size_t> in_begin_, out_begin_;  // per NPU
  std::vector<std::int32_t> in_, out_;             // lanes
  std::vector<Time> there_;                        // per chunk: when it is at the current NPU
  std::vector<Routes::Window> windows_;
  Result result_;
};

}  // namespace

std::optional<Result> unchanged_run(const Schedule& schedule, const Routes& routes,
                                    const Progress& progress) {
  return Lookup(schedule, routes, progress).run();
}

}  // namespace tacos::simulation
