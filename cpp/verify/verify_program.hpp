// The verifier of programs: does an algorithm, as the ranks run it, do what it claims?
//
// The rules, each a value of Violation::rule:
//   unmatched      every send has one receive of the same count at its peer, and every wait a signal;
//   deadlock       all steps can run: none wait for each other in a cycle;
//   undefined      a step reads only slots that have been written;
//   input          out of place, no step writes an input slot;
//   race           two steps that access a slot are ordered if one of them writes;
//   postcondition  every output slot ends with its chunk;
//   contribution   every sum contains every contribution exactly once.
// Sends count as buffered: they do not wait for receives.
//
// The steps form a graph: next in thread, depends on, comes from. They are executed once in a
// topological order on symbols instead of data: a value is a number of contributions and the sum modulo
// 2^128 of one hashed weight for each, so that different multisets agree with probability below 2^-90;
// a chunk that fails is followed again with true multisets to name what is wrong. Vector clocks decide
// whether two steps are ordered; see program_races.cpp.
//
// A program fixes the order of all additions, so in addition to the rules the verifier tells whether all
// ranks add up each sum in the same order and thus end with the same bits: each value has a 64-bit hash
// of its expression, in which only the two operands of an addition may be swapped.
//
// Shares the data classes with what it checks and nothing else. Cost: O(steps · threads of a rank),
// and for orders that hold only by way of other ranks O(steps · threads).
#pragma once

#include "model/program.hpp"
#include "support/progress.hpp"
#include "verify/verify.hpp"

namespace tacos {

// Violations name a step as their `transfer`.
VerifyReport verify(const Program& program, std::int64_t limit, const Progress& progress);

}  // namespace tacos
