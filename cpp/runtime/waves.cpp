#include "runtime/waves.hpp"

#include <algorithm>
#include <cstddef>
#include <stdexcept>

#include "support/index.hpp"

namespace tacos {

namespace {

// A step has up to two events: it stores what it receives, then it acts. An event happens after all its
// predecessors; a store also needs its message to have been sent.
class Sorter {
 public:
  explicit Sorter(const Program& program)
      : program_(program),
        spec_(program.spec()),
        receiver_(at(program.steps()), -1),
        waiting_(2 * at(program.steps()), 0),
        ready_(2 * at(program.steps()), 0) {
    result_.receive.assign(at(program.steps()), -1);
    result_.store.assign(at(program.steps()), -1);
    result_.aside.assign(at(program.steps()), 0);
    result_.act.assign(at(program.steps()), 0);
    for (StepId step = 0; step < program.steps(); ++step) {
      if (one_sided(program.op(step)) || program.op(step) == StepOp::signal ||
          program.op(step) == StepOp::wait) {
        throw std::invalid_argument(program.describe(step) +
                                    " acts on a peer's memory, which waves of messages cannot do");
      }
      const StepId sender = spec_.comes_from[at(step)];
      if (sender >= 0) receiver_[at(sender)] = step;
    }
    link();
  }

  Waves run() {
    for (StepId step = 0; step < program_.steps(); ++step) {
      if (waiting_[first(step)] == 0) open_.push_back(first(step));
    }
    while (!open_.empty()) {
      const std::size_t event = open_.back();
      open_.pop_back();
      happen(event);
    }
    if (acted_ < program_.steps()) fail();
    return std::move(result_);
  }

 private:
  static std::size_t storing(StepId step) { return 2 * at(step); }
  static std::size_t action(StepId step) { return 2 * at(step) + 1; }
  std::size_t first(StepId step) const {
    return receives(program_.op(step)) ? storing(step) : action(step);
  }

  // Successors of actions: the next step of the thread, and the steps that depend on them.
  void link() {
    std::vector<std::int64_t> count(at(program_.steps()) + 1, 0);
    const auto each = [&](auto&& visit) {
      for (ThreadId thread = 0; thread < program_.threads(); ++thread) {
        for (auto step = spec_.thread_begin[at(thread)]; step < spec_.thread_begin[at(thread) + 1];
             ++step) {
          if (step > spec_.thread_begin[at(thread)]) {
            visit(static_cast<StepId>(step - 1), static_cast<StepId>(step));
          }
          for (auto d = spec_.dep_begin[at(step)]; d < spec_.dep_begin[at(step) + 1]; ++d) {
            visit(spec_.dep[at(d)], static_cast<StepId>(step));
          }
        }
      }
    };
    each([&](StepId before, StepId) { ++count[at(before) + 1]; });
    for (std::size_t i = 1; i < count.size(); ++i) count[i] += count[i - 1];
    next_begin_ = count;
    next_.resize(at(count.back()));
    each([&](StepId before, StepId after) {
      next_[at(count[at(before)]++)] = after;
      ++waiting_[first(after)];
    });
    for (StepId step = 0; step < program_.steps(); ++step) {
      if (!receives(program_.op(step))) continue;
      ++waiting_[storing(step)];  // it waits for the message
      ++waiting_[action(step)];   // it waits for the store
    }
  }

  void happen(std::size_t event) {
    const auto step = static_cast<StepId>(event / 2);
    const bool stores = event % 2 == 0;
    auto wave = ready_[event];
    if (stores) {
      const auto arrived = result_.receive[at(step)];
      result_.aside[at(step)] = wave >= arrived ? 1 : 0;  // its slot is in use until then
      wave = std::max(wave, arrived);
      result_.store[at(step)] = wave;
    } else if (sends(program_.op(step))) {
      ++wave;
    }
    result_.order.push_back(static_cast<std::int64_t>(event));
    result_.count = std::max(result_.count, wave + 1);
    if (stores) {
      release(action(step), wave);
      return;
    }
    result_.act[at(step)] = wave;
    ++acted_;
    if (const StepId receiver = receiver_[at(step)]; receiver >= 0) {
      result_.receive[at(receiver)] = wave;
      release(storing(receiver), 0);
    }
    for (auto n = next_begin_[at(step)]; n < next_begin_[at(step) + 1]; ++n) {
      release(first(next_[at(n)]), wave);
    }
  }

  void release(std::size_t event, std::int32_t wave) {
    ready_[event] = std::max(ready_[event], wave);
    if (--waiting_[event] == 0) open_.push_back(event);
  }

  [[noreturn]] void fail() const {
    std::vector<char> done(at(program_.steps()), 0);
    for (const auto event : result_.order) done[at(event / 2)] |= event % 2 == 1 ? 1 : 0;
    const auto stuck = std::find(done.begin(), done.end(), 0) - done.begin();
    throw std::invalid_argument(program_.describe(static_cast<StepId>(stuck)) +
                                " waits for ever; tacos verify says why");
  }

  const Program& program_;
  const ProgramSpec& spec_;
  std::vector<StepId> receiver_;  // per sending step; -1: none
  std::vector<std::int64_t> next_begin_;
  std::vector<StepId> next_;
  std::vector<std::int32_t> waiting_;  // per event: predecessors that have not happened
  // Per event: the wave in which it may happen, after the messages.
  std::vector<std::int32_t> ready_;
  std::vector<std::size_t> open_;
  StepId acted_ = 0;
  Waves result_;
};

}  // namespace

Waves cut_into_waves(const Program& program) { return Sorter(program).run(); }

}  // namespace tacos
