#include "simulate/run_program.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "simulate/program_messages.hpp"
#include "simulate/shared_loop.hpp"
#include "support/index.hpp"
#include "support/work.hpp"
#include "timing/service.hpp"

namespace tacos::simulation {

namespace {

using Window = Routes::Window;

bool reduces(StepOp op) {
  return op == StepOp::reduce || op == StepOp::recv_reduce || op == StepOp::recv_reduce_forward ||
         op == StepOp::recv_reduce_send || op == StepOp::get_reduce;
}

std::vector<StepId> walk_order(const Program& program) {
  try {
    return walk(program).order;
  } catch (const std::invalid_argument& error) {
    throw InfeasibleError(error.what());
  }
}

// Computes when steps are complete and messages may leave; the users of both event loops derive from it.
class StepProgress {
 public:
  StepProgress(const Program& program, const MessageRoutes& paths, std::vector<std::int64_t> bytes,
               std::vector<StepId> messages, bool record)
      : program_(program),
        s_(program.spec()),
        paths_(paths),
        topology_(paths.routes->topology()),
        bytes_(std::move(bytes)),
        step_of_(std::move(messages)),
        record_(record),
        waits_(at(program.steps()), 0),
        ready_(at(program.steps()), 0),
        item_of_(at(program.steps()), kNone),
        first_(at(program.steps()), 0),
        rank_(at(program.steps())),
        at_(step_of_.size(), 0) {
    for (Item item = 0; item < step_of_.size(); ++item) item_of_[at(step_of_[item])] = item;
    for (ThreadId t = 0; t < program.threads(); ++t) {
      const auto begin = s_.thread_begin[at(t)], end = s_.thread_begin[at(t) + 1];
      if (begin < end) first_[at(begin)] = 1;
      for (auto i = begin; i < end; ++i) rank_[at(i)] = s_.thread_rank[at(t)];
    }
    list(after_begin_, after_, [&](std::size_t step, const auto& visit) {
      for (auto d = s_.dep_begin[step]; d < s_.dep_begin[step + 1]; ++d) visit(at(s_.dep[at(d)]));
    });
    list(receiver_begin_, receivers_, [&](std::size_t step, const auto& visit) {
      if (s_.comes_from[step] >= 0) visit(at(s_.comes_from[step]));
    });
    for (std::size_t step = 0; step < waits_.size(); ++step) {
      const StepOp op = program.op(static_cast<StepId>(step));
      waits_[step] = (first_[step] != 0 ? 0 : 1) +
                     static_cast<std::int32_t>(s_.dep_begin[step + 1] - s_.dep_begin[step]) +
                     (receives(op) || op == StepOp::wait ? 1 : 0);
    }
    result_ = {topology_, program.ranks()};
  }

  Result take_result() { return std::move(result_); }
  std::size_t completed() const { return completed_; }
  // The first step, by number, that has not started although all earlier steps of its thread are complete.
  StepId stuck() const {
    for (StepId step = 0; step < program_.steps(); ++step) {
      if (waits_[at(step)] > 0) return step;
    }
    return 0;
  }
  std::int64_t bytes(Item item) const { return bytes_[at(step_of_[item])]; }
  RouteId route(Item item) const {
    return static_cast<RouteId>(paths_.connection[at(step_of_[item])]);
  }

