#include "simulate/astra.hpp"

#include <cmath>
#include <deque>
#include <limits>
#include <string>

#include "simulate/astra_ranks.hpp"
#include "simulate/astra_setup.hpp"
#include "support/error.hpp"
#include "support/index.hpp"

namespace tacos::astra {

namespace {

constexpr std::int32_t kCollectiveTags = 500'000'000, kRendezvousTags = 1'000'000'000;
constexpr std::int64_t kRendezvousBytes = 8192;
constexpr Nanoseconds kLocalDelay = 10;
constexpr std::int32_t kGroupStreams = 1'000'000;

class Simulator : public Listener {
 public:
  Simulator(Network& network, std::vector<Dimension> dims, const Workload& workload,
            const std::vector<std::shared_ptr<const Workload>>& algorithms,
            const Column<std::int32_t>& algorithm_of, const System& system)
      : network_(network),
        dims_(std::move(dims)),
        workload_(workload),
        graph_(workload),
        algorithm_of_(algorithm_of),
        system_(system) {
    algorithms_.reserve(algorithms.size());
    for (const auto& algorithm : algorithms) algorithms_.emplace_back(*algorithm);
    const auto npus = workload.npus();
    ranks_.resize(at(npus));
    begin_.assign(at(workload.nodes()), -1);
    end_.assign(at(workload.nodes()), -1);
    const auto& memory = system.memory;
    memories_.resize(memory.kind == MemoryKind::per_node ? at(memory.nodes) : 1);
    for (std::int32_t rank = 0; rank < npus; ++rank) {
      auto& state = ranks_[at(rank)];
      state.program = rank;
      programs_.push_back(std::make_unique<RankProgress>(graph_, rank, false));
      const auto queues = static_cast<std::int32_t>(dims_.size()) * system.queues;
      state.active.resize(at(queues));
      state.running.assign(at(queues), 0);
      for (std::int32_t first = 0; first < queues; first += system.queues) {
        state.queues.emplace_back(first, system.queues);
      }
    }
  }

  Result run(const Progress& progress) {
    for (std::int32_t rank = 0; rank < workload_.npus(); ++rank) {
      advance(rank);
      if (programs_[at(rank)]->over()) ranks_[at(rank)].finish = 0;
    }
    network_.run(*this, [&] {
      if (progress)
        progress(static_cast<double>(finished_) / static_cast<double>(workload_.nodes()));
    });
    refuse_unfinished();
    Result result;
    for (const auto& state : ranks_) {
      result.finish.push_back(state.finish);
      result.compute.push_back(state.compute);
    }
    result.begin = std::move(begin_);
    result.end = std::move(end_);
    if (!system_.record) return result;
    result.messages = network_.messages();
    result.hops = std::move(network_.hops());
    return result;
  }

  void handle(std::int32_t rank, const Handler& handler) override {
    switch (handler.kind) {
      case Handler::Kind::node:
        return node_done(rank, handler.who, handler.row);
      case Handler::Kind::stream:
        return stream_event(handler);
      case Handler::Kind::dataset:
        return stream_over(rank, handler.who);
      case Handler::Kind::send_data: {
        const Deferred& d = deferred_[at(handler.who)];
        return network_.send(rank, d.peer, d.bytes, d.tag, d.handler);
      }
      case Handler::Kind::post_recv: {
        const Deferred& d = deferred_[at(handler.who)];
        return network_.receive(rank, d.peer, d.bytes, d.tag, d.handler);
      }
      case Handler::Kind::memory:
        return serve_next(handler.who);
      case Handler::Kind::none:
        return;
    }
  }

 private:
  // The ranks and nodes that wait for a memory that serves one request at a time.
  struct MemoryQueue {
    bool busy = false;
    std::deque<std::pair<std::int32_t, std::uint32_t>> waiting;
  };
  static constexpr Nanoseconds kEndless = -1;

  // A send or receive that waits for its handshake.
  struct Deferred {
    std::int32_t peer, tag;
    std::int64_t bytes;
    Handler handler;
  };
  // Values of `row` in a stream's handler.
  static constexpr std::uint32_t kReceived = 0, kStaged = 1, kToSum = 2;

