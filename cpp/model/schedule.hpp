// A schedule: all transfers of a collective with their order and times. The one representation that
// engines fill, the verifier checks, and everything else reads.
//
// A transfer moves one chunk over one route. It reads its source's `input` (the NPU's own
// contribution, never modified) or `acc`, carries the value as of its start, and at its destination
// `copy` overwrites `acc` or `reduce` adds to it. An NPU's `acc` starts as its input; arrivals at t
// are visible to starts at t.
//
// Two stored forms behind this one class:
//
// Packed. Transfers that share route, op and reads form a lane; a transfer is then a uint32 chunk
// and a uint32 start in units of `quantum` picoseconds: 8 bytes. Within a lane transfers are
// ordered by start. A lane whose route has several legs keeps one start per leg, leg by leg; since
// the legs of one lane are first come, first served, row i of every leg is the same transfer.
//
// Orbit. One packed transfer of each class of transfers that are images of each other, plus a symmetry:
// commuting generators of finite order, each given by the image of every node and link. The whole
// schedule consists of the images of the stored transfers under all products of the generators. If the
// collective does not divide evenly, the chunks of images differ by at most one byte, and start at the same times.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/collective.hpp"
#include "model/file_facts.hpp"
#include "model/routes.hpp"
#include "model/topology.hpp"
#include "support/column.hpp"
#include "support/index.hpp"

namespace tacos {

enum class Op : std::uint8_t { copy, reduce };
enum class Reads : std::uint8_t { input, acc };

using TransferId = std::int64_t;

struct Transfers {
  Column<RouteId> lane_route;
  Column<std::uint8_t> lane_op, lane_reads;
  Column<std::int64_t> lane_begin;  // of each lane, then the number of transfers
  Column<ChunkId> chunk;
  Column<std::uint32_t> start;  // per lane: the starts of leg 0, then of leg 1, …
  Time quantum = 1;

  bool operator==(const Transfers&) const = default;
};

struct Symmetry {
  std::vector<std::int32_t> orders;
  Column<NodeId> node_image;  // entry g·nodes + v is the image of node v under generator g
  Column<LinkId> link_image;

  std::int64_t size() const;  // of the group
  bool operator==(const Symmetry&) const = default;
};

// Typed fields for code; the provenance is for people.
struct ScheduleFacts {
  std::string engine;         // empty: unknown
  std::optional<Time> bound;  // a time that no schedule of the problem beats
  // The bound with sums in switches, if the schedule is for a target without them.
  std::optional<Time> in_switch_bound;
  bool consistent = true;      // false: NPUs may end with different bits of a sum
  bool cut_short = false;      // whether a time limit ended the search for it
  bool matched_ports = false;  // whether each port between boxes has one peer in it
  std::vector<std::string>
      rejected;    // what was wrong with other answers of the search, a sentence each
  FileFacts file;  // of the file that it was lifted from, or that NCCL would name
};

// How long a schedule takes when a target executes it. The time may be found later, on any thread.
struct Executed {
  std::string target;  // what executes it; empty: any, so the slowest rule for links counts
  std::atomic<Time> time = -1;  // -1: not computed
};

class Schedule {
 public:
  // The only constructor. Checks shapes and ranges, but not causality, capacity or results, which the
  // verifier checks; throws std::invalid_argument.
  Schedule(std::shared_ptr<const Collective> collective, std::shared_ptr<const Routes> routes,
           Transfers transfers, std::optional<Symmetry> symmetry, std::string provenance);

  const Topology& topology() const { return routes_->topology(); }
  const Collective& collective() const { return *collective_; }
  const Routes& routes() const { return *routes_; }
  const Transfers& stored() const { return transfers_; }
  const std::optional<Symmetry>& symmetry() const { return symmetry_; }
  const std::string& provenance() const { return provenance_; }  // JSON: how it was made
  Schedule with_provenance(std::string provenance) const;
  const ScheduleFacts& facts() const { return facts_; }
  Schedule with_facts(ScheduleFacts facts) const;
  // Copies share what is found about their execution. Schedules with other transfers start without it.
  Executed& executed() const { return *executed_; }
  Schedule with_executed(std::optional<Time> time, std::string target) const;

