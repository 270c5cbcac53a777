// The verifier: is a schedule correct? It shares only the data classes with the code that it checks;
// routes are walked link by link again, and times computed again from the topology.
//
// The rules, each a value of Violation::rule:
//   causality      a transfer starts only when its source holds what it reads, and each leg of a route
//                  only when the leg before has arrived;
//   capacity       no two transfers use a physical link at the same time;
//   postcondition  every NPU that must end with a chunk has received it;
//   contribution   every final value contains every contribution exactly once;
//   unneeded       every transfer affects a value that some NPU needs in the end (unless allowed);
//   symmetry       (orbits) the generators act as claimed and preserve topology and collective.
// Of arrivals at one node and moment, copies come before sums.
//
// Chunks do not affect each other's values, so those that nodes.cpp does not prove are checked one by one, in blocks that
// bound the memory. A value is a sum of contributions; it is represented by their number and by the sum modulo
// 2^128 of one random weight per contribution (fixed by a hash), so that two different multisets agree
// with probability below 2^-90. A chunk that fails is followed again with true multisets, to name what
// is wrong. Chunks that are only copied need just the time of arrival at each node.
//
// In addition to the rules, the verifier tells whether a schedule is consistent: whether all NPUs that end with
// a sum end with the same bits of it. Floating-point addition commutes but does not associate, so two
// sums have the same bits if they were added up in the same order, operands swapped or not. A schedule
// leaves open in which order an NPU adds what arrives between two reads of `acc`; executors use one order
// for equal sets of operands (see sum_order.hpp). So the expression of a value is a tree whose leaves are
// inputs and whose nodes are such sets, represented by a 64-bit hash: a commutative sum of the operands'
// hashes, hashed again. A set that a switch adds up equals no other one, unless it has two elements.
//
// An orbit is proven from the chunks of one representative, the lowest member, per orbit of members
// of the collective, on which the group must act freely. Every stored transfer is moved by the
// element that takes its chunk's owner to the representative; violations name these images. All
// arrivals of a representative's chunk at all NPUs are followed, so its expressions are compared at
// all of them. The hash of a set depends on the numbers of the NPUs only through the leaves, which the
// group permutes, so images of a consistent chunk are consistent. The windows on all links of one link
// orbit, taken together, must not overlap. Where the size does not divide evenly, chunks of a representative are followed with
// each of the two sizes that their images have, since a smaller chunk arrives earlier, and windows cover those of all images.
//
// Most large schedules are proven node by node (nodes.cpp), at a few nanoseconds per transfer and core and next to no memory.
// Following a chunk costs some tens of nanoseconds per transfer and core if it is only copied, some hundreds if it is summed,
// and 16 bytes per transfer of a block.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/schedule.hpp"
#include "support/progress.hpp"

namespace tacos {

struct Violation {
  std::string rule;
  std::int64_t transfer = -1;  // stored transfer, -1: none in particular
  Time time = -1;              // when, -1: no particular moment
  std::int64_t chunk = -1;
  std::int32_t link = -1;
  std::string message;
};

struct VerifyOptions {
  bool allow_unneeded = false;
  std::int64_t limit = 100;          // most violations to keep
  std::int32_t threads = 0;          // 0: one per core
  std::int64_t block_transfers = 0;  // followed at once; 0: as many as the memory allows
};

struct VerifyReport {
  std::int64_t checked = 0;  // stored transfers
  std::int64_t found = 0;    // violations, also those beyond the limit
  std::vector<Violation> violations;
  bool consistent = false;  // all NPUs that end with a sum have added it up in the same order
  std::string difference;   // a sentence about the first two that have not
};

VerifyReport verify(const Schedule& schedule, const VerifyOptions& options,
                    const Progress& progress);

}  // namespace tacos
