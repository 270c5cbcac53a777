#include "lowering/lower.hpp"

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "lowering/moves.hpp"
#include "lowering/program_builder.hpp"
#include "support/index.hpp"
#include "support/work.hpp"

namespace tacos {

namespace {

// The state of a chunk at a rank.
struct Chunk {
  std::int32_t input = -1, output = -1;  // slots
  std::int32_t scratch = -1;             // slot, while in use
  std::int32_t saved = -1;               // scratch slot with a copy of the input
  bool arrives = false;                  // whether it ever arrives
  bool reads_input_late = false;         // whether the input is read after an arrival
  bool joins_late = false;               // whether the input is added to a sum that others began
  bool written = false;                  // whether `acc` has left the input slot so far
  std::size_t last = 0;                  // last event that accesses it
  Time left = 0;                         // when what was sent of it so far has arrived
};

// One rank: where its chunks are stored, and in which order its steps access them. `chunks` has room for
// all chunks of the collective; ranks use it one after another.
class Rank {
 public:
  using Step = ProgramBuilder::Step;

  Rank(const ChunkLists& lists, NodeId rank, const LowerOptions& options, std::vector<Move*> moves,
       const std::vector<std::vector<LinkId>>& slowest, const std::vector<SumOrder::Sum>& sums,
       std::vector<Chunk>& chunks)
      : rank_(rank),
        in_place_(options.in_place),
        reuse_scratch_(options.reuse_scratch),
        moves_(std::move(moves)),
        slowest_(slowest),
        window_(at(options.window)),
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
      now_ = event.time;
      event.starts                 ? send(*event.move)
      : event.move->place.sum >= 0 ? receive_in_order(*event.move)
                                   : receive(*event.move);
      let_go(chunks_[event.chunk]);
    }
  }

  void add_to(ProgramBuilder& builder) {
    builder.add_rank(rank_, threads_, built_, scratch_slots_);
  }

 private:
  struct Event {
    Time time;
    bool starts;  // arrivals at t are visible to starts at t
    ChunkId chunk;
    Move* move;
  };
  // A slot, with the last step that wrote it and the steps that have read it since: a list in readers_, the last first.
  struct Place {
    std::size_t writer = kNoStep, last_reader = kNoStep;
  };
  struct Reader {
    std::size_t step, before;
  };
  static constexpr std::size_t kNoStep = std::numeric_limits<std::size_t>::max();

  // The thread of local copies comes first.
  void number_threads() {
    threads_.emplace_back();
    for (const Move* move : moves_) threads_.push_back(thread_of(*move, move->src == rank_));
    std::sort(threads_.begin(), threads_.end());
    threads_.erase(std::unique(threads_.begin(), threads_.end()), threads_.end());
  }
  std::size_t number_of(const ProgramBuilder::Thread& thread) const {
    return at(std::lower_bound(threads_.begin(), threads_.end(), thread) - threads_.begin());
  }
  static ProgramBuilder::Thread thread_of(const Move& move, bool sends) {
    return sends ? ProgramBuilder::Thread{move.dst, -1, move.channel}
                 : ProgramBuilder::Thread{-1, move.src, move.channel};
  }

