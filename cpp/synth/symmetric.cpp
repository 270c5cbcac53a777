#include "synth/symmetric.hpp"

#include <algorithm>
#include <deque>
#include <limits>
#include <numeric>
#include <optional>
#include <queue>
#include <span>
#include <utility>

namespace tacos {

namespace {

constexpr Time kNever = std::numeric_limits<Time>::max();

template <typename Int>
std::size_t at(Int i) {
  return static_cast<std::size_t>(i);
}

// Z_n1 × … × Z_nk, its elements numbered like the NPUs.
class Group {
 public:
  struct Axis {
    std::int32_t size, stride;
  };

  explicit Group(const Topology& topology) : order_(topology.npus()) {
    std::int64_t stride = 1;
    for (const auto& [kind, size] : topology.spec().dims) {
      if (size > 1) axes_.push_back({size, static_cast<std::int32_t>(stride)});
      stride *= std::max(size, 1);
      if (stride > order_) break;
    }
    if (!topology.spec().symmetric || stride != order_) {
      invalid("the symmetric engine needs a topology that is the same from every NPU");
    }
  }

  std::int32_t order() const { return order_; }
  const std::vector<Axis>& axes() const { return axes_; }
  static std::int32_t digit(NodeId v, const Axis& axis) { return v / axis.stride % axis.size; }

  NodeId minus(NodeId u, NodeId v) const {
    NodeId result = 0;
    for (const auto& axis : axes_) {
      const auto d = digit(u, axis) - digit(v, axis);
      result += (d < 0 ? d + axis.size : d) * axis.stride;
    }
    return result;
  }
  NodeId plus(NodeId u, NodeId v) const { return minus(u, minus(0, v)); }

 private:
  std::int32_t order_;
  std::vector<Axis> axes_;
};

// Adding one fixed element.
class Shift {
 public:
  Shift(const Group& group, NodeId by) {
    for (const auto& axis : group.axes()) {
      const auto d = Group::digit(by, axis);
      if (d != 0) digits_.push_back({axis, d});
    }
  }
  NodeId operator()(NodeId v) const {
    for (const auto& [axis, by] : digits_) {
      const bool wraps = Group::digit(v, axis) + by >= axis.size;
      v += (wraps ? by - axis.size : by) * axis.stride;
    }
    return v;
  }

 private:
  struct Digit {
    Group::Axis axis;
    std::int32_t by;
  };
  std::vector<Digit> digits_;
};

// --- symmetry -----------------------------------------------------------------------------------

std::vector<NodeId> sorted_sources(const Topology& topology, NodeId node) {
  std::vector<NodeId> from;
  for (const LinkId link : topology.in_links(node)) from.push_back(topology.src(link));
  std::sort(from.begin(), from.end());
  return from;
}

// One move of all NPUs, extended to switches and links. Builders number the links of all NPUs
// alike, so the image of an NPU's link is nearly always the one at the same place; where it is not,
// the others are tried.
class Translation {
 public:
  Translation(const Topology& topology, const Shift& shift, std::span<NodeId> node,
              std::span<LinkId> link)
      : topology_(topology), node_(node), link_(link), taken_(link.size()) {
    for (NodeId v = 0; v < topology.npus(); ++v) node_[at(v)] = shift(v);
    std::fill(node_.begin() + topology.npus(), node_.end(), -1);
    std::fill(link_.begin(), link_.end(), -1);
    for (NodeId v = 0; v < topology.npus(); ++v) move_switches(v);
    for (NodeId s = topology.npus(); s < topology.nodes(); ++s) {
      if (node_[at(s)] < 0) refuse(topology.name(s));
    }
    const bool switched = topology.nodes() > topology.npus();  // else all links leave some NPU
    for (NodeId v = 0; v < topology.npus(); ++v) {
      move_links(topology.out_links(v), topology.out_links(node_[at(v)]));
      if (switched) move_links(topology.in_links(v), topology.in_links(node_[at(v)]));
    }
    for (LinkId l = 0; l < topology.links(); ++l) {
      if (link_[at(l)] < 0) refuse(topology.describe(l));
    }
  }

 private:
  [[noreturn]] static void refuse(const std::string& what) {
    invalid("the symmetric engine needs a topology that is the same from every NPU, but " + what +
            " has no image under a move along a dimension");
  }

  void move_switches(NodeId v) {
    const auto from = topology_.out_links(v), to = topology_.out_links(node_[at(v)]);
    for (std::size_t i = 0; i < from.size(); ++i) {
      const NodeId s = topology_.dst(from[i]);
      if (topology_.is_npu(s) || node_[at(s)] >= 0) continue;
      auto around = sorted_sources(topology_, s);
      if (!topology_.is_npu(around.back())) refuse(topology_.name(s));
      for (auto& npu : around) npu = node_[at(npu)];
      std::sort(around.begin(), around.end());
      for (std::size_t tried = 0; tried < to.size() && node_[at(s)] < 0; ++tried) {
        const NodeId image = topology_.dst(to[(i + tried) % to.size()]);
        if (topology_.is_npu(image) || sorted_sources(topology_, image) != around) continue;
        node_[at(s)] = image;
      }
    }
  }

