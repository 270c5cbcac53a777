// The event queue of ASTRA-sim's analytical backends: moments in whole nanoseconds, each with its events in the order
// in which they were scheduled. An event that is added to the current moment runs last in it.
//
// Ranks in lockstep have many events at one moment, so moments are looked up in a hash table and only
// distinct times are in a heap.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <vector>

namespace tacos::astra {

template <typename Event>
class EventQueue {
 public:
  bool empty() const { return heap_.empty(); }

  void add(std::int64_t time, const Event& event) { moment(time).events.push_back(event); }

  // Runs the earliest moment: `visit` is called with each event, and may add further ones.
  template <typename Visit>
  void run_next(const Visit& visit) {
    const auto time = heap_.front();
    const auto number = *find(time);
    for (std::size_t i = 0; i < moments_[number].events.size(); ++i) {
      const Event event = moments_[number].events[i];  // a copy: the moments may move
      visit(event);
    }
    moments_[number].events.clear();
    erase(time);
    free_.push_back(number);
    // Events are never added to the past, so the moment that ran is still the earliest.
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    heap_.pop_back();
  }

  std::int64_t next_time() const { return heap_.front(); }

 private:
  static constexpr std::uint32_t kNone = 0xffffffff;
  struct Moment {
    std::vector<Event> events;
  };
  struct Slot {
    std::int64_t time = 0;
    std::uint32_t moment = kNone;
  };

  std::size_t home(std::int64_t time) const {
    const auto mixed = static_cast<std::uint64_t>(time) * 0x9e3779b97f4a7c15;
    return static_cast<std::size_t>(mixed >> 32) & (slots_.size() - 1);
  }

  const std::uint32_t* find(std::int64_t time) const {
    for (auto at = home(time);; at = (at + 1) & (slots_.size() - 1)) {
      if (slots_[at].moment == kNone) return nullptr;
      if (slots_[at].time == time) return &slots_[at].moment;
    }
  }

  Moment& moment(std::int64_t time) {
    for (const auto& slot : recent_) {
      if (slot.time == time && slot.moment != kNone) return moments_[slot.moment];
    }
    const auto* found = find(time);
    const auto number = found != nullptr ? *found : added(time);
    recent_[turn_ ^= 1] = {time, number};
    return moments_[number];
  }

  std::uint32_t added(std::int64_t time) {
    if (2 * (heap_.size() + 1) > slots_.size()) grow();
    std::uint32_t number = 0;
    if (free_.empty()) {
      number = static_cast<std::uint32_t>(moments_.size());
      moments_.emplace_back();
    } else {
      number = free_.back();
      free_.pop_back();
    }
    put({time, number});
    heap_.push_back(time);
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
    return number;
  }

  void put(const Slot& slot) {
    auto at = home(slot.time);
    while (slots_[at].moment != kNone) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = slot;
  }

  void grow() {
    std::vector<Slot> old(2 * slots_.size());
    old.swap(slots_);
    for (const auto& slot : old) {
      if (slot.moment != kNone) put(slot);
    }
  }

  // Closes the gap, so that later entries of the same probe sequence are still found.
  void erase(std::int64_t time) {
    const auto mask = slots_.size() - 1;
    auto gap = home(time);
    while (slots_[gap].time != time || slots_[gap].moment == kNone) gap = (gap + 1) & mask;
    for (auto at = (gap + 1) & mask; slots_[at].moment != kNone; at = (at + 1) & mask) {
      if (((at - home(slots_[at].time)) & mask) >= ((at - gap) & mask)) {
        slots_[gap] = slots_[at];
        gap = at;
      }
    }
    slots_[gap].moment = kNone;
    for (auto& slot : recent_) {
      if (slot.time == time) slot.moment = kNone;
    }
  }

  std::vector<Slot> slots_ = std::vector<Slot>(64);
  std::array<Slot, 2> recent_{};  // the last moments that events were added to
  std::size_t turn_ = 0;
  std::vector<Moment> moments_;
  std::vector<std::uint32_t> free_;
  std::vector<std::int64_t> heap_;  // distinct times, the earliest first
};

}  // namespace tacos::astra
