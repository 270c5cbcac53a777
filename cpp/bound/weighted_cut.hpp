// A sharper bound from one cut in time (timed_cuts.hpp) for an all-reduce.
//
// timed_cuts.hpp counts the pairs (x, v) of a sender and a taker that one byte over a link can serve, and lets every byte
// that crosses a switch go to the node from which most takers are near. Two things make that too optimistic.
//
// *Ports.* What enters a switch leaves it again, over ports that are limited as well. At a time t, let f(a, b) be the rate at which
// bytes that left node a over the cut go to node b. It is at most the bandwidth of a's links in the cut, summed over b, and
// at most the bandwidth of b's links from switches, summed over a. A byte from a to b serves c_a(t)·r_b(T - t) pairs, and
// the sum of f(a, b)·c_a·r_b is largest if the largest c meet the largest r, as far as the limits allow (Hardy, Littlewood
// and Pólya's rearrangement inequality). So only a part of the bytes goes to the node with the largest r. Bytes that wait
// in a switch gain nothing, since c only rises and r only falls. A switch that adds but does not copy would merge bytes
// from several nodes into one, so the argument is not used where there is one.
//
// *Weights.* Each pair must be served, also those of NPUs at the rim. Give every sender x a weight u(x) >= 0 and every taker v a
// weight w(v) >= 0, and let c and r be sums of weights instead of numbers. The served weight must reach
//   size · Σu · Σw,
// whatever the weights are, so each choice gives a bound. Weights that fall where pairs are served often and rise where they
// are served rarely (multiplicative weights) raise the bound from round to round.
//
// The least T is computed in floating point and lowered by more than its rounding error.
#pragma once

#include <span>
#include <vector>

#include "bound/timed_cuts.hpp"

namespace tacos {

// A bound on the time of an all-reduce of `size` bytes, at least `from`: what `senders` contribute must reach `takers` over the
// links out of `outside`. Returns `from` if the cut has too many nodes, or if the weights do not help.
Time weighted_least(const Topology& topology, TimedCuts& timed, const NodeSet& outside,
                    std::span<const NodeId> senders, std::span<const NodeId> takers,
                    std::int64_t size, Time from);

}  // namespace tacos