  void move_links(std::span<const LinkId> from, std::span<const LinkId> to) {
    for (std::size_t i = 0; i < from.size(); ++i) {
      const LinkId l = from[i];
      for (std::size_t tried = 0; tried < to.size() && link_[at(l)] < 0; ++tried) {
        const LinkId image = to[(i + tried) % to.size()];
        if (taken_[at(image)] || topology_.src(image) != node_[at(topology_.src(l))] ||
            topology_.dst(image) != node_[at(topology_.dst(l))] ||
            topology_.latency(image) != topology_.latency(l) ||
            topology_.bandwidth(image) != topology_.bandwidth(l)) {
          continue;
        }
        link_[at(l)] = image;
        taken_[at(image)] = true;
      }
    }
  }

  const Topology& topology_;
  std::span<NodeId> node_;
  std::span<LinkId> link_;
  std::vector<bool> taken_;
};

// --- machines -----------------------------------------------------------------------------------

// What leaves NPU 0 by one link. All times are multiples of one quantum.
struct Machine {
  std::vector<NodeId> by;       // what it moves by, ascending: one element, or a switch's offsets
  std::vector<RouteId> routes;  // of each, from NPU 0
  Time period = 0;
  std::vector<Time> legs;  // time of each leg of the routes
  Time time = 0;           // from the start to the arrival of the whole chunk
  std::vector<Shift> forth;
  Shift back;  // against the first (the only, of a direct link)
  // Of a port: the lowest NPU of the line of NPUs that each NPU can reach; otherwise empty.
  std::vector<NodeId> line;

  bool port() const { return !line.empty(); }
};

class Machines {
 public:
  Machines(std::shared_ptr<const Topology> topology, const Group& group) {
    std::vector<LinkId> links;
    std::vector<std::int64_t> begin{0};
    const auto add = [&](Machine& machine, NodeId by, std::initializer_list<LinkId> route) {
      machine.by.push_back(by);
      machine.routes.push_back(static_cast<RouteId>(begin.size() - 1));
      links.insert(links.end(), route);
      begin.push_back(static_cast<std::int64_t>(links.size()));
    };
    std::vector<NodeId> ports;  // switches seen so far, for NPUs with several links into one
    for (const LinkId up : topology->out_links(0)) {
      Machine machine{{}, {}, 0, {}, 0, {}, {group, 0}, {}};
      const NodeId next = topology->dst(up);
      if (topology->is_npu(next)) {
        add(machine, next, {up});
      } else {
        const auto before = std::count(ports.begin(), ports.end(), next);
        ports.push_back(next);
        for (const auto& [npu, down] : downlinks(*topology, next, before)) {
          add(machine, npu, {up, down});
        }
      }
      if (machine.by.empty()) continue;
      for (const NodeId by : machine.by) machine.forth.emplace_back(group, by);
      machine.back = Shift(group, group.minus(0, machine.by[0]));
      if (machine.by.size() > 1) machine.line = lines(group.order(), machine.forth);
      all_.push_back(std::move(machine));
    }
    std::vector<std::uint8_t> kinds(begin.size() - 1, static_cast<std::uint8_t>(RouteKind::path));
    routes_ = std::make_shared<const Routes>(std::move(topology), std::move(kinds),
                                             std::move(begin), std::move(links));
  }

  // Times for chunks of `bytes`, each rounded up to a multiple of `quantum`.
  void set_times(std::int64_t bytes, Time quantum) {
    std::vector<Routes::Window> windows;
    const auto round_up = [&](Time time) { return (time + quantum - 1) / quantum * quantum; };
    for (auto& machine : all_) {
      const auto legs = routes_->legs(machine.routes[0]);
      machine.legs.assign(at(legs), 0);
      machine.period = 0;
      for (const RouteId r : machine.routes) {
        for (std::int32_t leg = 0; leg < legs; ++leg) {
          auto& time = machine.legs[at(leg)];
          time = std::max(time, round_up(routes_->leg_time(r, leg, bytes)));
          windows.clear();
          routes_->windows(r, leg, bytes, windows);
          for (const auto& window : windows) {
            machine.period = std::max(machine.period, round_up(window.busy));
          }
        }
      }
      machine.time = std::accumulate(machine.legs.begin(), machine.legs.end(), Time{0});
    }
  }

  // The largest time that divides all others.
  Time quantum() const {
    Time divisor = 0;
    for (const auto& machine : all_) {
      divisor = std::gcd(divisor, machine.period);
      for (const Time leg : machine.legs) divisor = std::gcd(divisor, leg);
    }
    return std::max<Time>(divisor, 1);
  }

  const std::vector<Machine>& all() const { return all_; }
  const std::shared_ptr<const Routes>& routes() const { return routes_; }

 private:
  // From a switch to every NPU but 0, each by its link number `which`.
  static std::vector<std::pair<NodeId, LinkId>> downlinks(const Topology& topology, NodeId from,
                                                          std::int64_t which) {
    std::vector<std::pair<NodeId, LinkId>> all, chosen;
    for (const LinkId link : topology.out_links(from)) {
      const NodeId npu = topology.dst(link);
      if (npu != 0 && topology.is_npu(npu)) all.emplace_back(npu, link);
    }
    std::sort(all.begin(), all.end());
    std::int64_t nth = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      nth = i > 0 && all[i].first == all[i - 1].first ? nth + 1 : 0;
      if (nth == which) chosen.push_back(all[i]);
    }
    return chosen;
  }

