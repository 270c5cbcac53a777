#include "aggregation/switch.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "support/vectorized.hpp"

namespace tacos::aggregation {

namespace {

constexpr std::uint64_t kMostShards = 256;

// Unsigned, since sums of integers wrap around.
TACOS_VECTORIZED void add_words(std::uint32_t* sums, const std::uint32_t* words,
                                std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) sums[i] += words[i];
}

PacketHeader header_at(const std::byte* packet) {
  PacketHeader header{};
  std::memcpy(&header, packet, kHeader);
  return header;
}

}  // namespace

Switch::Switch(SwitchLimits limits, std::vector<Token> tokens, std::uint64_t seed,
               std::uint16_t shards)
    : limits_(limits), tokens_(std::move(tokens)), random_(seed), shards_(shards) {}

void Switch::set_parent(Address parent, std::uint64_t members) {
  parent_ = parent;
  members_ = members;
}

std::uint64_t Switch::random() {  // splitmix64
  std::uint64_t z = random_ += 0x9E3779B97F4A7C15U;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  z ^= z >> 31;
  return z == 0 ? 1 : z;
}

void Switch::receive(Address from, std::span<const std::byte> packet, std::uint64_t now_us,
                     std::vector<Outgoing>& out) {
  const std::size_t before = out.size();
  ++counters_.packets;
  PacketHeader header{};
  if (!read_header(packet, header)) {
    ++counters_.malformed;
    return;
  }
  const bool above = parent_ != 0 && from >= parent_ && from - parent_ < kMostShards &&
                     (header.kind == PacketKind::result || header.kind == PacketKind::welcome ||
                      header.kind == PacketKind::notice);
  if (above) {
    ++counters_.control;
    from_parent(header, packet, out);
  } else if (header.kind == PacketKind::contribution ||
             (header.kind == PacketKind::mismatch && plane_ != nullptr)) {
    contribute(from, header, packet, now_us, out);
  } else if (header.kind == PacketKind::join) {
    ++counters_.control;
    join(from, header, packet, now_us, out);
  } else if (header.kind == PacketKind::leave) {
    ++counters_.control;
    leave(from, header, packet, out);
  } else {
    ++counters_.malformed;
  }
  counters_.sent += out.size() - before;
}

// --- data

Switch::Job* Switch::find(std::uint32_t index, std::uint64_t generation) const {
  if (index >= jobs_.size() || !jobs_[index] || generation == 0) return nullptr;
  return jobs_[index]->generation == generation ? jobs_[index].get() : nullptr;
}

void Switch::contribute(Address from, const PacketHeader& header, std::span<const std::byte> packet,
                        std::uint64_t now_us, std::vector<Outgoing>& out) {
  Job* job = find(header.job, header.generation);
  if (job == nullptr) {
    ++counters_.stale;
    const Job* failed = header.job < jobs_.size() && jobs_[header.job] && header.generation != 0 &&
                                jobs_[header.job]->ended == header.generation
                            ? jobs_[header.job].get()
                            : nullptr;
    notice(from, header.generation,
           {.incarnation = 0,
            .members = failed != nullptr ? failed->furthest : 0,
            .attempt = 0,
            .code = failed != nullptr ? NoticeCode::failed : NoticeCode::unknown,
            .unused = {}},
           failed != nullptr ? failed->failure : "", out);
    return;
  }
  const std::uint16_t slot = header.slot & static_cast<std::uint16_t>(~kVersionBit);
  const bool version = (header.slot & kVersionBit) != 0;
  const std::uint64_t bit = header.worker < 64 ? std::uint64_t{1} << header.worker : 0;
  if (packet.size() != packet_bytes(header.elements)) {
    ++counters_.malformed;
    return;
  }
  if ((job->children & bit) == 0 || slot > job->pool || header.elements > job->packet_elements ||
      from >> 16 != job->members[header.worker].address >> 16) {
    ++counters_.out_of_range;
    return;
  }
  job->used_us = now_us;
  if (job->elsewhere) {
    not_added(header, *job, out);
    return;
  }
  if (header.kind != PacketKind::contribution) {
    ++counters_.malformed;
    return;
  }
  // Each core of a rack's switch sends from its own port.
  job->members[header.worker].address = from;
  Use& use = job->slots[slot][version ? 1 : 0];
  const std::uint32_t stride = stride_of(slot, job->pool);
  const std::uint32_t ahead = header.sequence - use.sequence;
  const bool first = ahead == stride;
  if (first) {
    if (!use.done || !job->slots[slot][version ? 0 : 1].done) {
      ++counters_.early;
      return;
    }
    use.sequence = header.sequence;
    use.seen = use.asking = 0;
    use.done = use.waiting = false;
    use.tag = header.tag;
    use.elements = header.elements;
  } else if (ahead != 0) {
    ++(static_cast<std::int32_t>(ahead) < 0 ? counters_.old : counters_.early);
    return;
  }
  if (use.tag != header.tag || use.elements != header.elements) {
    ++counters_.mismatched;
    const std::string why = "worker " + std::to_string(header.worker) +
                            " runs another operation than " + listed(use.seen) +
                            ": its number, size or type differs";
    if (shards_ > 1) changes.push_back({header.job, why});
    fail(*job, why, out);
    return;
  }
  if ((use.seen & bit) != 0) {
    if (use.done) {
      ++counters_.resent;
      out.push_back({from, use.packet.get(), packet_bytes(use.elements)});
    } else {
      ++counters_.duplicates;
      ++job->duplicates;
      if (use.waiting) {
        use.asking |= bit;
        send_up(*job, use, out);
      } else {
        still_waiting(*job, use, bit, workers_of(*job, use.seen), out);
      }
    }
    return;
  }
  ++counters_.contributions;
  ++job->contributions;
  add(use, header, packet, first);
  use.seen |= bit;
  if (use.seen != job->children) return;
  if (parent_ != 0) {
    use.waiting = true;
    send_up(*job, use, out);
  } else {
    finish(*job, use, out);
  }
}

