#include "synth/balanced.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <ranges>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "support/error.hpp"
#include "support/index.hpp"
#include "support/work.hpp"
#include "synth/list_schedule.hpp"
#include "timing/retime.hpp"

namespace tacos {

namespace {

constexpr std::size_t kHops = 3;
constexpr int kRounds = 12;
constexpr double kWorthAnother = 1.02;  // times the busiest link's time: try another order
constexpr double kOverfull = 1e4;       // largest load that counts, relative to the target
constexpr double kBalanced = 1.002;     // times the least possible load: no more rounds

using MessageNumber = std::size_t;

struct Path {
  std::array<RouteId, kHops> hop{-1, -1, -1};
  std::size_t hops = 0;

  void add(RouteId route) {
    if (route >= 0) hop[hops++] = route;
  }
};

// --- paths ---------------------------------------------------------------------------------------

// Chooses the relays of each message, to minimize the load of the busiest link.
class MessagePaths {
 public:
  MessagePaths(const Collective& collective, const Neighbours& neighbours, const Messages& messages)
      : neighbours_(neighbours),
        routes_(*neighbours.routes),
        topology_(routes_.topology()),
        messages_(messages),
        npus_(at(topology_.npus())),
        load_(at(topology_.links()), 0),
        paths_(messages.chunk.size()) {
    for (const ChunkId chunk : messages.chunk) bytes_.push_back(collective.bytes(chunk));
    for (LinkId link = 0; link < topology_.links(); ++link) {
      per_byte_.push_back(1 / static_cast<double>(topology_.bandwidth(link)));
    }
    list_ways();
  }

  std::vector<Path> lay(const Progress& progress) {
    std::vector<MessageNumber> order(paths_.size());
    std::iota(order.begin(), order.end(), MessageNumber{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](MessageNumber a, MessageNumber b) { return bytes_[a] > bytes_[b]; });
    const double least = neighbours_.least_s;
    scale_ = least + latency();
    std::vector<Path> best;
    double busiest = 0;
    for (int round = 0; round < kRounds; ++round) {
      if (progress) progress(0.5 * round / kRounds);
      for (const MessageNumber m : order) {
        if (round > 0 && !crosses_full_link(m, least)) continue;
        if (round > 0) carry(m, -1);
        paths_[m] = round == 0 ? first(m) : cheapest(m);
        carry(m, 1);
        if (priced_ > 0xfff) spend(progress);
      }
      priced_ += order.size();
      spend(progress);
      const double now = *std::max_element(load_.begin(), load_.end());
      if (best.empty() || now < busiest) {
        best = paths_;
        busiest = now;
      } else if (round > 1) {
        break;
      }
      if (busiest <= kBalanced * least) break;
      scale_ = now + latency();
    }
    return best;
  }

 private:
  // Lists the members of every box, and the hops between boxes for detours: from NPU i of one to NPU i of the other, so that
  // there are few connections.
  void list_ways() {
    for (const auto box : neighbours_.box) boxes_ = std::max(boxes_, at(box) + 1);
    members_.resize(boxes_);
    std::vector<std::size_t> place(npus_);
    for (std::size_t npu = 0; npu < npus_; ++npu) {
      auto& members = members_[at(neighbours_.box[npu])];
      place[npu] = members.size();
      members.push_back(static_cast<NodeId>(npu));
    }
    ways_.resize(boxes_ * boxes_);
    one_port_.assign(npus_, 1);
    for (std::size_t a = 0; a < npus_; ++a) {
      LinkId out = -1, in = -1;
      const auto another = [](LinkId& known, LinkId link) {
        const LinkId before = std::exchange(known, link);
        return before >= 0 && before != link;
      };
      for (std::size_t b = 0; b < npus_; ++b) {
        if (a == b) continue;
        if (hop(a, b) < 0) {
          all_straight_ = false;
        } else if (neighbours_.box[a] != neighbours_.box[b]) {
          if (place[a] == place[b]) way(a, b).emplace_back(a, b);
        } else if (hop(b, a) < 0 || another(out, routes_.links(hop(a, b)).front()) ||
                   another(in, routes_.links(hop(b, a)).back())) {
          one_port_[a] = 0;
        }
      }
    }
  }