 protected:
  // Calls `emit(item)` when a message may leave, at the time at_[item].
  template <typename Emit>
  void start_all(Emit&& emit) {
    for (StepId step = 0; step < program_.steps(); ++step) {
      if (waits_[at(step)] == 0) run(step, emit);
    }
    settle(emit);
  }
  template <typename Emit>
  void complete(StepId step, Time time, Emit&& emit) {
    done_.emplace_back(step, time);
    settle(emit);
  }
  // The last byte of a message leaves at `time`.
  template <typename Emit>
  void left(Item item, Time time, Emit&& emit) {
    const StepId step = step_of_[item];
    if (!pulls(program_.op(step))) complete(step, time, emit);
  }
  // A message has arrived completely.
  template <typename Emit>
  void arrived(Item item, Time now, Emit&& emit) {
    const StepId step = step_of_[item];
    const StepOp op = program_.op(step);
    if (record_ && op != StepOp::signal) {
      result_.add_arrival(paths_.routes->destinations(route(item))[0], now, bytes_[at(step)], step);
    }
    if (pulls(op)) done_.emplace_back(step, now + reduce_time(step));
    for (auto r = receiver_begin_[at(step)]; r < receiver_begin_[at(step) + 1]; ++r) {
      meet(receivers_[at(r)], now, emit);
    }
    settle(emit);
  }
  void use(Item item, const Window& window, Time begin, Time end) {
    result_.busy[at(window.link)] += window.busy;
    if (!record_ || program_.op(step_of_[item]) == StepOp::signal) return;
    result_.add_interval(window.link, begin, end, step_of_[item]);
  }
  bool blocking() const { return topology_.spec().link_model == LinkModel::blocking; }

  const Program& program_;
  const ProgramSpec& s_;
  const MessageRoutes& paths_;
  const Topology& topology_;
  const std::vector<std::int64_t> bytes_;  // per step
  const std::vector<StepId> step_of_;      // per message, by position

 private:
  template <typename Predecessors>
  void list(std::vector<std::int64_t>& begin, std::vector<StepId>& next,
            const Predecessors& predecessors) const {
    const auto steps = at(program_.steps());
    begin.assign(steps + 2, 0);
    for (std::size_t step = 0; step < steps; ++step) {
      predecessors(step, [&](std::size_t before) { ++begin[before + 2]; });
    }
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    next.resize(at(begin.back()));
    for (std::size_t step = 0; step < steps; ++step) {
      predecessors(step, [&](std::size_t before) {
        next[at(begin[before + 1]++)] = static_cast<StepId>(step);
      });
    }
  }
  Time reduce_time(StepId step) const {
    const auto rate = topology_.spec().reduce_bandwidth_Bps;
    if (rate == 0 || !reduces(program_.op(step))) return 0;
    return transmission_time(bytes_[at(step)], rate);
  }
  template <typename Emit>
  void meet(StepId step, Time time, Emit&& emit) {
    ready_[at(step)] = std::max(ready_[at(step)], time);
    if (--waits_[at(step)] == 0) run(step, emit);
  }
  // It is known that the step can start at ready_.
  template <typename Emit>
  void run(StepId step, Emit&& emit) {
    const Item item = item_of_[at(step)];
    const bool first = !pulls(program_.op(step));  // whether it sums before it sends
    const Time time = ready_[at(step)] + (first ? reduce_time(step) : 0);
    if (item == kNone) {
      done_.emplace_back(step, time);
    } else {
      at_[item] = time;
      emit(item);
    }
  }
  // Completions may be known before their time; then their consequences are known too.
  template <typename Emit>
  void settle(Emit&& emit) {
    while (!done_.empty()) {
      const auto [step, time] = done_.back();
      done_.pop_back();
      ++completed_;
      auto& finish = result_.finish[at(rank_[at(step)])];
      finish = std::max(finish, time);
      if (at(step) + 1 < first_.size() && first_[at(step) + 1] == 0) meet(step + 1, time, emit);
      for (auto a = after_begin_[at(step)]; a < after_begin_[at(step) + 1]; ++a) {
        meet(after_[at(a)], time, emit);
      }
    }
  }

  const bool record_;
  std::vector<std::int32_t> waits_;
  std::vector<Time> ready_;
  std::vector<Item> item_of_;        // per step
  std::vector<std::uint8_t> first_;  // per step: whether a thread begins with it
  std::vector<NodeId> rank_;         // per step
  std::vector<std::int64_t> after_begin_, receiver_begin_;
  std::vector<StepId> after_, receivers_;
  std::vector<std::pair<StepId, Time>> done_;
  std::size_t completed_ = 0;