  static std::vector<NodeId> lines(NodeId npus, const std::vector<Shift>& shifts) {
    std::vector<NodeId> line(at(npus), -1);
    for (NodeId v = 0; v < npus; ++v) {
      if (line[at(v)] >= 0) continue;
      line[at(v)] = v;
      for (const auto& shift : shifts) {
        NodeId& other = line[at(shift(v))];
        if (other >= 0) {
          invalid("the symmetric engine needs switches that join whole lines of NPUs");
        }
        other = v;
      }
    }
    return line;
  }

  std::vector<Machine> all_;
  std::shared_ptr<const Routes> routes_;
};

// Piece `piece` of the chunk for displacement `to` moves on from `from`: to `to` itself in an
// all-gather, somewhere on the way there in an all-to-all.
struct Sent {
  NodeId from, to;
  std::int32_t piece;
  Time start;
};

// What each machine does, in order of time.
using Work = std::vector<std::vector<Sent>>;

// Lets machines work through time. At each moment, first everything that has arrived is handed to
// job.arrive(), then each idle machine is offered to job.start(), which fills in what it sends.
struct Clock {
  const Topology& topology;
  const std::vector<Machine>& machines;
  Time delay = 0;          // of every arrival, for reducing
  std::vector<Time> free;  // when each machine is free again
  Work sent = Work(machines.size());

  template <typename Job>
  void run(Job& job, Time now, const Progress& progress) {
    std::vector<std::size_t> landed(machines.size(), 0);
    for (std::int64_t moment = 0; !job.done(); ++moment) {
      if (progress && moment % 256 == 0) progress(job.share());
      Time next = job.release(now);
      for (std::size_t m = 0; m < machines.size(); ++m) {
        const Time takes = machines[m].time + delay;
        auto& i = landed[m];
        for (; i < sent[m].size() && sent[m][i].start + takes <= now; ++i) job.arrive(sent[m][i]);
        if (i < sent[m].size()) next = std::min(next, sent[m][i].start + takes);
      }
      job.begin(now);
      for (std::size_t m = 0; m < machines.size(); ++m) {
        if (free[m] <= now && !job.done() && job.start(m)) {
          free[m] = now + machines[m].period;
          next = std::min(next, now + machines[m].time + delay);
        }
        if (free[m] > now) next = std::min(next, free[m]);
      }
      if (next == kNever && !job.done()) stuck();
      if (next > kLongestSchedule && !job.done()) too_long();
      now = next;
    }
  }

  [[noreturn]] void stuck() const {
    const auto pair = topology.unreachable_pair();
    if (!pair) invalid("the symmetric engine needs NPUs that are joined by links or one switch");
    throw InfeasibleError(topology.name(pair->first) + " cannot reach " +
                          topology.name(pair->second));
  }
};

// --- all-gather ---------------------------------------------------------------------------------

class Gather {
 public:
  // Piece k is at its source from released[k] on.
  Gather(const Group& group, Clock& clock, std::vector<Time> released)
      : clock_(clock),
        machines_(clock.machines),
        released_(std::move(released)),
        pieces_(static_cast<std::int32_t>(released_.size())),
        unreleased_(pieces_),
        items_(std::int64_t{group.order() - 1} * pieces_),
        open_(items_),
        state_(at(group.order()) * released_.size(), State::open),
        first_(machines_.size()),
        cursor_(machines_.size()),
        visited_(machines_.size(), 0),
        deferred_(machines_.size()) {
    log_.reserve(state_.size());
    for (std::size_t m = 0; m < machines_.size(); ++m) {
      if (machines_[m].port()) first_[m].assign(state_.size(), -1);
    }
    set_levels(group);
    for (std::int32_t k = 0; k < pieces_; ++k) promise({0, k}, released_[at(k)]);
  }

  bool done() const { return open_ == 0; }
  double share() const { return 1.0 - static_cast<double>(open_) / static_cast<double>(items_); }

  // Returns when the next piece comes.
  Time release(Time now) {
    Time next = kNever;
    for (std::int32_t k = 0; unreleased_ > 0 && k < pieces_; ++k) {
      if (released_[at(k)] > now) {
        next = std::min(next, released_[at(k)]);
      } else if (state({0, k}) == State::promised) {
        reach({0, k});
        --unreleased_;
      }
    }
    return next;
  }

  void arrive(const Sent& sent) { reach({sent.to, sent.piece}); }

  void begin(Time now) {
    now_ = now;
    started_.clear();
  }

  bool start(std::size_t m) {
    ++visit_;
    const auto item = pick(m);
    if (!item) return false;
    clock_.sent[m].push_back({source(m, *item), item->v, item->piece, now_});
    started_.push_back(m);
    return true;
  }

