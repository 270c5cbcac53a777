// The columns of a program, rank by rank and thread by thread.
#pragma once

#include <algorithm>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lowering/moves.hpp"
#include "model/program.hpp"
#include "support/index.hpp"

namespace tacos {

class ProgramBuilder {
 public:
  struct Step {
    StepOp op = StepOp::nop;
    Buffer src_buffer = Buffer::none, dst_buffer = Buffer::none;
    std::int32_t src_slot = -1, dst_slot = -1, count = 1;
    Move* message = nullptr;
    std::size_t after_begin =
        0;                   // where its list in Steps::after begins; the next step's list follows
    std::size_t thread = 0;  // position among the rank's threads
  };
  struct Thread {
    NodeId send_peer = -1, recv_peer = -1;
    std::int32_t channel = 0;
    auto operator<=>(const Thread&) const = default;
  };

  // The steps of a rank, in order of time, and what each waits for: positions among them.
  struct Steps {
    std::vector<Step> steps;
    std::vector<std::size_t> after;

    std::span<const std::size_t> after_of(std::size_t i) const {
      const auto end = i + 1 < steps.size() ? steps[i + 1].after_begin : after.size();
      return std::span(after).subspan(steps[i].after_begin, end - steps[i].after_begin);
    }
  };

  explicit ProgramBuilder(std::int32_t ranks) : scratch_(at(ranks), 0) {
    thread_begin_.push_back(0);
  }

  // Threads are numbered in the order of their keys.
  void add_rank(NodeId rank, const std::vector<Thread>& threads, const Steps& mine,
                std::int32_t scratch) {
    scratch_[at(rank)] = scratch;
    const auto count = mine.steps.size();
    std::vector<std::size_t> begin(threads.size() + 1, 0), row(count);  // of each thread
    for (const Step& step : mine.steps) ++begin[step.thread + 1];
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    std::vector<StepId> id(count);
    const auto first = op_.size();
    auto next = begin;
    for (std::size_t i = 0; i < count; ++i) {
      const auto place = next[mine.steps[i].thread]++;
      row[place] = i;
      id[i] = static_cast<StepId>(first + place);
    }
    for (std::size_t t = 0; t < threads.size(); ++t) {
      if (begin[t] == begin[t + 1]) continue;
      thread_rank_.push_back(rank);
      thread_channel_.push_back(threads[t].channel);
      thread_send_peer_.push_back(threads[t].send_peer);
      thread_recv_peer_.push_back(threads[t].recv_peer);
      for (auto i = begin[t]; i < begin[t + 1]; ++i) add_step(mine, row[i], id);
      thread_begin_.push_back(static_cast<std::int64_t>(op_.size()));
    }
  }

  Program finish(std::shared_ptr<const Collective> collective, bool in_place,
                 const Schedule& schedule, std::int32_t window) {
    std::vector<StepId> comes_from(op_.size(), -1);
    for (std::size_t i = 0; i < op_.size(); ++i) {
      if (receives(static_cast<StepOp>(op_[i]))) comes_from[i] = message_[i]->send;
    }
    ProgramSpec spec;
    spec.collective = std::move(collective);
    spec.in_place = in_place;
    spec.scratch_slots = std::move(scratch_);
    spec.thread_rank = std::move(thread_rank_);
    spec.thread_channel = std::move(thread_channel_);
    spec.thread_send_peer = std::move(thread_send_peer_);
    spec.thread_recv_peer = std::move(thread_recv_peer_);
    spec.thread_begin = std::move(thread_begin_);
    spec.peer = std::vector<NodeId>(op_.size(), -1);
    spec.op = std::move(op_);
    spec.src_buffer = std::move(src_buffer_);
    spec.dst_buffer = std::move(dst_buffer_);
    spec.src_slot = std::move(src_slot_);
    spec.dst_slot = std::move(dst_slot_);
    spec.count = std::move(count_);
    spec.comes_from = std::move(comes_from);
    spec.dep_begin = std::move(dep_begin_);
    spec.dep = std::move(dep_);
    spec.provenance = schedule.provenance();
    spec.facts.size_bytes = schedule.collective().size();
    const auto& parts = schedule.collective().parts();
    for (const auto& part : parts) {
      if (parts.size() > 1) spec.facts.part_bytes.push_back(part.size);
    }
    spec.facts.window = window;
    spec.facts.engine = schedule.facts().engine;
    spec.facts.file = schedule.facts().file;
    return Program(std::move(spec));
  }

 private:
  void add_step(const Steps& mine, std::size_t i, const std::vector<StepId>& id) {
    const Step& step = mine.steps[i];
    op_.push_back(static_cast<std::uint8_t>(step.op));
    src_buffer_.push_back(static_cast<std::uint8_t>(step.src_buffer));
    dst_buffer_.push_back(static_cast<std::uint8_t>(step.dst_buffer));
    src_slot_.push_back(step.src_slot);
    dst_slot_.push_back(step.dst_slot);
    count_.push_back(step.count);
    message_.push_back(step.message);
    if (step.op == StepOp::send) step.message->send = id[i];
    for (const auto before : mine.after_of(i)) dep_.push_back(id[before]);
    std::sort(dep_.begin() + static_cast<std::ptrdiff_t>(dep_begin_.back()), dep_.end());
    dep_begin_.push_back(static_cast<std::int64_t>(dep_.size()));
  }

  std::vector<std::int32_t> scratch_;
  std::vector<NodeId> thread_rank_, thread_send_peer_, thread_recv_peer_;
  std::vector<std::int32_t> thread_channel_;
  std::vector<std::int64_t> thread_begin_, dep_begin_{0};
  std::vector<std::uint8_t> op_, src_buffer_, dst_buffer_;
  std::vector<std::int32_t> src_slot_, dst_slot_, count_;
  std::vector<const Move*> message_;
  std::vector<StepId> dep_;
};

}  // namespace tacos