 protected:
  std::vector<Time> at_;  // per message: when it may leave
  Result result_;
};

// For service.hpp: links serve one message at a time.
class ServedSteps : public StepProgress {
 public:
  ServedSteps(const Program& program, const MessageRoutes& paths, std::vector<std::int64_t> bytes,
              std::vector<StepId> messages, bool record, bool in_order)
      : StepProgress(program, paths, std::move(bytes), std::move(messages), record),
        in_order_(in_order) {
    first_leg_.reserve(step_of_.size());
    for (Item item = 0; item < step_of_.size(); ++item) {
      first_leg_.push_back(waits_.size());
      waits_.resize(waits_.size() + at(paths_.routes->legs(route(item))), 1);
    }
    if (in_order) order_links();
  }
  std::size_t legs() const { return waits_.size(); }

  // Called by the event loop.
  ChunkId chunk(Item) const { return 0; }
  std::span<const Item> gang(Item) const { return {}; }
  bool in_time(std::span<const Item>, std::span<const Time>, std::span<Time>) const { return true; }
  template <typename Ready>
  void begin(Ready&& ready) {
    start_all([&](Item item) { release(item, 0, ready); });
  }
  Time not_before(Item item, Leg leg) const { return leg == 0 ? at_[item] : 0; }
  Time leaves(Item, const Window& window, Time start) const {
    return start + window.offset + window.busy;
  }
  Time arrives(Item, Leg, std::size_t, Time start, Time duration) const { return start + duration; }
  void waits(Item, Leg, Item) {}
  void prefetch(std::span<const service::Arrival>, std::size_t) const {}
  void prefetch_start(Item, bool) const {}
  template <typename Ready>
  void on_start(Item item, Leg leg, Time now, std::span<const Window> windows, Ready&& ready) {
    Time sent = now;
    if (leg == 0) {
      sent += windows[0].busy - (blocking() ? topology_.latency(windows[0].link) : 0);
    }
    links_.clear();
    for (const auto& window : windows) {
      use(item, window, now + window.offset, now + window.offset + window.busy);
      links_.push_back(window.link);
    }
    for (const LinkId link : links_) {
      if (!in_order_) break;
      auto& cursor = cursor_[at(link)];
      if (++cursor == queue_begin_[at(link) + 1]) continue;
      release(queue_[cursor].first, queue_[cursor].second, ready);
    }
    if (leg == 0) left(item, sent, [&](Item next) { release(next, 0, ready); });
  }
  template <typename Ready>
  void on_arrival(Item item, Leg leg, std::size_t, Time now, Ready&& ready) {
    if (static_cast<std::int32_t>(leg) + 1 < paths_.routes->legs(route(item))) {
      release(item, leg + 1, ready);
    } else {
      arrived(item, now, [&](Item next) { release(next, 0, ready); });
    }
  }

 private:
  template <typename Ready>
  void release(Item item, Leg leg, Ready&& ready) {
    if (--waits_[first_leg_[item] + leg] == 0) ready(item, leg);
  }
  // Every link serves its legs by position: each leg waits for the one before it.
  void order_links() {
    std::vector<Window> windows;
    std::vector<std::vector<std::pair<Item, Leg>>> queues(at(topology_.links()));
    for (Item item = 0; item < step_of_.size(); ++item) {
      for (std::int32_t leg = 0; leg < paths_.routes->legs(route(item)); ++leg) {
        windows.clear();
        paths_.routes->windows(route(item), leg, 0, windows);
        for (const auto& window : windows) {
          auto& queue = queues[at(window.link)];
          if (!queue.empty()) ++waits_[first_leg_[item] + at(leg)];
          queue.emplace_back(item, static_cast<Leg>(leg));
        }
      }
    }
    queue_begin_.push_back(0);
    for (const auto& queue : queues) {
      queue_.insert(queue_.end(), queue.begin(), queue.end());
      queue_begin_.push_back(queue_.size());
    }
    cursor_.assign(queue_begin_.begin(), queue_begin_.end() - 1);
  }

