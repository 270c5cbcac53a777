#include "model/schedule.hpp"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "support/parallel.hpp"
#include "support/vectorized.hpp"

namespace tacos {
namespace {

constexpr std::int64_t kWorthThreads = std::int64_t{1} << 22;  // transfers

// Whether numbers never decrease. There is no early exit, so that the loop can be vectorized.
TACOS_VECTORIZED bool rise(const std::uint32_t* numbers, std::size_t count) {
  std::uint32_t falls = 0;
  for (std::size_t i = 1; i < count; ++i) falls |= numbers[i] < numbers[i - 1] ? 1u : 0u;
  return falls == 0;
}

TACOS_VECTORIZED std::uint32_t largest(const std::uint32_t* numbers, std::size_t count) {
  std::uint32_t result = 0;
  for (std::size_t i = 0; i < count; ++i) result = std::max(result, numbers[i]);
  return result;
}

}  // namespace

std::int64_t Symmetry::size() const {
  return std::accumulate(orders.begin(), orders.end(), std::int64_t{1},
                         [](std::int64_t product, std::int32_t order) { return product * order; });
}

Schedule::Schedule(std::shared_ptr<const Collective> collective,
                   std::shared_ptr<const Routes> routes, Transfers transfers,
                   std::optional<Symmetry> symmetry, std::string provenance)
    : collective_(std::move(collective)),
      routes_(std::move(routes)),
      transfers_(std::move(transfers)),
      symmetry_(std::move(symmetry)),
      provenance_(std::move(provenance)) {
  if (!collective_->resolved()) invalid("a schedule needs a collective with a number of chunks");
  if (collective_->npus() != topology().npus()) {
    invalid("the collective is for " + std::to_string(collective_->npus()) +
            " NPUs, but the topology has " + std::to_string(topology().npus()));
  }
  check_lanes();
  if (symmetry_) {
    check_symmetry();
    find_first_images();
  }
  time_ = check_transfers();
}

void Schedule::check_lanes() {
  const auto& t = transfers_;
  const auto count = t.lane_route.size();
  if (t.lane_op.size() != count || t.lane_reads.size() != count ||
      t.lane_begin.size() != count + 1 || t.lane_begin[0] != 0 ||
      !std::is_sorted(t.lane_begin.begin(), t.lane_begin.end()) ||
      t.lane_begin[count] != stored_transfers()) {
    invalid("the schedule's lane columns do not fit together");
  }
  if (t.quantum < 1)
    invalid("the time quantum is " + std::to_string(t.quantum) + " ps, not positive");
  start_begin_.reserve(count + 1);
  start_begin_.push_back(0);
  for (std::size_t lane = 0; lane < count; ++lane) {
    const RouteId route = t.lane_route[lane];
    if (route < 0 || route >= routes_->count()) {
      invalid("lane " + std::to_string(lane) + " names route " + std::to_string(route) +
              ", but there are " + std::to_string(routes_->count()));
    }
    if (t.lane_op[lane] > 1 || t.lane_reads[lane] > 1) {
      invalid("lane " + std::to_string(lane) + " has an unknown op or reads");
    }
    const auto rows = t.lane_begin[lane + 1] - t.lane_begin[lane];
    start_begin_.push_back(start_begin_.back() + rows * routes_->legs(route));
  }
  if (start_begin_.back() != static_cast<std::int64_t>(t.start.size())) {
    invalid("the schedule has " + std::to_string(t.start.size()) + " starts, its routes need " +
            std::to_string(start_begin_.back()));
  }
}

void Schedule::check_symmetry() const {
  const auto& s = *symmetry_;
  const auto nodes = at(topology().nodes()), links = at(topology().links());
  if (s.orders.empty() || s.node_image.size() != s.orders.size() * nodes ||
      s.link_image.size() != s.orders.size() * links) {
    invalid("the symmetry's columns do not fit the topology");
  }
  std::int64_t size = 1;
  for (const auto order : s.orders) {
    if (order < 1)
      invalid("a generator has order " + std::to_string(order) + "; it must be at least 1");
    size *= order;
    if (size > topology().npus()) invalid("the symmetry group is larger than the number of NPUs");
  }
  const auto in_range = [](std::span<const std::int32_t> image, std::size_t count) {
    return std::all_of(image.begin(), image.end(), [&](std::int32_t i) {
      return i >= 0 && static_cast<std::size_t>(i) < count;
    });
  };
  if (!in_range(s.node_image.span(), nodes) || !in_range(s.link_image.span(), links)) {
    invalid("the symmetry leaves the topology");
  }
}

// The members of an orbit, in rank order, have chunks of the same or of decreasing size.
void Schedule::find_first_images() {
  if (collective_->uniform_bytes() > 0) return;
  const auto& part = collective_->parts()[0];
  if (collective_->parts().size() != 1 || !part.traits().uniform()) return;
  const auto& s = *symmetry_;
  const auto nodes = at(topology().nodes());
  const auto position = collective_->positions();
  std::vector<std::uint8_t> seen(nodes, 0);
  std::vector<NodeId> images;
  first_image_.assign(part.group.size(), 0);
  for (std::size_t i = 0; i < part.group.size(); ++i) {
    if (seen[at(part.group[i])]) continue;
    images.assign(1, part.group[i]);
    seen[at(part.group[i])] = 1;
    for (std::size_t next = 0; next < images.size(); ++next) {
      const NodeId npu = images[next];
      // Only members have a position; the verifier reports that other nodes are images of members.
      if (npu < topology().npus() && position[at(npu)] >= 0) {
        first_image_[at(position[at(npu)])] = static_cast<std::int32_t>(i);
      }
      for (std::size_t g = 0; g < s.orders.size(); ++g) {
        const NodeId image = s.node_image[g * nodes + at(npu)];
        if (std::exchange(seen[at(image)], 1) == 0) images.push_back(image);
      }
    }
  }
}

ChunkId Schedule::largest_image(ChunkId chunk) const {
  if (first_image_.empty()) return chunk;
  const auto& part = collective_->parts()[0];
  const auto pieces = static_cast<ChunkId>(part.chunks);
  // The size of a chunk depends on its owner or, if it has one, its receiver.
  const auto member = chunk / pieces % static_cast<ChunkId>(part.members());
  return chunk - (member - static_cast<ChunkId>(first_image_[member])) * pieces;
}

Time Schedule::check_transfers() const {
  const auto threads = stored_transfers() < kWorthThreads ? 1 : usable_threads(0);
  std::vector<Time> last(at(threads), 0);
  try {
    parallel(at(lanes()), 16, threads, {}, 0, 1, [&](std::size_t lane, std::int32_t thread) {
      auto& time = last[at(thread)];
      time = std::max(time, check_lane(static_cast<std::int32_t>(lane)));
    });
  } catch (...) {
    if (threads == 1) throw;
    for (std::int32_t lane = 0; lane < lanes(); ++lane) check_lane(lane);  // throws for the first
    throw;
  }
  return *std::max_element(last.begin(), last.end());
}

Time Schedule::check_lane(std::int32_t lane) const {
  const auto& t = transfers_;
  const auto begin = t.lane_begin[at(lane)], end = t.lane_begin[at(lane) + 1];
  const auto rows = at(end - begin);
  if (rows == 0) return 0;
  for (auto from = at(start_begin_[at(lane)]); from < at(start_begin_[at(lane) + 1]);
       from += rows) {
    if (!rise(t.start.data() + from, rows)) {
      invalid("the transfers of lane " + std::to_string(lane) + " are not ordered by start");
    }
    if (static_cast<__int128>(t.start[from + rows - 1]) * t.quantum > kLongestSchedule) too_long();
  }
  const ChunkId chunks = collective_->chunks(), most = largest(t.chunk.data() + begin, rows);
  if (most >= chunks) {
    invalid("a transfer names chunk " + std::to_string(most) + ", but there are " +
            std::to_string(chunks));
  }
  const RouteId route = t.lane_route[at(lane)];
  const std::int32_t last_leg = routes_->legs(route) - 1;
  const auto longest_after = [&](std::int64_t bytes) {
    Time longest = 0;
    for (std::size_t one = 0; one < routes_->destinations(route).size(); ++one) {
      longest = std::max(longest, last_leg_time(lane, bytes, one));
    }
    return longest;
  };
  if (const auto bytes = collective_->uniform_bytes(); bytes > 0) {
    return start(lane, end - 1, last_leg) + longest_after(bytes);
  }
  Time last = 0, longest = 0;
  std::int64_t bytes = -1;  // durations are computed once per run of equal sizes
  for (auto i = begin; i < end; ++i) {
    const ChunkId chunk = t.chunk[at(i)];
    if (collective_->bytes(chunk) == 0) {
      invalid("chunk " + std::to_string(chunk) + " has no bytes to transfer");
    }
    const auto now = collective_->bytes(largest_image(chunk));
    if (now != bytes) longest = longest_after(bytes = now);
    last = std::max(last, start(lane, i, last_leg) + longest);
  }
  return last;
}

Schedule Schedule::with_facts(ScheduleFacts facts) const {
  Schedule copy = *this;
  copy.facts_ = std::move(facts);
  return copy;
}

Schedule Schedule::with_executed(std::optional<Time> time, std::string target) const {
  if (time && *time < 0)
    invalid("executed_ps is " + std::to_string(*time) + "; it must not be negative");
  Schedule copy = *this;
  copy.executed_ = std::make_shared<Executed>();
  copy.executed_->target = std::move(target);
  copy.executed_->time = time.value_or(-1);
  return copy;
}

Schedule Schedule::with_provenance(std::string provenance) const {
  Schedule copy = *this;
  copy.provenance_ = std::move(provenance);
  return copy;
}

TransferId Schedule::transfers() const {
  return stored_transfers() * (symmetry_ ? symmetry_->size() : 1);
}

std::int64_t Schedule::memory_bytes() const {
  const auto& t = transfers_;
  std::size_t bytes = t.chunk.size() * sizeof(ChunkId) + t.start.size() * sizeof(std::uint32_t) +
                      t.lane_route.size() * (sizeof(RouteId) + 2) +
                      (t.lane_begin.size() + start_begin_.size()) * sizeof(std::int64_t);
  if (symmetry_) {
    bytes += (symmetry_->node_image.size() + symmetry_->link_image.size()) * sizeof(NodeId);
  }
  return static_cast<std::int64_t>(bytes);
}

Time Schedule::arrival(std::int32_t lane, TransferId transfer, std::size_t destination) const {
  return arrival_of(lane, transfer, destination, transfers_.chunk[at(transfer)]);
}

Time Schedule::arrival_of(std::int32_t lane, TransferId transfer, std::size_t destination,
                          ChunkId chunk) const {
  const std::int32_t leg = routes_->legs(transfers_.lane_route[at(lane)]) - 1;
  return start(lane, transfer, leg) + last_leg_time(lane, collective_->bytes(chunk), destination);
}

Time Schedule::last_leg_time(std::int32_t lane, std::int64_t bytes, std::size_t destination) const {
  const RouteId route = transfers_.lane_route[at(lane)];
  Time time = routes_->leg_time(route, routes_->legs(route) - 1, bytes, destination);
  const auto rate = topology().spec().reduce_bandwidth_Bps;
  if (rate > 0 && transfers_.lane_op[at(lane)] == static_cast<std::uint8_t>(Op::reduce)) {
    time += transmission_time(bytes, rate);
  }
  return time;
}

Schedule::LinkUse Schedule::link_use() const {
  const auto links = at(topology().links());
  LinkUse use{std::vector<std::int64_t>(links), std::vector<Time>(links)};
  for (std::int32_t lane = 0; lane < lanes(); ++lane) {
    const RouteId number = transfers_.lane_route[at(lane)];
    const auto route = routes_->links(number);
    for (auto i = transfers_.lane_begin[at(lane)]; i < transfers_.lane_begin[at(lane) + 1]; ++i) {
      const auto whole = collective_->bytes(largest_image(transfers_.chunk[at(i)]));
      for (std::size_t step = 0; step < route.size(); ++step) {
        const auto bytes = routes_->share(number, step).bytes(whole);
        use.bytes[at(route[step])] += bytes;
        use.busy[at(route[step])] += topology().busy_time(route[step], bytes);
      }
    }
  }
  if (!symmetry_) return use;
  // All links of an orbit carry equal loads. A link whose orbit is smaller than the group is the image
  // of a link under several products of the generators.
  std::vector<LinkId> orbit_of(links, -1), members;
  LinkUse whole{std::vector<std::int64_t>(links), std::vector<Time>(links)};
  for (std::size_t first = 0; first < links; ++first) {
    if (orbit_of[first] >= 0) continue;
    members.assign(1, static_cast<LinkId>(first));
    orbit_of[first] = static_cast<LinkId>(first);
    std::int64_t bytes = 0;
    Time busy = 0;
    for (std::size_t i = 0; i < members.size(); ++i) {
      bytes += use.bytes[at(members[i])];
      busy += use.busy[at(members[i])];
      for (std::size_t g = 0; g < symmetry_->orders.size(); ++g) {
        const LinkId image = symmetry_->link_image[g * links + at(members[i])];
        if (orbit_of[at(image)] >= 0) continue;
        orbit_of[at(image)] = static_cast<LinkId>(first);
        members.push_back(image);
      }
    }
    const auto hits = symmetry_->size() / static_cast<std::int64_t>(members.size());
    for (const LinkId link : members) {
      whole.bytes[at(link)] = bytes * hits;
      whole.busy[at(link)] = busy * hits;
    }
  }
  return whole;
}

namespace {

// The elements of a symmetry's group, numbered by the powers of the generators (the first varies
// fastest), and the images of nodes.
class Elements {
 public:
  Elements(const Symmetry& symmetry, std::size_t nodes) : symmetry_(symmetry) {
    for (std::size_t g = 0; g < symmetry.orders.size(); ++g) {
      auto& powers = powers_.emplace_back();
      const auto generator = symmetry.node_image.slice(g * nodes, (g + 1) * nodes);
      powers.emplace_back(generator.begin(), generator.end());
      while ((std::int64_t{1} << powers.size()) < symmetry.orders[g]) {
        const auto& half = powers.back();
        std::vector<NodeId> twice(nodes);
        for (std::size_t v = 0; v < nodes; ++v) twice[v] = half[static_cast<std::size_t>(half[v])];
        powers.push_back(std::move(twice));
      }
    }
  }

