// Generations: how workers join and leave a job, and when aggregation begins and ends.
#include <algorithm>
#include <bit>
#include <utility>

#include "aggregation/switch.hpp"

namespace tacos::aggregation {

namespace {

// Waiting workers repeat their join packets. A worker that sends none for this long has died (chosen).
constexpr std::uint64_t kSilent_us = 5'000'000;

std::uint64_t all_of(std::uint16_t workers) {
  return workers == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << workers) - 1;
}

}  // namespace

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

std::uint64_t Switch::joined(const Job& job) const {
  std::uint64_t all = 0;
  for (const auto& member : job.members) {
    if (member.joined) all |= member.members;
  }
  return all;
}

// Workers of other racks, of which the switch of a rack knows nothing. It reports them as present rather than blame them.
std::uint64_t Switch::elsewhere() const { return parent_ != 0 ? ~members_ : 0; }

std::uint64_t Switch::workers_of(const Job& job, std::uint64_t children) const {
  std::uint64_t all = elsewhere();
  for (; children != 0; children &= children - 1) {
    all |= job.members[static_cast<std::size_t>(std::countr_zero(children))].members;
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
    if (!member.failure.empty()) {  // the notice of the failure did not reach it
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
        answer(NoticeCode::waiting, joined(*job) | elsewhere(), "");
      } else {
        answer(NoticeCode::waiting, joined(*job) | elsewhere(), "");
      }
      return;
    }
    // The generation of this attempt has ended; its notice is in flight or lost.
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
    answer(NoticeCode::waiting, joined(*job) | elsewhere(), "");
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
                     .incarnation = random(),  // makes the parent treat it as a new worker
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
  for (std::uint16_t slot = 0; !job.elsewhere && slot <= job.pool; ++slot) {
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
  // Never expires here: only the first switch forgets jobs.
  copy->used_us = ~std::uint64_t{0} - limits_.idle_us;
  jobs_[job] = std::move(copy);
  if (from->generation == 0) return;
  std::vector<Outgoing> none;
  const auto count = replies_.size();
  begin(*jobs_[job], from->generation, none);
  replies_.resize(count);  // the first switch has already sent the welcomes
  changes.clear();
  --counters_.generations;
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

}  // namespace tacos::aggregation
