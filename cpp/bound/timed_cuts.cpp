#include "bound/timed_cuts.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "support/index.hpp"

namespace tacos {

namespace {

using enum CollectiveKind;

constexpr std::size_t kMostSteps = 24;  // of one node; more are merged, at the earlier time

// What the members of a part need from each other.
struct Need {
  bool adds = false, copies = false;
  __int128 bytes = 0;  // counted once for every pair
};

__int128 pieces(const CollectivePart& part, std::span<const NodeId> members) {
  const auto remainder = at(part.size % part.members());
  auto sum = static_cast<__int128>(members.size()) * (part.size / part.members());
  if (remainder == 0) return sum;
  const auto larger = part.group.span().first(remainder);
  std::vector<NodeId> sorted(larger.begin(), larger.end());
  std::sort(sorted.begin(), sorted.end());
  for (const NodeId npu : members) {
    sum += std::binary_search(sorted.begin(), sorted.end(), npu) ? 1 : 0;
  }
  return sum;
}

Need need(const CollectivePart& part, std::span<const NodeId> from, std::span<const NodeId> to) {
  const auto senders = static_cast<__int128>(from.size());
  const auto takers = static_cast<__int128>(to.size());
  const __int128 size = part.size;
  switch (part.kind) {
    case all_gather:
      return {.copies = true, .bytes = takers * pieces(part, from)};
    case reduce_scatter:
      return {.adds = true, .bytes = senders * pieces(part, to)};
    case all_reduce:
      return {.adds = true, .copies = true, .bytes = senders * takers * size};
    case all_to_all:
      return {.bytes = senders * pieces(part, to)};
    case broadcast:
      return {.copies = true, .bytes = takers * size};
    case reduce:
      return {.adds = true, .bytes = senders * size};
    case gather:
      return {.bytes = pieces(part, from)};
    case scatter:
      return {.bytes = pieces(part, to)};
    default:
      return {};
  }
}

}  // namespace

TimedCuts::TimedCuts(const Topology& topology, const Exchanges* exchanges)
    : topology_(topology),
      exchanges_(exchanges),
      to_(at(topology.nodes())),
      from_(at(topology.nodes())),
      before_(at(topology.nodes())),
      after_(at(topology.nodes())),
      search_(topology.nodes()) {}

const std::vector<Time>& TimedCuts::distance(NodeId node, bool reversed) {
  auto& known = (reversed ? to_ : from_)[at(node)];
  if (known.empty()) {
    known = distances(topology_, std::span(&node, 1), topology_.spec().link_latency_ps.span(),
                      reversed);
    work_ += 8.0 * static_cast<double>(topology_.links() + topology_.nodes());
  }
  return known;
}

bool TimedCuts::acts(NodeId node, bool reversed) const {
  return topology_.is_npu(node) || topology_.can(node, reversed ? kReduce : kMulticast);
}

const std::vector<std::pair<NodeId, Time>>& TimedCuts::beyond(NodeId node, bool reversed) {
  auto& known = (reversed ? before_ : after_)[at(node)];
  if (!known.empty()) return known;
  search_.clear();
  search_.start(node, 0);
  for (double visited = 1; const auto here = search_.next(); ++visited) {
    const Time far = search_.key(*here);
    if (acts(*here, reversed)) {
      known.emplace_back(*here, far);
      continue;
    }
    for (const auto link : reversed ? topology_.in_links(*here) : topology_.out_links(*here)) {
      search_.offer(reversed ? topology_.src(link) : topology_.dst(link),
                    far + topology_.latency(link));
    }
    work_ += visited;
  }
  return known;
}

TimedCuts::Steps TimedCuts::steps(NodeId node, std::span<const NodeId> ends, bool reversed,
                                  bool many, std::span<const NodeId> same) {
  if (!many) {
    const auto& far = distance(node, reversed);
    Time first = -1;
    for (const NodeId end : ends) {
      if (far[at(end)] >= 0 && (first < 0 || far[at(end)] < first)) first = far[at(end)];
    }
    return first < 0 ? Steps() : Steps{{first, 1}};
  }
  Steps all;
  std::set<std::pair<NodeId, Time>> seen;
  for (const auto& [place, later] : beyond(node, reversed)) {
    if (!same.empty() && !seen.emplace(same[at(place)], later).second) continue;
    const auto& far = distance(place, reversed);
    Steps here;  // the number at each time, then sums
    for (const NodeId end : ends) {
      const Time time = far[at(end)];
      if (time < 0) continue;
      const auto known = std::find_if(here.begin(), here.end(),
                                      [&](const Step& step) { return step.time == later + time; });
      if (known != here.end()) {
        ++known->count;
      } else {
        here.push_back({later + time, 1});
      }
    }
    work_ += static_cast<double>(ends.size());
    std::sort(here.begin(), here.end(),
              [](const Step& a, const Step& b) { return a.time < b.time; });
    for (std::size_t i = 1; i < here.size(); ++i) here[i].count += here[i - 1].count;
    all.insert(all.end(), here.begin(), here.end());
  }
  std::sort(all.begin(), all.end(), [](const Step& a, const Step& b) {
    return a.time != b.time ? a.time < b.time : a.count > b.count;
  });
  Steps result;
  for (const auto& step : all) {
    if (result.empty() || step.count > result.back().count) result.push_back(step);
  }
  const auto stride = (result.size() + kMostSteps - 1) / kMostSteps;
  if (stride < 2) return result;
  Steps fewer;
  for (std::size_t i = 0; i < result.size(); i += stride) {
    fewer.push_back({result[i].time, result[std::min(i + stride, result.size()) - 1].count});
  }
  return fewer;
}

Time TimedCuts::least(const CollectivePart& part, const NodeSet& outside,
                      std::span<const NodeId> from, std::span<const NodeId> to) {
  const auto needed = need(part, from, to);
  if (needed.bytes == 0) return 0;
  // Exchanges that keep the three sets take links to links with the same times before and after them.
  std::vector<std::int32_t> label(outside.begin(), outside.end());
  for (const NodeId npu : from) label[at(npu)] |= 2;
  for (const NodeId npu : to) label[at(npu)] |= 4;
  std::vector<NodeId> same;
  if (exchanges_) same = exchanges_->classes(label);
  const auto first = [&](NodeId node) { return exchanges_ ? same[at(node)] : node; };
  std::map<std::tuple<NodeId, NodeId, Time, std::int64_t>, std::int64_t> kinds;  // of links
  for (LinkId link = 0; link < topology_.links(); ++link) {
    const NodeId tail = topology_.src(link), head = topology_.dst(link);
    if (!outside[at(tail)] || outside[at(head)]) continue;
    ++kinds[{first(tail), first(head), topology_.latency(link), topology_.bandwidth(link)}];
  }
  std::map<NodeId, Steps> sent, spread;
  std::map<Time, __int128> steeper;  // increases of the slope, in bytes per second
  for (const auto& [kind, links] : kinds) {
    const auto& [tail, head, latency, bandwidth] = kind;
    const auto [before, new_tail] = sent.try_emplace(tail);
    if (new_tail) before->second = steps(tail, from, true, needed.adds, same);
    const auto [after, new_head] = spread.try_emplace(head);
    if (new_head) after->second = steps(head, to, false, needed.copies, same);
    std::int64_t sums = 0;
    for (const auto& c : before->second) {
      std::int64_t copies = 0;
      for (const auto& r : after->second) {
        steeper[c.time + latency + r.time] +=
            static_cast<__int128>(bandwidth) * links * (c.count - sums) * (r.count - copies);
        copies = r.count;
      }
      sums = c.count;
    }
    work_ += static_cast<double>(before->second.size() * after->second.size());
  }
  work_ += static_cast<double>(topology_.links());
  const auto wanted = needed.bytes * kPicosecondsPerSecond;  // below 2^125 for 2048 members
  __int128 done = 0, slope = 0;
  Time now = 0;
  for (const auto& [bend, more] : steeper) {
    // Floating point is exact enough to tell whether the product below could overflow.
    if (static_cast<double>(done) + static_cast<double>(slope) * static_cast<double>(bend - now) >
        2 * static_cast<double>(wanted)) {
      break;
    }
    const auto then = done + slope * (bend - now);
    if (then >= wanted) break;
    done = then, now = bend, slope += more;
  }
  if (slope == 0) return 0;
  return static_cast<Time>(std::min<__int128>(now + (wanted - done) / slope, kLongestTime));
}

}  // namespace tacos