  // Carries out the sends and receives of a phase.
  class StreamHost : public Host {
   public:
    StreamHost(Simulator& simulator, std::int32_t stream)
        : simulator_(simulator), stream_(stream) {}
    void stage(std::int64_t bytes, bool sum) override {
      const Stream& s = stream();
      const auto delay = s.local ? kLocalDelay : simulator_.system_.endpoint_delay;
      simulator_.network_.later(s.rank, delay,
                                {Handler::Kind::stream, stream_, sum ? kToSum : kStaged, bytes});
    }
    void send(std::int32_t rank, std::int64_t bytes) override {
      simulator_.send(stream().rank, rank, bytes, tag(), {});
    }
    void receive(std::int32_t rank, std::int64_t bytes) override {
      simulator_.receive(stream().rank, rank, bytes, tag(),
                         {Handler::Kind::stream, stream_, kReceived});
    }

   private:
    const Stream& stream() const { return *simulator_.streams_[at(stream_)]; }
    std::int32_t tag() const { return stream().id % kCollectiveTags + kCollectiveTags; }
    Simulator& simulator_;
    std::int32_t stream_;
  };

  void send(std::int32_t src, std::int32_t dst, std::int64_t bytes, std::int32_t tag,
            const Handler& handler) {
    if (!system_.rendezvous) return network_.send(src, dst, bytes, tag, handler);
    const auto later = defer({dst, tag, bytes, handler});
    network_.receive(src, dst, kRendezvousBytes, tag + kRendezvousTags,
                     {Handler::Kind::send_data, later});
  }

  void receive(std::int32_t dst, std::int32_t src, std::int64_t bytes, std::int32_t tag,
               const Handler& handler) {
    if (!system_.rendezvous) return network_.receive(dst, src, bytes, tag, handler);
    const auto later = defer({src, tag, bytes, handler});
    network_.send(dst, src, kRendezvousBytes, tag + kRendezvousTags,
                  {Handler::Kind::post_recv, later});
  }

  std::int32_t defer(const Deferred& what) {
    deferred_.push_back(what);
    return static_cast<std::int32_t>(deferred_.size() - 1);
  }

  // Programs.

  void advance(std::int32_t program) {
    const auto rank = owner(program);
    const auto ends_at_once = [&](std::uint32_t row) {
      if (!uses_roofline(row) || workload_.columns().bytes[row] != 0) return false;
      begin_[row] = end_[row] = network_.now();
      ++finished_;
      return true;
    };
    for (const auto row : programs_[at(program)]->take(ends_at_once)) issue(rank, program, row);
  }

  // Whether the roofline determines a computation's time; only in the workload itself, not in custom collectives.
  bool uses_roofline(std::uint32_t row) const {
    return system_.roofline && !system_.replay_only && workload_.kind(row) == NodeKind::comp &&
           workload_.columns().on_cpu[row] == 0;
  }

  std::int32_t owner(std::int32_t program) const {
    const auto stream = programs_[at(program)]->stream;
    return stream < 0 ? program : streams_[at(stream)]->rank;
  }

  void issue(std::int32_t rank, std::int32_t number, std::uint32_t row) {
    const RankProgress& program = *programs_[at(number)];
    const auto& c = program.workload.columns();
    const Handler done{Handler::Kind::node, number, row};
    const bool of_workload = number < workload_.npus();
    if (of_workload) begin_[row] = network_.now();
    if (of_workload && (system_.replay_only || program.workload.kind(row) == NodeKind::comp)) {
      const auto time = uses_roofline(row) ? roofline(row) : duration(c, row);
      if (time == kEndless) return;
      if (c.on_cpu[row] == 0) ranks_[at(rank)].compute += time;
      if (time == 0 && network_.now() == 0) refuse_zero(row);
      return network_.later(rank, time, done);
    }
    const auto peer = [&] {
      return program.members == nullptr ? c.peer[row] : (*program.members)[at(c.peer[row])];
    };
    switch (program.workload.kind(row)) {
      case NodeKind::send:
        return send(rank, peer(), c.bytes[row], c.tag[row] % kCollectiveTags, done);
      case NodeKind::recv:
        return receive(rank, peer(), c.bytes[row], c.tag[row] % kCollectiveTags, done);
      case NodeKind::comp:
        return network_.later(rank, duration(c, row), done);
      case NodeKind::coll:
        return begin_collective(rank, row);
      case NodeKind::load:
      case NodeKind::store:
        return access_memory(rank, row);
    }
  }

