#include "formats/steps.hpp"

#include <algorithm>
#include <numeric>

#include "support/index.hpp"

namespace tacos {

namespace {

template <typename T>
Column<T> in_order(const std::vector<T>& values, const std::vector<std::size_t>& order) {
  std::vector<T> found(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) found[i] = values[order[i]];
  return found;
}

}  // namespace

std::int64_t Steps::add(StepOp what, ThreadId of, Buffer src, std::int32_t from, Buffer dst,
                        std::int32_t to, std::int32_t slots, NodeId with) {
  op.push_back(static_cast<std::uint8_t>(what));
  thread.push_back(of);
  src_buffer.push_back(static_cast<std::uint8_t>(src));
  src_slot.push_back(has_src(what) ? from : -1);
  dst_buffer.push_back(static_cast<std::uint8_t>(dst));
  dst_slot.push_back(has_dst(what) ? to : -1);
  count.push_back(slots);
  peer.push_back(with);
  comes_from.push_back(-1);
  return static_cast<std::int64_t>(op.size()) - 1;
}

ProgramSpec arranged(Steps steps, const Threads& threads) {
  const auto size = steps.op.size(), thread_count = threads.rank.size();
  std::vector<std::size_t> by_rank(thread_count), thread_place(thread_count);
  std::iota(by_rank.begin(), by_rank.end(), std::size_t{0});
  std::stable_sort(by_rank.begin(), by_rank.end(),
                   [&](std::size_t a, std::size_t b) { return threads.rank[a] < threads.rank[b]; });
  for (std::size_t t = 0; t < thread_count; ++t) thread_place[by_rank[t]] = t;

  std::vector<std::int64_t> begin(thread_count + 1, 0);
  for (const auto thread : steps.thread) ++begin[thread_place[at(thread)] + 1];
  for (std::size_t t = 0; t < thread_count; ++t) begin[t + 1] += begin[t];
  std::vector<std::int64_t> place(size);
  std::vector<std::size_t> order(size);
  auto next = begin;
  for (std::size_t i = 0; i < size; ++i) {
    place[i] = next[thread_place[at(steps.thread[i])]]++;
    order[at(place[i])] = i;
  }
  std::vector<StepId> comes_from(size, -1), deps;
  for (std::size_t i = 0; i < size; ++i) {
    if (steps.comes_from[i] >= 0) {
      comes_from[at(place[i])] = static_cast<StepId>(place[at(steps.comes_from[i])]);
    }
  }
  for (auto& [mine, before] : steps.waits) {
    mine = place[at(mine)];
    before = place[at(before)];
  }
  std::sort(steps.waits.begin(), steps.waits.end());
  steps.waits.erase(std::unique(steps.waits.begin(), steps.waits.end()), steps.waits.end());
  std::vector<std::int64_t> dep_begin{0};
  auto wait = steps.waits.begin();
  for (std::size_t i = 0; i < size; ++i) {
    // The order of the thread already implies this dependency.
    const bool begins =
        begin[thread_place[at(steps.thread[order[i]])]] == static_cast<std::int64_t>(i);
    for (; wait != steps.waits.end() && at(wait->first) == i; ++wait) {
      if (begins || at(wait->second) + 1 != i) deps.push_back(static_cast<StepId>(wait->second));
    }
    dep_begin.push_back(static_cast<std::int64_t>(deps.size()));
  }
  ProgramSpec spec;
  spec.thread_rank = in_order(threads.rank, by_rank);
  spec.thread_channel = in_order(threads.channel, by_rank);
  spec.thread_send_peer = in_order(threads.send_peer, by_rank);
  spec.thread_recv_peer = in_order(threads.recv_peer, by_rank);
  spec.thread_begin = std::move(begin);
  spec.op = in_order(steps.op, order);
  spec.src_buffer = in_order(steps.src_buffer, order);
  spec.dst_buffer = in_order(steps.dst_buffer, order);
  spec.src_slot = in_order(steps.src_slot, order);
  spec.dst_slot = in_order(steps.dst_slot, order);
  spec.count = in_order(steps.count, order);
  spec.peer = in_order(steps.peer, order);
  spec.comes_from = std::move(comes_from);
  spec.dep_begin = std::move(dep_begin);
  spec.dep = std::move(deps);
  return spec;
}

}  // namespace tacos
