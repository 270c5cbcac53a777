// The transfers of a schedule for lowering: sender, receiver and chunk, the channel, and the sum that each belongs to.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lowering/sum_order.hpp"
#include "model/program.hpp"
#include "model/schedule.hpp"

namespace tacos {

struct Move {
  NodeId src = -1, dst = -1;
  ChunkId chunk = 0;
  RouteId route = -1;
  Op op = Op::copy;
  Reads reads = Reads::acc;
  Time start = 0, arrival = 0;
  std::int32_t channel = 0;
  StepId send = -1;  // the step that sends it
  SumOrder::Place place{};
  std::int32_t waits_in = -1;  // scratch slot at the destination until its turn in an ordered sum
  std::int32_t image_of = -1;  // in OrbitMoves: the stored transfer
};

// A table may list a route more than once; for each, the first that uses the same links.
std::vector<RouteId> same_routes(const Routes& routes);

// All transfers of a packed schedule, or those that one rank sends or receives.
std::vector<Move> all_moves(const Schedule& schedule);
std::vector<Move> moves_of(const Schedule& schedule, NodeId rank);

// What one rank of each orbit of ranks sends and receives in an orbit: images of the stored transfers.
struct OrbitMoves {
  std::vector<NodeId> ranks;             // the lowest of each orbit
  std::vector<std::vector<Move>> of;     // per such rank; its transfers have numbers
  std::shared_ptr<const Routes> routes;  // of the moves
};

// Between two NPUs, the chunks of one channel leave and arrive in the same order and take the same route. If channels take
// several routes in turn (channel_routes), a chunk gets a channel that takes its route in the schedule.
void assign_channels(const Routes& routes, std::vector<Move>& moves);

// Whether the channels between some NPUs may take several routes.
bool channels_differ_in_route(const Topology& topology);

// Sets the places of the moves in sums that have an order; returns those sums.
std::vector<SumOrder::Sum> put_sums_in_order(const Collective& collective,
                                             std::vector<Move>& moves);

// Whether messages of different connections may cross one link.
bool routes_share_links(const Schedule& schedule);

// For each route, the links that are as slow as its slowest link. A message keeps these busy until its last byte has
// left. A faster link of the route has room for other messages meanwhile, so their order on it does not matter.
std::vector<std::vector<LinkId>> slowest_links(const Routes& routes);

}  // namespace tacos