  const std::shared_ptr<const Topology>& shared_topology() const {
    return routes_->shared_topology();
  }
  const std::shared_ptr<const Collective>& shared_collective() const { return collective_; }
  const std::shared_ptr<const Routes>& shared_routes() const { return routes_; }

  TransferId stored_transfers() const { return static_cast<TransferId>(transfers_.chunk.size()); }
  TransferId transfers() const;  // of the whole schedule
  std::int32_t lanes() const { return static_cast<std::int32_t>(transfers_.lane_route.size()); }
  Time time() const { return time_; }  // when the last chunk has arrived
  std::int64_t memory_bytes() const;   // of the columns

  // The start of a leg of a stored transfer.
  Time start(std::int32_t lane, TransferId transfer, std::int32_t leg) const {
    const auto lane_first = transfers_.lane_begin[at(lane)];
    const auto rows = transfers_.lane_begin[at(lane) + 1] - lane_first;
    const auto i = start_begin_[at(lane)] + leg * rows + (transfer - lane_first);
    return static_cast<Time>(transfers_.start[at(i)]) * transfers_.quantum;
  }
  // When the chunk is whole at destination number `destination` of the lane's route.
  Time arrival(std::int32_t lane, TransferId transfer, std::size_t destination = 0) const;

  // Per link, over the whole schedule: bytes carried, and time busy. Of an orbit, the largest image of each
  // chunk counts for all.
  struct LinkUse {
    std::vector<std::int64_t> bytes;
    std::vector<Time> busy;
  };
  LinkUse link_use() const;

  // Transfers as plain columns, one row per transfer and (source, destination) pair of its route; only
  // trees have several pairs.
  struct Rows {
    std::vector<TransferId> transfer;
    std::vector<NodeId> src, dst;
    std::vector<RouteId> route;
    std::vector<ChunkId> chunk;
    std::vector<std::int64_t> bytes;
    std::vector<std::uint8_t> op, reads;
    std::vector<Time> start, arrival;
  };
  // All rows, or those that touch `node`, or those whose route uses `link`; ordered by start. Of an
  // orbit, all rows are the stored ones, but a node's or link's are those of the whole schedule:
  // images, which have the `transfer` and `route` of the stored transfer.
  Rows rows(std::optional<NodeId> node, std::optional<LinkId> link) const;

  // For each stored transfer, the stored transfers that wrote what it reads: `writer` between
  // begin[t] and begin[t + 1]. Packed schedules only.
  struct Dependencies {
    std::vector<std::int64_t> begin;
    std::vector<TransferId> writer;
  };
  Dependencies dependencies() const;

  // The packed form of an orbit; a packed schedule as it is.
  Schedule expand() const;
  std::int64_t expanded_bytes() const;  // what expand() will need

  bool operator==(const Schedule& other) const;

 private:
  void check_lanes();
  void check_symmetry() const;
  void find_first_images();
  ChunkId largest_image(ChunkId chunk) const;
  Time arrival_of(std::int32_t lane, TransferId transfer, std::size_t destination,
                  ChunkId chunk) const;
  // Of a chunk of this size, with the time to reduce it.
  Time last_leg_time(std::int32_t lane, std::int64_t bytes, std::size_t destination) const;
  // Checks every transfer, large schedules on all cores; returns when the last one arrives.
  Time check_transfers() const;
  Time check_lane(std::int32_t lane) const;

  std::shared_ptr<const Collective> collective_;
  std::shared_ptr<const Routes> routes_;
  Transfers transfers_;
  std::optional<Symmetry> symmetry_;
  std::string provenance_;
  ScheduleFacts facts_;
  std::shared_ptr<Executed> executed_ = std::make_shared<Executed>();
  std::vector<std::int64_t> start_begin_;  // first entry of each lane in transfers_.start
  // Of an orbit with chunks of two sizes: the first member that each member is an image of.
  std::vector<std::int32_t> first_image_;
  Time time_ = 0;
};

}  // namespace tacos