// Handles a packet of a job that a plane aggregates, but that the plane passed on or did not see.
void Switch::not_added(const PacketHeader& header, Job& job, std::vector<Outgoing>& out) {
  const std::string who = "worker " + std::to_string(header.worker);
  if (header.kind == PacketKind::mismatch) {
    --counters_.packets;  // the plane has counted it already
    fail(job, who + " runs another operation than the others: its number, size or type differs",
         out);
    return;
  }
  ++counters_.out_of_range;
  fail(job,
       "packets of " + who + " do not reach the switch through " + plane_->where() +
           ", where its XDP program adds up; connect it there, or start the switch without XDP",
       out);
}

void Switch::add(Use& use, const PacketHeader& header, std::span<const std::byte> packet,
                 bool first) {
  if (first) {
    std::memcpy(use.packet.get(), packet.data(), packet.size());
    return;
  }
  auto sums = header_at(use.packet.get());
  sums.exponent = std::max(sums.exponent, header.exponent);
  std::memcpy(use.packet.get(), &sums, kHeader);
  // Both addresses are aligned: each is 32 bytes of header after the start of an allocation.
  add_words(reinterpret_cast<std::uint32_t*>(use.packet.get() + kHeader),
            reinterpret_cast<const std::uint32_t*>(packet.data() + kHeader), header.elements);
}

void Switch::finish(Job& job, Use& use, std::vector<Outgoing>& out) {
  use.done = true;
  use.waiting = false;
  ++counters_.results;
  ++job.results;
  auto header = header_at(use.packet.get());
  header.kind = PacketKind::result;
  header.job = index_of(job);
  std::memcpy(use.packet.get(), &header, kHeader);
  for (std::uint64_t left = job.children; left != 0; left &= left - 1) {
    const auto& child = job.members[static_cast<std::size_t>(std::countr_zero(left))];
    out.push_back({child.address, use.packet.get(), packet_bytes(use.elements)});
  }
}

// Tells children that their contributions are here and others are missing, so that they know that the switch is alive.
// `present`: the workers that have contributed, as far as this switch knows.
void Switch::still_waiting(const Job& job, const Use& use, std::uint64_t children,
                           std::uint64_t present, std::vector<Outgoing>& out) {
  const auto held = header_at(use.packet.get());
  auto header = make_header(PacketKind::notice);
  header.generation = job.generation;
  header.sequence = use.sequence;
  header.slot = held.slot;
  const NoticeBody body{.incarnation = 0,
                        .members = present,
                        .attempt = 0,
                        .code = NoticeCode::waiting,
                        .unused = {}};
  for (; children != 0; children &= children - 1) {
    const auto& child = job.members[static_cast<std::size_t>(std::countr_zero(children))];
    reply(child.address, header, std::as_bytes(std::span(&body, 1)), "", out);
  }
}

void Switch::send_up(Job& job, Use& use, std::vector<Outgoing>& out) {
  ++counters_.forwarded;
  auto header = header_at(use.packet.get());
  header.kind = PacketKind::contribution;
  header.job = job.parent_job;
  header.worker = static_cast<std::uint16_t>(std::countr_zero(members_));
  std::memcpy(use.packet.get(), &header, kHeader);
  const std::uint16_t slot = header.slot & static_cast<std::uint16_t>(~kVersionBit);
  out.push_back({parent_ + shard_of(slot, job.pool, job.parent_shards), use.packet.get(),
                 packet_bytes(use.elements)});
}

