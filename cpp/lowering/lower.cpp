#include "lowering/lower.hpp"

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "lowering/sum_order.hpp"
#include "support/index.hpp"

namespace tacos {

namespace {

struct Move {
  NodeId src, dst;
  ChunkId chunk;
  RouteId route;
  Op op;
  Reads reads;
  Time start, arrival;
  std::int32_t channel = 0;
  StepId send = -1;  // the step that sends it
  SumOrder::Place place{};
  std::int32_t waits_in = -1;  // scratch slot at the destination until its turn in an ordered sum
};

// Whether messages of different connections may cross one link.
bool shares_links(const Schedule& schedule) {
  const auto& used = schedule.stored().lane_route;
  return std::any_of(used.begin(), used.end(),
                     [&](RouteId route) { return schedule.routes().links(route).size() > 1; });
}

// Of each route, the links that are as slow as its slowest. A message keeps these busy until its last byte has
// left. A faster link of the route has room for others meanwhile, so it asks for no order.
std::vector<std::vector<LinkId>> slowest_links(const Routes& routes) {
  const auto& topology = routes.topology();
  std::vector<std::vector<LinkId>> slowest(at(routes.count()));
  for (RouteId r = 0; r < routes.count(); ++r) {
    const auto links = routes.links(r);
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (const LinkId link : links) least = std::min(least, topology.bandwidth(link));
    for (const LinkId link : links) {
      if (topology.bandwidth(link) == least) slowest[at(r)].push_back(link);
    }
  }
  return slowest;
}

// A table may list a route more than once; for each, the first that uses the same links.
std::vector<RouteId> same_routes(const Routes& routes) {
  std::map<std::vector<LinkId>, RouteId> first;
  std::vector<RouteId> same;
  for (RouteId r = 0; r < routes.count(); ++r) {
    const auto links = routes.links(r);
    same.push_back(first.try_emplace({links.begin(), links.end()}, r).first->second);
  }
  return same;
}

std::vector<Move> all_moves(const Schedule& schedule) {
  const auto same = same_routes(schedule.routes());
  std::vector<Move> moves;
  moves.reserve(at(schedule.stored_transfers()));
  const auto& t = schedule.stored();
  for (std::int32_t lane = 0; lane < schedule.lanes(); ++lane) {
    const RouteId route = t.lane_route[at(lane)];
    for (auto i = t.lane_begin[at(lane)]; i < t.lane_begin[at(lane) + 1]; ++i) {
      moves.push_back({schedule.routes().sources(route)[0],
                       schedule.routes().destinations(route)[0], t.chunk[at(i)], same[at(route)],
                       static_cast<Op>(t.lane_op[at(lane)]),
                       static_cast<Reads>(t.lane_reads[at(lane)]), schedule.start(lane, i, 0),
                       schedule.arrival(lane, i)});
    }
  }
  return moves;
}

std::vector<Move> moves_of(const Schedule& schedule, NodeId rank) {
  const auto rows = schedule.rows(rank, std::nullopt);
  const auto same = same_routes(schedule.routes());
  std::vector<Move> moves;
  for (std::size_t i = 0; i < rows.src.size(); ++i) {
    moves.push_back({rows.src[i], rows.dst[i], rows.chunk[i], same[at(rows.route[i])],
                     static_cast<Op>(rows.op[i]), static_cast<Reads>(rows.reads[i]), rows.start[i],
                     rows.arrival[i]});
  }
  return moves;
}

// Sets the places of the moves in sums that have an order; returns those sums.
std::vector<SumOrder::Sum> put_sums_in_order(const Collective& collective,
                                             std::vector<Move>& moves) {
  if (!sums_end_at_several(collective)) return {};
  std::vector<SummedTransfer> transfers;
  transfers.reserve(moves.size());
  for (const Move& m : moves) {
    transfers.push_back({m.src, m.dst, m.chunk, m.op, m.reads, m.start, m.arrival});
  }
  auto order = sum_order(collective, transfers);
  for (std::size_t i = 0; i < order.places.size(); ++i) moves[i].place = order.places[i];
  return std::move(order.sums);
}

// Between two NPUs, chunks of one channel leave and arrive in one order and over one route.
void assign_channels(std::vector<Move>& moves) {
  std::sort(moves.begin(), moves.end(), [](const Move& a, const Move& b) {
    return std::tie(a.src, a.dst, a.start, a.arrival, a.chunk) <
           std::tie(b.src, b.dst, b.start, b.arrival, b.chunk);
  });
  std::vector<std::pair<RouteId, Time>> channels;  // route and last arrival
  for (std::size_t i = 0; i < moves.size(); ++i) {
    Move& move = moves[i];
    if (i == 0 || moves[i - 1].src != move.src || moves[i - 1].dst != move.dst) channels.clear();
    std::size_t channel = 0;
    while (channel < channels.size() &&
           (channels[channel].first != move.route || channels[channel].second > move.arrival)) {
      ++channel;
    }
    if (channel == channels.size()) channels.emplace_back(move.route, 0);
    channels[channel].second = move.arrival;
    move.channel = static_cast<std::int32_t>(channel);
  }
}

// The columns of a program, thread by thread.
class Builder {
 public:
  struct Step {
    StepOp op = StepOp::nop;
    Buffer src_buffer = Buffer::none, dst_buffer = Buffer::none;
    std::int32_t src_slot = -1, dst_slot = -1, count = 1;
    Move* message = nullptr;
    std::vector<std::size_t> after;  // positions among the rank's steps
    std::size_t thread = 0;          // position among the rank's threads
  };
  struct Thread {
    NodeId send_peer = -1, recv_peer = -1;
    std::int32_t channel = 0;
    auto operator<=>(const Thread&) const = default;
  };

