#include "aggregation/switch.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "support/vectorized.hpp"

namespace tacos::aggregation {

namespace {

constexpr std::size_t kHeader = sizeof(PacketHeader);
constexpr std::uint64_t kMostShards = 256;
// Workers that wait for others join again and again; one that is silent for longer has died.
constexpr std::uint64_t kSilent_us = 5'000'000;

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

std::string listed(std::uint64_t members) {
  std::string text;
  int count = 0;
  for (int worker = 0; worker < 64; ++worker) {
    if ((members >> worker & 1U) == 0) continue;
    text += (text.empty() ? "" : ", ") + std::to_string(worker);
    ++count;
  }
  return (count == 1 ? "worker " : "workers ") + text;
}

std::uint64_t all_of(std::uint16_t workers) {
  return workers == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << workers) - 1;
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
  // A rack's cores send from ports of their own.
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
    use.seen = 0;
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
        send_up(*job, use, out);
      } else {
        auto held = make_header(PacketKind::notice);
        held.generation = header.generation;
        held.sequence = header.sequence;
        held.slot = header.slot;
        const NoticeBody body{.incarnation = 0,
                              .members = use.seen,
                              .attempt = 0,
                              .code = NoticeCode::waiting,
                              .unused = {}};
        reply(from, held, std::as_bytes(std::span(&body, 1)), "", out);
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

// A plane adds this job's packets, but has passed one on, or has not seen it.
void Switch::not_added(const PacketHeader& header, Job& job, std::vector<Outgoing>& out) {
  const std::string who = "worker " + std::to_string(header.worker);
  if (header.kind == PacketKind::mismatch) {
    --counters_.packets;  // the plane has counted it
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

void Switch::end_generation(Job& job) {
  if (job.elsewhere) {
    const PlaneTally tally = plane_->tally(index_of(job));
    job.contributions += tally.contributions;
    job.results += tally.results;
    job.duplicates += tally.duplicates;
    plane_->release(index_of(job));
    job.elsewhere = false;
  }
  job.generation = 0;
  job.slots.clear();
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
  // Both are aligned: the headers' 32 bytes follow an allocation.
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
    if (!read_body(packet, body) || body.code == NoticeCode::waiting) return;
    Job* job = body.incarnation != 0 ? mine(body.incarnation, body.attempt) : in_generation();
    if (job == nullptr) return;
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

// --- joining

std::uint64_t Switch::joined(const Job& job) const {
  std::uint64_t all = 0;
  for (const auto& member : job.members) {
    if (member.joined) all |= member.members;
  }
  return all;
}

std::uint32_t Switch::index_of(const Job& job) const {
  const auto found = std::find_if(jobs_.begin(), jobs_.end(),
                                  [&](const auto& other) { return other.get() == &job; });
  return static_cast<std::uint32_t>(found - jobs_.begin());
}

std::string Switch::objection(const PacketHeader& header, const JoinBody& body) const {
  if (!accepts(body.token)) {
    return "the switch does not accept the token";
  }
  if (body.workers == 0 || body.workers > kMostWorkers) {
    return "the job has " + std::to_string(body.workers) + " workers; a switch serves 1 to 64";
  }
  if (header.worker >= body.workers || (body.members & ~all_of(body.workers)) != 0 ||
      body.members == 0 || std::countr_zero(body.members) != header.worker) {
    return "worker " + std::to_string(header.worker) + " is not one of the job's " +
           std::to_string(body.workers) + " workers";
  }
  if (parent_ != 0 && (body.members & ~members_) != 0) {
    return "this switch serves " + listed(members_) + ", not " + listed(body.members & ~members_);
  }
  if (body.pool == 0 || body.pool > kMostPool) {
    return "the job asks for " + std::to_string(body.pool) + " slots; the least is 1, the most " +
           std::to_string(kMostPool);
  }
  if (body.packet_elements == 0 || body.packet_elements > limits_.packet_elements) {
    return "packets of " + std::to_string(body.packet_elements) +
           " elements; the switch takes 1 to " + std::to_string(limits_.packet_elements);
  }
  return "";
}

Switch::Job* Switch::job_for(const JoinBody& body, std::string& why) {
  const std::string name = text_of(body.job);
  std::uint32_t slots = body.pool;
  std::size_t count = 0;
  for (const auto& job : jobs_) {
    if (!job) continue;
    if (job->token == body.token && job->name == name) {
      if (job->workers == body.workers && job->pool == body.pool &&
          job->packet_elements == body.packet_elements) {
        return job.get();
      }
      if (joined(*job) != 0) {
        why = "job " + name + " has " + std::to_string(job->workers) + " workers, " +
              std::to_string(job->pool) + " slots and packets of " +
              std::to_string(job->packet_elements) + " elements; this worker asks for " +
              std::to_string(body.workers) + ", " + std::to_string(body.pool) + " and " +
              std::to_string(body.packet_elements);
        return nullptr;
      }
      job->workers = body.workers;
      job->pool = body.pool;
      job->packet_elements = body.packet_elements;
      return job.get();
    }
    slots += job->pool;
    ++count;
  }
  if (count >= limits_.jobs || slots > limits_.slots) {
    why = "the switch has no room for another job: it serves " + std::to_string(count) +
          " jobs, and has " + std::to_string(limits_.slots) + " slots";
    return nullptr;
  }
  auto job = std::make_unique<Job>();
  job->token = body.token;
  job->name = name;
  job->workers = body.workers;
  job->pool = body.pool;
  job->packet_elements = body.packet_elements;
  job->members.resize(kMostWorkers);
  for (auto& place : jobs_) {
    if (!place) return (place = std::move(job)).get();
  }
  jobs_.push_back(std::move(job));
  return jobs_.back().get();
}

void Switch::join(Address from, const PacketHeader& header, std::span<const std::byte> packet,
                  std::uint64_t now_us, std::vector<Outgoing>& out) {
  JoinBody body{};
  if (!read_body(packet, body)) {
    --counters_.control;
    ++counters_.malformed;
    return;
  }
  std::string why = objection(header, body);
  Job* job = why.empty() ? job_for(body, why) : nullptr;
  const auto answer = [&](NoticeCode code, std::uint64_t members, const std::string& text) {
    notice(from, 0,
           {.incarnation = body.incarnation,
            .members = members,
            .attempt = body.attempt,
            .code = code,
            .unused = {}},
           text, out);
  };
  if (job == nullptr) {
    ++counters_.refused;
    answer(NoticeCode::refused, 0, why);
    return;
  }
  job->used_us = now_us;
  for (const auto& other : job->members) {
    if (other.joined && (other.members & body.members) != 0 && other.members != body.members) {
      ++counters_.refused;
      answer(NoticeCode::refused, 0,
             listed(other.members & body.members) + " joined already, under another switch");
      return;
    }
  }
  Member& member = job->members[header.worker];
  if (member.incarnation == body.incarnation && member.members == body.members) {
    if (body.attempt < member.attempt) {
      --counters_.control;
      ++counters_.old;
      return;
    }
    if (!member.failure.empty()) {  // it did not hear of it
      member.attempt = body.attempt;
      answer(NoticeCode::failed, member.furthest, member.failure);
      return;
    }
    if (body.attempt == member.attempt && member.joined) {
      member.address = from;
      member.heard_us = now_us;
      if (job->generation != 0) {
        welcome(*job, member, out);
      } else if (parent_ != 0 && joined(*job) == members_) {
        join_parent(*job, out);
        answer(NoticeCode::waiting, joined(*job), "");
      } else {
        answer(NoticeCode::waiting, joined(*job), "");
      }
      return;
    }
    // The generation that this attempt belonged to has ended, and the notice is on its way or lost.
    if (body.attempt == member.attempt) {
      answer(NoticeCode::dissolved, 0, "");
      return;
    }
  }
  if (job->generation != 0) dissolve(*job, &member, NoticeCode::dissolved, out);
  for (auto& other : job->members) {
    if (other.joined && now_us > other.heard_us + kSilent_us) other.joined = false;
  }
  member = {.members = body.members,
            .address = from,
            .incarnation = body.incarnation,
            .operation = body.operation,
            .elements = body.elements,
            .attempt = body.attempt,
            .dtype = body.dtype,
            .complete = body.complete != 0,
            .behind = body.behind != 0,
            .joined = true,
            .heard_us = now_us,
            .failure = {},
            .furthest = 0};
  if (joined(*job) == (parent_ != 0 ? members_ : all_of(job->workers))) {
    formed(*job, out);
  } else {
    answer(NoticeCode::waiting, joined(*job), "");
  }
}

std::string Switch::disagreement(Job& job) {
  const Member* most = nullptr;
  for (const auto& member : job.members) {
    if (member.joined && (most == nullptr || member.operation > most->operation)) most = &member;
  }
  job.operation = most->operation;
  job.complete = true;
  for (const auto& member : job.members) {
    if (!member.joined) continue;
    const bool ended = member.operation + 1 == most->operation && member.complete && !member.behind;
    job.complete &= member.operation == most->operation && member.complete && !member.behind;
    if (member.operation != most->operation && !ended) {
      return listed(member.members) + " is at operation " + std::to_string(member.operation) +
             ", " + listed(most->members) + " at " + std::to_string(most->operation) +
             ": it was restarted, or made fewer calls";
    }
    if (!ended && (member.elements != most->elements || member.dtype != most->dtype)) {
      return listed(member.members) + " runs another operation than " + listed(most->members) +
             ": " + std::to_string(member.elements) + " and " + std::to_string(most->elements) +
             " elements, or another type";
    }
  }
  return "";
}

void Switch::formed(Job& job, std::vector<Outgoing>& out) {
  if (const std::string why = disagreement(job); !why.empty()) {
    fail(job, why, out, job.operation);
    return;
  }
  if (parent_ == 0) {
    begin(job, random(), out);
    return;
  }
  const Member* most = nullptr;
  bool behind = false, complete = true;
  for (const auto& member : job.members) {
    if (!member.joined) continue;
    behind |= member.operation < job.operation || member.behind;
    if (member.operation == job.operation) {
      most = &member;
      complete &= member.complete;
    }
  }
  job.parent_join = {.token = job.token,
                     .job = job_name(job.name),
                     .members = members_,
                     .incarnation = random(),  // so that the parent takes it for a new worker
                     .operation = job.operation,
                     .elements = most->elements,
                     .attempt = 1,
                     .workers = job.workers,
                     .pool = job.pool,
                     .packet_elements = job.packet_elements,
                     .dtype = most->dtype,
                     .complete = complete,
                     .behind = behind,
                     .unused = {}};
  join_parent(job, out);
}

void Switch::join_parent(Job& job, std::vector<Outgoing>& out) {
  auto header = make_header(PacketKind::join);
  header.worker = static_cast<std::uint16_t>(std::countr_zero(members_));
  reply(parent_, header, std::as_bytes(std::span(&job.parent_join, 1)), "", out);
}

void Switch::begin(Job& job, std::uint64_t generation, std::vector<Outgoing>& out) {
  ++counters_.generations;
  job.generation = generation;
  job.children = 0;
  for (std::size_t i = 0; i < job.members.size(); ++i) {
    if (job.members[i].joined) job.children |= std::uint64_t{1} << i;
  }
  job.slots.clear();
  if (plane_ != nullptr && parent_ == 0) {
    PlaneJob entry{.number = index_of(job),
                   .generation = generation,
                   .children = job.children,
                   .pool = job.pool,
                   .packet_elements = job.packet_elements,
                   .addresses = {}};
    for (std::size_t i = 0; i < job.members.size(); ++i) {
      entry.addresses[i] = job.members[i].address;
    }
    job.tallied = 0;
    job.elsewhere = plane_->take(entry);
  }
  if (!job.elsewhere) job.slots.resize(job.pool + 1U);
  for (std::uint16_t slot = 0; slot < job.slots.size(); ++slot) {
    for (const bool version : {false, true}) {
      Use& use = job.slots[slot][version ? 1 : 0];
      use.sequence = first_sequence(slot, version, job.pool) - stride_of(slot, job.pool);
      use.packet =
          std::make_unique<std::byte[]>(packet_bytes(slot == job.pool ? 0 : job.packet_elements));
    }
  }
  if (shards_ > 1) changes.push_back({index_of(job), ""});
  for (const auto& member : job.members) {
    if (member.joined) welcome(job, member, out);
  }
}

void Switch::dissolve(Job& job, const Member* except, NoticeCode code, std::vector<Outgoing>& out) {
  for (auto& member : job.members) {
    if (!member.joined) continue;
    if (&member != except) {
      notice(member.address, job.generation,
             {.incarnation = job.generation == 0 ? member.incarnation : 0,
              .members = 0,
              .attempt = member.attempt,
              .code = code,
              .unused = {}},
             "", out);
    }
    member.joined = false;
  }
  end_generation(job);
  if (shards_ > 1) changes.push_back({index_of(job), ""});
}

void Switch::fail(Job& job, const std::string& why, std::vector<Outgoing>& out,
                  std::uint64_t furthest) {
  for (auto& member : job.members) {
    if (!member.joined) continue;
    notice(member.address, job.generation,
           {.incarnation = job.generation == 0 ? member.incarnation : 0,
            .members = furthest,
            .attempt = member.attempt,
            .code = NoticeCode::failed,
            .unused = {}},
           why, out);
    member.joined = false;
    member.failure = why;
    member.furthest = furthest;
  }
  if (job.generation != 0) {
    job.ended = job.generation;
    job.failure = why;
    job.furthest = furthest;
  }
  end_generation(job);
  if (shards_ > 1) changes.push_back({index_of(job), ""});
}

void Switch::fail_job(std::uint32_t job, const std::string& why, std::vector<Outgoing>& out) {
  if (job < jobs_.size() && jobs_[job] && jobs_[job]->generation != 0) fail(*jobs_[job], why, out);
}

void Switch::leave(Address from, const PacketHeader& header, std::span<const std::byte> packet,
                   std::vector<Outgoing>& out) {
  LeaveBody body{};
  if (!read_body(packet, body) || header.job >= jobs_.size() || !jobs_[header.job] ||
      header.worker >= kMostWorkers) {
    return;
  }
  Job& job = *jobs_[header.job];
  Member& member = job.members[header.worker];
  if (!member.joined || member.incarnation != body.incarnation || member.address != from) return;
  member.joined = false;
  if (joined(job) != 0) return;
  if (parent_ != 0 && job.generation != 0) {
    auto up = make_header(PacketKind::leave);
    up.job = job.parent_job;
    up.worker = static_cast<std::uint16_t>(std::countr_zero(members_));
    const LeaveBody mine{job.parent_join.incarnation};
    reply(parent_, up, std::as_bytes(std::span(&mine, 1)), "", out);
  }
  end_generation(job);
  jobs_[header.job].reset();
  if (shards_ > 1) changes.push_back({header.job, ""});
}

void Switch::expire(std::uint64_t now_us) {
  for (std::uint32_t i = 0; i < jobs_.size(); ++i) {
    if (!jobs_[i]) continue;
    Job& job = *jobs_[i];
    if (job.elsewhere) {
      const std::uint64_t added = plane_->tally(i).contributions;
      if (std::exchange(job.tallied, added) != added) job.used_us = now_us;
    }
    if (now_us < job.used_us + limits_.idle_us) continue;
    end_generation(job);
    jobs_[i].reset();
    if (shards_ > 1) changes.push_back({i, ""});
  }
}

void Switch::mirror(const Switch& first, std::uint32_t job) {
  if (jobs_.size() <= job) jobs_.resize(job + 1U);
  const Job* from = job < first.jobs_.size() ? first.jobs_[job].get() : nullptr;
  if (from == nullptr) {
    jobs_[job].reset();
    return;
  }
  auto copy = std::make_unique<Job>();
  copy->token = from->token;
  copy->name = from->name;
  copy->workers = from->workers;
  copy->pool = from->pool;
  copy->packet_elements = from->packet_elements;
  copy->members = from->members;
  copy->parent_job = from->parent_job;
  copy->parent_shards = from->parent_shards;
  copy->ended = from->ended;
  copy->failure = from->failure;
  copy->furthest = from->furthest;
  copy->used_us = ~std::uint64_t{0} - limits_.idle_us;  // the first switch forgets it
  jobs_[job] = std::move(copy);
  if (from->generation == 0) return;
  std::vector<Outgoing> none;
  const auto count = replies_.size();
  begin(*jobs_[job], from->generation, none);
  replies_.resize(count);  // the first switch has welcomed all
  changes.clear();
  --counters_.generations;
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
