// The transfers that wait for a link in a run that goes in rounds.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "model/time.hpp"
#include "support/fetch_ahead.hpp"

namespace tacos::service {

// `Waiting` has operator<: by ready time, then by position. What becomes ready in a round comes after what was ready before it.
template <typename Waiting>
class LinkQueue {
 public:
  Time free = 0;        // when the link is free
  bool active = false;  // whether it is to be served in this round
  bool called = false;  // whether an event waits for when it is free

  bool empty() const { return waiting_.empty(); }
  const Waiting& front() const { return waiting_[first_]; }
  void prefetch_front() const { fetch_ahead(waiting_.data() + first_); }
  void prefetch_end() const { fetch_ahead(waiting_.data() + waiting_.size()); }

  // Within a round, in any order; sort() comes before front().
  void push(const Waiting& waiting) { waiting_.push_back(waiting); }
  void sort() {
    const auto fresh = waiting_.begin() + static_cast<std::ptrdiff_t>(sorted_);
    if (waiting_.end() - fresh > kFew) {
      std::sort(fresh, waiting_.end());
    } else {
      for (auto i = fresh; i < waiting_.end(); ++i) {
        for (auto j = i; j > fresh && *j < *(j - 1); --j) std::swap(*j, *(j - 1));
      }
    }
    sorted_ = waiting_.size();
  }
  void pop() {
    if (++first_ == waiting_.size()) {
      waiting_.clear();
      first_ = sorted_ = 0;
    } else if (first_ >= 16 && 2 * first_ >= waiting_.size()) {
      waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(first_));
      sorted_ -= first_;
      first_ = 0;
    }
  }

 private:
  static constexpr std::ptrdiff_t kFew = 8;  // to sort by insertion (chosen)
  std::vector<Waiting> waiting_;
  std::size_t first_ = 0, sorted_ = 0;  // what leaves next, and the end of what is sorted
};

}  // namespace tacos::service
