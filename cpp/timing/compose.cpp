#include "timing/compose.hpp"

#include <algorithm>
#include <iterator>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "support/index.hpp"
#include "support/work.hpp"
#include "timing/retime.hpp"

namespace tacos {

namespace {

constexpr std::size_t kOverlapUpTo = std::size_t{1} << 17;  // transfers (chosen)

// A schedule's transfers as an order; the columns own the memory of the Order's spans.
struct OrderColumns {
  std::vector<RouteId> route;
  std::vector<ChunkId> chunk;
  std::vector<std::int32_t> step;
  std::vector<std::uint8_t> op, reads;
  std::vector<Time> start;

  Order order() const { return {route, chunk, step, op, reads}; }
};

}  // namespace

std::vector<std::int32_t> dense_rank(std::span<const Time> times) {
  std::vector<Time> sorted(times.begin(), times.end());
  std::sort(sorted.begin(), sorted.end());
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  std::vector<std::int32_t> rank;
  rank.reserve(times.size());
  for (const Time time : times) {
    rank.push_back(static_cast<std::int32_t>(std::lower_bound(sorted.begin(), sorted.end(), time) -
                                             sorted.begin()));
  }
  return rank;
}

std::vector<std::uint8_t> spread_final_values(const Schedule& schedule) {
  struct Event {
    ChunkId chunk;
    Time time;
    bool starts;  // arrivals at t are visible to starts at t
    TransferId transfer;
    std::int32_t lane;
    std::uint32_t destination;
  };
  const auto& t = schedule.stored();
  const auto& collective = schedule.collective();
  std::vector<Event> events;
  for (std::int32_t lane = 0; lane < schedule.lanes(); ++lane) {
    const auto ends = schedule.routes().destinations(t.lane_route[at(lane)]).size();
    for (auto i = t.lane_begin[at(lane)]; i < t.lane_begin[at(lane) + 1]; ++i) {
      if (!collective.reduces(t.chunk[at(i)])) continue;
      events.push_back({t.chunk[at(i)], schedule.start(lane, i, 0), true, i, lane, 0});
      for (std::uint32_t end = 0; end < ends; ++end) {
        events.push_back({t.chunk[at(i)], schedule.arrival(lane, i, end), false, i, lane, end});
      }
    }
  }
  std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return std::tie(a.chunk, a.time, a.starts, a.transfer) <
           std::tie(b.chunk, b.time, b.starts, b.transfer);
  });
  std::vector<std::uint8_t> final_value(t.chunk.size(), 1);
  std::vector<std::size_t> carried(t.chunk.size(), 0);  // number of contributions
  std::unordered_map<NodeId, std::size_t> acc;
  std::unordered_set<NodeId> receivers;  // of the final value of the current chunk
  const auto check_owner = [&](ChunkId chunk) {
    std::size_t owners = 0;
    for (const NodeId npu : collective.outputs(chunk)) owners += !receivers.contains(npu);
    if (owners <= 1) return;
    throw InfeasibleError("chunk " + std::to_string(chunk) + " is summed at " +
                          std::to_string(owners) + " NPUs; only sums made at one have a reverse");
  };
  for (std::size_t i = 0; i < events.size(); ++i) {
    const auto& event = events[i];
    const auto inputs = collective.inputs(event.chunk);
    if (i == 0 || event.chunk != events[i - 1].chunk) {
      if (i > 0) check_owner(events[i - 1].chunk);
      acc.clear();
      receivers.clear();
      for (const NodeId npu : inputs) acc[npu] = 1;
    }
    const RouteId route = t.lane_route[at(event.lane)];
    auto& count = carried[at(event.transfer)];
    if (event.starts) {
      const bool reads_acc = t.lane_reads[at(event.lane)] == static_cast<std::uint8_t>(Reads::acc);
      final_value[at(event.transfer)] = 0;
      for (const NodeId source : schedule.routes().sources(route)) {
        const std::size_t read = reads_acc ? acc[source] : 1;
        if (read >= inputs.size()) final_value[at(event.transfer)] = 1;
        count += read;
      }
      continue;
    }
    const NodeId node = schedule.routes().destinations(route)[event.destination];
    const bool adds = t.lane_op[at(event.lane)] == static_cast<std::uint8_t>(Op::reduce);
    acc[node] = adds ? acc[node] + count : count;
    if (final_value[at(event.transfer)]) receivers.insert(node);
  }
  if (!events.empty()) check_owner(events.back().chunk);
  return final_value;
}