  using Ways = std::vector<std::pair<std::size_t, std::size_t>>;
  Ways& way(std::size_t a, std::size_t b) {
    return ways_[at(neighbours_.box[a]) * boxes_ + at(neighbours_.box[b])];
  }

  // The longest latency of a direct hop: messages that take much less time are not worth a detour.
  double latency() const {
    Time longest = 0;
    for (RouteId r = 0; r < routes_.count(); ++r) {
      Time sum = 0;
      for (const LinkId link : routes_.links(r)) sum += topology_.latency(link);
      longest = std::max(longest, sum);
    }
    return static_cast<double>(longest) / static_cast<double>(kPicosecondsPerSecond);
  }

  RouteId hop(std::size_t a, std::size_t b) const { return neighbours_.hop[a * npus_ + b]; }

  double seconds(MessageNumber m, LinkId link) const {
    return static_cast<double>(bytes_[m]) * per_byte_[at(link)];
  }

  void carry(MessageNumber m, int sign) {
    const Path& path = paths_[m];
    for (std::size_t i = 0; i < path.hops; ++i) {
      for (const LinkId link : routes_.links(path.hop[i]))
        load_[at(link)] += sign * seconds(m, link);
    }
  }

  void spend(const Progress& progress) {
    progress.spend(static_cast<double>(std::exchange(priced_, 0)) * work::kTry);
  }

  double cost(MessageNumber m, RouteId route) const {
    priced_ += routes_.links(route).size();
    double sum = 0;
    for (const LinkId link : routes_.links(route)) {
      const double time = seconds(m, link);
      // Squaring six times gives the 64th power, with the same bits on every machine, unlike exp().
      double price = 1 + std::min((load_[at(link)] + time) / scale_, kOverfull);
      for (int i = 0; i < 6; ++i) price *= price;
      sum += time * price;
    }
    return sum;
  }

  bool crosses_full_link(MessageNumber m, double least) const {
    const Path& path = paths_[m];
    for (std::size_t i = 0; i < path.hops; ++i) {
      for (const LinkId link : routes_.links(path.hop[i])) {
        if (load_[at(link)] > least) return true;
      }
    }
    return false;
  }

  // Start with the direct path, since loads are still too low at first; but not if only some pairs have one.
  Path first(MessageNumber m) {
    const auto s = at(messages_.src[m]), t = at(messages_.dst[m]);
    if (hop(s, t) < 0 || (!all_straight_ && neighbours_.box[s] != neighbours_.box[t]))
      return cheapest(m);
    Path path;
    path.add(hop(s, t));
    return path;
  }

  Path cheapest(MessageNumber m) {
    const auto s = at(messages_.src[m]), t = at(messages_.dst[m]);
    Path best;
    double least = std::numeric_limits<double>::infinity();
    const auto offer = [&](double price, RouteId first, RouteId second, RouteId third) {
      if (price >= least) return;
      least = price;
      best = {};
      best.add(first);
      best.add(second);
      best.add(third);
    };
    if (const RouteId straight = hop(s, t); straight >= 0)
      offer(cost(m, straight), straight, -1, -1);
    const auto from = at(neighbours_.box[s]), to = at(neighbours_.box[t]);
    if (from == to) {
      // With a single port at each end, a detour would pass the same ports.
      const bool detours = !one_port_[s] || !one_port_[t];
      for (std::size_t i = 0; detours && i < members_[from].size(); ++i) {
        const auto k = at(members_[from][i]);
        if (k == s || k == t || hop(s, k) < 0 || hop(k, t) < 0) continue;
        offer(cost(m, hop(s, k)) + cost(m, hop(k, t)), hop(s, k), hop(k, t), -1);
      }
    } else {
      find_side(m, true, leaving_);
      find_side(m, false, entering_);
      for (const auto& [e, f] : way(s, t)) {
        if (e == s && f == t) continue;
        const double there = leaving_[e], then = entering_[f];
        if (there + then >= least) continue;
        const RouteId first = e == s ? -1 : hop(s, e), last = f == t ? -1 : hop(f, t);
        offer(there + cost(m, hop(e, f)) + then, first, hop(e, f), last);
      }
    }
    if (best.hops == 0) {
      throw InfeasibleError("no path by a relay leads from " +
                            topology_.name(static_cast<NodeId>(s)) + " to " +
                            topology_.name(static_cast<NodeId>(t)));
    }
    return best;
  }

