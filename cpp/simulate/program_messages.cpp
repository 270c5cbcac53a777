#include "simulate/program_messages.hpp"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "model/channel_routes.hpp"
#include "support/index.hpp"
#include "support/pairs.hpp"
#include "timing/agenda.hpp"

namespace tacos::simulation {

namespace {

using service::kNone;

// Follows chunks through the slots.
class StepBytes {
 public:
  StepBytes(const Program& program, std::span<const std::int64_t> chunk_bytes,
            const std::vector<StepId>& order)
      : program_(program), s_(program.spec()), chunk_bytes_(chunk_bytes) {
    bytes.assign(at(program.steps()), 0);
    const auto [least, most] = std::minmax_element(chunk_bytes.begin(), chunk_bytes.end());
    largest_ = chunk_bytes.empty() ? 0 : *most;
    if (chunk_bytes.empty() || *least == *most) {
      for (StepId step = 0; step < program.steps(); ++step) {
        if (moves(step)) bytes[at(step)] = largest_ * s_.count[at(step)];
      }
      return;
    }
    number_slots();
    begin_.assign(at(program.steps()) + 1, 0);
    thread_.resize(at(program.steps()));
    for (ThreadId t = 0; t < program.threads(); ++t) {
      for (auto i = at(s_.thread_begin[at(t)]); i < at(s_.thread_begin[at(t) + 1]); ++i) {
        thread_[i] = t;
        begin_[i + 1] = begin_[i] + (moves(static_cast<StepId>(i)) ? s_.count[i] : 0);
      }
    }
    content_.assign(at(begin_.back()), kNothing);
    for (const StepId step : order) follow(step);
  }

  std::vector<std::int64_t> bytes;

 private:
  static constexpr ChunkId kNothing = ~ChunkId{0};

  bool moves(StepId step) const { return has_src(program_.op(step)) || has_dst(program_.op(step)); }
  void number_slots() {
    for (NodeId rank = 0; rank < program_.ranks(); ++rank) {
      const auto inputs = program_.input_chunks(rank), outputs = program_.output_chunks(rank);
      auto& shared = shared_.emplace_back(inputs.size(), -1);
      for (std::size_t i = 0; s_.in_place && i < inputs.size(); ++i) {
        const auto found = std::lower_bound(outputs.begin(), outputs.end(), inputs[i]);
        if (found != outputs.end() && *found == inputs[i]) {
          shared[i] = static_cast<std::int32_t>(found - outputs.begin());
        }
      }
      first_.push_back(holds_.size());
      holds_.insert(holds_.end(), inputs.begin(), inputs.end());
      first_.push_back(holds_.size());
      holds_.resize(holds_.size() + outputs.size(), kNothing);
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        if (shared[i] >= 0) holds_[first_.back() + at(shared[i])] = inputs[i];
      }
      first_.push_back(holds_.size());
      holds_.resize(holds_.size() + at(s_.scratch_slots[at(rank)]), kNothing);
    }
  }
  ChunkId& slot(NodeId rank, std::uint8_t buffer, std::int32_t i) {
    if (buffer == 0 && shared_[at(rank)][at(i)] >= 0)
      return slot(rank, 1, shared_[at(rank)][at(i)]);
    return holds_[first_[at(rank) * 3 + buffer] + at(i)];
  }
  void follow(StepId step) {
    if (!moves(step)) return;
    const auto i = at(step);
    const StepOp op = program_.op(step);
    const NodeId rank = s_.thread_rank[at(thread_[i])];
    const StepId from = s_.comes_from[i];
    for (std::int32_t k = 0; k < s_.count[i]; ++k) {
      ChunkId chunk = kNothing;
      if (has_src(op)) {
        chunk = slot(pulls(op) ? s_.peer[i] : rank, s_.src_buffer[i], s_.src_slot[i] + k);
      }
      if (receives(op)) {
        const bool fits = from >= 0 && k < begin_[at(from) + 1] - begin_[at(from)];
        chunk = fits ? content_[at(begin_[at(from)] + k)] : kNothing;
      }
      if (has_dst(op)) {
        slot(op == StepOp::put ? s_.peer[i] : rank, s_.dst_buffer[i], s_.dst_slot[i] + k) = chunk;
      }
      content_[at(begin_[i] + k)] = chunk;
      bytes[i] += chunk == kNothing ? largest_ : chunk_bytes_[chunk];
    }
  }

