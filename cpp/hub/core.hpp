// One core of the optimizer service, as a state machine without I/O.
//
// A core owns chunks: all frames about a chunk arrive over connections of its core, and only this object
// accesses the chunk's weights, sum and state. So chunks need no locks and no barriers: when the last
// contribution to a chunk arrives, the same call runs the optimizer and queues the answers. A driver moves the bytes (sockets
// in production, a hostile driver in tests): it reads into space(), reports received(), and sends what front() returns.
//
// A chunk's version is the number of steps it has completed. Synchronous mode: a push for step s is accepted while the version
// is s, and answered when every member has pushed; a member joins at a step that no chunk has begun (admit). Answers point
// into the chunk's weights without a copy. This is safe, because the weights change only after every member has pushed again,
// and a member pushes only after it has read its answer. Stale and asynchronous modes: every push is one update, and a worker
// that is more than `staleness` steps ahead of the slowest waits for its answer. Answers that later updates could change are
// copies.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "hub/job.hpp"
#include "hub/stream.hpp"

namespace tacos::hub {

using MemberBits = std::array<std::uint64_t, kMostMembers / 64>;

inline bool bit(const MemberBits& set, std::uint32_t i) {
  return (set[i / 64] >> (i % 64) & 1U) != 0;
}

inline void set_bit(MemberBits& set, std::uint32_t i, bool value) {
  const std::uint64_t one = std::uint64_t{1} << (i % 64);
  set[i / 64] = value ? set[i / 64] | one : set[i / 64] & ~one;
}

struct Member {
  std::uint64_t serial = 0;  // unique, because slots are reused
  std::string name;
  std::int32_t rank = 0;
  std::array<std::uint8_t, 16> key{};
  std::uint64_t first_step = 0;
  std::shared_ptr<Region> shared;  // half for gradients, half for weights; or none
  std::string worker() const { return "worker '" + name + "' (rank " + std::to_string(rank) + ")"; }
};

// A member that is lost for good. The driver tells the other cores.
struct Loss {
  std::uint64_t job = 0;
  std::uint32_t slot = 0;
  std::uint64_t serial = 0;  // the member's
  std::string why;
};

struct Counters {
  std::uint64_t frames = 0, bytes_in = 0, bytes_out = 0, updates = 0, errors = 0, refused = 0;
};

class Core {
 public:
  explicit Core(std::int32_t index) : index_(index) {}

  // --- commands, from the thread that runs the core
  void add(const std::shared_ptr<Job>& job);
  void remove(std::uint64_t job, const std::string& why);
  // The first step that no chunk of this core has begun.
  std::uint64_t next_step(std::uint64_t job) const;
  // Admits a member from its first step on; returns false if a chunk has begun that step.
  bool admit(std::uint64_t job, std::uint32_t slot, const Member& member);
  // Removes a member that leaves between steps.
  void leave(std::uint64_t job, std::uint32_t slot, std::uint64_t serial);
  // Removes a lost member. The job continues without it if it is elastic, and fails otherwise.
  void lose(const Loss& loss);
  // Brings all chunks to one version; needs a job without members.
  void settle(std::uint64_t job, std::uint64_t version);
  void snapshot(std::uint64_t job, const std::shared_ptr<Snapshot>& into);
  // Reports that the sums of a bucket are now those of all hubs.
  void deliver(std::uint64_t job, std::size_t bucket);
  std::string failure(std::uint64_t job) const;

  // --- connections
  int open();
  std::span<std::byte> space(int connection);
  void received(int connection, std::size_t bytes);
  void closed(int connection, const std::string& why);
  // The bytes to send next, which stay in the queue.
  std::size_t front(int connection, std::span<iovec> pieces) const;
  void sent(int connection, std::size_t bytes);
  bool idle(int connection) const;    // nothing to send
  bool ending(int connection) const;  // to be closed once everything is sent
  // The time until which the driver must not read a connection, because its tenant has used up its bandwidth.
  std::int64_t held_until_ms(int connection) const;
  bool exists(int connection) const;
  // Connections that, since the last call, have something to send or are to be closed.
  std::vector<int> take_touched();

  void now(std::int64_t now_ms) { now_ms_ = now_ms; }
  // Ends members and connections that have timed out; call it a few times per second.
  void tick(std::int64_t now_ms);
  std::vector<Loss> losses;
  Counters counters;