  // The prices from the source to each NPU of its box, or from each NPU of the destination's box to it.
  void find_side(MessageNumber m, bool leaving, std::vector<double>& prices) const {
    const auto end = at(leaving ? messages_.src[m] : messages_.dst[m]);
    prices.resize(npus_);
    for (const NodeId npu : members_[at(neighbours_.box[end])]) {
      const auto k = at(npu);
      const RouteId route = k == end ? -1 : leaving ? hop(end, k) : hop(k, end);
      prices[k] = k == end     ? 0
                  : route >= 0 ? cost(m, route)
                               : std::numeric_limits<double>::infinity();
    }
  }

  const Neighbours& neighbours_;
  const Routes& routes_;
  const Topology& topology_;
  const Messages& messages_;
  std::size_t npus_, boxes_ = 0;
  std::vector<double> load_, per_byte_, leaving_, entering_;
  std::vector<std::uint8_t>
      one_port_;  // whether an NPU has one link into its box and one out of it
  std::vector<std::int64_t> bytes_;
  std::vector<std::vector<NodeId>> members_;
  std::vector<Ways> ways_;  // from box to box
  std::vector<Path> paths_;
  bool all_straight_ = true;  // whether every NPU reaches every other in one hop
  double scale_ = 1;
  mutable std::size_t priced_ = 0;  // links whose prices were computed since the last count
};

// --- times ---------------------------------------------------------------------------------------

struct Columns {
  std::vector<RouteId> route;
  std::vector<ChunkId> chunk;
  std::vector<std::int32_t> step;
  std::vector<Time> start;
  Time time = 0;
};

// Computes when each hop starts: an open shop in which all connections progress in proportion.
class Shop {
 public:
  using Task = std::int32_t;  // one hop of a message

  // With `fullest_first`, messages that only pass less loaded links may be delayed.
  Shop(const Collective& collective, const Neighbours& neighbours, const Messages& messages,
       const std::vector<Path>& paths, bool fullest_first)
      : routes_(*neighbours.routes),
        messages_(messages),
        paths_(paths),
        hops_(at(routes_.topology().links())),
        load_(at(routes_.topology().links()), 0),
        turn_(paths.size()),
        fullest_first_(fullest_first) {
    std::vector<std::int32_t> hop_of(at(routes_.count()), -1);
    for (MessageNumber m = 0; m < paths.size(); ++m) {
      bytes_.push_back(collective.bytes(messages.chunk[m]));
      first_.push_back(message_.size());
      message_.insert(message_.end(), paths[m].hops, m);
      hop_.resize(message_.size());
      for (std::size_t i = paths[m].hops; i-- > 0;) {
        windows_of(m, i);
        for (const auto& window : windows_)
          load_[at(window.link)] += static_cast<double>(window.busy);
        auto& hop = hop_of[at(paths[m].hop[i])];
        if (hop < 0) hop = hops_.add(windows_);
        hop_[first_[m] + i] = hop;
      }
    }
    busiest_ = std::max(*std::max_element(load_.begin(), load_.end()), 1.0);
    for (double& load : load_) load /= busiest_;
    find_turns(neighbours);
  }

