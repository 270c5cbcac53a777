// From the operations of a plan to the steps of a program.
//
// A put, get or reduction is one step per range of slots; an operation with several of them becomes
// several. A signal and the wait it wakes are paired in order on their channel; barriers and semaphores
// become dependencies, as far as they promise an order. Packets carry their own flags: whoever
// reads one waits for whoever writes it. A switch's multicast and reduction become what they do to
// each rank's memory. A pipeline is read as one of its rounds: the others do the same to other bytes.
#include <algorithm>
#include <numeric>
#include <set>
#include <span>

#include "formats/mscclpp_meetings.hpp"
#include "formats/mscclpp_plan.hpp"
#include "formats/steps.hpp"
#include "support/index.hpp"

namespace tacos::mscclpp {

namespace {

constexpr std::int64_t kMostParts = 64;
constexpr std::array<std::string_view, 4> kBufferWords{"input", "output", "scratch", "none"};

struct Place {
  NodeId rank;
  Buffer buffer;
  std::int64_t slot;
  bool operator==(const Place&) const = default;
};

struct Group {  // of ranks behind a switch
  std::span<const std::int32_t> ranks;
  Buffer buffer;
};

class Translator {
 public:
  Translator(const Plan& plan, CollectiveKind kind, bool in_place)
      : plan_(plan), kind_(kind), in_place_(in_place), meetings_(plan) {}

