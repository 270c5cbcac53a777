// The violations of a schedule, collected from several threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "support/index.hpp"
#include "verify/verify.hpp"

namespace tacos::verification {

inline std::string microseconds(Time time) {
  const auto thousandths = std::to_string(time % 1'000'000 / 1000);
  return std::to_string(time / 1'000'000) + "." + std::string(3 - thousandths.size(), '0') +
         thousandths + " us";
}

// Collects violations from several threads and keeps the first ones in a fixed order.
class Findings {
 public:
  explicit Findings(std::int64_t limit) : limit_(limit) {}

  void add(Violation violation) {
    const std::scoped_lock lock(mutex_);
    ++found_;
    kept_.push_back(std::move(violation));
    if (static_cast<std::int64_t>(kept_.size()) > 2 * limit_ + 1024) shrink();
  }

  bool none() {
    const std::scoped_lock lock(mutex_);
    return found_ == 0;
  }

  // Two NPUs end with sums of a chunk in different orders; the lowest chunk is kept.
  void differ(ChunkId chunk, const std::string& message) {
    const std::scoped_lock lock(mutex_);
    if (!difference_.empty() && chunk >= different_) return;
    different_ = chunk;
    difference_ = message;
  }

  VerifyReport report(std::int64_t checked, bool compared) {
    shrink();
    return {checked, found_, std::move(kept_), compared && difference_.empty(), difference_};
  }

 private:
  void shrink() {
    std::sort(kept_.begin(), kept_.end(), [](const Violation& a, const Violation& b) {
      return std::tie(a.rule, a.transfer, a.chunk, a.time, a.link, a.message) <
             std::tie(b.rule, b.transfer, b.chunk, b.time, b.link, b.message);
    });
    if (static_cast<std::int64_t>(kept_.size()) > limit_) kept_.resize(at(limit_));
  }

  std::int64_t limit_;
  std::int64_t found_ = 0;
  std::vector<Violation> kept_;
  ChunkId different_ = 0;
  std::string difference_;
  std::mutex mutex_;
};

}  // namespace tacos::verification
