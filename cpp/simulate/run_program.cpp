#include "simulate/run_program.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "simulate/shared_loop.hpp"
#include "support/index.hpp"
#include "timing/service.hpp"

namespace tacos::simulation {

namespace {

using Window = Routes::Window;

bool sends_message(StepOp op) { return sends(op) || one_sided(op) || op == StepOp::signal; }
bool pulls(StepOp op) { return op == StepOp::get || op == StepOp::get_reduce; }
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

// The bytes that every step moves: those of the chunks in its slots. Where chunks differ in size, they
// are followed through the slots in an order in which the steps could run; a slot that nobody has
// written counts as the largest chunk.
class StepBytes {
 public:
  StepBytes(const Program& program, std::span<const std::int64_t> chunk_bytes,
            const std::vector<StepId>& order)
      : program_(program), s_(program.spec()), chunk_bytes_(chunk_bytes) {
    bytes.assign(at(program.steps()), 0);
    const auto [least, most] = std::minmax_element(chunk_bytes.begin(), chunk_bytes.end());
    largest_ = chunk_bytes.empty() ? 0 : *most;
    if (chunk_bytes.empty() || *least == *most) {
      for (StepId step = 0; step < program.steps(); ++step) {
        if (moves(step)) bytes[at(step)] = largest_ * s_.count[at(step)];
      }
      return;
    }
    number_slots();
    begin_.assign(at(program.steps()) + 1, 0);
    thread_.resize(at(program.steps()));
    for (ThreadId t = 0; t < program.threads(); ++t) {
      for (auto i = at(s_.thread_begin[at(t)]); i < at(s_.thread_begin[at(t) + 1]); ++i) {
        thread_[i] = t;
        begin_[i + 1] = begin_[i] + (moves(static_cast<StepId>(i)) ? s_.count[i] : 0);
      }
    }
    content_.assign(at(begin_.back()), kNothing);
    for (const StepId step : order) follow(step);
  }

  std::vector<std::int64_t> bytes;

 private:
  static constexpr ChunkId kNothing = ~ChunkId{0};

  bool moves(StepId step) const { return has_src(program_.op(step)) || has_dst(program_.op(step)); }
  void number_slots() {
    for (NodeId rank = 0; rank < program_.ranks(); ++rank) {
      const auto inputs = program_.input_chunks(rank), outputs = program_.output_chunks(rank);
      auto& shared = shared_.emplace_back(inputs.size(), -1);
      for (std::size_t i = 0; s_.in_place && i < inputs.size(); ++i) {
        const auto found = std::lower_bound(outputs.begin(), outputs.end(), inputs[i]);
        if (found != outputs.end() && *found == inputs[i]) {
          shared[i] = static_cast<std::int32_t>(found - outputs.begin());
        }
      }
      first_.push_back(holds_.size());
      holds_.insert(holds_.end(), inputs.begin(), inputs.end());
      first_.push_back(holds_.size());
      holds_.resize(holds_.size() + outputs.size(), kNothing);
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        if (shared[i] >= 0) holds_[first_.back() + at(shared[i])] = inputs[i];
      }
      first_.push_back(holds_.size());
      holds_.resize(holds_.size() + at(s_.scratch_slots[at(rank)]), kNothing);
    }
  }
  ChunkId& slot(NodeId rank, std::uint8_t buffer, std::int32_t i) {
    if (buffer == 0 && shared_[at(rank)][at(i)] >= 0)
      return slot(rank, 1, shared_[at(rank)][at(i)]);
    return holds_[first_[at(rank) * 3 + buffer] + at(i)];
  }
  void follow(StepId step) {
    if (!moves(step)) return;
    const auto i = at(step);
    const StepOp op = program_.op(step);
    const NodeId rank = s_.thread_rank[at(thread_[i])];
    const StepId from = s_.comes_from[i];
    for (std::int32_t k = 0; k < s_.count[i]; ++k) {
      ChunkId chunk = kNothing;
      if (has_src(op)) {
        chunk = slot(pulls(op) ? s_.peer[i] : rank, s_.src_buffer[i], s_.src_slot[i] + k);
      }
      if (receives(op)) {
        const bool fits = from >= 0 && k < begin_[at(from) + 1] - begin_[at(from)];
        chunk = fits ? content_[at(begin_[at(from)] + k)] : kNothing;
      }
      if (has_dst(op)) {
        slot(op == StepOp::put ? s_.peer[i] : rank, s_.dst_buffer[i], s_.dst_slot[i] + k) = chunk;
      }
      content_[at(begin_[i] + k)] = chunk;
      bytes[i] += chunk == kNothing ? largest_ : chunk_bytes_[chunk];
    }
  }

