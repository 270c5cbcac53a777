#include "hub/core.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "hub/pieces.hpp"
#include "support/error.hpp"
#include "support/index.hpp"

namespace tacos::hub {

namespace {

constexpr std::size_t kBuffer = 5 * (sizeof(Frame) + kLargestPayload);  // bytes read ahead
constexpr double kMostUpdates = 0x1p53;                                 // that a double can count
constexpr std::int64_t kHelloMs = 5000;   // for how long a connection may stay unknown
constexpr std::size_t kSlack = 4U << 20;  // bytes that a client may leave unread beside its answers
constexpr std::size_t kLongestText = 1024;  // bytes of an error

bool bit(const std::array<std::uint64_t, kMostMembers / 64>& set, std::uint32_t i) {
  return (set[i / 64] >> (i % 64) & 1U) != 0;
}

void set_bit(std::array<std::uint64_t, kMostMembers / 64>& set, std::uint32_t i, bool value) {
  const std::uint64_t one = std::uint64_t{1} << (i % 64);
  set[i / 64] = value ? set[i / 64] | one : set[i / 64] & ~one;
}

// Takes the same time wherever the keys differ.
bool same(const std::array<std::uint8_t, 16>& a, const std::array<std::uint8_t, 16>& b) {
  std::uint8_t difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference |= static_cast<std::uint8_t>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace

// --- commands

void Core::add(const std::shared_ptr<Job>& job) {
  auto shard = std::make_unique<Shard>();
  shard->job = job;
  shard->connection.fill(-1);
  for (std::size_t i = 0; i < job->parts.chunks.size(); ++i) {
    if (job->parts.chunks[i].core != index_) continue;
    Cell cell;
    cell.chunk = static_cast<std::int32_t>(i);
    if (!job->versions.empty()) {  // resumed
      cell.version = job->versions[i];
      cell.updates = job->updates[i];
      cell.ready = true;
    }
    shard->cells.push_back(cell);
  }
  shards_[job->id] = std::move(shard);
}

void Core::remove(std::uint64_t job, const std::string& why) {
  auto* const shard = find(job);
  if (shard == nullptr) return;
  fail(*shard, why);
  for (std::size_t c = 0; c < links_.size(); ++c) {
    if (!links_[c] || links_[c]->shard != shard) continue;
    links_[c]->shard = nullptr;
    links_[c]->ending = true;
    mark(static_cast<int>(c));
  }
  shards_.erase(job);
}

std::uint64_t Core::next_step(std::uint64_t job) const {
  const auto* const shard = find(job);
  std::uint64_t next = 0;
  if (shard == nullptr) return next;
  for (const auto& cell : shard->cells) {
    next = std::max(next, cell.version + (cell.arrived > 0 ? 1 : 0));
  }
  return next;
}

bool Core::admit(std::uint64_t job, std::uint32_t slot, const Member& member) {
  auto* const shard = find(job);
  if (shard == nullptr || !shard->failure.empty()) return false;
  const bool sync = shard->job->spec.mode == Mode::sync;
  if (sync && next_step(job) > member.first_step) return false;
  shard->members[slot] = std::make_unique<Member>(member);
  shard->connection[slot] = -1;
  shard->asks[slot].assign(shard->cells.size(), {});
  if (!sync) {
    auto& clocks = shard->clocks[slot];
    clocks.resize(shard->cells.size());
    for (std::size_t place = 0; place < clocks.size(); ++place) clocks[place] = member.first_step;
  }
  set_bit(shard->present, slot, true);
  reorder(*shard);
  return true;
}

void Core::leave(std::uint64_t job, std::uint32_t slot, std::uint64_t serial) {
  auto* const shard = find(job, slot, serial);
  if (shard == nullptr) return;
  forget(*shard, slot);
  recheck(*shard);
}

void Core::lose(const Loss& loss) {
  auto* const shard = find(loss.job, loss.slot, loss.serial);
  if (shard == nullptr) return;
  if (!shard->job->spec.elastic) {
    const std::string why = shard->members[loss.slot]->worker() + " is lost: " + loss.why;
    forget(*shard, loss.slot);
    fail(*shard, why);
    return;
  }
  if (shard->job->spec.deterministic) {  // its contributions are apart and can be dropped
    for (auto& cell : shard->cells) {
      if (!bit(cell.seen, loss.slot) || cell.summed) continue;
      set_bit(cell.seen, loss.slot, false);
      --cell.arrived;
      if (bit(cell.filled, loss.slot)) --cell.full;
      set_bit(cell.filled, loss.slot, false);
    }
  }
  forget(*shard, loss.slot);
  recheck(*shard);
}

void Core::settle(std::uint64_t job, std::uint64_t version) {
  auto* const shard = find(job);
  if (shard == nullptr) return;
  for (auto& cell : shard->cells) cell.version = std::max(cell.version, version);
}

void Core::snapshot(std::uint64_t job, const std::shared_ptr<Snapshot>& into) {
  auto* const shard = find(job);
  if (shard == nullptr) return;
  if (!into->any) shard->snapshot = into;
  for (auto& cell : shard->cells) {
    if (into->any || cell.version == into->version) {
      take_part(*shard, *into, cell);
    } else if (cell.version > into->version) {
      into->missed = true;
    }
  }
}

void Core::deliver(std::uint64_t job, std::size_t bucket) {
  auto* const shard = find(job);
  if (shard == nullptr) return;
  const auto& range = *shard->job->buckets[bucket];
  for (std::int32_t i = range.first; i < range.last; ++i) {
    const auto& chunk = shard->job->parts.chunks[at(i)];
    if (chunk.core != index_) continue;
    auto& cell = shard->cells[at(chunk.place)];
    if (cell.summed) finish(*shard, cell, shard->job->sums.floats() + chunk.offset);
  }
}

std::string Core::failure(std::uint64_t job) const {
  const auto* const shard = find(job);
  return shard == nullptr ? std::string() : shard->failure;
}

// --- connections

int Core::open() {
  auto link = std::make_unique<Link>();
  link->buffer.reset(new std::byte[kBuffer]);
  link->opened_ms = now_ms_;
  if (free_.empty()) {
    links_.push_back(std::move(link));
    return static_cast<int>(links_.size()) - 1;
  }
  const int c = free_.back();
  free_.pop_back();
  links_[at(c)] = std::move(link);
  return c;
}

std::span<std::byte> Core::space(int connection) {
  auto& link = *links_[at(connection)];
  if (link.begin > 0 && kBuffer - link.end < sizeof(Frame) + kLargestPayload) {
    std::memmove(link.buffer.get(), link.buffer.get() + link.begin, link.end - link.begin);
    link.end -= link.begin;
    link.begin = 0;
  }
  return {link.buffer.get() + link.end, kBuffer - link.end};
}

void Core::received(int connection, std::size_t bytes) {
  auto& link = *links_[at(connection)];
  link.end += bytes;
  counters.bytes_in += bytes;
  while (!link.ending && link.end - link.begin >= sizeof(Frame)) {
    Frame frame;
    std::memcpy(&frame, link.buffer.get() + link.begin, sizeof frame);
    const auto kind = static_cast<std::uint8_t>(frame.kind);
    if (frame.magic != kMagic || kind == 0 || kind > kLastKind || frame.bytes > kLargestPayload ||
        frame.wire > Wire::float16) {
      end(connection, "malformed frame");
      break;
    }
    const auto whole = sizeof frame + padded(frame.bytes);
    if (link.end - link.begin < whole) break;
    const std::byte* payload = link.buffer.get() + link.begin + sizeof frame;
    link.begin += whole;
    ++counters.frames;
    handle(connection, frame, payload);
  }
  if (link.ending) link.begin = link.end = 0;  // what follows is not read
  if (link.begin == link.end) link.begin = link.end = 0;
  charge(link, bytes);
}

void Core::charge(Link& link, std::size_t bytes) {
  if (link.shard == nullptr || link.shard->job->spec.rate_Bps <= 0) return;
  const auto& spec = link.shard->job->spec;
  const double rate = spec.rate_Bps / 1000.0;  // bytes per ms
  auto& allowance = allowances_[spec.tenant];
  if (allowance.at_ms == 0) allowance = {rate * 100, now_ms_};
  const auto passed = static_cast<double>(now_ms_ - allowance.at_ms);
  allowance.left =
      std::min(allowance.left + passed * rate, rate * 100) - static_cast<double>(bytes);
  allowance.at_ms = now_ms_;
  if (allowance.left < 0) {
    link.held_until_ms = now_ms_ + 1 + static_cast<std::int64_t>(-allowance.left / rate);
  }
}

void Core::closed(int connection, const std::string& why) {
  auto& link = *links_[at(connection)];
  auto* const shard = link.shard;
  const auto slot = link.slot;
  links_[at(connection)].reset();
  free_.push_back(connection);
  if (shard == nullptr || shard->connection[slot] != connection) return;
  shard->connection[slot] = -1;
  if (!bit(shard->present, slot)) return;
  const Loss loss{shard->job->id, slot, shard->members[slot]->serial, why};
  losses.push_back(loss);
  lose(loss);
}

std::size_t Core::front(int connection, std::span<iovec> pieces) const {
  const auto& link = *links_[at(connection)];
  return list_pieces(link.out, link.done, pieces);
}

void Core::sent(int connection, std::size_t bytes) {
  auto& link = *links_[at(connection)];
  counters.bytes_out += bytes;
  link.queued -= bytes;
  link.done += bytes;
  while (!link.out.empty() && link.done >= link.out.front().whole()) {
    link.done -= link.out.front().whole();
    link.out.pop_front();
  }
}

bool Core::idle(int connection) const { return links_[at(connection)]->out.empty(); }
bool Core::ending(int connection) const { return links_[at(connection)]->ending; }
std::int64_t Core::held_until_ms(int connection) const {
  return links_[at(connection)]->held_until_ms;
}

std::vector<int> Core::take_touched() {
  for (const auto c : touched_) {
    if (links_[at(c)]) links_[at(c)]->marked = false;
  }
  return std::exchange(touched_, {});
}

bool Core::exists(int connection) const { return links_[at(connection)] != nullptr; }

void Core::mark(int c) {
  auto& link = *links_[at(c)];
  if (!link.marked) touched_.push_back(c);
  link.marked = true;
}

void Core::queue(int c, Piece piece) {
  auto& link = *links_[at(c)];
  link.queued += piece.whole();
  link.out.push_back(std::move(piece));
  mark(c);
  if (link.shard == nullptr || link.ending) return;
  const auto most = kSlack + 2 * sizeof(float) * at(link.shard->job->parts.load[at(index_)]) +
                    link.shard->cells.size() * 2 * sizeof(Frame);
  if (link.queued > most) {  // it asks for more than it reads
    link.out.clear();
    link.queued = link.done = 0;
    link.ending = true;
  }
}

void Core::refuse(int c, const Frame& frame, const std::string& why, std::uint8_t flags) {
  ++counters.errors;
  Piece piece;
  piece.frame.kind = Kind::error;
  piece.frame.flags = flags;
  piece.frame.chunk = frame.chunk;
  piece.frame.tag = frame.tag;
  piece.frame.step = frame.step;
  const auto bytes = std::min(why.size(), kLongestText);
  piece.frame.bytes = static_cast<std::uint32_t>(bytes);
  piece.own.reset(new std::byte[bytes]);
  std::memcpy(piece.own.get(), why.data(), bytes);
  piece.data = piece.own.get();
  queue(c, std::move(piece));
}

void Core::end(int c, const std::string& why) {
  ++counters.refused;
  auto& link = *links_[at(c)];
  refuse(c, {}, why + "; the connection ends", kFatal);
  link.ending = true;
  mark(c);
}

// --- frames

Core::Shard* Core::find(std::uint64_t job) const {
  const auto found = shards_.find(job);
  return found == shards_.end() ? nullptr : found->second.get();
}

Core::Shard* Core::find(std::uint64_t job, std::uint32_t slot, std::uint64_t serial) const {
  auto* const shard = find(job);
  const bool there = shard != nullptr && slot < kMostMembers && bit(shard->present, slot) &&
                     shard->members[slot]->serial == serial;
  return there ? shard : nullptr;
}

const Chunk& Core::chunk_of(const Shard& shard, const Cell& cell) const {
  return shard.job->parts.chunks[at(cell.chunk)];
}

float* Core::array(const Shard& shard, std::size_t slot, const Cell& cell) const {
  const auto& region = slot == 0 ? shard.job->weights : shard.job->state[slot - 1];
  return region.floats() + chunk_of(shard, cell).offset;
}

void Core::handle(int c, const Frame& frame, const std::byte* payload) {
  const auto& link = *links_[at(c)];
  if (link.shard == nullptr) {
    if (frame.kind == Kind::hello && frame.bytes == sizeof(Hello)) return hello(c, frame, payload);
    return end(c, "the first frame must be a hello");
  }
  switch (frame.kind) {
    case Kind::push:
      return push(c, frame, payload);
    case Kind::pull:
      return pull(c, frame);
    case Kind::put:
      return put(c, frame, payload);
    default:
      return end(c, "a worker must not send frames of kind " +
                        std::to_string(static_cast<int>(frame.kind)));
  }
}

void Core::hello(int c, const Frame& frame, const std::byte* payload) {
  Hello hello;
  std::memcpy(&hello, payload, sizeof hello);
  auto* const shard = find(hello.job);
  static const std::array<std::uint8_t, 16> kNone{};
  const bool known =
      shard != nullptr && hello.member < kMostMembers && bit(shard->present, hello.member);
  // An unknown job takes the same path as a wrong key, so that an answer does not tell them apart.
  const auto& key = known ? shard->members[hello.member]->key : kNone;
  if (!same(key, hello.key) || !known) return end(c, "unknown job, member or key");
  if (hello.core != static_cast<std::uint32_t>(index_)) {
    return end(c, "this is core " + std::to_string(index_) + ", not " + std::to_string(hello.core));
  }
  if (shard->connection[hello.member] >= 0) return end(c, "the member is connected already");
  auto& link = *links_[at(c)];
  link.shard = shard;
  link.keep = shard->job;
  link.slot = hello.member;
  shard->connection[hello.member] = c;
  Piece piece;
  piece.frame.kind = Kind::welcome;
  piece.frame.tag = frame.tag;
  queue(c, std::move(piece));
}

// The chunk that a frame is about, or nothing if the frame is refused.
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

// Asynchronous modes: one push is one update.
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
    // Without other hubs nobody needs the sum after the update, and this array stays in the cache.
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
  how.rule = job.spec.rule;
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

// Queues the answer to a member's push. Without a copy, all members share what they are sent.
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
  for (const auto& each : ready) {  // those that must wait on are entered again
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

// --- members

void Core::reorder(Shard& shard) {
  shard.by_rank.clear();
  shard.latest_first = 0;
  for (std::uint32_t slot = 0; slot < kMostMembers; ++slot) {
    if (!bit(shard.present, slot)) continue;
    shard.by_rank.push_back(slot);
    shard.latest_first = std::max(shard.latest_first, shard.members[slot]->first_step);
  }
  std::stable_sort(shard.by_rank.begin(), shard.by_rank.end(),
                   [&](std::uint32_t a, std::uint32_t b) {
                     return shard.members[a]->rank < shard.members[b]->rank;
                   });
}

void Core::forget(Shard& shard, std::uint32_t slot) {
  set_bit(shard.present, slot, false);
  const int c = shard.connection[slot];
  shard.connection[slot] = -1;
  if (c >= 0) {
    auto& link = *links_[at(c)];
    link.shard = nullptr;
    link.ending = true;
    mark(c);
  }
  reorder(shard);
}

// Chunks that waited for a member that is gone.
void Core::recheck(Shard& shard) {
  for (auto& cell : shard.cells) {
    if (shard.by_rank.empty() &&
        !cell.summed) {  // nothing of a step that no member is left to finish
      cell.seen.fill(0);
      cell.filled.fill(0);
      cell.arrived = cell.full = 0;
    } else if (complete(shard, cell)) {
      add_up(shard, cell);
    }
  }
  std::vector<std::int32_t> places;
  for (const auto& [place, slots] : shard.held) places.push_back(place);
  if (!shard.by_rank.empty()) {
    for (const auto place : places) release_held(shard, place);
  }
}

void Core::fail(Shard& shard, const std::string& why) {
  if (!shard.failure.empty()) return;
  shard.failure = why;
  for (const auto& [place, each] : shard.waiting) {
    if (links_[at(each.connection)] && links_[at(each.connection)]->shard == &shard) {
      refuse(each.connection, each.frame, why, kFatal);
    }
  }
  shard.waiting.clear();
  for (const auto slot : shard.by_rank) {
    if (shard.connection[slot] >= 0) refuse(shard.connection[slot], {}, why, kFatal);
  }
}

// --- time

void Core::tick(std::int64_t now_ms) {
  now_ms_ = now_ms;
  for (std::size_t c = 0; c < links_.size(); ++c) {
    if (links_[c] && links_[c]->shard == nullptr && !links_[c]->ending &&
        now_ms - links_[c]->opened_ms > kHelloMs) {
      end(static_cast<int>(c), "no hello within 5 s");
    }
  }
  for (auto& [id, shard] : shards_) {
    if (shard->failure.empty() && shard->job->spec.mode == Mode::sync) late(*shard);
  }
}

// Members that have kept a chunk waiting for too long are lost.
void Core::late(Shard& shard) {
  const auto limit = static_cast<std::int64_t>(shard.job->spec.timeout_s * 1000.0);
  std::vector<Loss> found;
  for (const auto& cell : shard.cells) {
    if (cell.arrived == 0 || cell.summed || now_ms_ - cell.since_ms <= limit) continue;
    for (const auto slot : shard.by_rank) {
      if (bit(cell.seen, slot) || shard.members[slot]->first_step > cell.version) continue;
      found.push_back({shard.job->id, slot, shard.members[slot]->serial,
                       "it has not pushed step " + std::to_string(cell.version) + " within " +
                           std::to_string(limit) + " ms"});
    }
    break;
  }
  for (const auto& loss : found) {
    losses.push_back(loss);
    lose(loss);
  }
}

}  // namespace tacos::hub
