// Lowering: from a schedule to the program that carries it out.
//
// Every transfer becomes a send at its source and a receive at its destination. A chunk's `acc` is stored
// in the NPU's output slot if it must end with the chunk, otherwise in a scratch slot (scratch slots are
// reused, the one that has been free longest first, but only once the messages that empty them have arrived in the
// schedule's time, so that no receive has to wait for them). Until something is written, reading `acc` reads the
// input slot. So inputs are not modified, unless the program runs in place.
//
// If several NPUs add up the same operands, all of them do so in one order (see sum_order.hpp):
// operands that arrive before their turn wait in separate scratch slots, and local steps add them.
//
// A thread sends to one peer, or receives from one, over one channel, in the order of the schedule's
// times; chunks that overtake each other between two NPUs, and parallel routes, get separate
// channels. Reads and writes of one slot by different threads are ordered by as few dependencies as possible.
// In the schedule's time, every step is later than the steps and messages that it waits for, so
// the program cannot deadlock.
//
// A network lets messages share a link, while a schedule sends them one after another. If messages of one
// rank to several peers cross the same slowest link of their routes, such as the port of a switch, a window of w makes each
// wait until the message w places before it on that link has left. A window of 1 keeps the schedule's order; a larger
// one keeps a port busy while one of its messages waits for a busy receiver; 0 lets all of them share.
//
// Each rank is lowered separately, in O(its transfers · log); one rank of an orbit can be lowered
// without expanding the others.
#pragma once

#include <optional>

#include "model/program.hpp"
#include "model/schedule.hpp"
#include "support/progress.hpp"

namespace tacos {

struct LowerOptions {
  bool in_place = false;
  // Lower only this rank: the other ranks get no steps, and receives have no matching send.
  std::optional<NodeId> rank = std::nullopt;
  std::int32_t window = 0;
  // Whether scratch slots are reused. A receive into a reused slot waits for the send that empties it; if connections
  // hold few messages, ranks may deadlock in this way.
  bool reuse_scratch = true;
};

// Throws std::invalid_argument if a program cannot express the schedule: for trees through
// switches that multicast or reduce, and for chunks without bytes.
Program lower(const Schedule& schedule, const LowerOptions& options, const Progress& progress);

// The steps of one rank of each orbit of ranks; the other ranks get none. A receive comes from the send of the same stored
// transfer, which is an image of the send that it waits for. Throws like lower().
struct OrbitMoves;
Program lower_orbit(const Schedule& schedule, const OrbitMoves& orbit, std::int32_t window,
                    const Progress& progress);

// The transfers of a schedule by (src, dst, start), with the channel that each gets when it is lowered
// and its route (the first of equal routes). The transfers of one channel between two NPUs
// are the sends of one thread, in this order.
struct Departures {
  std::vector<NodeId> src, dst;
  std::vector<std::int32_t> channel;
  std::vector<RouteId> route;
  std::vector<Time> start;
};
Departures departures(const Schedule& schedule);

}  // namespace tacos