 private:
  enum class State : std::uint8_t { open, promised, reached };
  struct Item {
    NodeId v;
    std::int32_t piece;
  };
  struct Cursor {
    std::size_t entry = 0, offset = 0;  // in the log, and of a port
  };
  // One piece among the NPUs that reach each other by faster machines alone.
  struct Region {
    std::int32_t open;
    Time arrival;  // the earliest that was promised
  };
  // Machines that take equally long, seen from those that are faster.
  struct Level {
    Time time;
    std::vector<NodeId> lowest;     // NPU of each NPU's region
    std::vector<Region> regions;    // indexed by their lowest NPU and the piece
    std::int64_t entered_open = 0;  // in all regions that have been entered
  };
  static constexpr std::size_t kLookBack = 64;

  std::size_t index(const Item& item) const { return at(item.v) * at(pieces_) + at(item.piece); }
  State& state(const Item& item) { return state_[index(item)]; }
  const State& state(const Item& item) const { return state_[index(item)]; }
  const NodeId& first(std::size_t m, const Item& item) const {
    return first_[m][index({machines_[m].line[at(item.v)], item.piece})];
  }
  std::size_t region(const Level& level, const Item& item) const {
    return index({level.lowest[at(item.v)], item.piece});
  }

  void set_levels(const Group& group) {
    std::vector<Time> times;
    for (const auto& machine : machines_) times.push_back(machine.time);
    std::sort(times.begin(), times.end());
    times.erase(std::unique(times.begin(), times.end()), times.end());
    for (const auto& machine : machines_) {
      const auto found = std::lower_bound(times.begin(), times.end(), machine.time);
      level_of_.push_back(static_cast<std::size_t>(found - times.begin()));
    }
    // Nobody is faster than the first level.
    for (std::size_t i = 1; i < times.size(); ++i) {
      Level level{times[i], regions_below(group, times[i]), {}};
      level.regions.assign(state_.size(), {0, kNever});
      for (const NodeId lowest : level.lowest) {
        for (std::int32_t k = 0; k < pieces_; ++k) ++level.regions[index({lowest, k})].open;
      }
      levels_.push_back(std::move(level));
    }
  }

  std::vector<NodeId> regions_below(const Group& group, Time time) const {
    std::vector<NodeId> lowest(at(group.order()), -1), found;
    for (NodeId v = 0; v < group.order(); ++v) {
      if (lowest[at(v)] >= 0) continue;
      lowest[at(v)] = v;
      found.assign(1, v);
      while (!found.empty()) {
        const NodeId u = found.back();
        found.pop_back();
        for (const auto& machine : machines_) {
          if (machine.time >= time) continue;
          for (const auto& forth : machine.forth) {
            if (lowest[at(forth(u))] >= 0) continue;
            lowest[at(forth(u))] = v;
            found.push_back(forth(u));
          }
        }
      }
    }
    return lowest;
  }

  void reach(const Item& item) {
    state(item) = State::reached;
    log_.push_back(item);
    for (std::size_t m = 0; m < machines_.size(); ++m) {
      if (!machines_[m].port()) continue;
      auto& known = first_[m][index({machines_[m].line[at(item.v)], item.piece})];
      if (known < 0) known = item.v;
    }
  }

  void promise(const Item& item, Time arrival) {
    state(item) = State::promised;
    if (item.v != 0) --open_;
    for (auto& level : levels_) {
      auto& entered = level.regions[region(level, item)];
      --entered.open;
      level.entered_open += entered.arrival == kNever ? entered.open : -1;
      entered.arrival = std::min(entered.arrival, arrival);
    }
  }

  // Whether a machine could serve an item now, and from where.
  bool serves(std::size_t m, const Item& item) const {
    if (machines_[m].port()) return first(m, item) >= 0;
    return state({machines_[m].back(item.v), item.piece}) == State::reached;
  }
  NodeId source(std::size_t m, const Item& item) const {
    return machines_[m].port() ? first(m, item) : machines_[m].back(item.v);
  }

  // An item that the machine serves, promised. If all that it could serve was promised at this very
  // moment, one of those who did may have something else to do instead.
  std::optional<Item> pick(std::size_t m) {
    auto item = first_new(m);
    if (!item && level_of_[m] > 0) item = first_deferred(m);
    if (item) {
      promise(*item, now_ + machines_[m].time + clock_.delay);
      return item;
    }
    visited_[m] = visit_;
    for (const std::size_t other : started_) {
      if (visited_[other] == visit_ || level_of_[m] > level_of_[other]) continue;
      auto& sent = clock_.sent[other].back();
      const Item wanted{sent.to, sent.piece};
      if (!serves(m, wanted)) continue;
      if (const auto instead = pick(other)) {
        sent = {source(other, *instead), instead->v, instead->piece, now_};
        return wanted;
      }
    }
    return std::nullopt;
  }

  // The first item that is open; to a slower machine, in a region that nobody has entered. The
  // others it defers.
  std::optional<Item> first_new(std::size_t m) {
    const auto& machine = machines_[m];
    auto& [entry, offset] = cursor_[m];
    while (entry < log_.size()) {
      const auto [u, piece] = log_[entry];
      // All NPUs of a line are served as soon as its first has the piece.
      if (offset == machine.forth.size() || (machine.port() && first(m, log_[entry]) != u)) {
        ++entry;
        offset = 0;
        continue;
      }
      const Item item{machine.forth[offset++](u), piece};
      if (state(item) != State::open) continue;
      if (level_of_[m] == 0) return item;
      const auto& level = levels_[level_of_[m] - 1];
      if (level.regions[region(level, item)].arrival == kNever) return item;
      deferred_[m].push_back(item);
    }
    return std::nullopt;
  }