  void list_events() {
    for (Move* move : moves_) {
      if (move->src == rank_) events_.push_back({move->start, true, move->chunk, move});
      if (move->dst == rank_) events_.push_back({move->arrival, false, move->chunk, move});
    }
    std::stable_sort(events_.begin(), events_.end(), [](const Event& a, const Event& b) {
      // At equal times, copies arrive first, then sums in their order.
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

  // Adds copies at the start: for outputs that are just inputs, and for inputs that are read after their slot has
  // been overwritten.
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
    add(step);
  }

  void send(Move& move) {
    Chunk& chunk = chunks_[move.chunk];
    Step step;
    step.op = StepOp::send;
    step.message = &move;
    step.thread = number_of(thread_of(move, true));
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
    chunk.left = std::max(chunk.left, move.arrival);
    const auto self = add(step);
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
    step.thread = number_of(thread_of(move, false));
    const bool sums = move.op == Op::reduce && (chunk.written || chunk.input >= 0);
    step.op = sums ? StepOp::recv_reduce : StepOp::recv;
    if (sums && chunk.written) set_acc(step, chunk, true);
    if (sums && !chunk.written) set_src(step, Buffer::input, chunk.input);
    if (!chunk.written && chunk.output < 0) chunk.scratch = take_scratch();
    chunk.written = true;
    set_acc(step, chunk, false);
    add(step);
  }

  // --- sums whose operands have an order (see sum_order.hpp)

  struct Summing {
    std::int32_t next = 0;  // the operands before it have been added up
    // Scratch slot of their sum, until `acc` joins them; -1: it is in `acc`.
    std::int32_t partial = -1;
    bool local = false;                 // whether a local step has added something
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

  // Assigns scratch slots to operands that arrive before their turn, and to the first operand if `acc`
  // is added later. Chunks of one sender get adjacent slots, so that they can be sent together. Once a local step has
  // added an operand, local steps add all later ones, so that those of several chunks can be merged.
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
      step.thread = number_of(thread_of(move, false));
      const bool adds = move.waits_in < 0;
      step.op = adds ? StepOp::recv_reduce : StepOp::recv;
      if (adds) set_src(step, Buffer::scratch, partial);
      set_dst(step, Buffer::scratch, adds ? partial : move.waits_in);
      add(step);
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
    add(step);
  }
  // Until it is written, `acc` is the input slot, which must not be modified out of place.
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

  // Frees a chunk's scratch slot after its last use.
  void let_go(Chunk& chunk) {
    const auto now = ++done_ - 1;
    if (chunk.last != now || chunk.scratch < 0) return;
    if (reuse_scratch_) free_scratch_.emplace_back(chunk.left, chunk.scratch);
    chunk.scratch = -1;
    chunk.written = false;
  }
  // A slot whose last message is still under way would keep a receive waiting.
  std::int32_t take_scratch() {
    if (free_scratch_.empty() || free_scratch_.front().first > now_) {
      places_.emplace_back();
      return scratch_slots_++;
    }
    const auto slot = free_scratch_.front().second;
    free_scratch_.pop_front();
    return slot;
  }

  std::size_t add(Step step) {
    step.after_begin = after_.size();
    steps_.push_back(step);
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

  // Makes the step wait for earlier accesses of the slot, if either of the two writes.
  void touch(std::size_t self, Buffer buffer, std::int32_t slot, bool writes) {
    Place& there = place(buffer, slot);
    if (!writes) {
      if (there.writer != kNoStep) wait_for(self, there.writer);
      readers_.push_back({self, there.last_reader});
      there.last_reader = readers_.size() - 1;
      return;
    }
    // The readers have already waited for the writer.
    bool others = false;
    for (auto r = there.last_reader; r != kNoStep; r = readers_[r].before) {
      if (readers_[r].step == self) continue;
      wait_for(self, readers_[r].step);
      others = true;
    }
    if (!others && there.writer != kNoStep) wait_for(self, there.writer);
    there.last_reader = kNoStep;
    there.writer = self;
  }
  // Only the last step of each other thread is needed; the order within a thread is implicit.
  void wait_for(std::size_t self, std::size_t before) {
    if (before == self || steps_[before].thread == steps_[self].thread) return;
    for (auto i = steps_[self].after_begin; i < after_.size(); ++i) {
      auto& other = after_[i];
      if (steps_[other].thread != steps_[before].thread) continue;
      other = std::max(other, before);
      return;
    }
    after_.push_back(before);
  }

  const NodeId rank_;
  const bool in_place_, reuse_scratch_;
  std::vector<Move*> moves_;
  const std::vector<std::vector<LinkId>>& slowest_;  // per route
  const std::size_t window_;
  std::map<LinkId, std::vector<std::size_t>> sent_;  // the steps that use a limiting link, in order
  std::vector<Event> events_;
  const std::vector<SumOrder::Sum>& sums_;
  std::map<std::int32_t, Summing> summing_;
  std::vector<Chunk>& chunks_;
  std::vector<ChunkId> inputs_;
  std::vector<ProgramBuilder::Thread> threads_;  // sorted
  ProgramBuilder::Steps built_;
  std::vector<Step>& steps_ = built_.steps;
  std::vector<std::size_t>& after_ = built_.after;  // only the last step's list grows
  std::vector<Reader> readers_;
  std::vector<Place> places_;  // of the input's slots, the output's, and scratch
  std::size_t first_output_ = 0, first_scratch_ = 0;
  std::int32_t scratch_slots_ = 0;
  std::deque<std::pair<Time, std::int32_t>> free_scratch_;  // since when they are free
  Time now_ = 0;                                            // of the event
  std::size_t done_ = 0;
};

void check(const Schedule& schedule) {
  const auto& routes = schedule.routes();
  for (const RouteId route : schedule.stored().lane_route) {
    if (routes.unicast(route) && schedule.topology().is_npu(routes.sources(route)[0]) &&
        schedule.topology().is_npu(routes.destinations(route)[0])) {
      continue;
    }
    invalid(
        "the schedule uses switches that multicast or reduce, which a program cannot express: "
        "synthesize it for a target, such as --target program");
  }
  const auto& collective = schedule.collective();
  for (ChunkId chunk = 0; chunk < collective.chunks(); ++chunk) {
    const bool even = collective.parts()[collective.part_of(chunk)].traits().even;
    if (!even || collective.bytes(chunk) > 0) continue;
    invalid("chunk " + std::to_string(chunk) + " of " + std::to_string(collective.chunks()) +
            " has no bytes: choose fewer chunks");
  }
}

// Whether each sum is added up at one NPU only, so that no order is needed; derived from the transfers of one rank. In an
// orbit whose symmetry maps each member to each other member, the number of NPUs that add up a chunk
// equals the number of chunks of that piece that one NPU adds up.
bool each_sum_made_once(const Schedule& schedule, NodeId rank, const std::vector<Move>& moves) {
  const auto& collective = schedule.collective();
  if (!schedule.symmetry()) return !sums_end_at_several(collective);
  const auto& part = collective.parts()[0];
  if (!part.traits().two_phases()) return true;
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

Program lower(const Schedule& schedule, const LowerOptions& options, const Progress& progress) {
  const auto& [in_place, rank, window, reuse_scratch] = options;
  check(schedule);
  if (window < 0) invalid("window is " + std::to_string(window) + "; it must not be negative");
  const auto ranks = schedule.topology().npus();
  if (rank && (*rank < 0 || *rank >= ranks)) {
    invalid("rank must be 0 to " + std::to_string(ranks - 1) + "; got " + std::to_string(*rank));
  }
  auto alone = rank ? moves_of(schedule, *rank) : std::vector<Move>();
  // Sums that several ranks add up need an order, which depends on the transfers of all ranks.
  const bool all_ranks = !rank || !each_sum_made_once(schedule, *rank, alone);
  // One rank's share of an orbit knows the links of the stored transfers only, not of their images.
  const bool all = all_ranks || (window > 0 && routes_share_links(schedule)) ||
                   channels_differ_in_route(schedule.topology());
  const std::optional<Schedule> expanded =
      schedule.symmetry() && all ? std::optional(schedule.expand()) : std::nullopt;
  const Schedule& whole = expanded ? *expanded : schedule;
  // Each transfer is a move of two ranks, with steps that are sorted and find what they wait for.
  progress.reserve(6 * static_cast<double>(whole.stored().chunk.size()) * work::kTransfer);
  auto moves = all_ranks ? all_moves(whole) : expanded ? moves_of(whole, *rank) : std::move(alone);
  assign_channels(whole.routes(), moves);
  const auto sums =
      all_ranks ? put_sums_in_order(schedule.collective(), moves) : std::vector<SumOrder::Sum>();
  std::vector<std::vector<Move*>> of(at(ranks));
  for (Move& move : moves) {
    of[at(move.src)].push_back(&move);
    of[at(move.dst)].push_back(&move);
  }
  auto collective = std::make_shared<const Collective>(counted_in_chunks(schedule.collective()));
  ProgramBuilder builder(ranks);
  const ChunkLists lists(*collective);
  const auto slowest = slowest_links(whole.routes());
  std::vector<Chunk> chunks(collective->chunks());
  for (NodeId r = 0; r < ranks; ++r) {
    if (rank && r != *rank) continue;
    Rank(lists, r, options, std::move(of[at(r)]), slowest, sums, chunks).add_to(builder);
    if (progress) progress(static_cast<double>(r) / static_cast<double>(ranks));
  }
  return builder.finish(std::move(collective), in_place, schedule, window);
}

Program lower_orbit(const Schedule& schedule, const OrbitMoves& orbit, std::int32_t window,
                    const Progress& progress) {
  check(schedule);
  const auto stored = at(schedule.stored_transfers());
  progress.reserve(6 * static_cast<double>(stored) * work::kTransfer);
  auto collective = std::make_shared<Collective>(counted_in_chunks(schedule.collective()));
  ProgramBuilder builder(schedule.topology().npus());
  const ChunkLists lists(*collective);
  const auto slowest = slowest_links(*orbit.routes);
  std::vector<Chunk> chunks(collective->chunks());
  const std::vector<SumOrder::Sum> sums;  // none needs an order
  auto of = orbit.of;
  for (std::size_t i = 0; i < orbit.ranks.size(); ++i) {
    std::vector<Move*> mine;
    for (Move& move : of[i]) mine.push_back(&move);
    Rank(lists, orbit.ranks[i], {.window = window}, std::move(mine), slowest, sums, chunks)
        .add_to(builder);
    if (progress) progress(static_cast<double>(i) / static_cast<double>(orbit.ranks.size()));
  }
  std::vector<StepId> send(stored, -1);
  for (const auto& moves : of) {
    for (const Move& move : moves) {
      if (move.send >= 0) send[at(move.image_of)] = move.send;
    }
  }
  for (auto& moves : of) {
    for (Move& move : moves) move.send = send[at(move.image_of)];
  }
  return builder.finish(std::move(collective), false, schedule, window);
}

Departures departures(const Schedule& schedule) {
  check(schedule);
  const std::optional<Schedule> expanded =
      schedule.symmetry() ? std::optional(schedule.expand()) : std::nullopt;
  const Schedule& whole = expanded ? *expanded : schedule;
  auto moves = all_moves(whole);
  assign_channels(whole.routes(), moves);
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