  const Program& program_;
  const ProgramSpec& s_;
  std::span<const std::int64_t> chunk_bytes_;
  std::int64_t largest_ = 0;
  std::vector<std::size_t> first_;  // slot of every rank's three buffers
  std::vector<std::vector<std::int32_t>> shared_;
  std::vector<ChunkId> holds_;
  std::vector<ThreadId> thread_;
  std::vector<std::int64_t> begin_;  // per step
  std::vector<ChunkId> content_;
};

// The route of every message, and the connection it belongs to.
class MessageRoutes {
 public:
  MessageRoutes(const Program& program, std::shared_ptr<const Topology> topology,
                const ProgramOptions& options, const Progress& progress)
      : topology_(*topology) {
    const auto& s = program.spec();
    if (!options.link_begin.empty() && options.link_begin.size() != at(program.threads()) + 1) {
      invalid("routes has " + std::to_string(options.link_begin.size() - 1) + " entries for " +
              std::to_string(program.threads()) + " threads");
    }
    connection.assign(at(program.steps()), kNone);
    std::vector<std::uint64_t> pairs;
    each_message(program, [&](StepId, ThreadId, NodeId src, NodeId dst) {
      if (pairs.empty() || pairs.back() != key(src, dst)) pairs.push_back(key(src, dst));
    });
    std::sort(pairs.begin(), pairs.end());
    pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
    std::vector<NodeId> from, to;
    for (const auto pair : pairs) {
      from.push_back(static_cast<NodeId>(pair >> 32));
      to.push_back(static_cast<NodeId>(pair & 0xffffffff));
    }
    const Routes shortest = shortest_routes(topology, from, to, progress);
    std::vector<std::int64_t> begin{0};
    std::vector<LinkId> links;
    const auto add = [&](std::span<const LinkId> path) {
      links.insert(links.end(), path.begin(), path.end());
      begin.push_back(static_cast<std::int64_t>(links.size()));
    };
    // A connection is a thread with a peer and a direction; consecutive messages mostly share it.
    std::map<std::pair<ThreadId, std::uint64_t>, std::uint32_t> known;
    std::pair<ThreadId, std::uint64_t> last{-1, 0};
    std::uint32_t last_id = kNone;
    each_message(program, [&](StepId step, ThreadId t, NodeId src, NodeId dst) {
      const std::pair<ThreadId, std::uint64_t> mine{t, key(src, dst)};
      if (mine != last) {
        last = mine;
        const auto [found, added] =
            known.try_emplace(mine, static_cast<std::uint32_t>(begin.size()) - 1);
        last_id = found->second;
        const auto given = own_route(options, t);
        if (added && !given.empty() && s.thread_rank[at(t)] == src && ends_at(given, dst)) {
          add(given);
        } else if (added) {
          const auto pair = std::lower_bound(pairs.begin(), pairs.end(), key(src, dst));
          const auto path = shortest.links(static_cast<RouteId>(pair - pairs.begin()));
          if (path.size() > 1) {
            add(path);
          } else {
            const LinkId link = parallel(src, dst, s.thread_channel[at(t)]);
            add({&link, 1});
          }
        }
      }
      connection[at(step)] = last_id;
    });
    check_given(program, options);
    const auto count = begin.size() - 1;
    routes.emplace(std::move(topology),
                   std::vector<std::uint8_t>(count, static_cast<std::uint8_t>(RouteKind::path)),
                   std::move(begin), std::move(links));
  }

  std::optional<Routes> routes;           // one per connection
  std::vector<std::uint32_t> connection;  // per step

