// A switch that sums the workers' packets: the state machine, without I/O.
//
// **Slots.** A job has `pool` slots of two versions, and one more for closing operations. For each version of a slot the
// switch stores the sequence number of its current use, which children have contributed (`seen`), and the sums so far. The
// first contribution of a use overwrites the sums, later ones are added, and the last completes the result, which is sent
// to all children. A child whose packet or result was lost retransmits: a bit in `seen` keeps its integers from being
// added twice, and a finished use is answered with the stored result.
//
// **Why a slot may be overwritten.** A worker sends use q + stride of a version only after it received the result of the
// other version's use q + stride/2. That result needs a contribution of every worker, and a worker contributes to it only
// after it received the result of use q. So all workers have the result of q. A packet that arrives even later has an older
// sequence number and is dropped; without the number it would count as a new contribution.
//
// **Generations.** Workers join with the number, size and type of the operation they are about to run. When all have
// joined, the switch begins a generation with empty slots. A worker that joins again ends the generation: the other workers
// receive a notice, join again, and repeat the operation from its inputs. So a restarted switch or worker
// never mixes old and new integers. If workers disagree about the operation, it fails on all of them. A worker leaves an
// operation only when the closing slot reports that all workers have all results. So if a worker joins at operation m,
// operation m − 1 is complete on all workers.
//
// **Hierarchies.** A switch with a parent sends its sums to the parent as a worker would, and passes the parent's results to
// its children. It has no timers: when a child retransmits, it retransmits to the parent, and passes the parent's answer to
// that child. So workers notice both a dead switch of their rack and a dead parent by its silence.
//
// The cost per packet is that of adding its integers; jobs are looked up by index.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "aggregation/packet.hpp"

namespace tacos::aggregation {

using Address =
    std::uint64_t;  // the driver chooses its meaning; for UDP, IPv4 address << 16 | port

struct Outgoing {
  Address to;
  const std::byte* data;
  std::size_t bytes;
};

struct SwitchLimits {
  std::uint32_t slots = 8192;            // in total, each with two versions
  std::uint16_t packet_elements = 2232;  // as many as fit an MTU of 9000
  std::uint16_t jobs = 64;
  std::uint64_t idle_us = 600'000'000;  // a job without packets for this long is forgotten
};

// Every packet that arrives is counted in `packets`, and in one of the next nine counters or in `control`.
struct SwitchCounters {
  std::uint64_t packets = 0;
  std::uint64_t contributions = 0;  // added
  std::uint64_t duplicates = 0;     // a contribution seen before, whose sum is not finished
  std::uint64_t resent = 0;         // a contribution seen before, answered with the stored result
  std::uint64_t old = 0;            // contributions to an earlier use of the slot
  std::uint64_t early = 0;  // contributions to a later use, before the current one could end
  std::uint64_t stale = 0;  // packets of another generation, or of an unknown job
  // Packets with a worker, slot or number of elements that the job does not have.
  std::uint64_t out_of_range = 0;
  std::uint64_t mismatched = 0;  // contributions to another operation than the other workers'
  std::uint64_t malformed = 0;   // not of this protocol, or of another version or size
  std::uint64_t control = 0;     // joins, leaves, questions, and all packets from the parent
  std::uint64_t results = 0;     // sums finished
  std::uint64_t forwarded = 0;   // sums sent to the parent, with retransmissions
  std::uint64_t refused = 0;     // joins that were refused
  std::uint64_t generations = 0;
  std::uint64_t sent = 0;  // packets
};

// What a plane must know of a job.
struct PlaneJob {
  std::uint32_t number = 0;
  std::uint64_t generation = 0, children = 0;
  std::uint16_t pool = 0, packet_elements = 0;
  std::array<Address, kMostWorkers> addresses{};
};
struct PlaneTally {  // counters of one job
  std::uint64_t contributions = 0, results = 0, duplicates = 0;
};
struct PlaneCounters {
  SwitchCounters of;
  std::uint64_t lost_in = 0, lost_out = 0, bytes_in = 0, bytes_out = 0;
};

// Something that sees packets before the switch does, such as a program in the kernel, and aggregates those of the jobs that
// it accepts. The switch still handles joins.
class Plane {
 public:
  Plane() = default;
  Plane(const Plane&) = delete;
  Plane& operator=(const Plane&) = delete;
  virtual ~Plane() = default;
  virtual bool take(const PlaneJob& job) = 0;  // false: the switch aggregates it
  virtual void release(std::uint32_t job) = 0;
  virtual PlaneTally tally(std::uint32_t job) const = 0;
  virtual PlaneCounters counters() const = 0;
  virtual const std::string& where() const = 0;  // for messages
};

std::string listed(std::uint64_t members);  // "workers 0, 3"

class Switch {
 public:
  Switch(SwitchLimits limits, std::vector<Token> tokens, std::uint64_t seed,
         std::uint16_t shards = 1);

  Switch(const Switch&) = delete;
  Switch& operator=(const Switch&) = delete;

  // Makes this the switch of a rack, which represents `members` at the parent.
  void set_parent(Address parent, std::uint64_t members);

  void set_plane(Plane* plane) { plane_ = plane; }  // owned by the caller

  // The entries of `out` are valid until the next call of `flushed`, which the driver makes after it has sent them all.
  void receive(Address from, std::span<const std::byte> packet, std::uint64_t now_us,
               std::vector<Outgoing>& out);
  void flushed() { replies_.clear(); }
  void expire(std::uint64_t now_us);

