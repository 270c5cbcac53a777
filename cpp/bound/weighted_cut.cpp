#include "bound/weighted_cut.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "support/index.hpp"

namespace tacos {

namespace {

constexpr int kRounds = 60;           // changes of the weights (chosen: later ones gain little)
constexpr int kFewRounds = 16;        // if none of them raises the bound (chosen)
constexpr int kHalvings = 24;         // of the interval in which the least time is searched
constexpr double kFirstChange = 2.0;  // exponent of the first change of a weight
constexpr double kSlowing = 10.0;     // rounds after which changes are half as large
constexpr double kRounding = 1e-9;    // relative; more than the rounding error of the sums below
constexpr std::int64_t kMostVisits = 50'000'000;  // distances looked at in all: up to half a second
constexpr std::int64_t kMostAtOnce = 5'000'000;   // distances looked at for one time

// A node before or behind the cut, and when each of its senders or takers is reached.
struct Side {
  double bandwidth_Bps = 0;
  std::vector<std::vector<Time>> ways;  // per node that may act for it, per sender or taker
};

// The links over which the cut is crossed to one node or switch, and the nodes behind it.
struct Passage {
  std::vector<Side> tails, heads;
};

// The weight within reach of a side, and the node that reaches most.
std::pair<double, const std::vector<Time>*> reach(const Side& side, std::span<const double> weight,
                                                  double moment) {
  std::pair<double, const std::vector<Time>*> best{-1.0, nullptr};
  for (const auto& way : side.ways) {
    double sum = 0;
    for (std::size_t i = 0; i < way.size(); ++i) {
      if (way[i] >= 0 && static_cast<double>(way[i]) <= moment) sum += weight[i];
    }
    if (sum > best.first) best = {sum, &way};
  }
  return best;
}

class WeightedCut {
 public:
  WeightedCut(const Topology& topology, TimedCuts& timed, const NodeSet& outside,
              std::span<const NodeId> senders, std::span<const NodeId> takers, std::int64_t size)
      : size_(static_cast<double>(size)),
        u_(senders.size(), 1.0 / static_cast<double>(senders.size())),
        w_(takers.size(), 1.0 / static_cast<double>(takers.size())) {
    std::map<NodeId, Passage> by_head;
    for (LinkId link = 0; link < topology.links(); ++link) {
      const NodeId tail = topology.src(link), head = topology.dst(link);
      if (!outside[at(tail)] || outside[at(head)]) continue;
      auto& passage = by_head[head];
      Side side{static_cast<double>(topology.bandwidth(link)), {}};
      for (const auto& [node, later] : timed.beyond(tail, true)) {
        side.ways.push_back(
            times(timed.distance(node, true), senders, later + topology.latency(link)));
      }
      passage.tails.push_back(std::move(side));
    }
    for (auto& [head, passage] : by_head) {
      for (const auto& [node, later] : timed.beyond(head, false)) {
        if (outside[at(node)]) continue;
        Side side{0, {times(timed.distance(node, false), takers, later)}};
        for (const LinkId link : topology.in_links(node)) {
          const NodeId before = topology.src(link);
          const bool forwards = !timed.acts(before, true) && !timed.acts(before, false);
          if (node == head || forwards)
            side.bandwidth_Bps += static_cast<double>(topology.bandwidth(link));
        }
        passage.heads.push_back(std::move(side));
      }
      passages_.push_back(std::move(passage));
    }
  }

  // The largest number of distances that served() looks at.
  double most_visits() const {
    double sum = 0;
    for (const auto& passage : passages_) {
      double distances = 0;
      std::set<Time> before, after;
      for (const auto& side : passage.tails) {
        for (const auto& way : side.ways) {
          before.insert(way.begin(), way.end());
          distances += static_cast<double>(way.size());
        }
      }
      for (const auto& side : passage.heads) {
        for (const auto& way : side.ways) {
          after.insert(way.begin(), way.end());
          distances += static_cast<double>(way.size());
        }
      }
      sum += distances * static_cast<double>(before.size() + after.size() + 1);
    }
    return sum;
  }

  Time least(Time from) {
    double best = static_cast<double>(from);
    bool risen = false;
    for (int round = 0; round < (risen ? kRounds : kFewRounds) && visits_ < kMostVisits; ++round) {
      std::vector<double> by_sender(u_.size()), by_taker(w_.size());
      const double sum = served(best, &by_sender, &by_taker);
      if (sum < size_ * (1 - kRounding)) {
        best = last_too_short(best);
        risen = true;
      }
      if (sum <= 0) break;
      const double change = kFirstChange / (1 + round / kSlowing);
      shift(u_, by_sender, sum, change);
      shift(w_, by_taker, sum, change);
    }
    return std::max(from, static_cast<Time>(best * (1 - kRounding)));
  }

 private:
  static std::vector<Time> times(const std::vector<Time>& far, std::span<const NodeId> ends,
                                 Time later) {
    std::vector<Time> result;
    for (const NodeId end : ends) result.push_back(far[at(end)] < 0 ? -1 : far[at(end)] + later);
    return result;
  }