  std::optional<Item> first_deferred(std::size_t m) {
    auto& items = deferred_[m];
    for (std::size_t i = 0; i < std::min(items.size(), kLookBack);) {
      const Item item = items[i];
      const bool is_open = state(item) == State::open;
      if (is_open && !worthwhile(m, item)) {
        ++i;
        continue;
      }
      items.erase(items.begin() + static_cast<std::ptrdiff_t>(i));
      if (is_open) return item;
    }
    return std::nullopt;
  }

  // Whether the faster machines will not be through with all that waits for them before this one
  // could deliver the item.
  bool worthwhile(std::size_t m, const Item& item) const {
    const auto& level = levels_[level_of_[m] - 1];
    const Time entered = level.regions[region(level, item)].arrival;
    std::int64_t served = 0;
    for (std::size_t j = 0; j < machines_.size(); ++j) {
      const auto& other = machines_[j];
      if (other.time >= level.time) continue;
      const Time from = std::max({now_, clock_.free[j], entered});
      const Time slack = now_ + level.time - 1 - other.time - from;
      if (slack >= 0) served += slack / other.period + 1;
    }
    return served < level.entered_open;
  }

  Clock& clock_;
  const std::vector<Machine>& machines_;
  std::vector<Time> released_;
  std::int32_t pieces_, unreleased_;
  std::int64_t items_, open_;
  Time now_ = 0;
  std::vector<State> state_;
  std::vector<Item> log_;  // in the order in which they were reached
  std::vector<std::vector<NodeId>>
      first_;  // per port and line: the first that has the piece, or -1
  std::vector<Cursor> cursor_;
  std::vector<std::size_t> started_;  // machines, at this moment
  std::vector<std::int64_t> visited_;
  std::int64_t visit_ = 0;
  std::vector<std::size_t> level_of_;  // per machine: 0, or one more than its place in levels_
  std::vector<Level> levels_;
  std::vector<std::deque<Item>> deferred_;
};

// --- all-to-all ---------------------------------------------------------------------------------

class Exchange {
 public:
  Exchange(const Group& group, Clock& clock, std::int32_t pieces)
      : group_(group),
        clock_(clock),
        machines_(clock.machines),
        pieces_(pieces),
        jobs_(std::int64_t{group.order() - 1} * pieces),
        unfinished_(jobs_),
        left_(at(group.order()) * at(pieces)),
        flying_(left_.size(), false),
        queues_(machines_.size()) {
    for (std::size_t m = 0; m < machines_.size(); ++m) axis_of_.push_back(only_axis(m));
    for (std::size_t d = 0; d < group.axes().size(); ++d) {
      distance_.push_back(distances(d));
      shortest_.push_back(shortest_ways(d));
    }
    check_memory();
    Time longest = 0, shortest = kNever;
    for (const auto& distance : distance_) {
      longest += *std::max_element(distance.begin(), distance.end());
    }
    for (const auto& machine : machines_) shortest = std::min(shortest, machine.period);
    level_ = std::max(shortest, longest / kLevels + 1);
    for (auto& queue : queues_) queue.levels.resize(at(longest / level_) + 1);
    // Within a level, what was offered last is served first.
    for (NodeId v = 1; v < group.order(); ++v) {
      for (std::int32_t k = 0; k < pieces_; ++k) {
        left_[index(v, k)] = v;
        offer(v, k);
      }
    }
  }

  bool done() const { return unfinished_ == 0; }
  double share() const {
    return 1.0 - static_cast<double>(unfinished_) / static_cast<double>(jobs_);
  }
  Time release(Time) const { return kNever; }
  void begin(Time now) { now_ = now; }

  void arrive(const Sent& sent) {
    flying_[index(sent.to, sent.piece)] = false;
    offer(sent.to, sent.piece);
  }

  bool start(std::size_t m) {
    auto& [levels, top] = queues_[m];
    for (;; --top) {
      for (auto& jobs = levels[top]; !jobs.empty();) {
        const std::size_t job = jobs.back();
        jobs.pop_back();
        if (flying_[job] || !serves(m, job)) continue;
        const auto v = static_cast<NodeId>(job / at(pieces_));
        const auto piece = static_cast<std::int32_t>(job % at(pieces_));
        clock_.sent[m].push_back({group_.minus(v, left_[job]), v, piece, now_});
        left_[job] = after(m, left_[job]);
        flying_[job] = true;
        if (left_[job] == 0) --unfinished_;
        return true;
      }
      if (top == 0) return false;
    }
  }

 private:
  static constexpr Time kLevels = 1 << 14;
  static constexpr double kMostHops = 1 << 29;
  struct Queue {
    std::vector<std::vector<std::uint32_t>> levels;  // jobs by the work that is left of them
    std::size_t top = 0;
  };

  std::size_t index(NodeId v, std::int32_t piece) const { return at(v) * at(pieces_) + at(piece); }

