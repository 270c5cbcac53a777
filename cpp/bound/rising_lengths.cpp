#include "bound/rising_lengths.hpp"

#include <algorithm>
#include <limits>
#include <queue>
#include <utility>

#include "bound/demand.hpp"
#include "support/index.hpp"

namespace tacos {

namespace {

using Length = std::int64_t;

constexpr Length kFirst = Length{1} << 20, kLongest = Length{1} << 40;
constexpr std::int64_t kSlower =
    50;  // rounds after which links are lengthened by half as much (chosen)
constexpr Length kUnreached = std::numeric_limits<Length>::max();

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
        distance_(at(topology.nodes())),
        into_(at(topology.nodes())),
        passing_(at(topology.nodes())) {}

  std::vector<Length> run(std::int64_t rounds, const Progress& progress) {
    auto best = length_;
    double most = 0;
    for (std::int64_t round = 0; round < rounds; ++round) {
      if (progress) progress(static_cast<double>(round) / static_cast<double>(rounds));
      std::fill(load_.begin(), load_.end(), std::int64_t{0});
      double sum = 0;
      for (const auto& sender : senders_) sum += send(sender);
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
    std::fill(distance_.begin(), distance_.end(), kUnreached);
    std::fill(passing_.begin(), passing_.end(), std::int64_t{0});
    reached_.clear();
    distance_[at(sender.npu)] = 0;
    into_[at(sender.npu)] = -1;
    queue_.emplace(0, sender.npu);
    while (!queue_.empty()) {
      const auto [far, node] = queue_.top();
      queue_.pop();
      if (far > distance_[at(node)]) continue;
      reached_.push_back(node);
      for (const LinkId link : topology_.out_links(node)) {
        const NodeId next = topology_.dst(link);
        const Length through = far + length_[at(link)];
        if (through >= distance_[at(next)]) continue;
        distance_[at(next)] = through;
        into_[at(next)] = link;
        queue_.emplace(through, next);
      }
    }
    double sum = 0;
    for (const auto& [npu, bytes] : sender.bytes) {
      passing_[at(npu)] += bytes;
      if (distance_[at(npu)] != kUnreached)
        sum += static_cast<double>(bytes) * static_cast<double>(distance_[at(npu)]);
    }
    for (auto node = reached_.rbegin(); node != reached_.rend(); ++node) {
      const LinkId link = into_[at(*node)];
      if (link < 0) continue;
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
      time[i] = static_cast<std::int64_t>(std::min<__int128>(exact, kUnreached));
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
  std::vector<std::int64_t> load_;  // bytes of each link
  std::vector<Length> distance_;
  std::vector<LinkId> into_;
  std::vector<std::int64_t> passing_;  // bytes that pass each node
  std::vector<NodeId> reached_;        // in order of distance
  std::priority_queue<std::pair<Length, NodeId>, std::vector<std::pair<Length, NodeId>>,
                      std::greater<>>
      queue_;
};

}  // namespace

std::vector<std::int64_t> rising_lengths(const Topology& topology, const Collective& collective,
                                         std::int64_t rounds, const Progress& progress) {
  return Rounds(topology, senders(topology, collective)).run(rounds, progress);
}

}  // namespace tacos