  explicit Builder(std::int32_t ranks) : scratch_(at(ranks), 0) { thread_begin_.push_back(0); }

  // `steps` are in order of time; threads are numbered in the order of their keys.
  void add_rank(NodeId rank, const std::vector<Thread>& threads, std::vector<Step>& steps,
                std::int32_t scratch) {
    scratch_[at(rank)] = scratch;
    std::vector<std::vector<std::size_t>> rows(threads.size());
    for (std::size_t i = 0; i < steps.size(); ++i) rows[steps[i].thread].push_back(i);
    std::vector<StepId> id(steps.size());
    auto next = static_cast<StepId>(op_.size());
    for (const auto& row : rows) {
      for (const auto i : row) id[i] = next++;
    }
    for (std::size_t t = 0; t < threads.size(); ++t) {
      if (rows[t].empty()) continue;
      thread_rank_.push_back(rank);
      thread_channel_.push_back(threads[t].channel);
      thread_send_peer_.push_back(threads[t].send_peer);
      thread_recv_peer_.push_back(threads[t].recv_peer);
      for (const auto i : rows[t]) add_step(steps[i], id[i], id);
      thread_begin_.push_back(static_cast<std::int64_t>(op_.size()));
    }
  }

  Program finish(std::shared_ptr<const Collective> collective, bool in_place,
                 std::string provenance) {
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
    spec.provenance = std::move(provenance);
    return Program(std::move(spec));
  }