  // The roofline, with ASTRA-sim's order of operations on doubles, which determines the rounding.
  Nanoseconds roofline(std::uint32_t row) const {
    const auto& c = workload_.columns();
    const auto flops = static_cast<double>(c.flops[row]);
    const double intensity = flops / static_cast<double>(c.bytes[row]);
    const double speed = std::min(system_.memory_Bps * intensity, system_.peak_flops);
    const double time = flops / speed * 1e9;
    constexpr auto kMost = static_cast<double>(std::numeric_limits<Nanoseconds>::max());
    return time < kMost ? static_cast<Nanoseconds>(time) : kEndless;  // false for 0/0 too
  }

  [[noreturn]] void refuse_zero(std::uint32_t row) const {
    invalid(workload_.describe(row) +
            " takes less than 1 ns and starts at time 0, where ASTRA-sim ends with an error");
  }

  // Remote memory.

  std::int32_t memory_of(std::int32_t rank) const {
    const auto& memory = system_.memory;
    return memory.kind == MemoryKind::per_node ? rank / memory.npus_per_node : 0;
  }

  void access_memory(std::int32_t rank, std::uint32_t row) {
    if (system_.memory.kind == MemoryKind::per_npu) return move_memory(rank, row, -1);
    const auto number = memory_of(rank);
    auto& queue = memories_[at(number)];
    if (queue.busy) return void(queue.waiting.emplace_back(rank, row));
    queue.busy = true;
    move_memory(rank, row, number);
  }

  void move_memory(std::int32_t rank, std::uint32_t row, std::int32_t number) {
    const auto bytes = static_cast<double>(workload_.columns().bytes[row]);
    const double moving = bytes / system_.memory.bytes_per_ns;
    if (!(moving < 1e18)) invalid(workload_.describe(row) + " takes over 26 days");
    const auto time = system_.memory.latency + static_cast<Nanoseconds>(moving);
    if (time == 0 && network_.now() == 0) refuse_zero(row);
    network_.later(rank, time, {Handler::Kind::node, rank, row});
    // Scheduled after the node, so the rank's next request queues behind those of other ranks.
    if (number >= 0) network_.later(rank, time, {Handler::Kind::memory, number});
  }

  void serve_next(std::int32_t number) {
    auto& queue = memories_[at(number)];
    queue.busy = !queue.waiting.empty();
    if (!queue.busy) return;
    const auto [rank, row] = queue.waiting.front();
    queue.waiting.pop_front();
    move_memory(rank, row, number);
  }

  static Nanoseconds duration(const WorkloadColumns& c, std::uint32_t row) {
    // Whole nanoseconds; the shortest computation of ASTRA-sim is 1 ns.
    return std::max<Nanoseconds>(c.duration_ps[row] / 1000, 1);
  }

  void node_done(std::int32_t rank, std::int32_t number, std::uint32_t row) {
    RankProgress& program = *programs_[at(number)];
    program.finish(row);
    if (number < workload_.npus()) end_[row] = network_.now();
    advance(number);
    if (number < workload_.npus()) {
      ++finished_;
      if (program.over()) ranks_[at(rank)].finish = network_.now();
    } else if (program.over()) {
      next_phase(program.stream);
    }
  }

  // Collectives: first their division into streams, then the run of a stream.