  const bool in_order_;
  std::vector<std::size_t> first_leg_;  // per message, into waits_
  std::vector<std::int32_t> waits_;     // per leg
  std::vector<std::size_t> queue_begin_, cursor_;
  std::vector<std::pair<Item, Leg>> queue_;
  std::vector<LinkId> links_;
};

// For shared_loop.hpp: messages share links.
class SharedSteps : public StepProgress {
 public:
  using StepProgress::StepProgress;

  std::size_t legs() const {
    std::size_t legs = 0;
    for (Item item = 0; item < step_of_.size(); ++item)
      legs += at(paths_.routes->legs(route(item)));
    return legs;
  }

  // Called by the event loop.
  std::uint32_t connection(Item item) const { return paths_.connection[at(step_of_[item])]; }
  template <typename Submit>
  void begin(Submit&& submit) {
    start_all([&](Item item) { submit(item, at_[item]); });
  }
  template <typename Submit>
  void on_start(Item, Leg, Time, Submit&&) {}
  template <typename Submit>
  void on_sent(Item item, Leg leg, Time started, Time now, std::span<const Window> windows,
               Submit&& submit) {
    for (const auto& window : windows) {
      const Time hold = blocking() ? topology_.latency(window.link) : 0;
      use(item, window, started + window.offset, now + window.offset + hold);
    }
    if (leg == 0) left(item, now, [&](Item next) { submit(next, at_[next]); });
  }
  Time delay(Item, Leg, std::size_t) const { return 0; }
  template <typename Submit>
  void on_arrival(Item item, std::size_t, Time now, Submit&& submit) {
    arrived(item, now, [&](Item next) { submit(next, at_[next]); });
  }
};

}  // namespace

Result run_program(const Program& program, std::span<const std::int64_t> chunk_bytes,
                   std::shared_ptr<const Topology> topology, const ProgramOptions& options,
                   const Progress& progress) {
  if (topology->npus() != program.ranks()) {
    invalid("the topology has " + std::to_string(topology->npus()) + " NPUs, the program " +
            std::to_string(program.ranks()) + " ranks");
  }
  if (options.timing == Timing::schedule) {
    invalid(
        "timing is \"schedule\", but a program has no starts; use dependencies, order or "
        "shared");
  }
  if (!options.position.empty() && options.position.size() != at(program.steps())) {
    invalid("order has " + std::to_string(options.position.size()) + " entries for " +
            std::to_string(program.steps()) + " steps");
  }
  progress.reserve(static_cast<double>(program.steps()) * work::kTransfer);
  const auto order = walk_order(program);
  auto bytes = step_bytes(program, chunk_bytes, order);
  std::vector<StepId> messages;
  for (const StepId step : order) {
    if (sends_message(program.op(step))) messages.push_back(step);
  }
  if (!options.position.empty()) {
    std::sort(messages.begin(), messages.end());
    std::stable_sort(messages.begin(), messages.end(), [&](StepId a, StepId b) {
      return options.position[at(a)] < options.position[at(b)];
    });
  }
  const Progress finding = part_of(progress, 0, 0.1), running = part_of(progress, 0.1, 1);
  const MessageRoutes paths(program, std::move(topology), options, finding);
  const auto finished = [&](auto& steps) {
    if (steps.completed() < at(program.steps())) {
      throw InfeasibleError(program.describe(steps.stuck()) +
                            " can never start: what it waits for never comes");
    }
    auto result = steps.take_result();
    sort_intervals(result);
    return result;
  };
  const auto count = messages.size();
  if (options.timing == Timing::shared) {
    std::vector<RouteId> connections(at(paths.routes->count()));
    std::iota(connections.begin(), connections.end(), 0);
    SharedSteps steps(program, paths, std::move(bytes), std::move(messages), options.record);
    SharedLoop loop(steps, *paths.routes, connections, {}, {count, steps.legs(), options.limit},
                    running);
    loop.run();
    return finished(steps);
  }
  ServedSteps steps(program, paths, std::move(bytes), std::move(messages), options.record,
                    options.timing == Timing::order);
  service::Service loop(steps, *paths.routes, {1, true, count, steps.legs()}, running);
  loop.run();
  return finished(steps);
}

}  // namespace tacos::simulation
