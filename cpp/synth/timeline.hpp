// The busy times of a link.
#pragma once

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "model/time.hpp"

namespace tacos {

// The times in which a link is busy, as maximal intervals in order.
class Timeline {
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
    auto i = std::lower_bound(
        intervals_.begin(), intervals_.end(), begin + busy,
        [](const Interval& interval, Time moment) { return interval.begin < moment; });
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
  static bool ends_by(const Interval& interval, Time moment) { return interval.end <= moment; }
  std::vector<Interval>::iterator after(Time moment) {
    return std::lower_bound(intervals_.begin(), intervals_.end(), moment, ends_by);
  }
  std::vector<Interval>::const_iterator after(Time moment) const {
    return std::lower_bound(intervals_.begin(), intervals_.end(), moment, ends_by);
  }

  std::vector<Interval> intervals_;
};

}  // namespace tacos