  NodeId image(NodeId node, std::int64_t element) const {
    for (std::size_t g = 0; element > 0; ++g) {
      const auto power = static_cast<std::uint64_t>(element % symmetry_.orders[g]);
      for (std::size_t bit = 0; power >> bit != 0; ++bit) {
        if (power >> bit & 1) node = powers_[g][bit][static_cast<std::size_t>(node)];
      }
      element /= symmetry_.orders[g];
    }
    return node;
  }

  // Calls visit(image, element) with all images of a node or link, where `element` takes the image
  // back.
  template <typename Visit>
  void each_image(std::int32_t of, std::span<const std::int32_t> images, const Visit& visit) const {
    const auto count = images.size() / symmetry_.orders.size();
    std::vector<std::int32_t> power(symmetry_.orders.size(), 0);
    for (std::int64_t left = symmetry_.size(); left > 0; --left) {
      std::int64_t back = 0, stride = 1;
      for (std::size_t g = 0; g < power.size(); ++g) {
        back += (symmetry_.orders[g] - power[g]) % symmetry_.orders[g] * stride;
        stride *= symmetry_.orders[g];
      }
      visit(of, back);
      // Applying a generator as often as its order is the identity, so a carry needs no reset.
      for (std::size_t g = 0; g < power.size(); ++g) {
        of = images[g * count + static_cast<std::size_t>(of)];
        if (++power[g] < symmetry_.orders[g]) break;
        power[g] = 0;
      }
    }
  }