  void begin_collective(std::int32_t rank, std::uint32_t row) {
    const auto& c = workload_.columns();
    const auto comm = static_cast<Comm>(c.comm[row]);
    const auto dataset = static_cast<std::int32_t>(datasets_.size());
    datasets_.push_back({row, 1});
    if (comm == Comm::broadcast) {
      return network_.later(rank, duration(c, row), {Handler::Kind::dataset, dataset});
    }
    auto& state = ranks_[at(rank)];
    const auto group = c.group[row];
    const auto* members = group == 0 ? nullptr : &workload_.group(group);
    std::int32_t priority = c.priority[row];
    if (system_.policy == Policy::lifo) priority = state.priority++;
    if (system_.policy == Policy::fifo) priority = state.priority--;

    auto algorithm = algorithm_of_[row];
    if (group != 0) {  // ASTRA-sim asks once per group and kind of collective
      algorithm = state.group_algorithm.try_emplace({group, c.comm[row]}, algorithm).first->second;
    }
    if (algorithm >= 0) {
      return add_stream(rank, dataset, group, priority, members, {{0, algorithm}});
    }
    // All chunks count as full, even if the last one has fewer bytes.
    auto chunk = c.bytes[row] / system_.splits;
    auto bytes = c.bytes[row];
    if (comm != Comm::all_gather && chunk < workload_.npus()) {
      chunk = workload_.npus();
      bytes = system_.splits * chunk;
    }
    if (chunk == 0) {
      invalid(workload_.describe(row) + " has fewer bytes than the " +
              std::to_string(system_.splits) + " parts it is split into");
    }
    const auto streams = (bytes + chunk - 1) / chunk;
    datasets_[at(dataset)].streams_left = static_cast<std::int32_t>(streams);
    const auto lines =
        group != 0 && at(workload_.npus()) != members->size()
            ? std::vector<Place>{{0, group_implementation(comm), line_in(rank, *members)}}
            : lines_of(rank, comm, c.dims[row], group != 0);
    for (std::int64_t i = 0; i < streams; ++i) {
      auto phases = phases_of(rank, comm, chunk, lines);
      if (phases.empty()) return;  // no dimension takes part: the node never ends
      add_stream(rank, dataset, group, priority, members, std::move(phases));
    }
  }

  // The position of a rank in a dimension that a collective uses.
  struct Place {
    std::size_t dim;
    Implementation implementation;
    Line line;
  };

  Implementation group_implementation(Comm comm) const {
    const auto& list = system_.of(comm);
    return list.size() > 1 ? Implementation{Algorithm::ring} : list[0];
  }

  static Line line_in(std::int32_t rank, const std::vector<std::int32_t>& members) {
    const auto position = std::lower_bound(members.begin(), members.end(), rank) - members.begin();
    return {static_cast<std::int32_t>(members.size()), static_cast<std::int32_t>(position), 0, 1,
            &members};
  }

  std::vector<Place> lines_of(std::int32_t rank, Comm comm, std::uint8_t involved, bool all) const {
    std::vector<Place> places;
    std::int32_t stride = 1;
    std::size_t dim = 0;
    for (const auto& implementation : system_.of(comm)) {
      const auto size = implementation.whole ? workload_.npus() : dims_[dim].size;
      const auto position = rank / stride % size;
      if (all || (involved >> dim & 1) != 0) {
        places.push_back({dim, implementation, {size, position, rank - position * stride, stride}});
      }
      if (implementation.whole) break;
      stride *= size;
      ++dim;
    }
    std::erase_if(places, [](const Place& place) { return place.line.size == 1; });
    return places;
  }

  std::vector<StreamPhase> phases_of(std::int32_t rank, Comm comm, std::int64_t bytes,
                                     const std::vector<Place>& places) {
    auto& state = ranks_[at(rank)];
    std::vector<StreamPhase> phases;
    const auto add = [&](const Place& place, Comm part, std::pair<std::int32_t, bool> queue) {
      PhaseSpec spec{place.implementation, part, bytes, place.line, queue.second};
      if (place.implementation.algorithm == Algorithm::double_binary_tree) {
        spec.root_last = state.trees[{static_cast<std::uint8_t>(comm), place.dim}]++ % 2 == 0;
      }
      phases.push_back({queue.first, -1, spec});
      bytes = spec.bytes_after();
    };
    const auto last = places.size();
    if (comm == Comm::all_reduce && system_.local_bandwidth_aware) {
      for (std::size_t i = 0; i < last; ++i) {
        const bool turning = i + 1 == last;
        add(places[i], turning ? Comm::all_reduce : Comm::reduce_scatter,
            state.queues[places[i].dim].lower_half());
      }
      for (auto i = last; i-- > 1;) {
        add(places[i - 1], Comm::all_gather, state.queues[places[i - 1].dim].upper_half());
      }
    } else {
      for (std::size_t i = 0; i < last; ++i) {
        const auto& place = places[comm == Comm::all_gather ? last - 1 - i : i];
        add(place, comm, state.queues[place.dim].any());
      }
    }
    return phases;
  }

