#include "hub/aggregate.hpp"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <thread>

#include "hub/job.hpp"
#include "support/error.hpp"

namespace tacos::hub {

namespace {

struct Work {
  Cut parts;
  Region weights, sums, momentum;
  std::vector<Region> gradients;
  ParameterGroup group;
  std::uint64_t number = 1;

  void sum(std::size_t worker, std::int64_t begin, std::size_t count) const {
    take(sums.floats() + begin, gradients[worker].floats() + begin, Wire::float32, count,
         worker == 0);
  }
  void optimize(const float* from, std::int64_t begin, std::size_t count) const {
    Update how;
    how.group = &group;
    how.lr = group.lr;
    how.number = number;
    how.divisor = static_cast<float>(gradients.size());
    update(how, weights.floats() + begin, from, {momentum.floats() + begin}, count);
  }
};

void tall_round(const Work& work, std::int32_t thread) {
  std::vector<const float*> parts(work.gradients.size());
  std::vector<float> sums(kChunkElements);
  for (const auto& chunk : work.parts.chunks) {
    if (chunk.core != thread) continue;
    const auto count = static_cast<std::size_t>(chunk.count);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      parts[i] = work.gradients[i].floats() + chunk.offset;
    }
    take_all(sums.data(), parts, count);
    work.optimize(sums.data(), chunk.offset, count);
  }
}

void wide_round(const Work& work, std::int32_t thread, std::int32_t threads, std::barrier<>& all) {
  const auto& first = work.parts.first_chunk;
  for (std::size_t key = 0; key + 1 < first.size(); ++key) {
    const auto& begin = work.parts.chunks[static_cast<std::size_t>(first[key])];
    const auto& end = work.parts.chunks[static_cast<std::size_t>(first[key + 1]) - 1];
    const auto whole = (end.offset + room(end.count) - begin.offset) / kPad;
    const auto from = begin.offset + whole * thread / threads * kPad;
    const auto to = begin.offset + whole * (thread + 1) / threads * kPad;
    const auto count = static_cast<std::size_t>(to - from);
    for (std::size_t i = 0; i < work.gradients.size(); ++i) {
      work.sum(i, from, count);
      all.arrive_and_wait();
    }
    work.optimize(work.sums.floats() + from, from, count);
    all.arrive_and_wait();
  }
}

}  // namespace

double aggregate(bool tall, std::int32_t threads, std::int32_t workers,
                 const std::vector<std::int64_t>& sizes, std::int32_t rounds) {
  if (workers < 1 || rounds < 1) invalid("workers and rounds must be at least 1");
  Work work;
  work.parts = cut(sizes, threads);
  const auto bytes = static_cast<std::size_t>(work.parts.elements) * sizeof(float);
  work.weights = Region(bytes);
  work.sums = Region(bytes);
  work.momentum = Region(bytes);
  work.group.lr = 0.1;
  work.group.momentum = 0.9;
  work.group.nesterov = true;
  for (std::int32_t i = 0; i < workers; ++i) work.gradients.emplace_back(bytes);
  std::barrier<> all(threads);
  std::chrono::steady_clock::time_point begin, end;
  const auto run = [&](std::int32_t thread) {
    // Write the pages: pages that are only read would all map to one page of zeros.
    for (const auto& chunk : work.parts.chunks) {
      if (chunk.core != thread) continue;
      for (const auto& each : work.gradients) {
        std::fill_n(each.floats() + chunk.offset, room(chunk.count), 1.0F);
      }
    }
    for (std::int32_t round = 0; round <= rounds; ++round) {
      all.arrive_and_wait();
      if (thread == 0 && round == 1) begin = std::chrono::steady_clock::now();
      if (thread == 0) work.number = static_cast<std::uint64_t>(round) + 1;
      all.arrive_and_wait();
      tall ? tall_round(work, thread) : wide_round(work, thread, threads, all);
    }
    all.arrive_and_wait();
    if (thread == 0) end = std::chrono::steady_clock::now();
  };
  std::vector<std::thread> pool;
  for (std::int32_t thread = 1; thread < threads; ++thread) pool.emplace_back(run, thread);
  run(0);
  for (auto& thread : pool) thread.join();
  return std::chrono::duration<double>(end - begin).count() / rounds;
}

}  // namespace tacos::hub
