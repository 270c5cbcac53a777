// What long work tells its caller, and how much work it may do.
//
// Work reports the share that it has done, and counts what it does. Both may throw: a report on Ctrl-C or at a deadline, a
// count when an allowance is used up. Either ends the work.
//
// Counts are in units of about a nanosecond of one core, by the rates of work.hpp. A count is a function of the problem alone:
// the same on any machine and for any number of threads. So threads count for themselves, and the caller's thread spends the
// sum where the order of threads cannot matter. Work is spent in batches, such as a round or a search, never link by link.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <utility>

#include "support/error.hpp"

namespace tacos {

// The caller of some work: where reports go, and the counter of its work.
class Caller {
 public:
  using Report = std::function<void(double share)>;
  static constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

  Caller(Report report, std::int64_t limit) : report_(std::move(report)), limit_(limit) {}

  void report(double share) {
    told_ = share;
    if (report_) report_(share);
  }

  // Adds to the counter. Reports the last share again from time to time, so that the caller can end work that reports
  // no progress of its own.
  void spend(double units) {
    const auto more = static_cast<std::int64_t>(units);
    const auto used = used_.load(std::memory_order_relaxed) + more;
    used_.store(used, std::memory_order_relaxed);
    if (used > limit_) throw WorkIsUp();
    unreported_ += more;
    if (unreported_ < kOften) return;
    unreported_ = 0;
    report(told_);
  }

  // Adds work that is still to be done, if the limit allows it; otherwise adds nothing.
  void reserve(double units) {
    wanted_ = used() + static_cast<std::int64_t>(units);
    if (wanted_ > limit_) throw WorkIsUp();
    used_.store(wanted_, std::memory_order_relaxed);
  }

  // The work is known to need at least this much: more than the limit if it ended the work.
  std::int64_t wanted() const { return std::max(wanted_, used()); }
  std::int64_t used() const { return used_.load(std::memory_order_relaxed); }
  std::int64_t limit() const { return limit_; }

 private:
  static constexpr std::int64_t kOften = 1'000'000;  // units, about a millisecond (chosen)

  Report report_;
  const std::int64_t limit_;
  std::atomic<std::int64_t> used_{0};  // written by one thread at a time, read by any
  std::int64_t unreported_ = 0;
  std::int64_t wanted_ = 0;
  double told_ = 0;
};

// A part of a caller's work. A default-constructed one reports nothing and counts nothing.
class Progress {
 public:
  Progress() = default;
  explicit Progress(std::shared_ptr<Caller> caller) : caller_(std::move(caller)) {}
  // Reports only.
  explicit Progress(Caller::Report report)
      : caller_(std::make_shared<Caller>(std::move(report), Caller::kNoLimit)) {}

  explicit operator bool() const { return caller_ != nullptr; }

  // Reports the share of this part that is done.
  void operator()(double share) const {
    if (caller_) caller_->report(begin_ + (end_ - begin_) * share);
  }

  // Counts work; `units` is a number of things times its rate in work.hpp. Throws WorkIsUp beyond the limit.
  void spend(double units) const {
    if (caller_) caller_->spend(units);
  }

  // Counts work that is still to be done and whose amount is known. Throws WorkIsUp, and counts nothing, if the limit forbids it.
  void reserve(double units) const {
    if (caller_) caller_->reserve(units);
  }

  // The part from `begin` to `end` of this one, with the same counter.
  Progress part(double begin, double end) const {
    Progress result = *this;
    result.begin_ = begin_ + (end_ - begin_) * begin;
    result.end_ = begin_ + (end_ - begin_) * end;
    return result;
  }

 private:
  std::shared_ptr<Caller> caller_;
  double begin_ = 0, end_ = 1;
};

inline Progress part_of(const Progress& whole, double begin, double end) {
  return whole.part(begin, end);
}

}  // namespace tacos