  void check_memory() const {
    double hops = 0;
    for (std::size_t d = 0; d < distance_.size(); ++d) {
      Time period = kNever;
      for (std::size_t m = 0; m < machines_.size(); ++m) {
        if (axis_of_[m] == d) period = std::min(period, machines_[m].period);
      }
      const auto sum = std::accumulate(distance_[d].begin(), distance_[d].end(), 0.0);
      hops += sum / static_cast<double>(period) * static_cast<double>(left_.size()) /
              static_cast<double>(distance_[d].size());
    }
    if (hops <= kMostHops) return;
    const auto bytes = hops * static_cast<double>(sizeof(Sent) + sizeof(ChunkId) * 2);
    throw Error("an all-to-all in which each of " + std::to_string(group_.order()) +
                " NPUs sends about " + std::to_string(static_cast<std::int64_t>(hops)) +
                " chunks needs " + std::to_string(static_cast<std::int64_t>(bytes) >> 30) +
                " GiB, more than the symmetric engine takes");
  }

  // The dimension in which a machine moves.
  std::size_t only_axis(std::size_t m) const {
    std::optional<std::size_t> found;
    for (const NodeId by : machines_[m].by) {
      for (std::size_t d = 0; d < group_.axes().size(); ++d) {
        if (Group::digit(by, group_.axes()[d]) == 0) continue;
        if (found && *found != d) {
          invalid("the symmetric engine needs links along dimensions for an all-to-all");
        }
        found = d;
      }
    }
    return *found;
  }

  // The least time that machines are taken for a chunk to get from 0 to each place of a dimension.
  std::vector<Time> distances(std::size_t d) const {
    const auto& axis = group_.axes()[d];
    std::vector<Time> distance(at(axis.size), kNever);
    std::priority_queue<std::pair<Time, std::int32_t>, std::vector<std::pair<Time, std::int32_t>>,
                        std::greater<>>
        queue;
    distance[0] = 0;
    queue.emplace(0, 0);
    while (!queue.empty()) {
      const auto [so_far, place] = queue.top();
      queue.pop();
      if (so_far > distance[at(place)]) continue;
      for (std::size_t m = 0; m < machines_.size(); ++m) {
        // Moves commute, so that a port may come first, and once: it reaches what it reaches twice.
        if (axis_of_[m] != d || (machines_[m].port() && place != 0)) continue;
        for (const NodeId by : machines_[m].by) {
          const auto next = (place + Group::digit(by, axis)) % axis.size;
          const Time there = so_far + machines_[m].period;
          if (there >= distance[at(next)]) continue;
          distance[at(next)] = there;
          queue.emplace(there, next);
        }
      }
    }
    if (std::find(distance.begin(), distance.end(), kNever) != distance.end()) clock_.stuck();
    return distance;
  }

  // What is left of a displacement when a machine has moved it on.
  NodeId after(std::size_t m, NodeId left) const {
    if (!machines_[m].port()) return machines_[m].back(left);
    const auto& axis = group_.axes()[axis_of_[m]];
    return left - Group::digit(left, axis) * axis.stride;
  }

  // The machines that move on along a shortest way, per place of a dimension.
  std::vector<std::vector<std::size_t>> shortest_ways(std::size_t d) const {
    const auto& axis = group_.axes()[d];
    std::vector<std::vector<std::size_t>> ways(at(axis.size));
    for (std::int32_t place = 1; place < axis.size; ++place) {
      for (std::size_t m = 0; m < machines_.size(); ++m) {
        if (axis_of_[m] != d) continue;
        const auto next = Group::digit(after(m, place * axis.stride), axis);
        if (distance_[d][at(next)] + machines_[m].period == distance_[d][at(place)]) {
          ways[at(place)].push_back(m);
        }
      }
    }
    return ways;
  }

  // The machine that moves a job on in a dimension. Where several would do, such as both ways half
  // round a ring, jobs that differ in other dimensions or in the piece take turns.
  std::optional<std::size_t> way(std::size_t d, std::size_t job) const {
    const auto& axis = group_.axes()[d];
    const auto& ways = shortest_[d][at(Group::digit(left_[job], axis))];
    if (ways.size() < 2) return ways.empty() ? std::nullopt : std::optional(ways[0]);
    const auto v = job / at(pieces_), piece = job % at(pieces_), stride = at(axis.stride);
    const auto elsewhere = v / (stride * at(axis.size)) * stride + v % stride;
    return ways[(elsewhere * at(pieces_) + piece) % ways.size()];
  }

  bool serves(std::size_t m, std::size_t job) const { return way(axis_of_[m], job) == m; }

  void offer(NodeId v, std::int32_t piece) {
    const auto job = index(v, piece);
    if (left_[job] == 0) return;
    Time work = 0;
    for (std::size_t d = 0; d < distance_.size(); ++d) {
      work += distance_[d][at(Group::digit(left_[job], group_.axes()[d]))];
    }
    const auto level = at(work / level_);
    for (std::size_t d = 0; d < distance_.size(); ++d) {
      const auto m = way(d, job);
      if (!m) continue;
      queues_[*m].levels[level].push_back(static_cast<std::uint32_t>(job));
      queues_[*m].top = std::max(queues_[*m].top, level);
    }
  }

