#include "bound/rising_lengths.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "bound/demand.hpp"
#include "graph/best_first.hpp"
#include "support/index.hpp"
#include "support/work.hpp"

namespace tacos {

namespace {

using Length = std::int64_t;

constexpr Length kFirst = Length{1} << 20, kLongest = Length{1} << 40;
constexpr std::int64_t kSlower =
    50;  // rounds after which links are lengthened by half as much (chosen)

struct Sender {
  NodeId npu;
  std::vector<std::pair<NodeId, std::int64_t>> bytes;  // by receiver
};

std::vector<Sender> senders(const Topology& topology, const Collective& collective) {
  std::vector<Sender> result;
  for (NodeId npu = 0; npu < topology.npus(); ++npu) {
    Sender sender{npu, {}};
    for (const auto& part : collective.parts()) {
      if (!part.traits().per_pair() && part.kind != CollectiveKind::send_recv) continue;
      const Collective alone(topology.npus(), {part});
      if (const auto demand = demand_at(alone, npu, true)) {
        for (const auto& [node, bytes] : demand->supplies) sender.bytes.emplace_back(node, bytes);
      }
    }
    if (!sender.bytes.empty()) result.push_back(std::move(sender));
  }
  return result;
}

class Rounds {
 public:
  Rounds(const Topology& topology, std::vector<Sender> senders)
      : topology_(topology),
        senders_(std::move(senders)),
        length_(at(topology.links()), kFirst),
        load_(at(topology.links()), 0),
        passing_(at(topology.nodes())),
        search_(topology.nodes()) {}

  std::vector<Length> run(std::int64_t rounds, const Progress& progress) {
    auto best = length_;
    double most = 0;
    for (std::int64_t round = 0; round < rounds; ++round) {
      if (progress) progress(static_cast<double>(round) / static_cast<double>(rounds));
      std::fill(load_.begin(), load_.end(), std::int64_t{0});
      double sum = 0;
      for (const auto& sender : senders_) {
        sum += send(sender);
        progress.spend(static_cast<double>(search_.take_offers()) * work::kVisit);
      }
      double capacity = 0;
      for (LinkId link = 0; link < topology_.links(); ++link) {
        capacity +=
            static_cast<double>(length_[at(link)]) * static_cast<double>(topology_.bandwidth(link));
      }
      if (sum / capacity > most) {
        most = sum / capacity;
        best = length_;
      }
      lengthen(round);
    }
    return best;
  }

 private:
  // Sends bytes over shortest paths, and returns the sum of bytes times distance.
  double send(const Sender& sender) {
    std::fill(passing_.begin(), passing_.end(), std::int64_t{0});
    visited_.clear();
    search_.clear();
    search_.start(sender.npu, 0);
    while (const auto node = search_.next()) {
      visited_.push_back(*node);
      const Length far = search_.key(*node);
      for (const LinkId link : topology_.out_links(*node)) {
        search_.offer(topology_.dst(link), far + length_[at(link)], link);
      }
    }
    double sum = 0;
    for (const auto& [npu, bytes] : sender.bytes) {
      passing_[at(npu)] += bytes;
      if (search_.reached(npu))
        sum += static_cast<double>(bytes) * static_cast<double>(search_.key(npu));
    }
    for (auto node = visited_.rbegin(); node != visited_.rend(); ++node) {
      if (search_.source(*node)) continue;
      const LinkId link = search_.mark(*node);
      load_[at(link)] += passing_[at(*node)];
      passing_[at(topology_.src(link))] += passing_[at(*node)];
    }
    return sum;
  }

  // Makes the link that takes the most time twice as long, later less than that, and the others longer in proportion.
  void lengthen(std::int64_t round) {
    std::int64_t most = 1;
    std::vector<std::int64_t> time(load_.size());
    for (std::size_t i = 0; i < load_.size(); ++i) {
      const auto rate = topology_.bandwidth(static_cast<LinkId>(i));
      const auto exact = (static_cast<__int128>(load_[i]) << 30) / rate;
      time[i] = static_cast<std::int64_t>(
          std::min<__int128>(exact, std::numeric_limits<std::int64_t>::max()));
      most = std::max(most, time[i]);
    }
    Length longest = 0;
    for (std::size_t i = 0; i < load_.size(); ++i) {
      const auto more = static_cast<__int128>(length_[i]) * time[i] / most;
      length_[i] += static_cast<Length>(more * kSlower / (kSlower + round));
      longest = std::max(longest, length_[i]);
    }
    if (longest <= kLongest) return;
    for (auto& length : length_) length = (length + 1) / 2;
  }

  const Topology& topology_;
  std::vector<Sender> senders_;
  std::vector<Length> length_;
  std::vector<std::int64_t> load_;     // bytes of each link
  std::vector<std::int64_t> passing_;  // bytes that pass each node
  BestFirst<Length> search_;
  std::vector<NodeId> visited_;  // in order of distance
};

}  // namespace

std::vector<std::int64_t> rising_lengths(const Topology& topology, const Collective& collective,
                                         std::int64_t rounds, const Progress& progress) {
  return Rounds(topology, senders(topology, collective)).run(rounds, progress);
}

}  // namespace tacos