  const Program& program_;
  const ProgramSpec& s_;
  std::span<const std::int64_t> chunk_bytes_;
  std::int64_t largest_ = 0;
  std::vector<std::size_t> first_;  // slot of every rank's three buffers
  std::vector<std::vector<std::int32_t>> shared_;
  std::vector<ChunkId> holds_;
  std::vector<ThreadId> thread_;
  std::vector<std::int64_t> begin_;  // per step
  std::vector<ChunkId> content_;
};

template <typename Visit>
void each_message(const Program& program, Visit&& visit) {
  const auto& s = program.spec();
  for (ThreadId t = 0; t < program.threads(); ++t) {
    const NodeId rank = s.thread_rank[at(t)];
    for (auto i = s.thread_begin[at(t)]; i < s.thread_begin[at(t) + 1]; ++i) {
      const auto op = program.op(static_cast<StepId>(i));
      if (!sends_message(op)) continue;
      const NodeId other = sends(op) ? s.thread_send_peer[at(t)] : s.peer[at(i)];
      visit(static_cast<StepId>(i), t, pulls(op) ? other : rank, pulls(op) ? rank : other);
    }
  }
}

std::span<const LinkId> own_route(const ProgramOptions& options, ThreadId t) {
  if (options.link_begin.empty()) return {};
  const auto first = at(options.link_begin[at(t)]), last = at(options.link_begin[at(t) + 1]);
  return std::span(options.links).subspan(first, last - first);
}

bool ends_at(const Topology& topology, std::span<const LinkId> route, NodeId node) {
  const LinkId last = route.back();
  return last >= 0 && last < topology.links() && topology.dst(last) == node;
}

void check_given(const Program& program, const Topology& topology, const ProgramOptions& options) {
  const auto& s = program.spec();
  for (ThreadId t = 0; t < program.threads(); ++t) {
    const auto given = own_route(options, t);
    if (given.empty()) continue;
    const auto wrong = [&](const std::string& what) {
      invalid("the route of thread " + std::to_string(t) + " " + what);
    };
    for (const LinkId link : given) {
      if (link >= 0 && link < topology.links()) continue;
      wrong("has link " + std::to_string(link) + ", the links are 0 to " +
            std::to_string(topology.links() - 1));
    }
    const NodeId peer = s.thread_send_peer[at(t)];
    if (topology.src(given.front()) != s.thread_rank[at(t)] ||
        (peer >= 0 && !ends_at(topology, given, peer))) {
      wrong("leads from " + topology.name(topology.src(given.front())) + " to " +
            topology.name(topology.dst(given.back())) + ", but the thread sends from NPU " +
            std::to_string(s.thread_rank[at(t)]) + " to NPU " + std::to_string(peer));
    }
  }
}

}  // namespace

std::vector<std::int64_t> step_bytes(const Program& program,
                                     std::span<const std::int64_t> chunk_bytes,
                                     const std::vector<StepId>& order) {
  return StepBytes(program, chunk_bytes, order).bytes;
}

MessageRoutes::MessageRoutes(const Program& program, std::shared_ptr<const Topology> topology,
                             const ProgramOptions& options, const Progress& progress) {
  const Topology& network = *topology;
  const auto& s = program.spec();
  if (!options.link_begin.empty() && options.link_begin.size() != at(program.threads()) + 1) {
    invalid("routes has " + std::to_string(options.link_begin.size() - 1) + " entries for " +
            std::to_string(program.threads()) + " threads");
  }
  connection.assign(at(program.steps()), kNone);
  std::vector<std::uint64_t> pairs;
  each_message(program, [&](StepId, ThreadId, NodeId src, NodeId dst) {
    if (pairs.empty() || pairs.back() != pair_key(src, dst)) pairs.push_back(pair_key(src, dst));
  });
  const ChannelRoutes defaults(topology, std::move(pairs), progress);
  std::vector<std::int64_t> begin{0};
  std::vector<LinkId> links;
  std::vector<std::uint8_t> kinds;
  const auto add = [&](std::span<const LinkId> path, RouteKind kind) {
    kinds.push_back(static_cast<std::uint8_t>(kind));
    links.insert(links.end(), path.begin(), path.end());
    begin.push_back(static_cast<std::int64_t>(links.size()));
  };
  // A connection is a thread with a peer and a direction; consecutive messages mostly share it.
  std::vector<std::pair<std::uint64_t, std::uint32_t>> known;  // of this thread, sorted
  std::pair<ThreadId, std::uint64_t> last{-1, 0};
  std::uint32_t last_id = kNone;
  each_message(program, [&](StepId step, ThreadId t, NodeId src, NodeId dst) {
    const std::pair<ThreadId, std::uint64_t> mine{t, pair_key(src, dst)};
    if (mine != last) {
      if (t != last.first) known.clear();
      last = mine;
      const auto found = std::lower_bound(known.begin(), known.end(), std::pair(mine.second, 0U));
      const bool added = found == known.end() || found->first != mine.second;
      last_id = added ? static_cast<std::uint32_t>(begin.size()) - 1 : found->second;
      if (added) known.emplace(found, mine.second, last_id);
      const auto given = own_route(options, t);
      if (added && !given.empty() && s.thread_rank[at(t)] == src && ends_at(network, given, dst)) {
        add(given, RouteKind::path);
      } else if (added) {
        const RouteId usual = defaults.of(src, dst, s.thread_channel[at(t)]);
        add(defaults.routes()->links(usual), defaults.routes()->kind(usual));
      }
    }
    connection[at(step)] = last_id;
  });
  check_given(program, network, options);
  routes.emplace(std::move(topology), std::move(kinds), std::move(begin), std::move(links));
}

}  // namespace tacos::simulation