namespace {

// Whether a schedule's times can be mirrored: all routes are paths of one leg whose links have the same
// bandwidth (then mirroring moves all windows of a link by the same time), chunks have the same size in
// both directions, and sums take no time.
bool mirrors(const Schedule& schedule, const Collective& reversed) {
  const auto& topology = schedule.topology();
  if (topology.spec().reduce_bandwidth_Bps > 0) return false;
  for (const RouteId route : schedule.stored().lane_route) {
    const auto links = schedule.routes().links(route);
    if (schedule.routes().legs(route) > 1 || schedule.routes().kind(route) != RouteKind::path) {
      return false;
    }
    for (const LinkId link : links) {
      if (topology.bandwidth(link) != topology.bandwidth(links[0])) return false;
    }
  }
  for (const ChunkId chunk : schedule.stored().chunk) {
    const auto& collective = schedule.collective();
    if (collective.bytes(chunk) != reversed.bytes(collective.reversed_chunk(chunk))) return false;
  }
  return true;
}

bool one_leg(const Schedule& schedule) {
  const auto& lanes = schedule.stored().lane_route;
  return std::all_of(lanes.begin(), lanes.end(),
                     [&](RouteId route) { return schedule.routes().legs(route) == 1; });
}

// Whether each transfer arrives at one node.
bool one_end(const Schedule& schedule) {
  const auto& lanes = schedule.stored().lane_route;
  return std::all_of(lanes.begin(), lanes.end(), [&](RouteId route) {
    return schedule.routes().destinations(route).size() == 1;
  });
}

// When each transfer arrives, `later` than in the schedule.
std::vector<Time> arrivals_of(const Schedule& schedule, Time later) {
  const auto& t = schedule.stored();
  std::vector<Time> arrivals;
  arrivals.reserve(t.chunk.size());
  for (std::int32_t lane = 0; lane < schedule.lanes(); ++lane) {
    for (auto i = t.lane_begin[at(lane)]; i < t.lane_begin[at(lane) + 1]; ++i) {
      arrivals.push_back(later + schedule.arrival(lane, i));
    }
  }
  return arrivals;
}

OrderColumns order_of(const Schedule& schedule) {
  const auto& t = schedule.stored();
  OrderColumns columns;
  for (std::int32_t lane = 0; lane < schedule.lanes(); ++lane) {
    for (auto i = t.lane_begin[at(lane)]; i < t.lane_begin[at(lane) + 1]; ++i) {
      columns.route.push_back(t.lane_route[at(lane)]);
      columns.chunk.push_back(t.chunk[at(i)]);
      columns.op.push_back(t.lane_op[at(lane)]);
      columns.reads.push_back(t.lane_reads[at(lane)]);
      columns.start.push_back(schedule.start(lane, i, 0));
    }
  }
  columns.step = dense_rank(columns.start);
  return columns;
}

}  // namespace

Schedule reverse(const Schedule& schedule, const Progress& progress) {
  const Schedule whole = schedule.expand();
  progress.reserve(2 * static_cast<double>(whole.stored().chunk.size()) * work::kTransfer);
  auto collective = std::make_shared<const Collective>(whole.collective().reversed());
  auto topology = std::make_shared<const Topology>(whole.topology().reversed());
  auto routes = std::make_shared<const Routes>(whole.routes().reversed(topology));
  auto columns = order_of(whole);
  // A transfer starts after those that wrote what it reads, so the opposite order of starts is valid.
  const std::int32_t last_step =
      columns.step.empty() ? 0 : *std::max_element(columns.step.begin(), columns.step.end());
  for (auto& step : columns.step) step = last_step - step;
  for (ChunkId chunk = 0; chunk < collective->chunks(); ++chunk) {
    if ((whole.collective().bytes(chunk) == 0) !=
        (collective->bytes(whole.collective().reversed_chunk(chunk)) == 0)) {
      invalid("chunk " + std::to_string(chunk) +
              " has no bytes in one direction only: choose fewer chunks or a larger size");
    }
  }
  const auto spreads = spread_final_values(whole);
  for (std::size_t i = 0; i < columns.chunk.size(); ++i) {
    // The reverse of a transfer that spreads a final value adds to a sum, and vice versa.
    const bool spread = spreads[i] != 0;
    columns.chunk[i] = whole.collective().reversed_chunk(columns.chunk[i]);
    const bool sums = spread && collective->reduces(columns.chunk[i]);
    columns.op[i] = static_cast<std::uint8_t>(sums ? Op::reduce : Op::copy);
    columns.reads[i] = static_cast<std::uint8_t>(Reads::acc);
  }
  if (!mirrors(whole, *collective)) {
    return retime(std::move(collective), std::move(routes), columns.order(), schedule.provenance(),
                  progress)
        .with_facts(schedule.facts());
  }
  // All windows of a link move by the same time, so they stay disjoint.
  const auto& t = whole.stored();
  std::size_t row = 0;
  for (std::int32_t lane = 0; lane < whole.lanes(); ++lane) {
    const auto ends = whole.routes().destinations(t.lane_route[at(lane)]).size();
    for (auto i = t.lane_begin[at(lane)]; i < t.lane_begin[at(lane) + 1]; ++i, ++row) {
      Time arrival = 0;
      for (std::size_t end = 0; end < ends; ++end) {
        arrival = std::max(arrival, whole.arrival(lane, i, end));
      }
      columns.start[row] = whole.time() - arrival;
    }
  }
  return with_starts(std::move(collective), std::move(routes), columns.order(), columns.start,
                     schedule.provenance(), progress)
      .with_facts(schedule.facts());
}

