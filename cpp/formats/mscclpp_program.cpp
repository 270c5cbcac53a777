// Translates the operations of a plan to the steps of a program.
//
// A put, get or reduction becomes one step per range of slots. Signals and waits are paired in order on their channel.
// Barriers and semaphores become dependencies, as far as they guarantee an order. Packets carry their own flags: a step
// that reads one waits for the step that writes it. A switch's multicast or reduction becomes its effect on
// each rank's memory. A pipeline is translated as one of its rounds, since all rounds do the same to different bytes.
#include <algorithm>
#include <numeric>
#include <set>
#include <span>

#include "formats/mscclpp_meetings.hpp"
#include "formats/mscclpp_plan.hpp"
#include "formats/mscclpp_scope.hpp"
#include "formats/steps.hpp"
#include "support/index.hpp"

namespace tacos::mscclpp {

namespace {

class Translator : private PlanScope {
 public:
  Translator(const ExecutionPlan& plan, CollectiveKind kind, bool in_place)
      : PlanScope(plan, kind), in_place_(in_place), meetings_(plan) {}

  Program run(std::int64_t most_slots, std::string provenance) {
    size_up(most_slots);
    extra_scratch_.resize(plan_.gpus.size());
    for (rank_ = 0; rank_ < ranks(); ++rank_) {
      enter_gpu();
      const auto& blocks = plan_.gpus[at(rank_)].blocks;
      for (block_ = 0; at(block_) < blocks.size(); ++block_) {
        thread_ = threads_.add(rank_);
        last_ = -1;
        enter_block(blocks[at(block_)]);
        for (auto i = blocks[at(block_)].ops.begin; i < blocks[at(block_)].ops.end; ++i) {
          op_ = &plan_.ops[i];
          translate();
        }
        if (!acquired_.empty()) add(StepOp::nop);
        op_ = nullptr;
      }
      block_ = -1;
    }
    meetings_.join(steps_);
    return finished(std::move(provenance));
  }

 private:
  std::int64_t add(StepOp op, NodeId peer = -1) {
    return add(op, {rank_, Buffer::none, -1}, {rank_, Buffer::none, -1}, 0, peer);
  }
  std::int64_t add(StepOp op, const Place& src, const Place& dst, std::int32_t slots, NodeId peer) {
    last_ = steps_.add(op, thread_, src.buffer, static_cast<std::int32_t>(src.slot), dst.buffer,
                       static_cast<std::int32_t>(dst.slot), slots, peer);
    for (const auto semaphore : acquired_) meetings_.acquire(rank_, semaphore, thread_, last_);
    acquired_.clear();
    return last_;
  }

  // Copies between two places, at least one of which belongs to this rank.
  std::int64_t move(const Place& src, const Place& dst, std::int32_t slots) {
    if (src.rank != rank_) return add(StepOp::get, src, dst, slots, src.rank);
    if (dst.rank != rank_) return add(StepOp::put, src, dst, slots, dst.rank);
    return add(StepOp::copy, src, dst, slots, -1);
  }

  // Sums places, the first of which belongs to this rank, into a place of this rank.
  void sum(std::vector<Place> places, const Place& dst, std::int32_t slots) {
    auto base = std::find_if(places.begin(), places.end(),
                             [&](const Place& place) { return memory(place) == memory(dst); });
    if (base == places.end()) {
      base = places.begin();
      move(*base, dst, slots);
    }
    places.erase(base);
    for (const auto& src : places) {
      const bool own = src.rank == rank_;
      add(own ? StepOp::reduce : StepOp::get_reduce, src, dst, slots, own ? -1 : src.rank);
    }
  }

  // The unique name of a slot: in place, some slots have two names.
  Place memory(Place place) const {
    if (!in_place_ || place.buffer == Buffer::scratch) return place;
    const bool shifted = (!traits(kind_).whole_input() && place.buffer == Buffer::input) ||
                         (!traits(kind_).whole_output() && place.buffer == Buffer::output);
    return {place.rank, Buffer::input, place.slot + (shifted ? place.rank * piece_ : 0)};
  }

