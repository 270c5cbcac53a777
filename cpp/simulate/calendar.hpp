// A calendar queue: events grouped by the span of time in which they fall.
//
// All spans have the same length. Each of the next kSpans spans has a list; later events are kept aside until these lists are used up.
// take() returns the events of a span unsorted. After it, only events of later spans may be added.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "model/time.hpp"

namespace tacos::simulation {

template <typename Event>
class Calendar {
 public:
  // Spans are 2^length_bits ps long.
  explicit Calendar(int length_bits) : length_bits_(length_bits), spans_(kSpans) {}

  void add(Time time, const Event& event) {
    const auto span = number_of(time) - first_;
    if (span < kSpans) {
      auto& events = spans_[span];
      if (events.empty()) begin(span);
      events.push_back({time, event});
    } else {
      later_.push_back({time, event});
    }
  }

  struct Entry {
    Time time;
    Event event;
  };
  // Moves the events of the first non-empty span to `events`, in the order in which they were added. Returns false if there are none.
  bool take(std::vector<Entry>& events) {
    if (events.capacity() > 0) {
      events.clear();
      spare_.push_back(std::move(events));
      events = {};
    }
    auto span = next_used();
    if (span == kSpans) {
      if (later_.empty()) return false;
      go_on();
      span = next_used();
    }
    taken_ = first_ + span;
    used_[span / 64] &= ~(std::uint64_t{1} << span % 64);
    std::swap(events, spans_[span]);
    return true;
  }
  // The end of the span that was taken last.
  Time end() const { return static_cast<Time>((taken_ + 1) << length_bits_); }

 private:
  static constexpr std::size_t kSpans = 1024;

  std::uint64_t number_of(Time time) const {
    return static_cast<std::uint64_t>(time) >> length_bits_;
  }
  // Few spans have events at a time, so their lists share memory that is still in the cache.
  void begin(std::size_t span) {
    used_[span / 64] |= std::uint64_t{1} << span % 64;
    if (spare_.empty()) return;
    spans_[span] = std::move(spare_.back());
    spare_.pop_back();
  }
  std::size_t next_used() const {
    for (std::size_t word = 0; word < used_.size(); ++word) {
      if (used_[word] != 0) {
        return word * 64 + static_cast<std::size_t>(std::countr_zero(used_[word]));
      }
    }
    return kSpans;
  }

  // Reassigns the lists to the kSpans spans from that of the earliest event in later_ on.
  void go_on() {
    first_ = std::numeric_limits<std::uint64_t>::max();
    for (const Entry& entry : later_) first_ = std::min(first_, number_of(entry.time));
    std::vector<Entry> all;
    std::swap(all, later_);
    for (const Entry& entry : all) add(entry.time, entry.event);
  }

  const int length_bits_;
  std::uint64_t first_ = 0;  // the number of the first span that has a list
  std::uint64_t taken_ = 0;
  std::vector<std::vector<Entry>> spans_;
  std::vector<std::vector<Entry>> spare_;          // empty lists with memory
  std::array<std::uint64_t, kSpans / 64> used_{};  // bits: which lists have events
  std::vector<Entry> later_;
};

}  // namespace tacos::simulation
