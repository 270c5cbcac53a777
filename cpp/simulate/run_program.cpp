#include "simulate/run_program.hpp"

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>
#include <span>
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

}  // namespace

struct ProgramRuns::Steps {
  // Lists of steps, one for each step.
  struct Lists {
    // `predecessors(step, visit)` calls visit(before) for each step in whose list `step` is.
    template <typename Predecessors>
    Lists(std::size_t steps, const Predecessors& predecessors) : begin(steps + 2, 0) {
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
    std::span<const StepId> of(StepId step) const {
      return std::span(next).subspan(at(begin[at(step)]),
                                     at(begin[at(step) + 1] - begin[at(step)]));
    }

    std::vector<std::int64_t> begin;
    std::vector<StepId> next;
  };

  Steps(const Program& of, std::span<const std::int64_t> chunk_bytes, MessageRoutes messages,
        std::span<const std::int64_t> position)
      : program(of),
        s(of.spec()),
        order(walk_order(of)),
        bytes(step_bytes(of, chunk_bytes, order)),
        paths(std::move(messages)),
        topology(paths.routes->topology()),
        waits(at(of.steps()), 0),
        item_of(at(of.steps()), kNone),
        first(at(of.steps()), 0),
        rank(at(of.steps())),
        after(at(of.steps()),
              [&](std::size_t step, const auto& visit) {
                for (auto d = s.dep_begin[step]; d < s.dep_begin[step + 1]; ++d)
                  visit(at(s.dep[at(d)]));
              }),
        receivers(at(of.steps()), [&](std::size_t step, const auto& visit) {
          if (s.comes_from[step] >= 0) visit(at(s.comes_from[step]));
        }) {
    for (const StepId step : order) {
      if (sends_message(program.op(step))) step_of.push_back(step);
    }
    order = {};
    if (!position.empty()) {
      std::sort(step_of.begin(), step_of.end());
      std::stable_sort(step_of.begin(), step_of.end(),
                       [&](StepId a, StepId b) { return position[at(a)] < position[at(b)]; });
    }
    for (Item item = 0; item < step_of.size(); ++item) item_of[at(step_of[item])] = item;
    for (ThreadId t = 0; t < program.threads(); ++t) {
      const auto begin = s.thread_begin[at(t)], end = s.thread_begin[at(t) + 1];
      if (begin < end) first[at(begin)] = 1;
      for (auto i = begin; i < end; ++i) rank[at(i)] = s.thread_rank[at(t)];
    }
    for (std::size_t step = 0; step < waits.size(); ++step) {
      const StepOp op = program.op(static_cast<StepId>(step));
      waits[step] = (first[step] != 0 ? 0 : 1) +
                    static_cast<std::int32_t>(s.dep_begin[step + 1] - s.dep_begin[step]) +
                    (receives(op) || op == StepOp::wait ? 1 : 0);
    }
  }

  const Program& program;
  const ProgramSpec& s;
  std::vector<StepId> order;              // in which the steps can run, while it is needed
  const std::vector<std::int64_t> bytes;  // per step
  const MessageRoutes paths;
  const Topology& topology;
  std::vector<StepId> step_of;      // per message, by position
  std::vector<std::int32_t> waits;  // per step: what it waits for
  std::vector<Item> item_of;        // per step
  std::vector<std::uint8_t> first;  // per step: whether a thread begins with it
  std::vector<NodeId> rank;         // per step
  const Lists after, receivers;
};

namespace {

using Steps = ProgramRuns::Steps;

// Computes when steps are complete and messages may leave; the users of both event loops derive from it.
class StepProgress {
 public:
  StepProgress(const Steps& steps, bool record)
      : steps_(steps),
        program_(steps.program),
        paths_(steps.paths),
        topology_(steps.topology),
        bytes_(steps.bytes),
        step_of_(steps.step_of),
        record_(record),
        waits_(steps.waits),
        ready_(steps.waits.size(), 0),
        at_(step_of_.size(), 0) {
    result_ = {topology_, program_.ranks()};
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
    for (const StepId receiver : steps_.receivers.of(step)) meet(receiver, now, emit);
    settle(emit);
  }
  void use(Item item, const Window& window, Time begin, Time end) {
    result_.busy[at(window.link)] += window.busy;
    if (!record_ || program_.op(step_of_[item]) == StepOp::signal) return;
    result_.add_interval(window.link, begin, end, step_of_[item]);
  }
  bool blocking() const { return topology_.spec().link_model == LinkModel::blocking; }