 private:
  const Symmetry& symmetry_;
  std::vector<std::vector<std::vector<NodeId>>> powers_;  // 1, 2, 4, … of each generator
};

}  // namespace

Schedule::Rows Schedule::rows(std::optional<NodeId> node, std::optional<LinkId> link) const {
  std::optional<Elements> elements;
  if (symmetry_ && (node || link)) elements.emplace(*symmetry_, at(topology().nodes()));
  struct Found {
    Time start;
    TransferId transfer;
    std::int32_t lane;
    std::int64_t element;
  };
  std::vector<Found> found;
  const auto find = [&](std::int32_t lane, std::int64_t element) {
    for (auto i = transfers_.lane_begin[at(lane)]; i < transfers_.lane_begin[at(lane) + 1]; ++i) {
      found.push_back({start(lane, i, 0), i, lane, element});
    }
  };
  // Lanes by what they touch: the nodes at their ends, or else their links.
  std::vector<std::pair<std::int32_t, std::int32_t>> touched;
  for (std::int32_t lane = 0; lane < lanes(); ++lane) {
    const RouteId route = transfers_.lane_route[at(lane)];
    if (node) {
      for (const NodeId end : routes_->sources(route)) touched.emplace_back(end, lane);
      for (const NodeId end : routes_->destinations(route)) touched.emplace_back(end, lane);
    } else if (link) {
      for (const LinkId used : routes_->links(route)) touched.emplace_back(used, lane);
    } else {
      find(lane, 0);
    }
  }
  std::sort(touched.begin(), touched.end());
  touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
  const auto find_touching = [&](std::int32_t what, std::int64_t element) {
    auto i = std::lower_bound(touched.begin(), touched.end(), std::pair(what, std::int32_t{0}));
    for (; i != touched.end() && i->first == what; ++i) find(i->second, element);
  };
  if (elements) {
    const auto& images = node ? symmetry_->node_image : symmetry_->link_image;
    elements->each_image(node ? *node : *link, images.span(), find_touching);
  } else if (node || link) {
    find_touching(node ? *node : *link, 0);
  }
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) {
    return std::tie(a.start, a.transfer, a.element) < std::tie(b.start, b.transfer, b.element);
  });
  const auto position = elements ? collective_->positions() : std::vector<std::int32_t>();
  Rows rows;
  for (const auto& [when, transfer, lane, element] : found) {
    const auto moved = [&, by = element](NodeId v) { return by ? elements->image(v, by) : v; };
    const RouteId route = transfers_.lane_route[at(lane)];
    ChunkId chunk = transfers_.chunk[at(transfer)];
    if (element) chunk = collective_->image(chunk, moved, position);
    const auto bytes = collective_->bytes(chunk);
    const auto destinations = routes_->destinations(route);
    for (const NodeId from : routes_->sources(route)) {
      const NodeId src = moved(from);
      for (std::size_t end = 0; end < destinations.size(); ++end) {
        const NodeId dst = moved(destinations[end]);
        if (node && src != *node && dst != *node) continue;
        rows.transfer.push_back(transfer);
        rows.src.push_back(src);
        rows.dst.push_back(dst);
        rows.route.push_back(route);
        rows.chunk.push_back(chunk);
        rows.bytes.push_back(bytes);
        rows.op.push_back(transfers_.lane_op[at(lane)]);
        rows.reads.push_back(transfers_.lane_reads[at(lane)]);
        rows.start.push_back(when);
        rows.arrival.push_back(arrival_of(lane, transfer, end, chunk));
      }
    }
  }
  return rows;
}

