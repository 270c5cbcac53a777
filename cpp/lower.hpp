// Lowering: from a schedule to the program that carries it out.
//
// Every transfer becomes a send at its source and a receive at its destination. Where a chunk's `acc`
// lives at an NPU: in its output slot if the NPU must end with the chunk, in a scratch slot otherwise
// (scratch slots are used again, the one free for longest first); until something is written, reading
// `acc` reads the input slot. So inputs stay as they are, unless the program is to run in place.
//
// Where several NPUs add up the same operands, all of them do so in one order (see sum_order.hpp):
// operands that arrive before their turn wait in scratch slots of their own, and local steps add them.
//
// A thread sends to one peer, or receives from one, over one channel, in the order of the schedule's
// times; chunks that overtake each other between two NPUs, and parallel routes, get channels of their
// own. Reads and writes of one slot by different threads are ordered by dependencies, as few as do.
// Every dependency, message and next step is later in the schedule's time than what it waits for, so
// a program made here cannot deadlock.
//
// Each rank is lowered by itself, in O(its transfers · log); of an orbit, one rank can be lowered
// without writing out the others.
#pragma once

#include <optional>

#include "program.hpp"
#include "progress.hpp"
#include "schedule.hpp"

namespace tacos {

// With `rank`, the steps of that rank alone: the other ranks have none, and no receive says where its
// message comes from. Throws std::invalid_argument for what a program cannot say: trees through
// switches that multicast or reduce, and chunks without bytes.
Program lower(const Schedule& schedule, bool in_place, std::optional<NodeId> rank,
              const Progress& progress);

}  // namespace tacos