 private:
  void add_step(const Step& step, StepId self, const std::vector<StepId>& id) {
    op_.push_back(static_cast<std::uint8_t>(step.op));
    src_buffer_.push_back(static_cast<std::uint8_t>(step.src_buffer));
    dst_buffer_.push_back(static_cast<std::uint8_t>(step.dst_buffer));
    src_slot_.push_back(step.src_slot);
    dst_slot_.push_back(step.dst_slot);
    count_.push_back(step.count);
    message_.push_back(step.message);
    if (step.op == StepOp::send) step.message->send = self;
    for (const auto before : step.after) dep_.push_back(id[before]);
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

// What a rank knows of a chunk.
struct Chunk {
  std::int32_t input = -1, output = -1;  // slots
  std::int32_t scratch = -1;             // slot, while in use
  std::int32_t saved = -1;               // scratch slot with a copy of the input
  bool arrives = false;                  // ever
  bool reads_input_late = false;         // when something has arrived already
  bool joins_late = false;               // the input is added to a sum that others have begun
  bool written = false;                  // so far: whether `acc` has left the input slot
  std::size_t last = 0;                  // event that touches it
};

// One rank: where its chunks live, and in which order its steps touch them. `chunks` has room for all
// chunks of the collective; ranks use it one after the other.
class Rank {
 public:
  using Step = Builder::Step;

  Rank(const ChunkLists& lists, NodeId rank, bool in_place, std::vector<Move*> moves,
       const std::vector<std::vector<LinkId>>& slowest, std::int32_t window,
       const std::vector<SumOrder::Sum>& sums, std::vector<Chunk>& chunks)
      : rank_(rank),
        in_place_(in_place),
        moves_(std::move(moves)),
        slowest_(slowest),
        window_(at(window)),
        sums_(sums),
        chunks_(chunks) {
    inputs_ = lists.inputs(rank);
    const auto outputs = lists.outputs(rank);
    for (const Move* move : moves_) chunks_[move->chunk] = {};
    for (const auto& known : {inputs_, outputs}) {
      for (const ChunkId chunk : known) chunks_[chunk] = {};
    }
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      chunks_[inputs_[i]].input = static_cast<std::int32_t>(i);
    }
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      chunks_[outputs[i]].output = static_cast<std::int32_t>(i);
    }
    first_output_ = inputs_.size();
    first_scratch_ = inputs_.size() + outputs.size();
    places_.resize(first_scratch_);
    number_threads();
    list_events();
    if (!sums_.empty()) find_waiting();
    copy_at_first();
    for (const Event& event : events_) {
      event.starts                 ? send(*event.move)
      : event.move->place.sum >= 0 ? receive_in_order(*event.move)
                                   : receive(*event.move);
      let_go(chunks_[event.chunk]);
    }
  }

  void add_to(Builder& builder) {
    std::vector<Builder::Thread> threads(threads_.size());
    for (const auto& [thread, position] : threads_) threads[position] = thread;
    builder.add_rank(rank_, threads, steps_, scratch_slots_);
  }

 private:
  struct Event {
    Time time;
    bool starts;  // arrivals at t are visible to starts at t
    ChunkId chunk;
    Move* move;
  };
  // A place is a slot with the steps that touched it: the last that wrote, and who has read since.
  struct Place {
    std::size_t writer = kNobody;
    std::vector<std::size_t> readers;
  };
  static constexpr std::size_t kNobody = std::numeric_limits<std::size_t>::max();

  // The thread of local copies comes first.
  void number_threads() {
    threads_[Builder::Thread{}] = 0;
    for (const Move* move : moves_) threads_[thread_of(*move, move->src == rank_)] = 0;
    std::size_t position = 0;
    for (auto& [thread, number] : threads_) number = position++;
  }
  static Builder::Thread thread_of(const Move& move, bool sends) {
    return sends ? Builder::Thread{move.dst, -1, move.channel}
                 : Builder::Thread{-1, move.src, move.channel};
  }

  void list_events() {
    for (Move* move : moves_) {
      if (move->src == rank_) events_.push_back({move->start, true, move->chunk, move});
      if (move->dst == rank_) events_.push_back({move->arrival, false, move->chunk, move});
    }
    std::stable_sort(events_.begin(), events_.end(), [](const Event& a, const Event& b) {
      // At one moment copies land first; sums in their order.
      return std::tuple(a.time, a.starts, a.chunk, a.move->op, a.move->place.operand) <
             std::tuple(b.time, b.starts, b.chunk, b.move->op, b.move->place.operand);
    });
    for (std::size_t i = 0; i < events_.size(); ++i) {
      Chunk& chunk = chunks_[events_[i].chunk];
      chunk.last = i;
      if (!events_[i].starts) {
        chunk.arrives = true;
      } else if (events_[i].move->reads == Reads::input && chunk.arrives) {
        chunk.reads_input_late = true;
      }
    }
  }