Schedule::Dependencies Schedule::dependencies() const {
  if (symmetry_) invalid("dependencies are derived from packed schedules: expand() first");
  struct Event {
    ChunkId chunk;
    Time time;
    bool starts;  // arrivals at t are visible to starts at t
    TransferId transfer;
    std::int32_t lane;
    std::uint32_t destination;
  };
  std::vector<Event> events;
  for (std::int32_t lane = 0; lane < lanes(); ++lane) {
    const RouteId route = transfers_.lane_route[at(lane)];
    const auto ends = static_cast<std::uint32_t>(routes_->destinations(route).size());
    const bool reads_acc = transfers_.lane_reads[at(lane)] == static_cast<std::uint8_t>(Reads::acc);
    for (auto i = transfers_.lane_begin[at(lane)]; i < transfers_.lane_begin[at(lane) + 1]; ++i) {
      const ChunkId c = transfers_.chunk[at(i)];
      if (reads_acc) events.push_back({c, start(lane, i, 0), true, i, lane, 0});
      for (std::uint32_t end = 0; end < ends; ++end) {
        events.push_back({c, arrival(lane, i, end), false, i, lane, end});
      }
    }
  }
  std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return std::tie(a.chunk, a.time, a.starts, a.transfer) <
           std::tie(b.chunk, b.time, b.starts, b.transfer);
  });
  std::vector<std::vector<TransferId>> reads(at(stored_transfers()));
  std::unordered_map<NodeId, std::vector<TransferId>> writers;  // of the current chunk, per node
  for (std::size_t i = 0; i < events.size(); ++i) {
    const auto& event = events[i];
    if (i > 0 && event.chunk != events[i - 1].chunk) writers.clear();
    const RouteId route = transfers_.lane_route[at(event.lane)];
    if (event.starts) {
      for (const NodeId source : routes_->sources(route)) {
        const auto& from = writers[source];
        reads[at(event.transfer)].insert(reads[at(event.transfer)].end(), from.begin(), from.end());
      }
      continue;
    }
    auto& into = writers[routes_->destinations(route)[event.destination]];
    if (transfers_.lane_op[at(event.lane)] == static_cast<std::uint8_t>(Op::copy)) into.clear();
    into.push_back(event.transfer);
  }
  Dependencies result;
  result.begin.push_back(0);
  for (const auto& of : reads) {
    result.writer.insert(result.writer.end(), of.begin(), of.end());
    result.begin.push_back(static_cast<std::int64_t>(result.writer.size()));
  }
  return result;
}

