// Loops on several threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "support/progress.hpp"

namespace tacos {

// Runs work(i) for all i < count on several threads, `grain` at a time; the caller's thread reports
// progress from `from` to `to`.
inline void parallel(std::size_t count, std::size_t grain, std::int32_t threads,
                     const Progress& progress, double from, double to,
                     const std::function<void(std::size_t, std::int32_t)>& work) {
  std::atomic<std::size_t> next{0};
  std::atomic<bool> stop{false};
  std::exception_ptr failure;
  std::mutex mutex;
  const auto loop = [&](std::int32_t thread) {
    try {
      for (auto begin = next.fetch_add(grain); begin < count && !stop;
           begin = next.fetch_add(grain)) {
        for (auto i = begin; i < std::min(count, begin + grain); ++i) work(i, thread);
        if (thread == 0 && progress) {
          progress(from + (to - from) * static_cast<double>(begin) / static_cast<double>(count));
        }
      }
    } catch (...) {
      const std::scoped_lock lock(mutex);
      failure = std::current_exception();
      stop = true;
    }
  };
  std::vector<std::jthread> others;
  for (std::int32_t thread = 1; thread < threads; ++thread) others.emplace_back(loop, thread);
  loop(0);
  others.clear();  // joins
  if (failure) std::rethrow_exception(failure);
}

inline std::int32_t usable_threads(std::int32_t wanted) {
  const auto cores = std::max(1, static_cast<std::int32_t>(std::thread::hardware_concurrency()));
  return wanted > 0 ? std::min(wanted, 8 * cores) : cores;
}

}  // namespace tacos