  const Group& group_;
  Clock& clock_;
  const std::vector<Machine>& machines_;
  std::int32_t pieces_;
  std::int64_t jobs_, unfinished_;
  Time now_ = 0;
  std::vector<NodeId> left_;  // of each job's way
  std::vector<bool> flying_;
  std::vector<std::size_t> axis_of_;                             // per machine
  std::vector<std::vector<Time>> distance_;                      // per dimension and place
  std::vector<std::vector<std::vector<std::size_t>>> shortest_;  // machines, likewise
  Time level_ = 1;
  std::vector<Queue> queues_;
};

// --- the whole ----------------------------------------------------------------------------------

class Synthesis {
 public:
  Synthesis(std::shared_ptr<const Topology> topology, std::shared_ptr<const Collective> collective,
            const Progress& progress)
      : group_(*topology),
        topology_(std::move(topology)),
        collective_(std::move(collective)),
        progress_(progress),
        symmetry_(translations(*topology_)),
        machines_(topology_, group_) {
    using enum CollectiveKind;
    const auto& part = collective_->parts()[0];
    kind_ = part.kind;
    pieces_ = part.chunks;
    const bool known = kind_ == all_gather || kind_ == reduce_scatter || kind_ == all_reduce ||
                       kind_ == all_to_all;
    const auto cut = std::int64_t{group_.order()} * std::max(pieces_, 1);
    if (collective_->parts().size() != 1 || !known || part.members() != group_.order() ||
        !collective_->resolved() || part.size % cut != 0) {
      invalid(
          "the symmetric engine needs an all-gather, reduce-scatter, all-reduce or all-to-all "
          "of all NPUs in equal chunks");
    }
    bytes_ = part.size / cut;
    position_ = collective_->positions();
  }

  Schedule run(std::string provenance) {
    plan();
    return assemble(std::move(provenance));
  }

 private:
  struct Row {
    ChunkId chunk;
    std::uint32_t start;  // in quanta
  };
  using Lanes = std::vector<std::vector<Row>>;  // per route

  // Starts are 32 bits of a quantum: if they do not fit, they are planned again with times rounded
  // up to a larger one.
  void plan() {
    using enum CollectiveKind;
    const auto rate = topology_->spec().reduce_bandwidth_Bps;
    const bool sums = rate > 0 && (kind_ == reduce_scatter || kind_ == all_reduce);
    const Time reducing = sums ? transmission_time(bytes_, rate) : 0;
    machines_.set_times(bytes_, 1);
    quantum_ = std::gcd(machines_.quantum(), reducing);
    while (true) {
      machines_.set_times(bytes_, quantum_);
      reduce_time_ = (reducing + quantum_ - 1) / quantum_ * quantum_;
      summed_.assign(at(machines_.routes()->count()), {});
      copied_ = summed_;
      last_ = 0;
      plan_once();
      constexpr Time kMost = std::numeric_limits<std::uint32_t>::max();
      if (last_ / quantum_ <= kMost) return;
      quantum_ = last_ / kMost + last_ / kMost / 64 + 1;
    }
  }

  void plan_once() {
    using enum CollectiveKind;
    const std::vector<Time> at_once(machines_.all().size(), 0);
    Clock clock{*topology_, machines_.all(), 0, at_once};
    if (kind_ == all_to_all) {
      Exchange exchange(group_, clock, pieces_);
      clock.run(exchange, 0, progress_);
      store_exchange(std::move(clock.sent));
      return;
    }
    std::vector<Time> released(at(pieces_), 0);
    if (kind_ != all_gather) {
      Clock backwards{*topology_, machines_.all(), reduce_time_, at_once};
      Gather gather(group_, backwards, released);
      backwards.run(gather, 0, reported_from(0));
      store_reversed(std::move(backwards.sent), released, clock.free);
    }
    if (kind_ != reduce_scatter) {
      Gather gather(group_, clock, released);
      clock.run(gather, *std::min_element(released.begin(), released.end()), reported_from(0.5));
      store_gather(std::move(clock.sent));
    }
  }

  // An all-reduce has two halves.
  Progress reported_from(double half) const {
    return kind_ == CollectiveKind::all_reduce ? part_of(progress_, half, half + 0.5) : progress_;
  }

  // All that follows moves transfers so that they leave NPU 0.

  void store_gather(Work work) {
    for (std::size_t m = 0; m < work.size(); ++m) {
      for (const auto& [from, to, piece, start] : std::exchange(work[m], {})) {
        const auto owner = position_[at(group_.minus(0, from))];
        store(copied_, m, group_.minus(to, from), owner, piece, start);
      }
    }
  }

  // An all-gather backwards in time. Sets when each piece is complete, and each machine free.
  void store_reversed(Work work, std::vector<Time>& complete, std::vector<Time>& free) {
    Time end = 0;
    for (std::size_t m = 0; m < work.size(); ++m) {
      const Time takes = machines_.all()[m].time + reduce_time_;
      if (!work[m].empty()) end = std::max(end, work[m].back().start + takes);
    }
    std::fill(complete.begin(), complete.end(), 0);
    for (std::size_t m = 0; m < work.size(); ++m) {
      const auto& machine = machines_.all()[m];
      const auto sent = std::exchange(work[m], {});
      for (auto i = sent.rbegin(); i != sent.rend(); ++i) {
        const Time start = end - machine.time - reduce_time_ - i->start;
        store(summed_, m, group_.minus(i->to, i->from), position_[at(i->to)], i->piece, start);
        complete[at(i->piece)] = std::max(complete[at(i->piece)], end - i->start);
        free[m] = start + machine.period;
      }
    }
  }