  // Before everything else: outputs that are just inputs, and inputs that are still to be read when
  // their place has been overwritten.
  void copy_at_first() {
    for (const ChunkId id : inputs_) {
      Chunk& chunk = chunks_[id];
      if (in_place_ && chunk.output >= 0 && chunk.reads_input_late) {
        chunk.saved = take_scratch();
        copy(Buffer::input, chunk.input, Buffer::scratch, chunk.saved);
      }
      if (!in_place_ && chunk.output >= 0 && !chunk.arrives) {
        copy(Buffer::input, chunk.input, Buffer::output, chunk.output);
      }
      if (chunk.joins_late) bring_to_acc(chunk);
    }
  }
  void copy(Buffer from, std::int32_t src, Buffer to, std::int32_t dst) {
    if (!steps_.empty()) {
      Step& last = steps_.back();
      if (last.op == StepOp::copy && last.src_buffer == from && last.src_slot + last.count == src &&
          last.dst_buffer == to && last.dst_slot + last.count == dst) {
        ++last.count;
        touch(steps_.size() - 1, from, src, false);
        touch(steps_.size() - 1, to, dst, true);
        return;
      }
    }
    Step step;
    step.op = StepOp::copy;
    step.thread = 0;
    set_src(step, from, src);
    set_dst(step, to, dst);
    add(std::move(step));
  }

  void send(Move& move) {
    Chunk& chunk = chunks_[move.chunk];
    Step step;
    step.op = StepOp::send;
    step.message = &move;
    step.thread = threads_.at(thread_of(move, true));
    const bool own = move.reads == Reads::input || !chunk.written;
    if (own && chunk.input < 0) {
      invalid("a transfer of chunk " + std::to_string(move.chunk) + " leaves NPU " +
              std::to_string(rank_) + " before it is there");
    }
    if (own && chunk.saved >= 0) {
      set_src(step, Buffer::scratch, chunk.saved);
    } else if (own) {
      set_src(step, Buffer::input, chunk.input);
    } else {
      set_acc(step, chunk, true);
    }
    const auto self = add(std::move(step));
    for (const LinkId link : slowest_[at(move.route)]) {
      auto& sent = sent_[link];
      if (window_ > 0 && sent.size() >= window_) wait_for(self, sent[sent.size() - window_]);
      sent.push_back(self);
    }
  }

  void receive(Move& move) {
    Chunk& chunk = chunks_[move.chunk];
    Step step;
    step.message = &move;
    step.thread = threads_.at(thread_of(move, false));
    const bool sums = move.op == Op::reduce && (chunk.written || chunk.input >= 0);
    step.op = sums ? StepOp::recv_reduce : StepOp::recv;
    if (sums && chunk.written) set_acc(step, chunk, true);
    if (sums && !chunk.written) set_src(step, Buffer::input, chunk.input);
    if (!chunk.written && chunk.output < 0) chunk.scratch = take_scratch();
    chunk.written = true;
    set_acc(step, chunk, false);
    add(std::move(step));
  }

  // --- sums whose operands have an order (see sum_order.hpp)

  struct Summing {
    std::int32_t next = 0;  // the operands before it have been added up
    std::int32_t partial =
        -1;              // scratch slot of their sum, until `acc` joins them; -1: it is in `acc`
    bool local = false;  // whether a step of its own has added something
    std::vector<std::int32_t> waiting;  // per operand: its scratch slot, -1: it is not there
  };

  Summing& summing(const Move& move) {
    auto [found, added] = summing_.try_emplace(move.place.sum);
    if (added) {
      const auto& sum = sums_[at(move.place.sum)];
      found->second.waiting.assign(at(sum.operands), -1);
      found->second.next = sum.own == 0 ? 1 : 0;
    }
    return found->second;
  }