  Program run(std::int64_t most_slots, std::string provenance) {
    size_up(most_slots);
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
  NodeId ranks() const { return static_cast<NodeId>(plan_.gpus.size()); }
  std::string where() const {
    return place(rank_, block_, op_ ? op_->outer : -1, op_ ? op_->inner : -1);
  }
  [[noreturn]] void fail(const std::string& what) const { invalid(where() + ": " + what); }
  [[noreturn]] void fail_field(std::string_view field, std::int64_t value,
                               const std::string& rest) const {
    fail("the field " + std::string(field) + " has " + std::to_string(value) + ", " + rest);
  }

  // --- what the plan is about

  void size_up(std::int64_t most_slots) {
    if (plan_.gpus.empty()) invalid("the field gpus has no entries");
    for (const auto& op : plan_.ops) {
      if (op.parts == 0) continue;
      parts_ = std::lcm(parts_, std::int64_t{op.parts});
      if (parts_ > kMostParts) {
        invalid("the fields tbg_size cut a chunk into " + std::to_string(parts_) +
                " or more parts, allowed are " + std::to_string(kMostParts));
      }
    }
    std::int64_t total = 0, chunks = 0;
    const std::int64_t n = ranks();
    const bool gathers = kind_ == CollectiveKind::all_gather;
    const bool scatters = kind_ == CollectiveKind::reduce_scatter;
    for (const auto& gpu : plan_.gpus) {
      total += std::int64_t{gpu.input} + gpu.output + gpu.scratch;
      chunks = std::max({chunks, gpu.input * (gathers ? n : 1), gpu.output * (scatters ? n : 1)});
    }
    if (total > most_slots / parts_) {
      invalid("the gpus have " + std::to_string(total) +
              " chunks, far more than the operations can fill");
    }
    if (chunks < 1 || (kind_ != CollectiveKind::all_reduce && chunks % n != 0)) {
      invalid("the gpus have " + std::to_string(chunks) + " chunks, needed is a multiple of " +
              std::to_string(n));
    }
    if (chunks * parts_ > most_slots) {
      invalid("the gpus have " + std::to_string(chunks) +
              " chunks, far more than the operations can fill");
    }
    const auto input = gathers ? chunks / n : chunks, output = scatters ? chunks / n : chunks;
    for (std::size_t r = 0; r < plan_.gpus.size(); ++r) {
      const auto& gpu = plan_.gpus[r];
      check_chunks(r, "input_chunks", gpu.input, input);
      check_chunks(r, "output_chunks", gpu.output, output);
      check_ops(r);
      slots_.push_back({input * parts_, output * parts_, gpu.scratch * parts_});
      first_slot_.push_back(r == 0 ? 0
                                   : first_slot_.back() + std::accumulate(slots_[r - 1].begin(),
                                                                          slots_[r - 1].end(),
                                                                          std::int64_t{0}));
    }
    slots_of_all_ = chunks * parts_;
    spare_slots_ = most_slots - total * parts_;
    piece_ = chunks / n * parts_;
    extra_scratch_.resize(plan_.gpus.size());
  }

  static void check_chunks(std::size_t gpu, std::string_view field, std::int64_t found,
                           std::int64_t wanted) {
    if (found == 0 || found == wanted) return;
    invalid(place(static_cast<std::int64_t>(gpu)) + ": the field " + std::string(field) + " is " +
            std::to_string(found) + ", allowed are 0 and " + std::to_string(wanted));
  }

  void check_ops(std::size_t gpu) const {
    const auto& blocks = plan_.gpus[gpu].blocks;
    for (std::size_t t = 0; t < blocks.size(); ++t) {
      if (blocks[t].ops.size() <= at(kMostOps)) continue;
      invalid(place(static_cast<std::int64_t>(gpu), static_cast<std::int64_t>(t)) + ": " +
              std::to_string(blocks[t].ops.size()) + " operations, the executor takes at most " +
              std::to_string(kMostOps));
    }
  }

  // --- what a GPU and a threadblock know

  void enter_gpu() {
    const auto& gpu = plan_.gpus[at(rank_)];
    groups_.clear();
    for (auto& some : peers_) some.clear();
    for (const auto& channel : gpu.channels) {
      if (channel.kind != Kind::switched) {
        for (const auto peer : numbers(channel.peers)) {
          check_peer("connected_to", peer);
          peers_[at(channel.kind)].push_back(peer);
        }
        continue;
      }
      if (channel.buffer == Buffer::none) fail("a switch channel has no field buffer_type");
      for (const auto& range : channel.groups) {
        const auto members = numbers(range);
        const std::set<std::int32_t> different(members.begin(), members.end());
        if (different.size() != members.size() || !different.contains(rank_) ||
            *different.rbegin() >= ranks()) {
          fail("the field ranks must have gpu " + std::to_string(rank_) +
               " and others of the gpus, each once");
        }
        groups_.push_back({members, channel.buffer});
      }
    }
    for (const auto& buffer : gpu.remote) check_peer("rank", buffer.rank);
  }

  void check_peer(std::string_view field, std::int32_t peer) const {
    if (peer >= ranks() || peer == rank_) {
      fail_field(field, peer, "it must be another of " + std::to_string(ranks()) + " gpus");
    }
  }

  void enter_block(const Block& block) {
    const auto& gpu = plan_.gpus[at(rank_)];
    for (auto& some : channels_) some.clear();
    for (auto& some : remote_) some.clear();
    const std::array<std::size_t, 3> there{peers_[0].size(), peers_[1].size(), groups_.size()};
    for (const auto& some : block.channels) {
      for (const auto number : numbers(some.numbers)) {
        if (at(number) >= there[at(some.kind)]) {
          fail_field("channel_ids", number,
                     "the gpu has " + std::to_string(there[at(some.kind)]) + " " +
                         std::string(kKindNames[at(some.kind)]));
        }
        channels_[at(some.kind)].push_back(number);
      }
    }
    for (const auto& some : block.remote) {
      for (const auto number : numbers(some.numbers)) {
        if (at(number) >= gpu.remote.size()) {
          fail_field("remote_buffer_ids", number,
                     "the gpu has " + std::to_string(gpu.remote.size()));
        }
        const auto& buffer = gpu.remote[at(number)];
        if (!buffer.access[at(some.kind)]) {
          fail("remote buffer " + std::to_string(number) + " is used by " +
               std::string(kKindNames[at(some.kind)]) +
               " channels, which its access_channel_types do not name");
        }
        remote_[at(some.kind)].push_back(&buffer);
      }
    }
    for (std::size_t kind = 0; kind < channels_.size(); ++kind) check_many(kind, channels_[kind]);
    for (std::size_t kind = 0; kind < remote_.size(); ++kind) check_many(kind, remote_[kind]);
  }

  template <typename Values>
  void check_many(std::size_t kind, const Values& values) const {
    if (values.size() <= at(kMostChannels)) return;
    fail(std::to_string(values.size()) + " " + std::string(kKindNames[kind]) +
         " channels or remote buffers, the executor takes at most " +
         std::to_string(kMostChannels));
  }

  // --- what an operation names

  std::span<const std::int32_t> numbers(Range range) const {
    return std::span(plan_.numbers).subspan(range.begin, range.size());
  }
  std::span<const Piece> pieces(Range range) const {
    return std::span(plan_.pieces).subspan(range.begin, range.size());
  }
  std::span<const Piece> sources() const { return pieces(op_->sources); }
  std::span<const Piece> targets() const { return pieces(op_->targets); }

  // A piece within a buffer, or of it the share of this threadblock, which is `count()` slots.
  Place within(NodeId rank, Buffer buffer, const Piece& piece) const {
    const auto slots = slots_[at(rank)][at(buffer)] / parts_;
    if (std::int64_t{piece.index} + piece.size > slots) {
      fail("the field index is " + std::to_string(piece.index) + " and the size " +
           std::to_string(piece.size) + ", the " + std::string(kBufferWords[at(buffer)]) +
           " buffer of gpu " + std::to_string(rank) + " has " + std::to_string(slots) + " chunks");
    }
    auto slot = piece.index * parts_;
    if (op_->parts > 0) slot += op_->part * (piece.size * parts_ / op_->parts);
    return {rank, buffer, slot};
  }

  std::int32_t count(const Piece& piece) const {
    if (op_->parts > 0 && op_->part >= op_->parts) {
      fail("the field tb_id is " + std::to_string(op_->part) + ", tbg_size is " +
           std::to_string(op_->parts));
    }
    return static_cast<std::int32_t>(piece.size * parts_ / std::max(op_->parts, 1));
  }

  Place local(const Piece& piece, std::string_view field) const {
    if (piece.buffer == Buffer::none) fail("the " + std::string(field) + " has no field type");
    return within(rank_, piece.buffer, piece);
  }

  Place away(const Piece& piece, std::string_view field) const {
    if (piece.remote < 0) fail("the " + std::string(field) + " has no field buffer_id");
    const auto& known = remote_[at(peer_kind())];
    if (at(piece.remote) >= known.size()) {
      fail("the field buffer_id is " + std::to_string(piece.remote) + ", the threadblock has " +
           std::to_string(known.size()));
    }
    const auto& buffer = *known[at(piece.remote)];
    return within(buffer.rank, buffer.buffer, piece);
  }

  Kind peer_kind() const {
    if (op_->kind == Kind::memory || op_->kind == Kind::port) return op_->kind;
    fail("the field channel_type is " + std::string(kKindNames[at(op_->kind)]) +
         ", allowed are memory and port");
  }

  // The number, within the GPU, of the operation's i-th channel.
  std::int32_t channel(std::size_t i) const {
    const auto& known = channels_[at(peer_kind())];
    const auto given = numbers(op_->channels);
    if (i >= given.size()) {
      fail("the field channel_ids has " + std::to_string(given.size()) + " entries, needed are " +
           std::to_string(i + 1));
    }
    if (at(given[i]) >= known.size()) {
      fail_field("channel_ids", given[i], "the threadblock has " + std::to_string(known.size()));
    }
    return known[at(given[i])];
  }

  const Group& group(const Piece& piece) const {
    if (piece.channel < 0) fail("the buffer has no field switch_channel_id");
    const auto& known = channels_[at(Kind::switched)];
    if (at(piece.channel) >= known.size()) {
      fail("the field switch_channel_id is " + std::to_string(piece.channel) +
           ", the threadblock has " + std::to_string(known.size()));
    }
    return groups_[at(known[at(piece.channel)])];
  }

  // --- steps

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

  // From anywhere to anywhere, as long as this rank has one of the two.
  std::int64_t move(const Place& src, const Place& dst, std::int32_t slots) {
    if (src.rank != rank_) return add(StepOp::get, src, dst, slots, src.rank);
    if (dst.rank != rank_) return add(StepOp::put, src, dst, slots, dst.rank);
    return add(StepOp::copy, src, dst, slots, -1);
  }

  // The sum of places, of which the first is this rank's, into a place of this rank.
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

  // One name for each slot: in place, some have two.
  Place memory(Place place) const {
    if (!in_place_ || place.buffer == Buffer::scratch) return place;
    const bool shifted =
        (kind_ == CollectiveKind::all_gather && place.buffer == Buffer::input) ||
        (kind_ == CollectiveKind::reduce_scatter && place.buffer == Buffer::output);
    return {place.rank, Buffer::input, place.slot + (shifted ? place.rank * piece_ : 0)};
  }

  std::int64_t number(const Place& place) const {
    auto slot = first_slot_[at(place.rank)] + place.slot;
    for (std::size_t b = 0; b < at(place.buffer); ++b) slot += slots_[at(place.rank)][b];
    return slot;
  }

  // A step wrote packets; if to a peer, they arrive there in the order of this thread.
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
           " entries, the executor takes at most " + std::to_string(kMostChannelsPerOp));
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
        if (op_->inner >= 0) fail("a pipeline within a pipeline");
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
           std::to_string(to.size()) + " entries, they need equally many");
    }
    for (std::size_t i = 0; i < from.size(); ++i) need_size(from[i].size, to[i].size);
  }
  void need_size(std::int32_t from, std::int32_t to) const {
    if (from == to) return;
    fail("the field size is " + std::to_string(from) + " in src_buff and " + std::to_string(to) +
         " in dst_buff");
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

  // Sums into the first target; with packets into the second, too, if that is this rank's own.
  // The further targets are the peers'.
  void reduces(std::size_t own_targets, bool packets) {
    const auto from = sources(), to = targets();
    if (from.size() < 2 || to.size() < own_targets) {
      fail("the fields src_buff and dst_buff have " + std::to_string(from.size()) + " and " +
           std::to_string(to.size()) + " entries, needed are 2 and " + std::to_string(own_targets));
    }
    for (const auto some : {from, to}) {
      for (const auto& piece : some) {
        if (piece.size != from[0].size) {
          fail("the field size differs between the buffers of a reduction");
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
      fail("the field src_buff has " + std::to_string(sources().size()) + " entries, needed is 1");
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

  // The switch sums on its way: here in scratch slots of its own.
  Place switch_sum(const Piece& piece, std::int32_t slots) {
    auto& extra = extra_scratch_[at(rank_)];
    const Place dst{rank_, Buffer::scratch, slots_[at(rank_)][at(Buffer::scratch)] + extra};
    const auto& [ranks, buffer] = group(piece);
    move(within(rank_, buffer, piece), dst, slots);
    extra += slots;
    if ((spare_slots_ -= slots) < 0) fail("the switch sums far more than the operations can use");
    for (const auto rank : ranks) {
      if (rank != rank_) add(StepOp::get_reduce, within(rank, buffer, piece), dst, slots, rank);
    }
    return dst;
  }

  void uses_semaphores() {
    const auto there = plan_.gpus[at(rank_)].semaphores.size();
    if (op_->semaphores.size() > at(kMostSemaphoresPerOp)) {
      fail("the field semaphore_ids has " + std::to_string(op_->semaphores.size()) +
           " entries, the executor takes at most " + std::to_string(kMostSemaphoresPerOp));
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
    if (op_->round_chunks == 0) fail("the pipeline has no field iter_context");
    const auto& all = plan_.gpus[at(rank_)].blocks[at(block_)].ops;
    for (const auto* inner = op_ + 1; inner < plan_.ops.data() + all.end && inner->inner >= 0;
         ++inner) {
      for (const auto range : {inner->sources, inner->targets}) {
        for (const auto& piece : pieces(range)) {
          if (piece.size == op_->round_chunks) continue;
          fail("an operation of the pipeline has size " + std::to_string(piece.size) +
               ", its num_chunks is " + std::to_string(op_->round_chunks));
        }
      }
    }
  }

  Program finished(std::string provenance) {
    // Of an all-reduce, pieces beyond have no bytes: nobody wants them.
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

  const Plan& plan_;
  const CollectiveKind kind_;
  const bool in_place_;
  std::int64_t parts_ = 1;         // into which a chunk is cut, so that groups share whole ones
  std::int64_t slots_of_all_ = 0;  // of the whole collective
  std::int64_t piece_ = 0;         // slots of one rank's part
  std::int64_t spare_slots_ = 0;   // that may still be added
  std::vector<std::array<std::int64_t, 3>> slots_;  // per rank and buffer
  std::vector<std::int64_t> first_slot_, extra_scratch_;

  NodeId rank_ = 0;
  std::int32_t block_ = -1;
  const Op* op_ = nullptr;
  ThreadId thread_ = 0;
  std::int64_t last_ = -1;                    // step of the threadblock
  std::vector<std::int32_t> acquired_;        // semaphores since then
  std::array<std::vector<NodeId>, 2> peers_;  // of the GPU's channels
  std::vector<Group> groups_;
  std::array<std::vector<std::int32_t>, 3> channels_;  // of the threadblock, numbers in the GPU
  std::array<std::vector<const Remote*>, 2> remote_;

  Threads threads_;
  Steps steps_;
  Meetings meetings_;
  std::map<std::pair<ThreadId, NodeId>, ThreadId> arrivals_;  // of packets from a thread at a rank
};

}  // namespace

Program program_of(const Plan& plan, CollectiveKind kind, bool in_place, std::int64_t most_slots,
                   std::string provenance) {
  return Translator(plan, kind, in_place).run(most_slots, std::move(provenance));
}

}  // namespace tacos::mscclpp