  std::int64_t number(const Place& place) const {
    auto slot = first_slot_[at(place.rank)] + place.slot;
    for (std::size_t b = 0; b < at(place.buffer); ++b) slot += slots_[at(place.rank)][b];
    return slot;
  }

  // Records that a step wrote packets. Packets to a peer arrive in the order of this thread.
  void sent_packets(std::int64_t step, const Place& place, std::int32_t slots) {
    if (place.rank != rank_) {
      const auto [known, is_new] = arrivals_.try_emplace({thread_, place.rank}, 0);
      if (is_new) known->second = threads_.add(place.rank);
      const auto signal = add(StepOp::signal, place.rank);
      step = steps_.add(StepOp::wait, known->second, Buffer::none, -1, Buffer::none, -1, 0, rank_);
      steps_.comes_from[at(step)] = signal;
    }
    meetings_.wrote(number(place), slots, step);
  }

  void await_packets(const Place& place, std::int32_t slots) {
    meetings_.reads(number(place), slots, add(StepOp::nop), where());
  }

  // --- operations

  void translate() {
    if (op_->channels.size() > at(kMostChannelsPerOp)) {
      fail("the field channel_ids has " + std::to_string(op_->channels.size()) +
           " entries; the executor takes at most " + std::to_string(kMostChannelsPerOp));
    }
    switch (op_->name) {
      case OpName::nop:
      case OpName::flush:
        return;
      case OpName::signal:
      case OpName::rlxsignal:
        for (std::size_t i = 0; i < op_->channels.size(); ++i) signal(i);
        return;
      case OpName::wait:
      case OpName::rlxwait:
        for (std::size_t i = 0; i < op_->channels.size(); ++i) {
          const auto over = channel(i);
          const auto step = add(StepOp::wait, peers_[at(op_->kind)][at(over)]);
          meetings_.wait(rank_, op_->kind, over, step);
        }
        return;
      case OpName::put:
      case OpName::pws:
      case OpName::pwsf:
      case OpName::get:
      case OpName::copy:
      case OpName::ppkt:
      case OpName::cpkt:
      case OpName::upkt:
        return moves();
      case OpName::re:
      case OpName::res:
      case OpName::rre:
      case OpName::rres:
        return reduces(1, false);
      case OpName::repkt:
      case OpName::respkt:
        return reduces(1, true);
      case OpName::recpkt:
      case OpName::recspkt:
        return reduces(2, true);
      case OpName::rppkt:
        return passes_on();
      case OpName::glres:
      case OpName::gstore:
      case OpName::gstorepkt:
        return uses_switch();
      case OpName::sem_acquire:
      case OpName::sem_release:
        return uses_semaphores();
      case OpName::barrier:
        if (op_->barrier < 0 || op_->threadblocks < 0) {
          fail("a barrier needs the fields barrier_id and num_threadblocks");
        }
        meetings_.barrier(rank_, op_->barrier, thread_, add(StepOp::nop), op_->threadblocks,
                          where());
        add(StepOp::nop);  // leaves
        return;
      case OpName::pipeline:
        if (op_->inner >= 0) fail("a pipeline must not contain another pipeline");
        return checks_rounds();
    }
  }

  void signal(std::size_t i) {
    const auto over = channel(i);
    const auto step = add(StepOp::signal, peers_[at(op_->kind)][at(over)]);
    meetings_.signal(rank_, op_->kind, over, step);
  }

  void need_pairs() const {
    const auto from = sources(), to = targets();
    if (from.empty() || from.size() != to.size()) {
      fail("the fields src_buff and dst_buff have " + std::to_string(from.size()) + " and " +
           std::to_string(to.size()) + " entries; they must have the same number");
    }
    for (std::size_t i = 0; i < from.size(); ++i) need_size(from[i].size, to[i].size);
  }
  void need_size(std::int32_t from, std::int32_t to) const {
    if (from == to) return;
    fail("the field size is " + std::to_string(from) + " in src_buff and " + std::to_string(to) +
         " in dst_buff; they must be equal");
  }