  // Gives scratch slots to the operands that arrive before their turn, and to the first where `acc`
  // comes later: chunks of one sender side by side, so that they can travel together. Once operands are
  // added by steps of their own, all later ones are, so that those of several chunks can become one.
  void find_waiting() {
    std::vector<Move*> waiting;
    for (const Event& event : events_) {
      if (event.starts) continue;
      if (event.move->place.sum < 0) {
        chunks_[event.chunk].written = true;
        continue;
      }
      const auto& sum = sums_[at(event.move->place.sum)];
      auto& [next, partial, local, there] = summing(*event.move);
      const auto operand = event.move->place.operand;
      const bool waits = operand != next || local;
      if (waits || (operand == 0 && sum.own > 0)) waiting.push_back(event.move);
      if (operand == next && !local) ++next;
      there[at(operand)] = 1;
      if (!chunks_[event.chunk].written) chunks_[event.chunk].joins_late = sum.own > 0;
      chunks_[event.chunk].written = true;
      for (; next < sum.operands && (next == sum.own || there[at(next)] >= 0); ++next) local = true;
    }
    for (const Event& event : events_) chunks_[event.chunk].written = false;
    summing_.clear();
    std::sort(waiting.begin(), waiting.end(), [](const Move* a, const Move* b) {
      return std::tie(a->src, a->chunk, a->arrival) < std::tie(b->src, b->chunk, b->arrival);
    });
    for (Move* move : waiting) move->waits_in = take_scratch();
  }

  void receive_in_order(Move& move) {
    const auto& sum = sums_[at(move.place.sum)];
    auto& [next, partial, local, waiting] = summing(move);
    const auto operand = move.place.operand;
    if (operand == next && partial < 0 && move.waits_in < 0) {
      receive(move);
      ++next;
    } else {
      Step step;
      step.message = &move;
      step.thread = threads_.at(thread_of(move, false));
      const bool adds = move.waits_in < 0;
      step.op = adds ? StepOp::recv_reduce : StepOp::recv;
      if (adds) set_src(step, Buffer::scratch, partial);
      set_dst(step, Buffer::scratch, adds ? partial : move.waits_in);
      add(std::move(step));
      if (adds) {
        ++next;
      } else if (operand == 0) {
        partial = move.waits_in;
        ++next;
      } else {
        waiting[at(operand)] = move.waits_in;
      }
    }
    for (; next < sum.operands; ++next) {
      const bool own = next == sum.own;
      const auto from = own ? partial : waiting[at(next)];
      if (from < 0) break;
      if (own) partial = -1;
      add_scratch(chunks_[move.chunk], from, partial);
    }
  }

  // Adds a scratch slot to the partial sum, or to `acc`.
  void add_scratch(Chunk& chunk, std::int32_t from, std::int32_t partial) {
    Step step;
    step.op = StepOp::reduce;
    step.thread = 0;
    set_src(step, Buffer::scratch, from);
    if (partial >= 0) {
      set_dst(step, Buffer::scratch, partial);
    } else {
      set_acc(step, chunk, false);
    }
    add(std::move(step));
  }
  // Until something is written, `acc` is the input slot, to which nothing may be added out of place.
  void bring_to_acc(Chunk& chunk) {
    chunk.written = true;
    if (chunk.output < 0) chunk.scratch = take_scratch();
    if (in_place_ && chunk.output >= 0) return;
    const bool ends = chunk.output >= 0;
    copy(Buffer::input, chunk.input, ends ? Buffer::output : Buffer::scratch,
         ends ? chunk.output : chunk.scratch);
  }

  void set_acc(Step& step, const Chunk& chunk, bool as_source) {
    const auto buffer = chunk.output >= 0 ? Buffer::output : Buffer::scratch;
    const auto slot = chunk.output >= 0 ? chunk.output : chunk.scratch;
    as_source ? set_src(step, buffer, slot) : set_dst(step, buffer, slot);
  }
  static void set_src(Step& step, Buffer buffer, std::int32_t slot) {
    step.src_buffer = buffer;
    step.src_slot = slot;
  }
  static void set_dst(Step& step, Buffer buffer, std::int32_t slot) {
    step.dst_buffer = buffer;
    step.dst_slot = slot;
  }