  // Weights of what is served more than the average fall.
  static void shift(std::vector<double>& weight, std::span<const double> served, double sum,
                    double change) {
    for (std::size_t i = 0; i < weight.size(); ++i)
      weight[i] *= std::exp(-change * (served[i] / sum - 1));
    const double total = std::accumulate(weight.begin(), weight.end(), 0.0);
    for (auto& one : weight) one /= total;
  }

  // A time from `short_time` on in which these weights show that not everything is served, nearly the last one.
  double last_too_short(double short_time) const {
    double step = 0.01 * short_time;
    for (int i = 0; i < kHalvings && visits_ < kMostVisits; ++i) {
      if (served(short_time + step, nullptr, nullptr) < size_ * (1 - kRounding)) {
        short_time += step;
      } else {
        step /= 2;
      }
    }
    return short_time;
  }

  // The largest weight that can be served within `time`, in bytes; also by sender and by taker, per unit of its weight.
  double served(double time, std::vector<double>* by_sender, std::vector<double>* by_taker) const {
    double sum = 0;
    for (const auto& passage : passages_) {
      std::vector<double> moments{0, time};
      for (const auto& side : passage.tails) {
        for (const auto& way : side.ways) moments.insert(moments.end(), way.begin(), way.end());
      }
      for (const auto& side : passage.heads) {
        for (const auto& way : side.ways) {
          for (const Time one : way)
            moments.push_back(one < 0 ? 0 : time - static_cast<double>(one));
        }
      }
      std::sort(moments.begin(), moments.end());
      moments.erase(std::unique(moments.begin(), moments.end()), moments.end());
      for (std::size_t i = 0; i + 1 < moments.size(); ++i) {
        if (moments[i] < 0 || moments[i + 1] > time) continue;
        const double seconds = (moments[i + 1] - moments[i]) / kPicosecondsPerSecond;
        const double middle = (moments[i] + moments[i + 1]) / 2;
        sum += served_over(passage, middle, time - middle, seconds, by_sender, by_taker);
      }
    }
    return sum;
  }

  // The weight that a passage serves in some seconds, in bytes, if senders have had the time `before`, and takers have the time `after`.
  double served_over(const Passage& passage, double before, double after, double seconds,
                     std::vector<double>* by_sender, std::vector<double>* by_taker) const {
    struct Port {
      double weight, bandwidth;
      const std::vector<Time>* way;
    };
    const auto ports = [&](const std::vector<Side>& sides, std::span<const double> weight,
                           double moment) {
      std::vector<Port> result;
      for (const auto& side : sides) {
        visits_ += static_cast<std::int64_t>(side.ways.size() * weight.size());
        const auto [sum, way] = reach(side, weight, moment);
        if (sum > 0) result.push_back({sum, side.bandwidth_Bps, way});
      }
      std::stable_sort(result.begin(), result.end(),
                       [](const Port& a, const Port& b) { return a.weight > b.weight; });
      return result;
    };
    auto out = ports(passage.tails, u_, before), in = ports(passage.heads, w_, after);
    const auto add = [&](std::vector<double>* to, const std::vector<Time>& way, double moment,
                         double amount) {
      if (to == nullptr) return;
      for (std::size_t i = 0; i < way.size(); ++i) {
        if (way[i] >= 0 && static_cast<double>(way[i]) <= moment) (*to)[i] += amount;
      }
    };
    double sum = 0;
    for (std::size_t i = 0, j = 0; i < out.size() && j < in.size();) {
      const double bytes = std::min(out[i].bandwidth, in[j].bandwidth) * seconds;
      sum += bytes * out[i].weight * in[j].weight;
      add(by_sender, *out[i].way, before, bytes * in[j].weight);
      add(by_taker, *in[j].way, after, bytes * out[i].weight);
      const bool out_is_less = out[i].bandwidth <= in[j].bandwidth;
      auto& less = out_is_less ? out[i] : in[j];
      auto& more = out_is_less ? in[j] : out[i];
      more.bandwidth -= less.bandwidth;
      if (more.bandwidth <= 0) ++(out_is_less ? j : i);
      ++(out_is_less ? i : j);
    }
    return sum;
  }

  mutable std::int64_t visits_ = 0;  // distances looked at
  double size_;
  std::vector<double> u_, w_;  // weights of senders and takers; each sums to 1
  std::vector<Passage> passages_;
};

}  // namespace

Time weighted_least(const Topology& topology, TimedCuts& timed, const NodeSet& outside,
                    std::span<const NodeId> senders, std::span<const NodeId> takers,
                    std::int64_t size, Time from) {
  if (senders.empty() || takers.empty()) return from;
  for (NodeId node = topology.npus(); node < topology.nodes(); ++node) {
    if (timed.acts(node, true) && !timed.acts(node, false)) return from;
  }
  WeightedCut cut(topology, timed, outside, senders, takers, size);
  return cut.most_visits() > kMostAtOnce ? from : cut.least(from);
}

}  // namespace tacos