  const Steps& steps_;
  const Program& program_;
  const MessageRoutes& paths_;
  const Topology& topology_;
  const std::vector<std::int64_t>& bytes_;  // per step
  const std::vector<StepId>& step_of_;      // per message, by position

 private:
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
    const Item item = steps_.item_of[at(step)];
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
      auto& finish = result_.finish[at(steps_.rank[at(step)])];
      finish = std::max(finish, time);
      const auto& first = steps_.first;
      if (at(step) + 1 < first.size() && first[at(step) + 1] == 0) meet(step + 1, time, emit);
      for (const StepId next : steps_.after.of(step)) meet(next, time, emit);
    }
  }

  const bool record_;
  std::vector<std::int32_t> waits_;
  std::vector<Time> ready_;
  std::vector<std::pair<StepId, Time>> done_;
  std::size_t completed_ = 0;

 protected:
  std::vector<Time> at_;  // per message: when it may leave
  Result result_;
};

// For service.hpp: links serve one message at a time.
class ServedSteps : public StepProgress {
 public:
  ServedSteps(const Steps& steps, bool record, bool in_order)
      : StepProgress(steps, record), in_order_(in_order) {
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

ProgramRuns::ProgramRuns(const Program& program, std::span<const std::int64_t> chunk_bytes,
                         std::shared_ptr<const Topology> topology, const ProgramOptions& options,
                         const Progress& progress) {
  if (topology->npus() != program.ranks()) {
    invalid("the topology has " + std::to_string(topology->npus()) + " NPUs, the program " +
            std::to_string(program.ranks()) + " ranks");
  }
  if (!options.position.empty() && options.position.size() != at(program.steps())) {
    invalid("order has " + std::to_string(options.position.size()) + " entries for " +
            std::to_string(program.steps()) + " steps");
  }
  steps_ = std::make_unique<const Steps>(
      program, chunk_bytes, MessageRoutes(program, std::move(topology), options, progress),
      options.position);
}

ProgramRuns::ProgramRuns(const Program& program, std::span<const std::int64_t> chunk_bytes,
                         MessageRoutes paths)
    : steps_(std::make_unique<const Steps>(program, chunk_bytes, std::move(paths),
                                           std::span<const std::int64_t>())) {}

ProgramRuns::~ProgramRuns() = default;

Result ProgramRuns::run(Timing timing, bool record, std::int32_t limit,
                        const Progress& progress) const {
  if (timing == Timing::schedule) {
    invalid(
        "timing is \"schedule\", but a program has no starts; use dependencies, order or "
        "shared");
  }
  progress.reserve(static_cast<double>(steps_->program.steps()) * work::kTransfer);
  const auto finished = [&](auto& steps) {
    if (steps.completed() < at(steps_->program.steps())) {
      throw InfeasibleError(steps_->program.describe(steps.stuck()) +
                            " can never start: what it waits for never comes");
    }
    auto result = steps.take_result();
    sort_intervals(result);
    return result;
  };
  const auto& routes = *steps_->paths.routes;
  const auto count = steps_->step_of.size();
  if (timing == Timing::shared) {
    std::vector<RouteId> connections(at(routes.count()));
    std::iota(connections.begin(), connections.end(), 0);
    SharedSteps steps(*steps_, record);
    SharedLoop loop(steps, routes, connections, {}, {count, steps.legs(), limit}, progress);
    loop.run();
    return finished(steps);
  }
  ServedSteps steps(*steps_, record, timing == Timing::order);
  service::Service loop(steps, routes, {1, true, count, steps.legs()}, progress);
  loop.run();
  return finished(steps);
}

Result run_program(const Program& program, std::span<const std::int64_t> chunk_bytes,
                   std::shared_ptr<const Topology> topology, const ProgramOptions& options,
                   const Progress& progress) {
  const ProgramRuns runs(program, chunk_bytes, std::move(topology), options,
                         part_of(progress, 0, 0.1));
  return runs.run(options.timing, options.record, options.limit, part_of(progress, 0.1, 1));
}

}  // namespace tacos::simulation