  const SwitchCounters& counters() const { return counters_; }
  bool accepts(const Token& token) const;
  std::uint64_t generation_of(std::string_view job_name) const;  // 0: none

  struct JobView {
    std::string name;
    std::uint16_t workers, pool, packet_elements;
    std::uint64_t generation, joined;
    std::uint64_t contributions, results, duplicates;
    bool elsewhere;  // the plane aggregates this job
  };
  std::vector<JobView> jobs() const;

  // Several switches, one per core, serve ranges of slots of the same jobs. The first handles joins, and reports in
  // `changes` what the others must do.
  struct Change {
    std::uint32_t job;
    std::string failure;  // how workers disagree, found by a shard
  };
  std::vector<Change> changes;
  void mirror(const Switch& first, std::uint32_t job);
  void fail_job(std::uint32_t job, const std::string& why, std::vector<Outgoing>& out);

 private:
  struct Use {  // one version of a slot
    std::uint32_t sequence = 0;
    std::uint32_t tag = 0;
    std::uint64_t seen = 0;
    std::uint64_t asking = 0;  // children that retransmitted while the parent has not answered
    std::uint16_t elements = 0;
    bool done = true;                     // the result is complete
    bool waiting = false;                 // the sum was sent to the parent
    std::unique_ptr<std::byte[]> packet;  // header and sums
  };
  struct Member {
    std::uint64_t members = 0;  // 0: has not joined
    Address address = 0;
    std::uint64_t incarnation = 0, operation = 0, elements = 0;
    std::uint32_t attempt = 0;
    std::uint8_t dtype = 0;
    bool complete = false, behind = false, joined = false;
    std::uint64_t heard_us = 0;
    std::string failure;  // why the last operation of this incarnation failed
    std::uint64_t furthest = 0;
  };
  struct Job {
    Token token{};
    std::string name;
    std::uint16_t workers = 0, pool = 0, packet_elements = 0;
    std::uint64_t generation = 0, ended = 0;  // ended: the generation that failed
    std::uint64_t children = 0;               // one bit per member: its lowest worker
    std::uint64_t operation = 0;
    bool complete = false;
    std::string failure;
    // The latest operation of any worker, if forming a generation failed.
    std::uint64_t furthest = 0;
    std::vector<Member> members;  // by their lowest worker
    std::vector<std::array<Use, 2>> slots;
    std::uint64_t used_us = 0;
    std::uint64_t contributions = 0, results = 0, duplicates = 0;
    bool elsewhere = false;     // the plane aggregates this job
    std::uint64_t tallied = 0;  // the plane's contributions at the last check
    // This job at the parent switch.
    std::uint32_t parent_job = 0;
    std::uint16_t parent_shards = 1;
    JoinBody parent_join{};
  };

  void contribute(Address from, const PacketHeader& header, std::span<const std::byte> packet,
                  std::uint64_t now_us, std::vector<Outgoing>& out);
  void not_added(const PacketHeader& header, Job& job, std::vector<Outgoing>& out);
  void end_generation(Job& job);
  void add(Use& use, const PacketHeader& header, std::span<const std::byte> packet, bool first);
  void finish(Job& job, Use& use, std::vector<Outgoing>& out);
  void still_waiting(const Job& job, const Use& use, std::uint64_t children, std::uint64_t present,
                     std::vector<Outgoing>& out);
  std::uint64_t elsewhere() const;
  std::uint64_t workers_of(const Job& job, std::uint64_t children) const;
  void send_up(Job& job, Use& use, std::vector<Outgoing>& out);
  void from_parent(const PacketHeader& header, std::span<const std::byte> packet,
                   std::vector<Outgoing>& out);
  void join(Address from, const PacketHeader& header, std::span<const std::byte> packet,
            std::uint64_t now_us, std::vector<Outgoing>& out);
  std::string objection(const PacketHeader& header, const JoinBody& body) const;
  Job* job_for(const JoinBody& body, std::string& why);
  void leave(Address from, const PacketHeader& header, std::span<const std::byte> packet,
             std::vector<Outgoing>& out);
  void dissolve(Job& job, const Member* except, NoticeCode code, std::vector<Outgoing>& out);
  void formed(Job& job, std::vector<Outgoing>& out);
  std::string disagreement(Job& job);
  void begin(Job& job, std::uint64_t generation, std::vector<Outgoing>& out);
  // `furthest`: the latest operation of any worker, if it is known.
  void fail(Job& job, const std::string& why, std::vector<Outgoing>& out,
            std::uint64_t furthest = 0);
  void welcome(const Job& job, const Member& member, std::vector<Outgoing>& out);
  void notice(Address to, std::uint64_t generation, NoticeBody body, const std::string& text,
              std::vector<Outgoing>& out);
  void join_parent(Job& job, std::vector<Outgoing>& out);
  void reply(Address to, const PacketHeader& header, std::span<const std::byte> body,
             const std::string& text, std::vector<Outgoing>& out);
  std::uint64_t joined(const Job& job) const;
  Job* find(std::uint32_t index, std::uint64_t generation) const;
  std::uint32_t index_of(const Job& job) const;
  std::uint64_t random();

  SwitchLimits limits_;
  std::vector<Token> tokens_;
  std::uint64_t random_;
  std::uint16_t shards_;
  Address parent_ = 0;
  std::uint64_t members_ = 0;
  Plane* plane_ = nullptr;
  std::vector<std::unique_ptr<Job>> jobs_;
  std::vector<std::vector<std::byte>> replies_;
  SwitchCounters counters_;
};

}  // namespace tacos::aggregation