std::int64_t Schedule::expanded_bytes() const {
  if (!symmetry_) return memory_bytes();
  const std::int64_t per_lane = sizeof(RouteId) + 2 + 2 * sizeof(std::int64_t);
  const auto& t = transfers_;
  return symmetry_->size() * static_cast<std::int64_t>((t.chunk.size() + t.start.size()) * 4 +
                                                       t.lane_route.size() * per_lane);
}

Schedule Schedule::expand() const {
  if (!symmetry_) return *this;
  const auto& s = *symmetry_;
  const auto nodes = at(topology().nodes()), links = at(topology().links());
  const auto position = collective_->positions();
  const auto group = s.size();

  std::vector<std::uint8_t> kinds;
  std::vector<std::int64_t> link_begin{0};
  std::vector<LinkId> route_links;
  std::vector<RouteId> lane_route;
  std::vector<std::uint8_t> op, reads;
  std::vector<std::int64_t> lane_begin{0};
  std::vector<ChunkId> chunk;
  std::vector<std::uint32_t> start;
  chunk.reserve(at(transfers()));
  start.reserve(transfers_.start.size() * at(group));

  // Images under the current product of generators, counted like an odometer.
  std::vector<NodeId> node_image(nodes);
  std::vector<LinkId> link_image(links);
  std::iota(node_image.begin(), node_image.end(), 0);
  std::iota(link_image.begin(), link_image.end(), 0);
  const auto moved = [&](NodeId v) { return node_image[at(v)]; };
  std::vector<std::int32_t> power(s.orders.size(), 0);
  for (std::int64_t element = 0; element < group; ++element) {
    const auto first_route = static_cast<RouteId>(kinds.size());
    for (RouteId r = 0; r < routes_->count(); ++r) {
      kinds.push_back(routes_->kinds()[at(r)]);
      for (const LinkId link : routes_->links(r)) route_links.push_back(link_image[at(link)]);
      link_begin.push_back(static_cast<std::int64_t>(route_links.size()));
    }
    for (std::int32_t lane = 0; lane < lanes(); ++lane) {
      lane_route.push_back(first_route + transfers_.lane_route[at(lane)]);
      op.push_back(transfers_.lane_op[at(lane)]);
      reads.push_back(transfers_.lane_reads[at(lane)]);
      lane_begin.push_back(lane_begin.back() + transfers_.lane_begin[at(lane) + 1] -
                           transfers_.lane_begin[at(lane)]);
    }
    for (const ChunkId c : transfers_.chunk) {
      chunk.push_back(collective_->image(c, moved, position));
    }
    start.insert(start.end(), transfers_.start.begin(), transfers_.start.end());
    // Applying a generator as often as its order is the identity, so a carry needs no reset.
    for (std::size_t g = 0; g < s.orders.size(); ++g) {
      for (auto& v : node_image) v = s.node_image[g * nodes + at(v)];
      for (auto& l : link_image) l = s.link_image[g * links + at(l)];
      if (++power[g] < s.orders[g]) break;
      power[g] = 0;
    }
  }
  auto routes = std::make_shared<const Routes>(shared_topology(), std::move(kinds),
                                               std::move(link_begin), std::move(route_links));
  Transfers all{std::move(lane_route), std::move(op),    std::move(reads),  std::move(lane_begin),
                std::move(chunk),      std::move(start), transfers_.quantum};
  Schedule whole(collective_, std::move(routes), std::move(all), std::nullopt, provenance_);
  whole.facts_ = facts_;
  whole.executed_ = executed_;
  return whole;
}

bool Schedule::operator==(const Schedule& other) const {
  return topology() == other.topology() && *collective_ == *other.collective_ &&
         *routes_ == *other.routes_ && transfers_ == other.transfers_ &&
         symmetry_ == other.symmetry_;
}

}  // namespace tacos
