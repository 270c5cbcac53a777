// Data structures of the event loop in service.hpp: queues of waiting legs, and the agenda of events.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "model/topology.hpp"
#include "support/fetch_ahead.hpp"

namespace tacos::service {

using Item = std::uint32_t;  // a transfer's position in the list
using Leg = std::uint32_t;
using Place = std::uint32_t;  // a leg of a route, counted over all routes
constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

// A waiting leg, ordered by (ready time, position). Moments are numbered in order of time, so the leg
// that is ready first has the lower number.
struct Waiting {
  std::uint32_t moment;  // when it became ready; kNone: the moment at which it is tried
  Item item;
  Place place;
  std::uint64_t key() const { return std::uint64_t{moment} << 32 | item; }
  bool operator<(const Waiting& other) const { return key() < other.key(); }
  bool operator>(const Waiting& other) const { return other < *this; }
};

// A leg that may be able to start.
struct Try {
  Waiting who;
  std::uint32_t queue;  // the queue it heads, or kNone
  std::uint32_t call;   // number of the call of that queue's head; only the last call is valid

  bool operator<(const Try& other) const { return who < other.who; }
  bool operator>(const Try& other) const { return other < *this; }
};

// Keys of the legs that wait for the same links. Legs mostly come in the order in which they leave, so a
// sorted list is cheaper than a heap, which touches memory in many places.
class Line {
 public:
  bool empty() const { return first_ == keys_.size(); }
  std::uint64_t top() const { return keys_[first_]; }
  void prefetch() const { fetch_ahead(keys_.data() + first_ + 1); }
  // Returns whether `key` is now the first.
  bool push(std::uint64_t key) {
    keys_.push_back(key);
    auto i = keys_.size() - 1;
    for (; i > first_ && keys_[i - 1] > keys_[i]; --i) std::swap(keys_[i - 1], keys_[i]);
    return i == first_;
  }
  void pop() {
    if (++first_ < 64 || 2 * first_ < keys_.size()) return;
    keys_.erase(keys_.begin(), keys_.begin() + static_cast<std::ptrdiff_t>(first_));
    first_ = 0;
  }

 private:
  std::vector<std::uint64_t> keys_;
  std::size_t first_ = 0;
};

// Heads of lines that wait for the same link, which all reach at the same offset. Mostly there is one.
struct Queue {
  LinkId link;
  std::uint32_t calls;
  Time offset;
  Waiting head{kNone, kNone, kNone};
  std::vector<Waiting> rest{};  // a heap

  bool empty() const { return head.item == kNone; }
  void push(Waiting who) {
    if (empty()) {
      head = who;
      return;
    }
    if (who < head) std::swap(who, head);
    rest.push_back(who);
    std::push_heap(rest.begin(), rest.end(), std::greater<>());
  }
  void pop() {
    if (rest.empty()) {
      head.item = kNone;
      return;
    }
    std::pop_heap(rest.begin(), rest.end(), std::greater<>());
    head = rest.back();
    rest.pop_back();
  }
};

// Sorts distinct numbers that mostly lie close together, such as the transfers of one moment.
class Sorter {
 public:
  void sort(std::vector<std::uint64_t>& numbers) {
    if (std::is_sorted(numbers.begin(), numbers.end())) return;
    const auto [low, high] = std::minmax_element(numbers.begin(), numbers.end());
    const auto least = *low, range = *high - *low;
    if (range / 64 > numbers.size()) {
      std::sort(numbers.begin(), numbers.end());
      return;
    }
    bits_.assign(range / 64 + 1, 0);
    for (const auto number : numbers)
      bits_[(number - least) / 64] |= std::uint64_t{1} << (number - least) % 64;
    auto next = numbers.begin();
    for (std::size_t word = 0; word < bits_.size(); ++word) {
      for (auto bits = bits_[word]; bits != 0; bits &= bits - 1) {
        *next++ = least + word * 64 + static_cast<std::uint64_t>(std::countr_zero(bits));
      }
    }
  }

 private:
  std::vector<std::uint64_t> bits_;
};

// The arrival of a leg. For the last leg, `leg` is its number plus the number of the destination.
struct Arrival {
  Item item;
  Leg leg;
};

// Events by time. Regular networks have many events at one moment, so the events of a moment form a list, and a heap orders the
// lists. A small table finds recently used lists by time; after a collision in it, a moment gets another list, which take() merges.
class Agenda {
 public:
  struct Moment {
    Time time = 0;
    std::vector<Arrival> arrivals;
    std::vector<Try> tries;
  };

  void add(Time time, const Arrival& arrival) { at_time(time).arrivals.push_back(arrival); }
  void add(Time time, const Try& attempt) { at_time(time).tries.push_back(attempt); }
  bool empty() const { return order_.empty(); }
  Time next() const { return order_.front().time; }  // the time of the earliest moment

  // Moves the earliest moment to `moment`, whose memory is reused.
  void take(Moment& moment) {
    const Time time = order_.front().time;
    moment.arrivals.clear();
    moment.tries.clear();
    std::swap(moment, moments_[take_first()]);
    while (!order_.empty() && order_.front().time == time) {
      Moment& more = moments_[take_first()];
      moment.arrivals.insert(moment.arrivals.end(), more.arrivals.begin(), more.arrivals.end());
      moment.tries.insert(moment.tries.end(), more.tries.begin(), more.tries.end());
      more.arrivals.clear();
      more.tries.clear();
    }
    if (Known& known = known_[place(time)]; known.time == time) known.time = -1;
  }

  // Calls visit(item) for items whose events probably come soon.
  template <typename Visit>
  void look_ahead(const Visit& visit) const {
    const auto count = std::min<std::size_t>(order_.size(), 7);
    for (std::size_t i = 0; i < count; ++i) {
      const Moment& moment = moments_[order_[i].slot];
      if (i >= 3) {
        fetch_ahead(&moment);
      } else if (!moment.arrivals.empty()) {
        visit(moment.arrivals[0].item);
      }
    }
  }

 private:
  using Slot = std::uint32_t;
  struct Entry {
    Time time;
    std::uint64_t number;  // of the list, in order of creation
    Slot slot;
    bool operator>(const Entry& other) const {
      return time != other.time ? time > other.time : number > other.number;
    }
  };
  struct Known {
    Time time = -1;
    Slot slot = 0;
  };

  static std::size_t place(Time time) {
    return static_cast<std::uint64_t>(time) * 0x9e3779b97f4a7c15 >> 56;
  }

  Moment& at_time(Time time) {
    Known& known = known_[place(time)];
    if (known.time == time) return moments_[known.slot];
    if (spare_.empty()) {
      spare_.push_back(static_cast<Slot>(moments_.size()));
      moments_.emplace_back();
    }
    known = {time, spare_.back()};
    spare_.pop_back();
    moments_[known.slot].time = time;
    order_.push_back({time, number_++, known.slot});
    std::push_heap(order_.begin(), order_.end(), std::greater<>());
    return moments_[known.slot];
  }

  Slot take_first() {
    std::pop_heap(order_.begin(), order_.end(), std::greater<>());
    const Slot slot = order_.back().slot;
    order_.pop_back();
    spare_.push_back(slot);
    return slot;
  }

  std::vector<Moment> moments_;
  std::vector<Slot> spare_;
  std::array<Known, 256> known_{};
  std::vector<Entry> order_;  // a heap
  std::uint64_t number_ = 0;
};

}  // namespace tacos::service
