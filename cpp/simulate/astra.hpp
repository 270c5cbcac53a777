// ASTRA-sim's analytical simulation, exact to the nanosecond for each rank: ranks issue the nodes of a workload,
// a system layer turns collectives into messages, and a network carries the messages.
//
// Workload nodes: a rank has at most one computation and one send or collective in flight, and any number of
// receives. Among nodes that can start, lower ids start first. A send is in flight until its last
// byte has arrived. Inside a custom collective all ready nodes start at once, in the
// order of ASTRA-sim's hash set.
//
// Collectives are split into chunks (streams). A stream goes through phases, one per dimension; an
// all-reduce goes up and down the dimensions. Each dimension has queues that run a limited number
// of streams at a time.
//
// A computation takes its duration or, with the roofline, the longer of the times for its operations
// and its bytes. With the roofline, one without bytes ends at once; nodes that wait for it start
// with the rank's next event, or never if there is none. Loads and stores count as sends; the
// memory that they access may serve only one at a time.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "model/workload.hpp"
#include "simulate/astra_native.hpp"
#include "simulate/astra_network.hpp"
#include "support/progress.hpp"

namespace tacos::astra {

enum class Policy : std::uint8_t { lifo, fifo, by_priority };

// Remote memory: none; one per NPU, which serves any number of requests at once; one
// per node of several NPUs, or one for all NPUs, which serve one request at a time.
enum class MemoryKind : std::uint8_t { none, per_npu, per_node, pool };

struct RemoteMemory {
  MemoryKind kind = MemoryKind::none;
  Nanoseconds latency = 0;
  double bytes_per_ns = 0;
  std::int32_t npus_per_node = 0, nodes = 0;
};

struct System {
  Nanoseconds endpoint_delay = 10;
  double memory_Bps = 1.6e12;
  std::int32_t splits = 1, active_chunks = 1, queues = 1;
  Policy policy = Policy::lifo;
  bool local_bandwidth_aware = true;  // an all-reduce visits each dimension twice, with less data
  bool rendezvous = false;
  bool roofline = false;     // `flops` and `bytes` determine computations, not durations
  double peak_flops = 0;     // operations per second
  bool replay_only = false;  // every node takes its duration, also messages and collectives
  RemoteMemory memory{};
  bool record = true;  // whether the result has messages and hops
  // For all-reduce, all-gather, reduce-scatter and all-to-all: one per dimension.
  std::array<std::vector<Implementation>, 4> implementations;

  const std::vector<Implementation>& of(Comm comm) const {
    return implementations[comm == Comm::all_reduce       ? 0
                           : comm == Comm::all_gather     ? 1
                           : comm == Comm::reduce_scatter ? 2
                                                          : 3];
  }
};

struct Result {
  std::vector<Nanoseconds> finish, compute;  // per rank
  std::vector<Nanoseconds> begin, end;       // per node of the workload
  std::vector<Message> messages;
  HopLog hops;
};

// `algorithms` are workloads that serve as custom collectives; `algorithm_of[row]` is the one that
// node `row` of `workload` uses, or -1 for the system's own. Throws std::invalid_argument if the
// arguments are inconsistent or ranks deadlock.
Result simulate(std::shared_ptr<const Topology> topology, std::vector<Dimension> dims, bool aware,
                const Workload& workload,
                const std::vector<std::shared_ptr<const Workload>>& algorithms,
                const Column<std::int32_t>& algorithm_of, const System& system,
                const Progress& progress);

}  // namespace tacos::astra