  void moves() {
    need_pairs();
    const auto name = op_->name;
    const bool signals = name == OpName::pws || name == OpName::pwsf;
    const bool puts = signals || name == OpName::put || name == OpName::ppkt;
    for (std::size_t i = 0; i < sources().size(); ++i) {
      const auto &from = sources()[i], &to = targets()[i];
      const auto slots = count(from);
      const auto src = name == OpName::get ? away(from, "src_buff") : local(from, "src_buff");
      const auto dst = puts ? away(to, "dst_buff") : local(to, "dst_buff");
      if (name == OpName::upkt) await_packets(src, slots);
      const auto step = move(src, dst, slots);
      if (name == OpName::ppkt || name == OpName::cpkt) sent_packets(step, dst, slots);
      if (signals) signal(i);
    }
  }

  // Sums into the first target; with packets also into the second, if it belongs to this rank.
  // All further targets belong to peers.
  void reduces(std::size_t own_targets, bool packets) {
    const auto from = sources(), to = targets();
    if (from.size() < 2 || to.size() < own_targets) {
      fail("the fields src_buff and dst_buff have " + std::to_string(from.size()) + " and " +
           std::to_string(to.size()) + " entries; they must have 2 and " +
           std::to_string(own_targets));
    }
    for (const auto some : {from, to}) {
      for (const auto& piece : some) {
        if (piece.size != from[0].size) {
          fail("the field size is " + std::to_string(piece.size) +
               " in one buffer of a reduction and " + std::to_string(from[0].size) +
               " in another; all must be equal");
        }
      }
    }
    const auto slots = count(from[0]);
    const bool reads_peers = op_->name == OpName::rre || op_->name == OpName::rres;
    std::vector<Place> places{local(from[0], "src_buff")};
    for (const auto& piece : from.subspan(1)) {
      places.push_back(reads_peers ? away(piece, "src_buff") : local(piece, "src_buff"));
      if (packets) await_packets(places.back(), slots);
    }
    const auto dst = local(to[0], "dst_buff");
    sum(std::move(places), dst, slots);
    for (std::size_t i = 1; i < to.size(); ++i) {
      const auto there = i < own_targets ? local(to[i], "dst_buff") : away(to[i], "dst_buff");
      const auto step = move(dst, there, slots);
      if (packets) sent_packets(step, there, slots);
    }
  }

  void passes_on() {
    if (sources().size() != 1) {
      fail("the field src_buff has " + std::to_string(sources().size()) +
           " entries; it must have 1");
    }
    const auto& from = sources()[0];
    const auto slots = count(from);
    const auto src = local(from, "src_buff");
    await_packets(src, slots);
    for (const auto& to : targets()) {
      need_size(from.size, to.size);
      const auto dst = away(to, "dst_buff");
      sent_packets(move(src, dst, slots), dst, slots);
    }
  }

  void uses_switch() {
    need_pairs();
    const auto &from = sources()[0], &to = targets()[0];
    const auto slots = count(from);
    const bool packets = op_->name == OpName::gstorepkt;
    const auto src = op_->name == OpName::glres ? switch_sum(from, slots) : local(from, "src_buff");
    if (packets) await_packets(src, slots);
    const auto& [ranks, buffer] = group(to);
    for (const auto rank : ranks) {
      const auto dst = within(rank, buffer, to);
      if (memory(dst) == memory(src)) continue;
      const auto step = move(src, dst, slots);
      if (packets) sent_packets(step, dst, slots);
    }
  }

