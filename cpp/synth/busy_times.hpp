// The busy times of a link.
#pragma once

#include <cstddef>
#include <iterator>
#include <utility>
#include <vector>

#include "model/time.hpp"

namespace tacos {

// The times in which a link is busy, as maximal intervals in order.
class BusyTimes {
 public:
  // The first moment from `begin` on at which the link is free for `busy`.
  Time next_free(Time begin, Time busy) const {
    for (auto i = after(begin); i != intervals_.end() && i->begin < begin + busy; ++i) {
      begin = i->end;
    }
    return begin;
  }

  // The last moment up to `begin` from which on the link is free for `busy`; it may be negative.
  Time last_free(Time begin, Time busy) const {
    auto i = intervals_.begin() +
             first([&](const Interval& interval) { return interval.begin < begin + busy; });
    while (i != intervals_.begin() && (--i)->end > begin) begin = i->begin - busy;
    return begin;
  }

  void take(Time begin, Time end) {
    const auto next = after(begin);  // the first that ends later than `begin`
    const bool meets_next = next != intervals_.end() && next->begin == end;
    const bool meets_last = next != intervals_.begin() && std::prev(next)->end == begin;
    if (meets_last && meets_next) {
      std::prev(next)->end = next->end;
      intervals_.erase(next);
    } else if (meets_last) {
      std::prev(next)->end = end;
    } else if (meets_next) {
      next->begin = begin;
    } else {
      intervals_.insert(next, {begin, end});
    }
  }

  void give_back(Time begin, Time end) {
    const auto whole = after(begin);
    if (whole->begin == begin && whole->end == end) {
      intervals_.erase(whole);
    } else if (whole->begin == begin) {
      whole->begin = end;
    } else if (whole->end == end) {
      whole->end = begin;
    } else {
      const Time rest = std::exchange(whole->end, begin);
      intervals_.insert(std::next(whole), {end, rest});
    }
  }

 private:
  struct Interval {
    Time begin, end;
  };
  // The position of the first interval that is not `before`; those that are come first. The compiler makes this free of
  // branches, which could not be predicted.
  template <typename Before>
  std::ptrdiff_t first(const Before& before) const {
    std::size_t begin = 0, left = intervals_.size();
    while (left > 0) {
      const std::size_t half = left - left / 2;
      begin += before(intervals_[begin + half - 1]) ? half : 0;
      left -= half;
    }
    return static_cast<std::ptrdiff_t>(begin);
  }
  std::ptrdiff_t position_after(Time moment) const {
    return first([&](const Interval& interval) { return interval.end <= moment; });
  }
  std::vector<Interval>::iterator after(Time moment) {
    return intervals_.begin() + position_after(moment);
  }
  std::vector<Interval>::const_iterator after(Time moment) const {
    return intervals_.begin() + position_after(moment);
  }

  std::vector<Interval> intervals_;
};

}  // namespace tacos