  void store_exchange(Work work) {
    for (std::size_t m = 0; m < work.size(); ++m) {
      const auto& machine = machines_.all()[m];
      for (const auto& [from, to, piece, start] : std::exchange(work[m], {})) {
        const NodeId left = group_.minus(to, from);
        const NodeId by = machine.port() ? machine_axis_part(machine, left) : machine.by[0];
        const auto owner = std::int64_t{position_[at(group_.minus(0, from))]};
        store(copied_, m, by, owner * group_.order() + position_[at(left)], piece, start);
      }
    }
  }

  // A port moves by all that is left in its dimension.
  NodeId machine_axis_part(const Machine& machine, NodeId left) const {
    for (const auto& axis : group_.axes()) {
      if (Group::digit(machine.by[0], axis) != 0) return Group::digit(left, axis) * axis.stride;
    }
    return 0;
  }

  void store(Lanes& lanes, std::size_t m, NodeId by, std::int64_t block, std::int32_t piece,
             Time start) {
    const auto& machine = machines_.all()[m];
    std::size_t which = 0;
    if (machine.port()) {
      const auto found = std::lower_bound(machine.by.begin(), machine.by.end(), by);
      which = at(found - machine.by.begin());
    }
    lanes[at(machine.routes[which])].push_back({static_cast<ChunkId>(block * pieces_ + piece),
                                                static_cast<std::uint32_t>(start / quantum_)});
    last_ = std::max(last_, start + machine.time);  // no leg starts later
  }

  Schedule assemble(std::string provenance) {
    std::vector<RouteId> lane_route;
    std::vector<std::uint8_t> op, reads;
    std::vector<std::int64_t> lane_begin{0};
    std::vector<ChunkId> chunks;
    std::vector<std::uint32_t> starts;
    const auto add = [&](Lanes& lanes, Op what) {
      for (const auto& machine : machines_.all()) {
        for (const RouteId r : machine.routes) {
          const auto rows = std::exchange(lanes[at(r)], {});
          if (rows.empty()) continue;
          lane_route.push_back(r);
          op.push_back(static_cast<std::uint8_t>(what));
          reads.push_back(static_cast<std::uint8_t>(Reads::acc));
          for (const auto& row : rows) chunks.push_back(row.chunk);
          std::uint32_t waited = 0;
          for (const Time leg : machine.legs) {
            for (const auto& row : rows) starts.push_back(row.start + waited);
            waited += static_cast<std::uint32_t>(leg / quantum_);
          }
          lane_begin.push_back(static_cast<std::int64_t>(chunks.size()));
        }
      }
    };
    add(summed_, Op::reduce);
    add(copied_, Op::copy);
    Transfers transfers{
        std::move(lane_route), std::move(op),     std::move(reads), std::move(lane_begin),
        std::move(chunks),     std::move(starts), quantum_};
    return Schedule(collective_, machines_.routes(), std::move(transfers), std::move(symmetry_),
                    std::move(provenance));
  }

  Group group_;
  std::shared_ptr<const Topology> topology_;
  std::shared_ptr<const Collective> collective_;
  const Progress& progress_;
  Symmetry symmetry_;
  std::vector<std::int32_t> position_;  // of each NPU in the collective's group
  Machines machines_;
  CollectiveKind kind_;
  std::int32_t pieces_ = 0;
  std::int64_t bytes_ = 0;
  Time quantum_ = 1;
  Time reduce_time_ = 0;
  Time last_ = 0;
  Lanes summed_, copied_;
};

}  // namespace

Symmetry translations(const Topology& topology) {
  const Group group(topology);
  const auto nodes = at(topology.nodes()), links = at(topology.links());
  Symmetry symmetry;
  std::vector<NodeId> node_image;
  std::vector<LinkId> link_image;
  if (group.axes().empty()) {  // a single NPU, moved to itself
    symmetry.orders = {1};
    node_image.resize(nodes);
    link_image.resize(links);
    std::iota(node_image.begin(), node_image.end(), 0);
    std::iota(link_image.begin(), link_image.end(), 0);
  }
  const auto count = group.axes().size();
  node_image.resize(std::max<std::size_t>(count, 1) * nodes);
  link_image.resize(std::max<std::size_t>(count, 1) * links);
  for (std::size_t d = 0; d < count; ++d) {
    const auto& axis = group.axes()[d];
    symmetry.orders.push_back(axis.size);
    const Translation move(topology, Shift(group, axis.stride),
                           std::span(node_image).subspan(d * nodes, nodes),
                           std::span(link_image).subspan(d * links, links));
  }
  symmetry.node_image = std::move(node_image);
  symmetry.link_image = std::move(link_image);
  return symmetry;
}

Schedule synthesize_symmetric(std::shared_ptr<const Topology> topology,
                              std::shared_ptr<const Collective> collective, std::string provenance,
                              const Progress& progress) {
  return Synthesis(std::move(topology), std::move(collective), progress).run(std::move(provenance));
}

}  // namespace tacos