  void add_stream(std::int32_t rank, std::int32_t dataset, std::int32_t group,
                  std::int32_t priority, const std::vector<std::int32_t>* members,
                  std::vector<StreamPhase> phases) {
    auto& state = ranks_[at(rank)];
    auto id = state.streams++;
    if (group != 0) {
      id = state.group_streams.try_emplace(group, group * kGroupStreams).first->second++;
    }
    auto number = static_cast<std::int32_t>(streams_.size());
    if (free_streams_.empty()) {
      streams_.push_back(std::make_unique<Stream>());
      streams_.back()->host = std::make_unique<StreamHost>(*this, number);
    } else {
      number = free_streams_.back();
      free_streams_.pop_back();
    }
    Stream& stream = *streams_[at(number)];
    stream.rank = rank;
    stream.dataset = dataset;
    stream.id = id;
    stream.priority = priority;
    stream.members = members;
    stream.phases = std::move(phases);
    stream.phase_at = 0;
    stream.queue = -1;
    stream.local = stream.begun = false;
    next_phase(number);
  }

  void stream_event(const Handler& handler) {
    const auto& stream = streams_[at(handler.who)];
    if (handler.row == kToSum) {  // one write and two reads
      const auto part = std::floor(static_cast<double>(handler.bytes) / system_.memory_Bps * 1e9);
      return network_.later(stream->rank, 3 * static_cast<Nanoseconds>(part),
                            {Handler::Kind::stream, handler.who, kStaged});
    }
    const auto stage = handler.row == kReceived ? Stage::received : Stage::ready;
    if (stream->phase->on(stage)) next_phase(handler.who);
  }

  // Ends a stream's phase and begins the next; the order of the steps is ASTRA-sim's.
  void next_phase(std::int32_t number) {
    Stream& stream = *streams_[at(number)];
    auto& state = ranks_[at(stream.rank)];
    const auto before = stream.queue;
    const bool last = stream.phase_at == stream.phases.size();
    stream.phase.reset();
    if (last) stream_over(stream.rank, stream.dataset);
    if (before >= 0) std::erase(state.active[at(before)], number);
    if (!last) {
      stream.queue = stream.phases[stream.phase_at].queue;
      stream.begun = false;
      insert(state.active[at(stream.queue)], number);
    }
    if (before >= 0) {
      --state.running[at(before)];
      begin_streams(state, before);
    }
    if (last) {
      free_streams_.push_back(number);
    } else {
      begin_streams(state, stream.queue);
    }
  }

  void stream_over(std::int32_t rank, std::int32_t dataset) {
    if (--datasets_[at(dataset)].streams_left > 0) return;
    node_done(rank, rank, datasets_[at(dataset)].row);
  }

  // Inserts a stream behind the running ones and those of the same or higher priority.
  void insert(std::vector<std::int32_t>& queue, std::int32_t number) const {
    const auto place = std::find_if(queue.begin(), queue.end(), [&](std::int32_t other) {
      const Stream& waiting = *streams_[at(other)];
      return !waiting.begun && waiting.priority < streams_[at(number)]->priority;
    });
    queue.insert(place, number);
  }

  void begin_streams(RankState& state, std::int32_t queue) {
    const auto most = at((system_.active_chunks + system_.queues - 1) / system_.queues);
    auto& running = state.running[at(queue)];
    while (running < state.active[at(queue)].size() && running < most) {
      const auto number = state.active[at(queue)][running];
      begin_stream(number);
      ++running;
    }
  }