  // After its last use a chunk's scratch slot is free for others.
  void let_go(Chunk& chunk) {
    const auto now = ++done_ - 1;
    if (chunk.last != now || chunk.scratch < 0) return;
    free_scratch_.push_back(chunk.scratch);
    chunk.scratch = -1;
    chunk.written = false;
  }
  std::int32_t take_scratch() {
    if (free_scratch_.empty()) {
      places_.emplace_back();
      return scratch_slots_++;
    }
    const auto slot = free_scratch_.front();
    free_scratch_.pop_front();
    return slot;
  }

  std::size_t add(Step step) {
    steps_.push_back(std::move(step));
    const auto self = steps_.size() - 1;
    const Step& added = steps_[self];
    if (added.src_slot >= 0) touch(self, added.src_buffer, added.src_slot, false);
    if (added.dst_slot >= 0) touch(self, added.dst_buffer, added.dst_slot, true);
    return self;
  }

  Place& place(Buffer buffer, std::int32_t slot) {
    if (buffer == Buffer::input) {
      const auto shared = in_place_ ? chunks_[inputs_[at(slot)]].output : -1;
      return shared >= 0 ? place(Buffer::output, shared) : places_[at(slot)];
    }
    return places_[(buffer == Buffer::output ? first_output_ : first_scratch_) + at(slot)];
  }

  // The step waits for those that touched the place before it, if one of the two writes.
  void touch(std::size_t self, Buffer buffer, std::int32_t slot, bool writes) {
    Place& there = place(buffer, slot);
    if (!writes) {
      if (there.writer != kNobody) wait_for(self, there.writer);
      there.readers.push_back(self);
      return;
    }
    // Readers have waited for the writer themselves.
    bool others = false;
    for (const auto reader : there.readers) {
      if (reader == self) continue;
      wait_for(self, reader);
      others = true;
    }
    if (!others && there.writer != kNobody) wait_for(self, there.writer);
    there.readers.clear();
    there.writer = self;
  }
  // Of several steps of one thread, the last is enough; its own thread it follows anyway.
  void wait_for(std::size_t self, std::size_t before) {
    if (before == self || steps_[before].thread == steps_[self].thread) return;
    for (auto& other : steps_[self].after) {
      if (steps_[other].thread != steps_[before].thread) continue;
      other = std::max(other, before);
      return;
    }
    steps_[self].after.push_back(before);
  }