Schedule concatenate(const Schedule& first, const Schedule& second,
                     std::shared_ptr<const Collective> collective, const Progress& progress) {
  if (!(first.topology() == second.topology())) {
    invalid("schedules on different topologies cannot be concatenated");
  }
  if (first.collective().chunks() != second.collective().chunks() ||
      first.collective().chunks() != collective->chunks()) {
    invalid("schedules with different numbers of chunks cannot be concatenated");
  }
  for (ChunkId chunk = 0; chunk < collective->chunks(); ++chunk) {
    const bool empty = collective->bytes(chunk) == 0;
    if ((first.collective().bytes(chunk) == 0) != empty ||
        (second.collective().bytes(chunk) == 0) != empty) {
      invalid("chunk " + std::to_string(chunk) +
              " has no bytes in one collective only: choose fewer chunks or a larger size");
    }
  }
  ScheduleFacts facts;  // without a bound: that of a half is not one of the whole
  facts.engine = first.facts().engine;
  facts.file = first.facts().file;
  const Schedule a = first.expand(), b = second.expand();
  progress.reserve(static_cast<double>(a.stored().chunk.size() + b.stored().chunk.size()) *
                   work::kTransfer);
  std::vector<std::uint8_t> kinds(a.routes().kinds().begin(), a.routes().kinds().end());
  kinds.insert(kinds.end(), b.routes().kinds().begin(), b.routes().kinds().end());
  std::vector<LinkId> links(a.routes().all_links().begin(), a.routes().all_links().end());
  links.insert(links.end(), b.routes().all_links().begin(), b.routes().all_links().end());
  std::vector<std::int64_t> begin(a.routes().link_begin().begin(), a.routes().link_begin().end());
  for (std::int32_t r = 0; r < b.routes().count(); ++r) {
    begin.push_back(begin.back() + static_cast<std::int64_t>(b.routes().links(r).size()));
  }
  auto routes = std::make_shared<const Routes>(first.shared_topology(), std::move(kinds),
                                               std::move(begin), std::move(links));
  auto columns = order_of(a);
  const auto then = order_of(b);
  const std::int32_t steps =
      columns.step.empty() ? 0 : *std::max_element(columns.step.begin(), columns.step.end()) + 1;
  for (std::size_t i = 0; i < then.chunk.size(); ++i) {
    columns.route.push_back(then.route[i] + a.routes().count());
    columns.chunk.push_back(then.chunk[i]);
    columns.step.push_back(then.step[i] + steps);
    columns.op.push_back(then.op[i]);
    columns.reads.push_back(static_cast<std::uint8_t>(Reads::acc));
  }
  // Overlapping the two saves about the time to fill a pipeline: little if there are many transfers,
  // while retiming them costs more than everything else.
  bool same_bytes = true;
  for (ChunkId chunk = 0; same_bytes && chunk < collective->chunks(); ++chunk) {
    same_bytes = a.collective().bytes(chunk) == collective->bytes(chunk) &&
                 b.collective().bytes(chunk) == collective->bytes(chunk);
  }
  const bool may_stack = one_leg(a) && one_leg(b) && (same_bytes || (one_end(a) && one_end(b)));
  std::optional<Schedule> merged;
  if (!may_stack || columns.chunk.size() <= kOverlapUpTo) {
    merged = retime(collective, routes, columns.order(), first.provenance(), progress);
    if (!may_stack || merged->time() <= a.time() + b.time()) return merged->with_facts(facts);
  }
  // First-come service may also be slower than the starts that an engine arranged.
  for (const Time start : then.start) columns.start.push_back(a.time() + start);
  if (same_bytes) {
    return with_starts(std::move(collective), std::move(routes), columns.order(), columns.start,
                       first.provenance(), progress)
        .with_facts(std::move(facts));
  }
  auto arrivals = arrivals_of(a, 0);
  std::ranges::copy(arrivals_of(b, a.time()), std::back_inserter(arrivals));
  auto stacked =
      not_before(collective, routes, columns.order(), columns.start, arrivals, first.provenance());
  if (!stacked && !merged) {
    merged = retime(collective, routes, columns.order(), first.provenance(), progress);
  }
  const bool overlaps = merged && (!stacked || merged->time() < stacked->time());
  return (overlaps ? *merged : *stacked).with_facts(std::move(facts));
}

}  // namespace tacos