  void begin_stream(std::int32_t number) {
    Stream& stream = *streams_[at(number)];
    stream.begun = true;
    const StreamPhase phase = stream.phases[stream.phase_at++];
    if (phase.algorithm < 0) {
      stream.local = phase.native.line.members != nullptr;
      stream.phase = begin_phase(phase.native, *stream.host);
      stream.phase->on(Stage::begin);
      return;
    }
    const auto place =
        stream.members == nullptr ? stream.rank : line_in(stream.rank, *stream.members).position;
    const auto program = static_cast<std::int32_t>(programs_.size());
    programs_.push_back(
        std::make_unique<RankProgress>(algorithms_[at(phase.algorithm)], place, true));
    programs_.back()->stream = number;
    programs_.back()->members = stream.members;
    advance(program);
  }

  // Explains why a workload cannot finish; names causes, not nodes that only wait for them.
  void refuse_unfinished() const {
    std::vector<std::string> endless, asleep, waiting, collectives;
    for (std::size_t number = 0; number < programs_.size(); ++number) {
      const auto& program = *programs_[number];
      bool begun = false;
      program.each_stuck([&](std::uint32_t row) {
        begun = true;
        const auto kind = program.workload.kind(row);
        (kind == NodeKind::comp   ? endless
         : kind == NodeKind::coll ? collectives
                                  : waiting)
            .push_back(program.workload.describe(row));
      });
      if (begun || number >= ranks_.size()) continue;
      program.each_ready(
          [&](std::uint32_t row) { asleep.push_back(program.workload.describe(row)); });
    }
    for (const auto& message : network_.messages()) {
      if (message.posted || message.on_send.kind != Handler::Kind::node) continue;
      const auto& sender = *programs_[at(message.on_send.who)];
      waiting.push_back(sender.workload.describe(message.on_send.row));
    }
    if (!endless.empty()) {
      invalid("the workload never finishes: " + listed(endless) + " never end" +
              (endless.size() == 1 ? "s" : "") +
              ", since the roofline divides by zero (num_ops, peak-perf or local-mem-bw is 0)");
    }
    if (!asleep.empty()) {
      invalid("the workload never finishes: nothing starts " + listed(asleep) +
              "; ranks look for work after events, and the end of a computation with a "
              "tensor_size of 0 is none");
    }
    const auto& stuck = waiting.empty() ? collectives : waiting;
    if (!stuck.empty()) {
      invalid("the workload never finishes: no partner comes for " + listed(stuck));
    }
  }

  static std::string listed(const std::vector<std::string>& nodes) {
    constexpr std::size_t kShown = 4;
    std::string names;
    for (std::size_t i = 0; i < std::min(nodes.size(), kShown); ++i) {
      names += (i == 0 ? "" : ", ") + nodes[i];
    }
    if (nodes.size() > kShown) names += " and " + std::to_string(nodes.size() - kShown) + " more";
    return names;
  }

  Network& network_;
  std::vector<Dimension> dims_;
  const Workload& workload_;
  WorkloadGraph graph_;
  std::vector<Nanoseconds> begin_, end_;  // per node of the workload; -1: not yet
  std::vector<MemoryQueue> memories_;
  std::vector<WorkloadGraph> algorithms_;
  const Column<std::int32_t>& algorithm_of_;
  const System& system_;
  std::vector<RankState> ranks_;
  // Those of ranks first, then those of collectives.
  std::vector<std::unique_ptr<RankProgress>> programs_;
  std::vector<DataSet> datasets_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<std::int32_t> free_streams_;  // finished streams, for reuse
  std::vector<Deferred> deferred_;
  std::int64_t finished_ = 0;
};

}  // namespace

Result simulate(std::shared_ptr<const Topology> topology, std::vector<Dimension> dims, bool aware,
                const Workload& workload,
                const std::vector<std::shared_ptr<const Workload>>& algorithms,
                const Column<std::int32_t>& algorithm_of, const System& system,
                const Progress& progress) {
  check(dims, workload, algorithms, algorithm_of, system);
  Network network(std::move(topology), dims, aware, system.record);
  if (!system.replay_only) {
    network.prepare(pairs_that_talk(dims, workload, algorithms, algorithm_of, system), progress);
  }
  return Simulator(network, std::move(dims), workload, algorithms, algorithm_of, system)
      .run(progress);
}

}  // namespace tacos::astra