  // How long the busiest link is busy.
  double busiest() const { return busiest_; }

  Columns run(const Progress& progress) {
    progress_ = &progress;
    progress.reserve(static_cast<double>(hop_.size()) * work::kTransfer);
    result_ = {};
    std::vector<Task> by_turn(hop_.size());
    std::iota(by_turn.begin(), by_turn.end(), Task{0});
    const auto urgency = [&](Task task) {
      return std::tuple(turn_[message_[at(task)]], route(task), task);
    };
    std::sort(by_turn.begin(), by_turn.end(),
              [&](Task a, Task b) { return urgency(a) < urgency(b); });
    std::vector<std::int32_t> waits;
    for (std::size_t task = 0; task < hop_.size(); ++task) {
      waits.push_back(step(static_cast<Task>(task)) > 0 ? 1 : 0);
    }
    ListSchedule(hops_, {hop_, by_turn, std::move(waits)}, *this, progress).run();
    return std::move(result_);
  }

  // --- what a list schedule asks

  std::span<const Routes::Window> windows(Task task) {
    windows_of(message_[at(task)], step(task));
    return windows_;
  }

  template <typename Visit>
  void follow(Task task, const Visit& visit) const {
    const MessageNumber m = message_[at(task)];
    if (step(task) + 1 < paths_[m].hops) visit(task + 1, duration(m, step(task)));
  }

  auto choose(std::span<ListOffer> fitting) const {
    std::sort(fitting.begin(), fitting.end());
    return std::views::transform(fitting, &ListOffer::server);
  }

  void started(Task task, Time now) {
    const MessageNumber m = message_[at(task)];
    result_.time = std::max(result_.time, now + duration(m, step(task)));
    result_.route.push_back(route(task));
    result_.chunk.push_back(messages_.chunk[m]);
    result_.step.push_back(static_cast<std::int32_t>(step(task)));
    result_.start.push_back(now);
    if (*progress_ && (result_.start.size() & 1023) == 0) {
      (*progress_)(static_cast<double>(result_.start.size()) / static_cast<double>(hop_.size()));
    }
  }

  bool goes_on() const { return true; }

 private:
  // The share of its connection's bytes before a message, then the distance of its destination on the circle of NPUs.
  using Turn = std::tuple<double, std::int32_t>;

  std::size_t step(Task task) const { return at(task) - first_[message_[at(task)]]; }
  RouteId route(Task task) const { return paths_[message_[at(task)]].hop[step(task)]; }

  // The load of the busiest link on a message's path, relative to the busiest of all.
  double fullest(MessageNumber m) const {
    double most = 0;
    for (std::size_t i = 0; i < paths_[m].hops; ++i) {
      for (const LinkId link : routes_.links(paths_[m].hop[i]))
        most = std::max(most, load_[at(link)]);
    }
    return most;
  }