  const NodeId rank_;
  const bool in_place_;
  std::vector<Move*> moves_;
  const std::vector<std::vector<LinkId>>& slowest_;  // per route
  const std::size_t window_;
  std::map<LinkId, std::vector<std::size_t>> sent_;  // the steps that fill a link, in order
  std::vector<Event> events_;
  const std::vector<SumOrder::Sum>& sums_;
  std::map<std::int32_t, Summing> summing_;
  std::vector<Chunk>& chunks_;
  std::vector<ChunkId> inputs_;
  std::map<Builder::Thread, std::size_t> threads_;
  std::vector<Step> steps_;
  std::vector<Place> places_;  // of the input's slots, the output's, and scratch
  std::size_t first_output_ = 0, first_scratch_ = 0;
  std::int32_t scratch_slots_ = 0;
  std::deque<std::int32_t> free_scratch_;
  std::size_t done_ = 0;
};

void check(const Schedule& schedule) {
  const auto& routes = schedule.routes();
  for (const RouteId route : schedule.stored().lane_route) {
    if (routes.kind(route) == RouteKind::path &&
        schedule.topology().is_npu(routes.sources(route)[0]) &&
        schedule.topology().is_npu(routes.destinations(route)[0])) {
      continue;
    }
    invalid("the schedule uses switches that multicast or reduce, which no program can say");
  }
  const auto& collective = schedule.collective();
  for (ChunkId chunk = 0; chunk < collective.chunks(); ++chunk) {
    const auto kind = collective.parts()[collective.part_of(chunk)].kind;
    const bool any = kind == CollectiveKind::all_to_all_v || kind == CollectiveKind::send_recv ||
                     kind == CollectiveKind::custom;
    if (any || collective.bytes(chunk) > 0) continue;
    invalid("chunk " + std::to_string(chunk) + " of " + std::to_string(collective.chunks()) +
            " has no bytes: choose fewer chunks");
  }
}

// Whether one NPU adds up each sum, so that no sum needs an order; told from what one rank sends and
// receives. Of an orbit whose group takes each member to each other, the NPUs that add up a chunk
// are as many as the chunks of that piece that one NPU adds up.
bool each_sum_made_once(const Schedule& schedule, NodeId rank, const std::vector<Move>& moves) {
  const auto& collective = schedule.collective();
  if (!schedule.symmetry()) return !sums_end_at_several(collective);
  const auto& part = collective.parts()[0];
  if (part.kind != CollectiveKind::all_reduce) return true;
  if (schedule.symmetry()->size() != static_cast<std::int64_t>(part.members())) return false;
  std::vector<std::pair<Time, Op>> last(collective.chunks(), {-1, Op::reduce});
  for (const Move& move : moves) {
    if (move.dst != rank) continue;
    last[move.chunk] = std::max(last[move.chunk], std::pair(move.arrival, move.op));
  }
  std::vector<std::uint8_t> made(at(part.chunks), 0);
  for (std::size_t chunk = 0; chunk < last.size(); ++chunk) {
    if (last[chunk].second == Op::reduce && made[chunk % at(part.chunks)]++ > 0) return false;
  }
  return true;
}

}  // namespace

Program lower(const Schedule& schedule, bool in_place, std::optional<NodeId> rank,
              std::int32_t window, const Progress& progress) {
  check(schedule);
  if (window < 0) invalid("window is " + std::to_string(window) + ", it must not be negative");
  const auto ranks = schedule.topology().npus();
  if (rank && (*rank < 0 || *rank >= ranks)) {
    invalid("rank is " + std::to_string(*rank) + ", allowed are 0 to " + std::to_string(ranks - 1));
  }
  auto alone = rank ? moves_of(schedule, *rank) : std::vector<Move>();
  // Sums that several ranks add up need an order that only the transfers of all ranks tell.
  const bool everybodys = !rank || !each_sum_made_once(schedule, *rank, alone);
  // One rank's share of an orbit knows the links of the stored transfers only, not of their images.
  const bool all = everybodys || (window > 0 && shares_links(schedule));
  const std::optional<Schedule> expanded =
      schedule.symmetry() && all ? std::optional(schedule.expand()) : std::nullopt;
  const Schedule& whole = expanded ? *expanded : schedule;
  auto moves = everybodys ? all_moves(whole) : expanded ? moves_of(whole, *rank) : std::move(alone);
  assign_channels(moves);
  const auto sums =
      everybodys ? put_sums_in_order(schedule.collective(), moves) : std::vector<SumOrder::Sum>();
  std::vector<std::vector<Move*>> of(at(ranks));
  for (Move& move : moves) {
    of[at(move.src)].push_back(&move);
    of[at(move.dst)].push_back(&move);
  }
  auto collective = std::make_shared<const Collective>(counted_in_chunks(schedule.collective()));
  Builder builder(ranks);
  const ChunkLists lists(*collective);
  const auto slowest = slowest_links(whole.routes());
  std::vector<Chunk> chunks(collective->chunks());
  for (NodeId r = 0; r < ranks; ++r) {
    if (rank && r != *rank) continue;
    Rank(lists, r, in_place, std::move(of[at(r)]), slowest, window, sums, chunks).add_to(builder);
    if (progress) progress(static_cast<double>(r) / static_cast<double>(ranks));
  }
  return builder.finish(std::move(collective), in_place, schedule.provenance());
}

Departures departures(const Schedule& schedule) {
  check(schedule);
  const std::optional<Schedule> expanded =
      schedule.symmetry() ? std::optional(schedule.expand()) : std::nullopt;
  auto moves = all_moves(expanded ? *expanded : schedule);
  assign_channels(moves);
  Departures result;
  for (const Move& move : moves) {
    result.src.push_back(move.src);
    result.dst.push_back(move.dst);
    result.channel.push_back(move.channel);
    result.route.push_back(move.route);
    result.start.push_back(move.start);
  }
  return result;
}

}  // namespace tacos