  // The switch sums in flight; the program sums in additional scratch slots.
  Place switch_sum(const Piece& piece, std::int32_t slots) {
    auto& extra = extra_scratch_[at(rank_)];
    const Place dst{rank_, Buffer::scratch, slots_[at(rank_)][at(Buffer::scratch)] + extra};
    const auto& [ranks, buffer] = group(piece);
    move(within(rank_, buffer, piece), dst, slots);
    extra += slots;
    if ((spare_slots_ -= slots) < 0)
      fail("the switch reduces far more data than the operations can use");
    for (const auto rank : ranks) {
      if (rank != rank_) add(StepOp::get_reduce, within(rank, buffer, piece), dst, slots, rank);
    }
    return dst;
  }

  void uses_semaphores() {
    const auto there = plan_.gpus[at(rank_)].semaphores.size();
    if (op_->semaphores.size() > at(kMostSemaphoresPerOp)) {
      fail("the field semaphore_ids has " + std::to_string(op_->semaphores.size()) +
           " entries; the executor takes at most " + std::to_string(kMostSemaphoresPerOp));
    }
    for (const auto number : numbers(op_->semaphores)) {
      if (at(number) >= there) {
        fail_field("semaphore_ids", number, "the gpu has " + std::to_string(there) + " semaphores");
      }
      if (op_->name == OpName::sem_acquire) {
        acquired_.push_back(number);  // the next step waits for it
        continue;
      }
      if (last_ < 0 || !acquired_.empty()) add(StepOp::nop);
      meetings_.release(rank_, number, thread_, last_);
    }
  }

  void checks_rounds() const {
    if (op_->round_chunks == 0) fail("a pipeline needs the field iter_context");
    const auto& all = plan_.gpus[at(rank_)].blocks[at(block_)].ops;
    for (const auto* inner = op_ + 1; inner < plan_.ops.data() + all.end && inner->inner >= 0;
         ++inner) {
      for (const auto range : {inner->sources, inner->targets}) {
        for (const auto& piece : pieces(range)) {
          if (piece.size == op_->round_chunks) continue;
          fail("an operation of the pipeline has size " + std::to_string(piece.size) +
               "; it must be the pipeline's num_chunks, " + std::to_string(op_->round_chunks));
        }
      }
    }
  }

  Program finished(std::string provenance) {
    // In an all-reduce, the pieces beyond the data have no bytes, so no rank wants them.
    CollectivePart part;
    part.kind = kind_;
    part.size = slots_of_all_;
    part.chunks = static_cast<std::int32_t>((slots_of_all_ + ranks() - 1) / ranks());
    std::vector<NodeId> all(at(ranks()));
    std::iota(all.begin(), all.end(), 0);
    part.group = std::move(all);
    auto spec = arranged(std::move(steps_), threads_);
    spec.collective = std::make_shared<Collective>(ranks(), std::vector{std::move(part)});
    spec.in_place = in_place_;
    std::vector<std::int32_t> scratch;
    for (std::size_t r = 0; r < slots_.size(); ++r) {
      scratch.push_back(
          static_cast<std::int32_t>(slots_[r][at(Buffer::scratch)] + extra_scratch_[r]));
    }
    spec.scratch_slots = std::move(scratch);
    spec.provenance = std::move(provenance);
    return Program(std::move(spec));
  }

  const bool in_place_;
  std::vector<std::int64_t> extra_scratch_;  // per rank

  ThreadId thread_ = 0;
  std::int64_t last_ = -1;              // last step of the threadblock
  std::vector<std::int32_t> acquired_;  // semaphores acquired since that step

  Threads threads_;
  Steps steps_;
  Meetings meetings_;
  // Threads for packets from a thread to a rank.
  std::map<std::pair<ThreadId, NodeId>, ThreadId> arrivals_;
};

}  // namespace

Program program_of(const ExecutionPlan& plan, CollectiveKind kind, bool in_place,
                   std::int64_t most_slots, std::string provenance) {
  return Translator(plan, kind, in_place).run(most_slots, std::move(provenance));
}

}  // namespace tacos::mscclpp