  // Orders the messages of each slowest hop: first those that do not wait for a relay but continue through one, last those that
  // wait for a relay and do not continue; large messages before small ones.
  void find_turns(const Neighbours& neighbours) {
    std::vector<std::vector<MessageNumber>> sharing(at(routes_.count()));
    std::vector<std::size_t> slowest(paths_.size());
    for (MessageNumber m = 0; m < paths_.size(); ++m) {
      Time longest = -1;
      for (std::size_t i = 0; i < paths_[m].hops; ++i) {
        if (const Time time = duration(m, i); time > longest) {
          longest = time;
          slowest[m] = i;
        }
      }
      sharing[at(paths_[m].hop[slowest[m]])].push_back(m);
    }
    const auto npus = static_cast<std::int32_t>(neighbours.box.size());
    for (std::size_t r = 0; r < sharing.size(); ++r) {
      auto& queue = sharing[r];
      if (queue.empty()) continue;
      const auto early = [&](MessageNumber m) {
        const bool fed = slowest[m] > 0, feeds = slowest[m] + 1 < paths_[m].hops;
        return std::tuple(fed, !feeds, -bytes_[m], m);
      };
      std::sort(queue.begin(), queue.end(),
                [&](MessageNumber a, MessageNumber b) { return early(a) < early(b); });
      double total = 0, before = 0;
      for (const MessageNumber m : queue) total += static_cast<double>(bytes_[m]);
      const auto from = routes_.sources(static_cast<RouteId>(r))[0];
      const auto to = routes_.destinations(static_cast<RouteId>(r))[0];
      const auto turn = (to - from + npus) % npus;
      for (const MessageNumber m : queue) {
        const auto bytes = static_cast<double>(bytes_[m]);
        const double rest = 1 - (before + bytes / 2) / total;
        turn_[m] = {1 - rest * (fullest_first_ ? fullest(m) : 1), turn};
        before += bytes;
      }
    }
  }

  Time duration(MessageNumber m, std::size_t step) const {
    const RouteId route = paths_[m].hop[step];
    Time sum = 0;
    for (std::int32_t leg = 0; leg < routes_.legs(route); ++leg) {
      sum += routes_.leg_time(route, leg, bytes_[m]);
    }
    return sum;
  }

  // The windows of a route with several legs, as if no leg ever waited.
  void windows_of(MessageNumber m, std::size_t step) {
    const RouteId route = paths_[m].hop[step];
    windows_.clear();
    Time before = 0;
    for (std::int32_t leg = 0; leg < routes_.legs(route); ++leg) {
      const auto first = windows_.size();
      routes_.windows(route, leg, bytes_[m], windows_);
      for (auto i = first; i < windows_.size(); ++i) windows_[i].offset += before;
      before += routes_.leg_time(route, leg, bytes_[m]);
    }
  }

  const Routes& routes_;
  const Messages& messages_;
  const std::vector<Path>& paths_;
  Servers hops_;              // the routes that messages take
  std::vector<double> load_;  // per link, relative to the busiest
  std::vector<Turn> turn_;
  const bool fullest_first_;
  std::vector<std::int64_t> bytes_;
  double busiest_ = 1;
  // Of each task: its server, and its message; and the first task of each message.
  std::vector<std::int32_t> hop_;
  std::vector<MessageNumber> message_;
  std::vector<std::size_t> first_;
  std::vector<Routes::Window> windows_;
  const Progress* progress_ = nullptr;
  Columns result_;
};

}  // namespace

Schedule balanced(const std::shared_ptr<const Collective>& collective, const Neighbours& neighbours,
                  const Messages& messages, const std::string& provenance,
                  const Progress& progress) {
  const auto paths = MessagePaths(*collective, neighbours, messages).lay(progress);
  Shop shop(*collective, neighbours, messages, paths, false);
  Columns columns = shop.run(part_of(progress, 0.5, 0.7));
  if (static_cast<double>(columns.time) > kWorthAnother * shop.busiest()) {
    Shop other(*collective, neighbours, messages, paths, true);
    if (Columns found = other.run(part_of(progress, 0.7, 0.9)); found.time < columns.time) {
      columns = std::move(found);
    }
  }
  const auto count = columns.route.size();
  const std::vector<std::uint8_t> op(count, static_cast<std::uint8_t>(Op::copy));
  const std::vector<std::uint8_t> reads(count, static_cast<std::uint8_t>(Reads::acc));
  const Order order{columns.route, columns.chunk, columns.step, op, reads};
  for (const RouteId route : columns.route) {
    if (!neighbours.routes->steady(route)) {  // a message may have to wait on its way
      return retime(collective, neighbours.routes, order, provenance, progress);
    }
  }
  return with_starts(collective, neighbours.routes, order, columns.start, provenance, progress);
}

}  // namespace tacos