 private:
  static std::uint64_t key(NodeId src, NodeId dst) {
    return (static_cast<std::uint64_t>(src) << 32) | static_cast<std::uint32_t>(dst);
  }
  template <typename Visit>
  static void each_message(const Program& program, Visit&& visit) {
    const auto& s = program.spec();
    for (ThreadId t = 0; t < program.threads(); ++t) {
      const NodeId rank = s.thread_rank[at(t)];
      for (auto i = s.thread_begin[at(t)]; i < s.thread_begin[at(t) + 1]; ++i) {
        const auto op = program.op(static_cast<StepId>(i));
        if (!sends_message(op)) continue;
        const NodeId other = sends(op) ? s.thread_send_peer[at(t)] : s.peer[at(i)];
        visit(static_cast<StepId>(i), t, pulls(op) ? other : rank, pulls(op) ? rank : other);
      }
    }
  }
  static std::span<const LinkId> own_route(const ProgramOptions& options, ThreadId t) {
    if (options.link_begin.empty()) return {};
    const auto first = at(options.link_begin[at(t)]), last = at(options.link_begin[at(t) + 1]);
    return std::span(options.links).subspan(first, last - first);
  }
  bool ends_at(std::span<const LinkId> route, NodeId node) const {
    const LinkId last = route.back();
    return last >= 0 && last < topology_.links() && topology_.dst(last) == node;
  }
  // Channels take parallel links in turn.
  LinkId parallel(NodeId src, NodeId dst, std::int32_t channel) const {
    std::vector<LinkId> direct;
    for (const LinkId link : topology_.out_links(src)) {
      if (topology_.dst(link) == dst) direct.push_back(link);
    }
    return direct[at(channel) % direct.size()];
  }
  void check_given(const Program& program, const ProgramOptions& options) const {
    const auto& s = program.spec();
    for (ThreadId t = 0; t < program.threads(); ++t) {
      const auto given = own_route(options, t);
      if (given.empty()) continue;
      const auto wrong = [&](const std::string& what) {
        invalid("the route of thread " + std::to_string(t) + " " + what);
      };
      for (const LinkId link : given) {
        if (link >= 0 && link < topology_.links()) continue;
        wrong("has link " + std::to_string(link) + ", the links are 0 to " +
              std::to_string(topology_.links() - 1));
      }
      const NodeId peer = s.thread_send_peer[at(t)];
      if (topology_.src(given.front()) != s.thread_rank[at(t)] ||
          (peer >= 0 && !ends_at(given, peer))) {
        wrong("leads from " + topology_.name(topology_.src(given.front())) + " to " +
              topology_.name(topology_.dst(given.back())) + ", but the thread sends from NPU " +
              std::to_string(s.thread_rank[at(t)]) + " to NPU " + std::to_string(peer));
      }
    }
  }

  const Topology& topology_;
};

// Which steps are complete when, and which messages may leave; the two event loops derive from it.
class Steps {
 public:
  Steps(const Program& program, const MessageRoutes& paths, std::vector<std::int64_t> bytes,
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
    result_.finish.assign(at(program.ranks()), 0);
    result_.busy.assign(at(topology_.links()), 0);
  }

  Result take_result() { return std::move(result_); }
  std::size_t completed() const { return completed_; }
  // The first step, in order of their numbers, that has not started though its thread got to it.
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
  // `emit(item)`: the message may leave at at_[item].
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
  // A message is whole at its destination.
  template <typename Emit>
  void arrived(Item item, Time now, Emit&& emit) {
    const StepId step = step_of_[item];
    const StepOp op = program_.op(step);
    if (record_ && op != StepOp::signal) {
      result_.arrival_npu.push_back(paths_.routes->destinations(route(item))[0]);
      result_.arrival_time.push_back(now);
      result_.arrival_bytes.push_back(bytes_[at(step)]);
      result_.arrival_transfer.push_back(step);
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
    result_.link.push_back(window.link);
    result_.begin.push_back(begin);
    result_.end.push_back(end);
    result_.transfer.push_back(step_of_[item]);
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
  // All that the step waits for is known to be there at ready_.
  template <typename Emit>
  void run(StepId step, Emit&& emit) {
    const Item item = item_of_[at(step)];
    const bool first = !pulls(program_.op(step));  // whether it adds before it sends
    const Time time = ready_[at(step)] + (first ? reduce_time(step) : 0);
    if (item == kNone) {
      done_.emplace_back(step, time);
    } else {
      at_[item] = time;
      emit(item);
    }
  }
  // Completions may be known before their time: what follows from them is known then, too.
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

// Links that serve one message at a time, for service.hpp.
class ServedSteps : public Steps {
 public:
  ServedSteps(const Program& program, const MessageRoutes& paths, std::vector<std::int64_t> bytes,
              std::vector<StepId> messages, bool record, bool in_order)
      : Steps(program, paths, std::move(bytes), std::move(messages), record), in_order_(in_order) {
    first_leg_.reserve(step_of_.size());
    for (Item item = 0; item < step_of_.size(); ++item) {
      first_leg_.push_back(waits_.size());
      waits_.resize(waits_.size() + at(paths_.routes->legs(route(item))), 1);
    }
    if (in_order) order_links();
  }
  std::size_t legs() const { return waits_.size(); }

  // What the event loop asks.
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
  // Every link serves its legs by position: all but its first wait for the one before them.
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

// Links that messages share, for shared_loop.hpp.
class SharedSteps : public Steps {
 public:
  using Steps::Steps;

  std::size_t legs() const {
    std::size_t legs = 0;
    for (Item item = 0; item < step_of_.size(); ++item)
      legs += at(paths_.routes->legs(route(item)));
    return legs;
  }

  // What the event loop asks.
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
        "timing is \"schedule\", but a program has no starts; allowed are dependencies, order, "
        "shared");
  }
  if (!options.position.empty() && options.position.size() != at(program.steps())) {
    invalid("order has " + std::to_string(options.position.size()) + " entries for " +
            std::to_string(program.steps()) + " steps");
  }
  const auto order = walk_order(program);
  auto bytes = StepBytes(program, chunk_bytes, order).bytes;
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
