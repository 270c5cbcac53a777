// A worker whose data a switch sums: the state machine, without I/O.
//
// **Window.** The packets of an operation are numbered; packet i uses slot (i + shift) mod pool, and versions alternate from
// round to round. A worker sends its first `pool` packets at once, and packet i + pool when the result of packet i
// arrives: results are the clock. `shift` counts the packets of the generation so far, so slots and versions continue from
// one operation to the next.
//
// **Floating point.** Packet i carries the exponent of block i and the integers of block i − batch, where batch is
// min(pool, blocks): the greatest exponent of a block is known before its integers are sent. An operation of b blocks has b
// packets, or b + batch if it is scaled.
//
// **Losses.** Round trips grow with the pool, because packets queue, so a fixed timer would retransmit everything. Instead,
// a packet counts as lost when the result of a packet that was sent well after it has arrived. If no result has arrived for
// a round trip and four deviations, the switch or a peer is late, or the last packets are lost; then a few slots are
// retransmitted, with growing pauses.
//
// **The end.** A worker that has all results contributes to the closing slot. The result of that slot means that all
// workers have all results; only then is the operation complete. Until then the inputs are kept: if a notice says that the
// generation has ended, the worker joins again and repeats the operation from its inputs.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "aggregation/packet.hpp"
#include "runtime/reduce.hpp"

namespace tacos::aggregation {

struct WorkerSettings {
  Token token{};
  std::string job = "job";
  std::uint16_t worker = 0, workers = 1;
  std::uint16_t pool = 64, packet_elements = 256;
  std::uint64_t incarnation = 1;          // a random number per process
  std::uint64_t timer_us = 20'000;        // of a slot, before a round trip has been measured
  std::uint64_t least_timer_us = 1000;    // the least value of that timer
  std::uint64_t silence_us = 3'000'000;   // without a packet from the switch, it counts as dead
  std::uint64_t timeout_us = 60'000'000;  // without progress, the operation fails
};

struct WorkerCounters {
  std::uint64_t sent = 0;           // contributions, with retransmissions
  std::uint64_t retransmitted = 0;  // contributions retransmitted within a generation
  std::uint64_t results = 0;        // results that were accepted
  std::uint64_t repeated = 0;       // results of a finished use, or of another use or operation
  std::uint64_t foreign = 0;        // packets of another job, generation, size or protocol
  std::uint64_t closings = 0;       // closing packets, with retransmissions
  std::uint64_t joins = 0;          // join packets, with retransmissions
  std::uint64_t repeats = 0;        // operations repeated after a restart
};

struct WorkerPacket {
  const std::byte* data;
  std::size_t bytes;
  std::uint16_t shard;
};

enum class WorkerState : std::uint8_t { idle, joining, running, closing, failed };

class Worker {
 public:
  explicit Worker(WorkerSettings settings);

  // Begins an operation. `from` must not change until its end; `to` must not overlap it. The packets to send are in
  // `out`, valid until the next call.
  void start(const void* from, void* to, std::uint64_t elements, DType dtype, bool average,
             std::uint64_t now_us, std::vector<WorkerPacket>& out);
  void receive(std::span<const std::byte> packet, std::uint64_t now_us,
               std::vector<WorkerPacket>& out);
  void poll(std::uint64_t now_us, std::vector<WorkerPacket>& out);  // retransmits
  void leave(std::vector<WorkerPacket>& out);

  std::uint64_t deadline_us() const { return deadline_; }  // time of the next poll
  WorkerState state() const { return state_; }
  const std::string& failure() const { return failure_; }
  bool lost() const { return lost_; }              // whether the switch is gone
  bool has_results() const { return complete_; }   // although the operation failed
  bool non_finite() const { return non_finite_; }  // of the last operation, the same on all workers
  std::uint64_t operation() const {
    return operation_;
  }  // number of the running operation, or of the next
  void set_operation(std::uint64_t number) { operation_ = number; }
  std::uint16_t shards() const { return shards_; }
  const WorkerCounters& counters() const { return counters_; }
  std::uint64_t packets() const { return packets_; }  // of the operation, each counted once
  void give_up(const std::string& why) { fail(why, true); }

 private:
  struct Slot {
    std::uint64_t packet = 0;   // number within the operation
    std::uint64_t sent_us = 0;  // when it was last sent
    std::uint32_t sequence = 0;
    bool open = false, again = false;
    std::vector<std::byte> bytes;
  };

  void begin_joining(std::uint64_t now_us, std::vector<WorkerPacket>& out);
  void send_join(std::uint64_t now_us, std::vector<WorkerPacket>& out);
  void begin_running(std::uint64_t now_us, std::vector<WorkerPacket>& out);
  void send_packet(std::uint64_t packet, std::uint64_t now_us, std::vector<WorkerPacket>& out);
  void send_if_ready(std::uint64_t packet, std::uint64_t now_us, std::vector<WorkerPacket>& out);
  void send_closing(std::uint64_t now_us, std::vector<WorkerPacket>& out);
  void send_again(Slot& slot, std::uint64_t now_us, std::vector<WorkerPacket>& out);
  void take_result(const PacketHeader& header, std::span<const std::byte> packet,
                   std::uint64_t now_us, std::vector<WorkerPacket>& out);
  void take_welcome(const PacketHeader& header, std::span<const std::byte> packet,
                    std::uint64_t now_us, std::vector<WorkerPacket>& out);
  void take_notice(const PacketHeader& header, std::span<const std::byte> packet,
                   std::uint64_t now_us, std::vector<WorkerPacket>& out);
  void measure(std::uint64_t trip_us);
  std::uint64_t timer_us() const;
  std::uint64_t window_us() const;
  void progress(std::uint64_t now_us);
  void finish();
  void fail(const std::string& why, bool lost);
  std::string missing() const;
  std::size_t elements_of(std::uint64_t block) const;

  WorkerSettings settings_;
  WorkerCounters counters_;
  WorkerState state_ = WorkerState::idle;
  std::string failure_;
  bool lost_ = false, complete_ = false, non_finite_ = false;

  // The generation.
  std::uint64_t generation_ = 0;
  std::uint32_t job_ = 0, attempt_ = 0, attempts_ = 0;
  std::uint16_t shards_ = 1;
  std::uint64_t shift_ = 0, closings_ = 0;
  std::vector<Slot> slots_;  // the last one is the closing slot
  std::vector<std::byte> control_;

  // The operation.
  std::uint64_t operation_ = 0;
  const std::byte* from_ = nullptr;
  std::byte* to_ = nullptr;
  std::uint64_t elements_ = 0;
  DType dtype_ = DType::int32;
  bool average_ = false, begun_ = false;
  std::uint32_t tag_ = 0;
  std::uint64_t blocks_ = 0, batch_ = 0, packets_ = 0, missing_ = 0;
  std::size_t block_elements_ = 0;
  std::vector<std::uint8_t> received_, posted_;  // by packet
  std::vector<std::int16_t> exponents_;          // by block: the greatest of all workers

  // Time.
  double trip_ = 0, deviation_ = 0;
  bool measured_ = false;
  std::uint64_t delivered_us_ = 0;  // send time of the newest packet whose result has arrived
  std::uint64_t deadline_ = ~std::uint64_t{0};
  std::uint64_t heard_us_ = 0, progress_us_ = 0, probe_us_ = 0, join_us_ = 0, asked_us_ = 0;
  bool asked_ = false;  // sent something since the switch's last packet
  std::uint32_t probes_ = 0;
  std::uint64_t present_ = 0;  // the workers that have joined, by the switch's last notice
};

}  // namespace tacos::aggregation
