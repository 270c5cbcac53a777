#include "hub/core.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "support/error.hpp"
#include "support/index.hpp"

namespace tacos::hub {

namespace {

constexpr std::int64_t kHelloMs = 5000;  // time for a connection to send its hello
// Bytes that a client may leave unread, besides its answers.
constexpr std::size_t kSlack = 4U << 20;
constexpr std::size_t kLongestText = 1024;  // bytes of an error

// Takes the same time wherever the keys differ, so that timing does not reveal a key.
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
  if (shard->job->spec.deterministic) {  // its contributions are kept separately and can be dropped
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

std::span<std::byte> Core::space(int connection) { return links_[at(connection)]->stream.space(); }

void Core::received(int connection, std::size_t bytes) {
  auto& link = *links_[at(connection)];
  link.stream.received(bytes);
  counters.bytes_in += bytes;
  Frame frame;
  const std::byte* payload = nullptr;
  while (!link.ending) {
    const auto next = link.stream.next(frame, payload);
    if (next == Stream::Next::none) break;
    if (next == Stream::Next::malformed) {
      end(connection, "malformed frame");
      break;
    }
    ++counters.frames;
    handle(connection, frame, payload);
  }
  if (link.ending) link.stream.discard();  // do not read what follows
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
  return links_[at(connection)]->stream.front(pieces);
}

void Core::sent(int connection, std::size_t bytes) {
  counters.bytes_out += bytes;
  links_[at(connection)]->stream.sent(bytes);
}

bool Core::idle(int connection) const { return links_[at(connection)]->stream.idle(); }
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
  link.stream.queue(std::move(piece));
  mark(c);
  if (link.shard == nullptr || link.ending) return;
  const auto most = kSlack + 2 * sizeof(float) * at(link.shard->job->parts.load[at(index_)]) +
                    link.shard->cells.size() * 2 * sizeof(Frame);
  if (link.stream.queued() > most) {  // the client requests more than it reads
    link.stream.forget();
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
  // An unknown job takes the same path as a wrong key, so an answer does not reveal which jobs exist.
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

// Completes chunks that waited only for a member that is gone.
void Core::recheck(Shard& shard) {
  for (auto& cell : shard.cells) {
    if (shard.by_rank.empty() && !cell.summed) {  // drop a step that no member is left to finish
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

// Reports members as lost that have kept a chunk waiting for too long.
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