void Switch::from_parent(const PacketHeader& header, std::span<const std::byte> packet,
                         std::vector<Outgoing>& out) {
  const auto mine = [&](std::uint64_t incarnation, std::uint32_t attempt) -> Job* {
    for (const auto& job : jobs_) {
      if (job && incarnation == job->parent_join.incarnation && attempt == job->parent_join.attempt)
        return job.get();
    }
    return nullptr;
  };
  const auto in_generation = [&]() -> Job* {
    for (const auto& job : jobs_) {
      if (job && header.generation != 0 && job->generation == header.generation) return job.get();
    }
    return nullptr;
  };
  if (header.kind == PacketKind::result) {
    Job* job = in_generation();
    const std::uint16_t slot = header.slot & static_cast<std::uint16_t>(~kVersionBit);
    if (job == nullptr || slot > job->pool || packet.size() != packet_bytes(header.elements))
      return;
    Use& use = job->slots[slot][(header.slot & kVersionBit) != 0 ? 1 : 0];
    if (!use.waiting || use.done || use.sequence != header.sequence || use.tag != header.tag ||
        use.elements != header.elements) {
      return;
    }
    std::memcpy(use.packet.get(), packet.data(), packet.size());
    finish(*job, use, out);
  } else if (header.kind == PacketKind::welcome) {
    WelcomeBody body{};
    if (!read_body(packet, body)) return;
    Job* job = mine(body.incarnation, body.attempt);
    if (job == nullptr || job->generation != 0 || joined(*job) != members_) return;
    job->parent_job = header.job;
    job->parent_shards = std::max<std::uint16_t>(body.shards, 1);
    job->operation = body.operation;
    job->complete = body.complete != 0;
    begin(*job, header.generation, out);
  } else {
    NoticeBody body{};
    if (!read_body(packet, body)) return;
    Job* job = body.incarnation != 0 ? mine(body.incarnation, body.attempt) : in_generation();
    if (job == nullptr) return;
    if (body.code == NoticeCode::waiting) {
      const std::uint16_t slot = header.slot & static_cast<std::uint16_t>(~kVersionBit);
      if (body.incarnation != 0 || slot > job->pool) return;
      Use& use = job->slots[slot][(header.slot & kVersionBit) != 0 ? 1 : 0];
      if (!use.waiting || use.sequence != header.sequence) return;
      still_waiting(*job, use, std::exchange(use.asking, 0), body.members | members_, out);
      return;
    }
    const auto* text = reinterpret_cast<const char*>(packet.data()) + kHeader + sizeof body;
    const std::string why(text, packet.size() - kHeader - sizeof body);
    if (body.code == NoticeCode::failed || body.code == NoticeCode::refused) {
      const bool refused = body.code == NoticeCode::refused;
      fail(*job, refused ? "the parent switch refused: " + why : why, out,
           refused ? 0 : body.members);
    } else {
      dissolve(*job, nullptr, NoticeCode::dissolved, out);
    }
  }
}

// --- replies

void Switch::reply(Address to, const PacketHeader& header, std::span<const std::byte> body,
                   const std::string& text, std::vector<Outgoing>& out) {
  std::vector<std::byte> packet(kHeader + body.size() + text.size());
  std::memcpy(packet.data(), &header, kHeader);
  if (!body.empty()) std::memcpy(packet.data() + kHeader, body.data(), body.size());
  if (!text.empty()) std::memcpy(packet.data() + kHeader + body.size(), text.data(), text.size());
  replies_.push_back(std::move(packet));
  out.push_back({to, replies_.back().data(), replies_.back().size()});
}

void Switch::welcome(const Job& job, const Member& member, std::vector<Outgoing>& out) {
  auto header = make_header(PacketKind::welcome);
  header.job = index_of(job);
  header.generation = job.generation;
  header.worker = static_cast<std::uint16_t>(std::countr_zero(member.members));
  const WelcomeBody body{.incarnation = member.incarnation,
                         .operation = job.operation,
                         .attempt = member.attempt,
                         .shards = shards_,
                         .complete = job.complete,
                         .unused = 0};
  reply(member.address, header, std::as_bytes(std::span(&body, 1)), "", out);
}

void Switch::notice(Address to, std::uint64_t generation, NoticeBody body, const std::string& text,
                    std::vector<Outgoing>& out) {
  auto header = make_header(PacketKind::notice);
  header.generation = generation;
  reply(to, header, std::as_bytes(std::span(&body, 1)), text, out);
}

bool Switch::accepts(const Token& token) const {
  return std::find(tokens_.begin(), tokens_.end(), token) != tokens_.end();
}

std::uint64_t Switch::generation_of(std::string_view job_name) const {
  for (const auto& job : jobs_) {
    if (job && job->name == job_name) return job->generation;
  }
  return 0;
}

std::vector<Switch::JobView> Switch::jobs() const {
  std::vector<JobView> views;
  for (const auto& job : jobs_) {
    if (!job) continue;
    const PlaneTally more = job->elsewhere ? plane_->tally(index_of(*job)) : PlaneTally{};
    views.push_back({job->name, job->workers, job->pool, job->packet_elements, job->generation,
                     joined(*job), job->contributions + more.contributions,
                     job->results + more.results, job->duplicates + more.duplicates,
                     job->elsewhere});
  }
  return views;
}

}  // namespace tacos::aggregation
