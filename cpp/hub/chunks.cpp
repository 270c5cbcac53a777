// The chunks of a core: pushes, pulls and puts, and the steps that they complete.
#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "hub/core.hpp"
#include "support/error.hpp"
#include "support/index.hpp"

namespace tacos::hub {

namespace {

constexpr double kMostUpdates = 0x1p53;  // doubles count exactly up to here

}  // namespace

// --- frames

const Chunk& Core::chunk_of(const Shard& shard, const Cell& cell) const {
  return shard.job->parts.chunks[at(cell.chunk)];
}

float* Core::array(const Shard& shard, std::size_t slot, const Cell& cell) const {
  const auto& region = slot == 0 ? shard.job->weights : shard.job->state[slot - 1];
  return region.floats() + chunk_of(shard, cell).offset;
}

// The chunk that a frame names; null if the frame was refused.
Core::Cell* Core::cell_of(int c, const Frame& frame) {
  auto& shard = *links_[at(c)]->shard;
  const auto& chunks = shard.job->parts.chunks;
  if (frame.chunk >= chunks.size() || chunks[frame.chunk].core != index_) {
    refuse(c, frame, "chunk " + std::to_string(frame.chunk) + " does not exist on this core");
    return nullptr;
  }
  if (!shard.failure.empty()) {
    refuse(c, frame, shard.failure, kFatal);
    return nullptr;
  }
  return &shard.cells[at(chunks[frame.chunk].place)];
}

void Core::push(int c, const Frame& frame, const std::byte* payload) {
  auto* const cell = cell_of(c, frame);
  if (cell == nullptr) return;
  auto& link = *links_[at(c)];
  auto& shard = *link.shard;
  const auto slot = link.slot;
  const auto& chunk = chunk_of(shard, *cell);
  const auto& member = *shard.members[slot];
  const bool empty = (frame.flags & kEmpty) != 0, shares = (frame.flags & kShared) != 0;
  const auto expected = empty || shares ? 0 : at(chunk.count) * size_of(frame.wire);
  if (frame.bytes != expected) {
    return refuse(c, frame,
                  "chunk " + std::to_string(frame.chunk) + " takes " + std::to_string(expected) +
                      " bytes; got " + std::to_string(frame.bytes));
  }
  if (shares && !member.shared)
    return refuse(c, frame, "this member shares no memory with the hub");
  if (!cell->ready) return refuse(c, frame, "the weights have not been set; put them first");
  const std::byte* values = payload;
  if (shares)
    values =
        static_cast<const std::byte*>(member.shared->data()) + at(chunk.offset) * sizeof(float);
  shard.asks[slot][at(chunk.place)] = {frame.tag, frame.flags, frame.wire};
  if (shard.job->spec.mode != Mode::sync) return push_alone(c, shard, *cell, frame, values);
  if (frame.step != cell->version || cell->summed || bit(cell->seen, slot) ||
      member.first_step > frame.step) {
    return refuse(c, frame,
                  "chunk " + std::to_string(frame.chunk) + " is at step " +
                      std::to_string(cell->version) + "; got a push for step " +
                      std::to_string(frame.step) +
                      (bit(cell->seen, slot) ? ", which this worker has pushed already" : ""));
  }
  if (cell->arrived > 0 && cell->rate != frame.rate) {
    return refuse(c, frame,
                  "the learning rate of step " + std::to_string(frame.step) + " is " +
                      std::to_string(cell->rate) + " for other workers, and " +
                      std::to_string(frame.rate) + " for " + member.worker());
  }
  if (cell->arrived == 0) cell->since_ms = now_ms_;
  cell->rate = frame.rate;
  set_bit(cell->seen, slot, true);
  ++cell->arrived;
  if (!empty && cell->full == 0 && frame.wire == Wire::float32 && !shard.job->spec.relay &&
      complete(shard, *cell)) {  // the only contribution is the sum
    cell->full = 1;
    return finish(shard, *cell, reinterpret_cast<const float*>(values));
  }
  if (!empty) {
    const auto count = at(chunk.count);
    if (shard.job->spec.deterministic) {
      take(shard.job->contributions[slot].floats() + chunk.offset, values, frame.wire, count, true);
    } else {
      take(shard.job->sums.floats() + chunk.offset, values, frame.wire, count, cell->full == 0);
    }
    set_bit(cell->filled, slot, true);
    ++cell->full;
  }
  if (complete(shard, *cell)) add_up(shard, *cell);
}

// In asynchronous modes, each push is one update.
void Core::push_alone(int c, Shard& shard, Cell& cell, const Frame& frame,
                      const std::byte* values) {
  const auto slot = links_[at(c)]->slot;
  const auto& chunk = chunk_of(shard, cell);
  auto& clock = shard.clocks[slot][at(chunk.place)];
  if (frame.step != clock) {
    return refuse(c, frame,
                  "chunk " + std::to_string(frame.chunk) + " expects step " +
                      std::to_string(clock) + " of this worker; got " + std::to_string(frame.step));
  }
  ++clock;
  cell.rate = frame.rate;
  if ((frame.flags & kEmpty) == 0) {
    float* const sum = shard.job->sums.floats() + chunk.offset;
    const bool direct = frame.wire == Wire::float32;
    if (!direct) take(sum, values, frame.wire, at(chunk.count), true);
    optimize(shard, cell, direct ? reinterpret_cast<const float*>(values) : sum, 1.0F);
  }
  ++cell.version;
  if (shard.job->spec.mode == Mode::async) {
    answer(shard, cell, slot, true);
  } else {
    shard.held[chunk.place].push_back(slot);
    release_held(shard, chunk.place);
  }
  advanced(shard, cell);
}

std::uint64_t Core::slowest(const Shard& shard, std::int32_t place) const {
  std::uint64_t least = ~std::uint64_t{0};
  for (const auto slot : shard.by_rank) least = std::min(least, shard.clocks[slot][at(place)]);
  return least;
}

void Core::release_held(Shard& shard, std::int32_t place) {
  const auto found = shard.held.find(place);
  if (found == shard.held.end()) return;
  const auto least = slowest(shard, place);
  std::erase_if(found->second, [&](std::uint32_t slot) {
    if (!bit(shard.present, slot)) return true;
    if (shard.clocks[slot][at(place)] > least + shard.job->spec.staleness) return false;
    answer(shard, shard.cells[at(place)], slot, true);
    return true;
  });
}

void Core::pull(int c, const Frame& frame) {
  auto* const cell = cell_of(c, frame);
  if (cell == nullptr) return;
  auto& shard = *links_[at(c)]->shard;
  const auto slot = static_cast<std::size_t>(frame.flags >> kSlotShift);
  if (frame.bytes != 0 || slot > shard.job->states) {
    return refuse(
        c, frame,
        "a pull has no payload and a slot from 0 to " + std::to_string(shard.job->states));
  }
  const auto& chunk = chunk_of(shard, *cell);
  const bool sync = shard.job->spec.mode == Mode::sync;
  if (!cell->ready || (sync && cell->version < frame.step)) {
    if (shard.waiting.count(chunk.place) >= kMostMembers)
      return refuse(c, frame, "too many pulls wait");
    shard.waiting.emplace(chunk.place, Waiting{c, frame});
    return;
  }
  Piece piece;
  piece.frame.kind = Kind::values;
  piece.frame.flags = static_cast<std::uint8_t>(slot << kSlotShift);
  piece.frame.wire = frame.wire;
  piece.frame.chunk = frame.chunk;
  piece.frame.tag = frame.tag;
  piece.frame.step = cell->version;
  piece.frame.rate = static_cast<double>(cell->updates);
  piece.frame.bytes = static_cast<std::uint32_t>(at(chunk.count) * size_of(frame.wire));
  piece.own.reset(new std::byte[piece.frame.bytes]);
  piece.data = piece.own.get();
  narrow(piece.own.get(), array(shard, slot, *cell), frame.wire, at(chunk.count));
  queue(c, std::move(piece));
}

void Core::put(int c, const Frame& frame, const std::byte* payload) {
  auto* const cell = cell_of(c, frame);
  if (cell == nullptr) return;
  auto& shard = *links_[at(c)]->shard;
  const auto& chunk = chunk_of(shard, *cell);
  const auto slot = static_cast<std::size_t>(frame.flags >> kSlotShift);
  const auto expected = at(chunk.count) * size_of(frame.wire);
  if (slot > shard.job->states || frame.bytes != expected) {
    return refuse(c, frame,
                  "chunk " + std::to_string(frame.chunk) + " takes " + std::to_string(expected) +
                      " bytes in a slot from 0 to " + std::to_string(shard.job->states) + "; got " +
                      std::to_string(frame.bytes) + " in slot " + std::to_string(slot));
  }
  if (cell->arrived > 0) return refuse(c, frame, "a step is under way; put values between steps");
  take(array(shard, slot, *cell), payload, frame.wire, at(chunk.count), true);
  if (!(frame.rate <= kMostUpdates)) return refuse(c, frame, "the number of updates is too large");
  if (frame.rate >= 0) cell->updates = static_cast<std::uint64_t>(frame.rate);
  if (slot == 0) cell->ready = true;
  Piece piece;
  piece.frame.kind = Kind::done;
  piece.frame.chunk = frame.chunk;
  piece.frame.tag = frame.tag;
  queue(c, std::move(piece));
  advanced(shard, *cell);
}

// --- steps

bool Core::complete(const Shard& shard, const Cell& cell) const {
  if (cell.arrived == 0 || cell.summed) return false;
  if (shard.latest_first > cell.version) {
    return std::all_of(shard.by_rank.begin(), shard.by_rank.end(), [&](std::uint32_t slot) {
      return bit(cell.seen, slot) || shard.members[slot]->first_step > cell.version;
    });
  }
  for (std::size_t word = 0; word < kWords; ++word) {
    if ((shard.present[word] & ~cell.seen[word]) != 0) return false;
  }
  return true;
}

// All members of this hub have contributed.
void Core::add_up(Shard& shard, Cell& cell) {
  auto& job = *shard.job;
  const auto& chunk = chunk_of(shard, cell);
  float* sum = job.sums.floats() + chunk.offset;
  const auto count = at(chunk.count);
  if (job.spec.deterministic) {
    // Without other hubs, nothing reads the sum after the update, so one array is reused and stays in the cache.
    if (!job.spec.relay) sum = scratch_.data();
    std::array<const float*, kMostMembers> parts{};
    std::size_t found = 0;
    for (const auto slot : shard.by_rank) {
      if (bit(cell.filled, slot)) {
        parts[found++] = job.contributions[slot].floats() + chunk.offset;
      }
    }
    take_all(sum, std::span(parts).first(found), count);
  }
  if (!job.spec.relay) return finish(shard, cell, sum);
  if (cell.full == 0) std::memset(sum, 0, count * sizeof(float));
  float* const counts = job.sums.floats() + tally(chunk);
  counts[0] = static_cast<float>(cell.arrived);
  counts[1] = static_cast<float>(cell.full);
  cell.summed = true;
  const auto bucket = std::find_if(job.buckets.begin(), job.buckets.end(),
                                   [&](const auto& each) { return cell.chunk < each->last; });
  if (++(*bucket)->summed == (*bucket)->last - (*bucket)->first) {
    const std::lock_guard lock(job.relay_mutex);
    job.relay_changed.notify_all();
  }
}

void Core::finish(Shard& shard, Cell& cell, const float* sum) {
  auto& job = *shard.job;
  const auto& chunk = chunk_of(shard, cell);
  auto arrived = static_cast<float>(cell.arrived), full = static_cast<float>(cell.full);
  if (job.spec.relay) {
    const float* const counts = job.sums.floats() + tally(chunk);
    arrived = counts[0];
    full = counts[1];
  }
  if (full > 0) {
    optimize(shard, cell, sum, job.spec.average ? arrived : 1.0F);
  }
  ++cell.version;
  const auto seen = cell.seen;
  cell.seen.fill(0);
  cell.filled.fill(0);
  cell.arrived = cell.full = 0;
  cell.summed = false;
  for (std::size_t word = 0; word < kWords; ++word) {
    for (auto rest = seen[word] & shard.present[word]; rest != 0; rest &= rest - 1) {
      const auto slot = static_cast<std::uint32_t>(word * 64) +
                        static_cast<std::uint32_t>(std::countr_zero(rest));
      answer(shard, cell, slot, false);
    }
  }
  advanced(shard, cell);
}

void Core::optimize(Shard& shard, Cell& cell, const float* sum, float divisor) {
  auto& job = *shard.job;
  const auto& chunk = chunk_of(shard, cell);
  Update how;
  how.optimizer = job.spec.optimizer;
  how.group = &job.spec.groups[at(job.spec.groups_of[at(chunk.key)])];
  how.lr = cell.rate;
  how.number = ++cell.updates;
  how.divisor = divisor;
  std::array<float*, kMostStates> states{};
  for (std::size_t i = 0; i < job.states; ++i) states[i] = job.state[i].floats() + chunk.offset;
  update(how, job.weights.floats() + chunk.offset, sum, states, at(chunk.count));
  cell.encoded = false;
  ++counters.updates;
}

// Queues the answer to a member's push. If `copied` is false, the answer points to the chunk's weights.
void Core::answer(Shard& shard, Cell& cell, std::uint32_t slot, bool copied) {
  const int c = shard.connection[slot];
  if (c < 0) return;
  auto& job = *shard.job;
  const auto& chunk = chunk_of(shard, cell);
  const auto& ask = shard.asks[slot][at(chunk.place)];
  const auto count = at(chunk.count);
  const float* const weights = job.weights.floats() + chunk.offset;
  Piece piece;
  piece.frame.kind = (ask.flags & kQuiet) != 0 ? Kind::done : Kind::values;
  piece.frame.wire = ask.wire;
  piece.frame.chunk = static_cast<std::uint32_t>(cell.chunk);
  piece.frame.tag = ask.tag;
  piece.frame.step = cell.version;
  const auto& shared = shard.members[slot]->shared;
  if (piece.frame.kind == Kind::values && (ask.flags & kShared) != 0 && shared) {
    auto* const half = static_cast<std::byte*>(shared->data()) + shared->bytes() / 2;
    narrow(half + at(chunk.offset) * sizeof(float), weights, ask.wire, count);
    piece.frame.flags = kShared;
  } else if (piece.frame.kind == Kind::values) {
    piece.frame.bytes = static_cast<std::uint32_t>(count * size_of(ask.wire));
    if (copied || (ask.wire != Wire::float32 && cell.encoded && cell.encoding != ask.wire)) {
      piece.own.reset(new std::byte[piece.frame.bytes]);
      narrow(piece.own.get(), weights, ask.wire, count);
      piece.data = piece.own.get();
    } else if (ask.wire == Wire::float32) {
      piece.data = reinterpret_cast<const std::byte*>(weights);
    } else {
      auto* const narrowed = static_cast<std::uint16_t*>(job.narrowed.data()) + chunk.offset;
      if (!cell.encoded) narrow(narrowed, weights, ask.wire, count);
      cell.encoded = true;
      cell.encoding = ask.wire;
      piece.data = reinterpret_cast<const std::byte*>(narrowed);
    }
  }
  queue(c, std::move(piece));
}

// After a change of version: answers pulls that waited for it, and fills a snapshot.
void Core::advanced(Shard& shard, Cell& cell) {
  if (shard.snapshot && cell.version == shard.snapshot->version)
    take_part(shard, *shard.snapshot, cell);
  if (shard.waiting.empty()) return;
  const auto place = chunk_of(shard, cell).place;
  std::vector<Waiting> ready;
  auto [begin, end] = shard.waiting.equal_range(place);
  for (auto i = begin; i != end; ++i) ready.push_back(i->second);
  shard.waiting.erase(place);
  for (const auto& each : ready) {  // pulls that must keep waiting are entered again
    const auto& link = links_[at(each.connection)];
    if (link && link->shard == &shard) pull(each.connection, each.frame);
  }
}

void Core::take_part(const Shard& shard, Snapshot& into, const Cell& cell) const {
  const auto& chunk = chunk_of(shard, cell);
  const auto i = at(cell.chunk);
  if (into.versions[i] != kUntaken) return;
  for (std::size_t slot = 0; slot <= shard.job->states; ++slot) {
    std::memcpy(into.arrays[slot].floats() + chunk.offset, array(shard, slot, cell),
                at(chunk.count) * sizeof(float));
  }
  into.updates[i] = cell.updates;
  into.versions[i] = cell.version;
  --into.left;
}

}  // namespace tacos::hub
