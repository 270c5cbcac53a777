// How long a number of chunks takes to cross a set of parallel links.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <map>

#include "bound/demand.hpp"
#include "model/time.hpp"
#include "model/topology.hpp"

namespace tacos {

// As transmission_time(), but capped at days, which is enough for bounds.
inline Time sending_time(std::int64_t bytes, std::int64_t bandwidth) {
  const auto exact =
      (static_cast<__int128>(bytes) * kPicosecondsPerSecond + bandwidth - 1) / bandwidth;
  return static_cast<Time>(std::min<__int128>(exact, kLongestTime));
}

// Links by bandwidth and latency: real networks have a handful of kinds.
class Exits {
 public:
  // A link of a network; `around` is the least latency of its messages before and after it.
  void add(const Topology& topology, LinkId link, Time around) {
    const auto bandwidth = topology.bandwidth(link);
    const Time latency = topology.latency(link);
    // Between switches, a chunk may divide over several links.
    whole_ = whole_ && (topology.is_npu(topology.src(link)) || topology.is_npu(topology.dst(link)));
    ++links_;
    bandwidth_ += bandwidth;
    ++kinds_[{latency + around, latency, bandwidth}];
  }
  std::int64_t links() const { return links_; }
  // Whether every chunk crosses one of the links as a whole.
  bool whole_chunks() const { return whole_; }
  __int128 bandwidth_Bps() const { return bandwidth_; }
  void repeat(std::int64_t times) {
    for (auto& [kind, count] : kinds_) count *= times;
    links_ *= times;
    bandwidth_ *= times;
  }

  // The least T with Σ bandwidth·(T - under way) = bytes, over the links whose messages are under way for less than T.
  Time fluid(__int128 bytes) const {
    __int128 sum = 0, head_start = 0;  // Σ bandwidth, Σ bandwidth·latency
    const __int128 amount = std::min(bytes, kMost) * kPicosecondsPerSecond;
    Time best = kLongestSchedule;
    for (const auto& [kind, count] : kinds_) {  // by time under way
      if (sum > 0 && kind.under_way >= best) break;
      const auto share = static_cast<__int128>(kind.bandwidth) * count;
      sum += share;
      // Latencies of days would overflow; a smaller value is still a bound.
      head_start += share * std::min(kind.under_way, kLongestLatency);
      best = std::min(best, static_cast<Time>(
                                std::min<__int128>((amount + head_start) / sum, kLongestSchedule)));
    }
    return best;
  }

  // The least T in which `chunks` whole chunks of at least `bytes` fit.
  Time whole(std::int64_t chunks, std::int64_t bytes, LinkModel model, Time from) const {
    const auto fits = [&](Time time) {
      __int128 sum = 0;
      for (const auto& [kind, count] : kinds_) {
        const Time send = sending_time(bytes, kind.bandwidth);
        const Time busy = model == LinkModel::blocking ? send + kind.latency : send;
        const Time spare =
            time - (model == LinkModel::blocking ? kind.under_way - kind.latency : kind.under_way);
        if (spare > 0) sum += static_cast<__int128>(spare / busy) * count;
      }
      return sum >= chunks;
    };
    Time low = from, high = std::max<Time>(from, 1);
    if (fits(low)) return low;  // from here on, low does not fit
    while (!fits(high)) {
      if (high >= kLongestSchedule / 2) return high;
      low = high;
      high *= 2;
    }
    while (high - low > 1) {
      const Time middle = low + (high - low) / 2;
      (fits(middle) ? high : low) = middle;
    }
    return high;
  }

 private:
  static constexpr Time kLongestLatency = Time{1} << 43;  // 9 s
  static constexpr __int128 kMost = static_cast<__int128>(1) << 85;
  struct Kind {
    Time under_way;  // from a node that sends to one that can use the message
    Time latency;    // of the link
    std::int64_t bandwidth;
    auto operator<=>(const Kind&) const = default;
  };
  std::map<Kind, std::int64_t> kinds_;  // how many of each
  std::int64_t links_ = 0;
  __int128 bandwidth_ = 0;
  bool whole_ = true;
};

// The least time, at least `from`, in which whole chunks can cross: for up to 16 sizes, all chunks of at least
// that size must fit.
inline Time whole_chunks(const Crossing& crossing, const Exits& exits, LinkModel model, Time from) {
  if (!exits.whole_chunks()) return from;
  const std::size_t stride = std::max<std::size_t>(crossing.chunks.size() / 16, 1);
  std::int64_t count = 0;
  std::size_t i = crossing.chunks.size();
  for (auto size = crossing.chunks.rbegin(); size != crossing.chunks.rend(); ++size) {
    count += size->second;
    if (--i % stride == 0) from = exits.whole(count, size->first, model, from);
  }
  return from;
}

}  // namespace tacos