 private:
  static constexpr std::size_t kWords = kMostMembers / 64;

  struct Ask {  // how a member wants its push answered
    std::uint32_t tag = 0;
    std::uint8_t flags = 0;
    Wire wire = Wire::float32;
  };
  struct Cell {  // the state of a chunk
    std::uint64_t version = 0, updates = 0;
    MemberBits seen{}, filled{};
    std::int32_t arrived = 0, full = 0;  // contributions, and how many are not empty
    std::int32_t chunk = 0;
    bool ready = false, summed = false, encoded = false;
    Wire encoding = Wire::float32;
    double rate = 0.0;
    std::int64_t since_ms = 0;
  };
  struct Waiting {  // a pull for a later version
    int connection = 0;
    Frame frame;
  };
  struct Shard {
    std::shared_ptr<Job> job;
    std::vector<Cell> cells;
    std::array<std::unique_ptr<Member>, kMostMembers> members;
    std::array<int, kMostMembers> connection{};
    MemberBits present{};
    std::vector<std::uint32_t> by_rank;
    std::uint64_t latest_first = 0;  // the latest first step of any member
    std::array<std::vector<Ask>, kMostMembers> asks;
    // Stale and asynchronous modes: steps pushed, per member.
    std::array<std::vector<std::uint64_t>, kMostMembers> clocks;
    std::unordered_map<std::int32_t, std::vector<std::uint32_t>> held;  // delayed answers, by place
    std::unordered_multimap<std::int32_t, Waiting> waiting;             // waiting pulls, by place
    std::shared_ptr<Snapshot> snapshot;
    std::string failure;
  };
  struct Link {
    Stream stream;
    Shard* shard = nullptr;
    std::shared_ptr<Job> keep;  // kept alive, because answers point into its memory
    std::uint32_t slot = 0;
    std::int64_t opened_ms = 0, held_until_ms = 0;
    bool ending = false, marked = false;
  };
  struct Allowance {  // a token bucket
    double left = 0.0;
    std::int64_t at_ms = 0;
  };

  void handle(int c, const Frame& frame, const std::byte* payload);
  void hello(int c, const Frame& frame, const std::byte* payload);
  void push(int c, const Frame& frame, const std::byte* payload);
  void push_alone(int c, Shard& shard, Cell& cell, const Frame& frame, const std::byte* values);
  void pull(int c, const Frame& frame);
  void put(int c, const Frame& frame, const std::byte* payload);
  Cell* cell_of(int c, const Frame& frame);
  bool complete(const Shard& shard, const Cell& cell) const;
  void add_up(Shard& shard, Cell& cell);
  void finish(Shard& shard, Cell& cell, const float* sum);
  void optimize(Shard& shard, Cell& cell, const float* sum, float divisor);
  void take_part(const Shard& shard, Snapshot& into, const Cell& cell) const;
  void advanced(Shard& shard, Cell& cell);
  void answer(Shard& shard, Cell& cell, std::uint32_t slot, bool copied);
  void release_held(Shard& shard, std::int32_t place);
  std::uint64_t slowest(const Shard& shard, std::int32_t place) const;
  void recheck(Shard& shard);
  void forget(Shard& shard, std::uint32_t slot);
  void reorder(Shard& shard);
  void fail(Shard& shard, const std::string& why);
  void refuse(int c, const Frame& frame, const std::string& why, std::uint8_t flags = 0);
  void end(int c, const std::string& why);
  void queue(int c, Piece piece);
  void mark(int c);
  Shard* find(std::uint64_t job) const;
  // The job of a member; null if the member has left.
  Shard* find(std::uint64_t job, std::uint32_t slot, std::uint64_t serial) const;
  float* array(const Shard& shard, std::size_t slot, const Cell& cell) const;
  const Chunk& chunk_of(const Shard& shard, const Cell& cell) const;
  void charge(Link& link, std::size_t bytes);
  void late(Shard& shard);

  std::int32_t index_;
  std::int64_t now_ms_ = 0;
  std::vector<float> scratch_ = std::vector<float>(kChunkElements);
  std::map<std::uint64_t, std::unique_ptr<Shard>> shards_;
  std::vector<std::unique_ptr<Link>> links_;
  std::vector<int> free_, touched_;
  std::map<std::uint64_t, Allowance> allowances_;
};

}  // namespace tacos::hub
