#include "model/routes.hpp"

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "model/port_routes.hpp"
#include "support/work.hpp"

namespace tacos {

namespace {

constexpr std::int32_t kDeepestTree = 30;  // levels; store-and-forward adds the times of all levels

}  // namespace

Routes::Routes(std::shared_ptr<const Topology> topology, Column<std::uint8_t> kinds,
               Column<std::int64_t> link_begin, Column<LinkId> links)
    : topology_(std::move(topology)),
      kinds_(std::move(kinds)),
      link_begin_(std::move(link_begin)),
      links_(std::move(links)) {
  if (link_begin_.size() != kinds_.size() + 1 || link_begin_[0] != 0 ||
      !std::is_sorted(link_begin_.begin(), link_begin_.end()) ||
      link_begin_[kinds_.size()] != static_cast<std::int64_t>(links_.size())) {
    invalid("the routes' link_begin does not delimit their links");
  }
  for (const LinkId link : links_) {
    if (link < 0 || link >= topology_->links()) {
      invalid("a route names link " + std::to_string(link) + ", but the topology has " +
              std::to_string(topology_->links()) + " links");
    }
  }
  leg_.assign(links_.size(), 0);
  towards_root_.assign(links_.size(), -1);
  roots_.reserve(kinds_.size());
  legs_.reserve(kinds_.size());
  leaves_begin_.reserve(kinds_.size() + 1);
  leaves_begin_.push_back(0);
  for (RouteId r = 0; r < count(); ++r) {
    if (kinds_[at(r)] > static_cast<std::uint8_t>(RouteKind::spread))
      refuse(r, "has no known kind");
    if (this->links(r).empty()) refuse(r, "has no link");
    check_latency(r);
    switch (kind(r)) {
      case RouteKind::path:
        add_path(r);
        break;
      case RouteKind::spread:
        add_spread(r);
        break;
      default:
        add_tree(r);
    }
    leaves_begin_.push_back(static_cast<std::int64_t>(leaves_.size()));
    for (const auto end : {sources(r), destinations(r)}) {
      for (const NodeId node : end) {
        if (!topology_->is_npu(node) && !topology_->can(node, kMulticast | kReduce)) {
          refuse(r, "ends at " + topology_->name(node) + ", which neither multicasts nor reduces");
        }
      }
    }
  }
}

void Routes::refuse(RouteId r, const std::string& why) const {
  invalid("route " + std::to_string(r) + " " + why);
}

void Routes::check_latency(RouteId r) const {
  Time sum = 0;
  for (const LinkId link : links(r)) {
    sum += topology_->latency(link);
    if (sum > kLongestTime) refuse(r, "has latencies of over 40 hours");
  }
}

std::span<const NodeId> Routes::ends(RouteId r, bool many) const {
  if (!many) return std::span(roots_).subspan(at(r), 1);
  const auto begin = static_cast<std::size_t>(leaves_begin_[at(r)]);
  const auto end = static_cast<std::size_t>(leaves_begin_[at(r) + 1]);
  return std::span(leaves_).subspan(begin, end - begin);
}

void Routes::add_path(RouteId r) {
  const auto path = links(r);
  std::int32_t leg = 0;
  for (std::size_t i = 0; i < path.size(); ++i) {
    if (i > 0) {
      const NodeId between = topology_->src(path[i]);
      if (topology_->dst(path[i - 1]) != between) {
        refuse(r, "is broken: " + topology_->describe(path[i]) + " does not continue " +
                      topology_->describe(path[i - 1]));
      }
      const bool whole = topology_->is_npu(between) ||
                         topology_->spec().forwarding == Forwarding::store_and_forward;
      if (whole) ++leg;
      towards_root_[from(r) + i] = whole ? -1 : static_cast<std::int32_t>(i) - 1;
    }
    leg_[from(r) + i] = leg;
  }
  if (topology_->src(path.front()) == topology_->dst(path.back())) {
    refuse(r, "ends where it begins, at " + topology_->name(topology_->src(path.front())));
  }
  roots_.push_back(topology_->src(path.front()));
  leaves_.push_back(topology_->dst(path.back()));
  leaf_links_.push_back(static_cast<std::int32_t>(path.size()) - 1);
  legs_.push_back(leg + 1);
}

void Routes::add_tree(RouteId r) {
  // Seen from the root, a multicast runs along its links and a reduce against them; both list a
  // link after the links that feed it, so a reduce is walked from its last link back.
  const auto tree = links(r);
  const bool reduce = kind(r) == RouteKind::reduce;
  const auto near = [&](LinkId l) { return reduce ? topology_->dst(l) : topology_->src(l); };
  const auto far = [&](LinkId l) { return reduce ? topology_->src(l) : topology_->dst(l); };
  const std::uint8_t capability = reduce ? kReduce : kMulticast;
  const auto count = static_cast<std::int32_t>(tree.size());
  const NodeId root = near(reduce ? tree.back() : tree.front());

  std::unordered_map<NodeId, std::int32_t> link_to;  // node -> position of the link that reaches it
  std::unordered_map<NodeId, std::int32_t> branches;
  std::vector<std::int32_t> depth(tree.size());
  link_to[root] = -1;
  for (std::int32_t step = 0; step < count; ++step) {
    const std::int32_t i = reduce ? count - 1 - step : step;
    const LinkId link = tree[static_cast<std::size_t>(i)];
    const auto parent = link_to.find(near(link));
    if (parent == link_to.end()) {
      refuse(r, "is not a tree: " + topology_->describe(link) + " is not fed by an earlier link");
    }
    if (!link_to.emplace(far(link), i).second) {
      refuse(r, "is not a tree: it reaches " + topology_->name(far(link)) + " twice");
    }
    towards_root_[from(r) + static_cast<std::size_t>(i)] = parent->second;
    depth[at(i)] = parent->second < 0 ? 1 : depth[at(parent->second)] + 1;
    if (depth[at(i)] > kDeepestTree) {
      refuse(r, "is a tree of more than " + std::to_string(kDeepestTree) + " levels");
    }
    ++branches[near(link)];
  }
  for (const auto& [node, degree] : branches) {
    if (node != root && topology_->is_npu(node)) {
      refuse(r, "passes through " + topology_->name(node) + "; a tree passes only switches");
    }
    if (degree > 1 && !topology_->can(node, capability)) {
      refuse(r, std::string(reduce ? "joins" : "branches") + " at " + topology_->name(node) +
                    ", which cannot " + (reduce ? "reduce" : "multicast"));
    }
  }
  for (std::int32_t i = 0; i < count; ++i) {
    const NodeId node = far(tree[static_cast<std::size_t>(i)]);
    if (branches.contains(node)) continue;
    leaves_.push_back(node);
    leaf_links_.push_back(i);
  }
  roots_.push_back(root);
  legs_.push_back(1);
}

void Routes::add_spread(RouteId r) {
  const auto all = links(r);
  const NodeId source = topology_->src(all.front()), end = topology_->dst(all.back());
  if (source == end) refuse(r, "ends where it begins, at " + topology_->name(source));
  if (parts_.empty()) {
    parts_.assign(links_.size(), 1);
    paths_.assign(kinds_.size(), 1);
  }
  // Nodes by number, in order of their first link; and whether some link has left them.
  std::unordered_map<NodeId, std::int32_t> number{{source, 0}};
  std::vector<std::uint8_t> left{0};
  std::vector<std::int64_t> before{1};  // paths from the source
  std::unordered_set<LinkId> known;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const NodeId near = topology_->src(all[i]), far = topology_->dst(all[i]);
    const auto from_node = number.find(near);
    if (from_node == number.end()) {
      refuse(r,
             "is not connected: " + topology_->describe(all[i]) + " is not fed by an earlier link");
    }
    if (near != source && topology_->is_npu(near)) {
      refuse(r,
             "passes through " + topology_->name(near) + "; a spread route passes only switches");
    }
    if (!known.insert(all[i]).second) refuse(r, "lists " + topology_->describe(all[i]) + " twice");
    const auto [to_node, added] = number.try_emplace(far, static_cast<std::int32_t>(before.size()));
    const auto here = at(number.at(near)), there = at(to_node->second);
    if (added) {
      before.push_back(0);
      left.push_back(0);
    }
    left[here] = 1;
    if (left[there] != 0) {
      refuse(r, "lists " + topology_->describe(all[i]) + " after links that it feeds");
    }
    before[there] += before[here];
    if (before[there] > kMostPaths) {
      refuse(r, "has more than " + std::to_string(kMostPaths) + " paths");
    }
    leg_[from(r) + i] = static_cast<std::int32_t>(here);
    towards_root_[from(r) + i] = static_cast<std::int32_t>(there);
  }
  std::vector<std::int64_t> after(before.size(), 0);  // paths to the end
  const auto last = at(number.at(end));
  after[last] = 1;
  if (left[last] != 0) refuse(r, "leaves its end, " + topology_->name(end));
  paths_[at(r)] = static_cast<std::int32_t>(before[last]);
  for (auto i = all.size(); i-- > 0;) {
    const auto here = at(leg_[from(r) + i]), there = at(towards_root_[from(r) + i]);
    if (after[there] == 0) {
      refuse(r, "does not lead on from " + topology_->name(topology_->dst(all[i])) +
                    " to its end, " + topology_->name(end));
    }
    after[here] += after[there];
    // At most all paths, so it fits.
    parts_[from(r) + i] = static_cast<std::int32_t>(before[here] * after[there]);
  }
  roots_.push_back(source);
  leaves_.push_back(end);
  leaf_links_.push_back(static_cast<std::int32_t>(all.size()) - 1);
  legs_.push_back(1);
}

std::pair<std::size_t, std::size_t> Routes::leg_links(RouteId r, std::int32_t leg) const {
  if (legs(r) == 1) return {0, links(r).size()};
  const auto all = std::span(leg_).subspan(from(r), links(r).size());
  const auto [first, last] = std::equal_range(all.begin(), all.end(), leg);
  return {at(first - all.begin()), at(last - all.begin())};
}

void Routes::windows(RouteId r, std::int32_t leg, std::int64_t bytes,
                     std::vector<Window>& out) const {
  const auto route = links(r);
  const auto* towards_root = towards_root_.data() + from(r);
  const auto [first, last] = leg_links(r, leg);
  const bool whole = topology_->spec().forwarding == Forwarding::store_and_forward;
  // The time until the head or, under store-and-forward, the tail has passed a link.
  const auto pass = [&](LinkId link) {
    return topology_->latency(link) +
           (whole ? transmission_time(bytes, topology_->bandwidth(link)) : 0);
  };
  const auto begin = out.size();
  if (kind(r) == RouteKind::spread) {
    spread_windows(r, bytes, out);
    return;
  }
  for (std::size_t i = first; i < last; ++i) {
    out.push_back({route[i], 0, topology_->busy_time(route[i], bytes)});
  }
  const auto window = [&](auto i) -> Window& { return out[begin + at(i) - first]; };
  for (std::size_t i = first; i < last; ++i) {
    if (towards_root[i] < 0) continue;
    if (kind(r) == RouteKind::reduce) {
      Time& next = window(towards_root[i]).offset;
      next = std::max(next, window(i).offset + pass(route[i]));
    } else {
      window(i).offset = window(towards_root[i]).offset + pass(route[at(towards_root[i])]);
    }
  }
}

Time Routes::spread_windows(RouteId r, std::int64_t bytes, std::vector<Window>& out) const {
  const auto route = links(r);
  const bool whole = topology_->spec().forwarding == Forwarding::store_and_forward;
  std::vector<Time> head(route.size() + 1, 0), slowest(route.size() + 1, 0);  // per node
  Time last = 0;
  for (std::size_t i = 0; i < route.size(); ++i) {
    const auto here = at(leg_[from(r) + i]), there = at(towards_root_[from(r) + i]);
    const auto part = share(r, i).bytes(bytes);
    const Time send = transmission_time(part, topology_->bandwidth(route[i]));
    const Time slow = whole ? send : std::max(send, slowest[here]);
    const Time reached = head[here] + topology_->latency(route[i]);
    out.push_back({route[i], head[here], topology_->busy_time(route[i], part)});
    head[there] = std::max(head[there], reached + (whole ? send : 0));
    slowest[there] = std::max(slowest[there], slow);
    if (topology_->dst(route[i]) == leaves_[at(leaves_begin_[at(r)])]) {
      last = std::max(last, reached + slow);
    }
  }
  return last;
}

Time Routes::leg_time(RouteId r, std::int32_t leg, std::int64_t bytes,
                      std::size_t destination) const {
  const auto route = links(r);
  const auto send = [&](LinkId l) { return transmission_time(bytes, topology_->bandwidth(l)); };
  const bool whole = topology_->spec().forwarding == Forwarding::store_and_forward;
  if (kind(r) == RouteKind::spread) {
    std::vector<Window> all;
    return spread_windows(r, bytes, all);
  }
  if (kind(r) == RouteKind::reduce) {
    // The tail leaves a link no earlier than the slowest transmission upstream of it allows.
    std::vector<Window> all;
    windows(r, leg, bytes, all);
    std::vector<Time> slowest(route.size(), 0);
    Time last = 0;
    for (std::size_t i = 0; i < route.size(); ++i) {
      slowest[i] = std::max(slowest[i], send(route[i]));
      const auto next = towards_root_[from(r) + i];
      if (next < 0) {
        last = std::max(last, all[i].offset + topology_->latency(route[i]) + slowest[i]);
      } else if (!whole) {
        slowest[at(next)] = std::max(slowest[at(next)], slowest[i]);
      }
    }
    return last;
  }
  Time latency = 0, longest = 0;
  const auto add = [&](LinkId link) {
    latency += topology_->latency(link);
    longest = whole ? longest + send(link) : std::max(longest, send(link));
  };
  if (kind(r) == RouteKind::path) {
    const auto [first, last] = leg_links(r, leg);
    for (std::size_t i = first; i < last; ++i) add(route[i]);
  } else {
    const auto leaf = static_cast<std::size_t>(leaves_begin_[at(r)]) + destination;
    for (auto i = leaf_links_[leaf]; i >= 0;
         i = towards_root_[from(r) + static_cast<std::size_t>(i)]) {
      add(route[static_cast<std::size_t>(i)]);
    }
  }
  return latency + longest;
}

Routes Routes::reversed(std::shared_ptr<const Topology> reversed_topology) const {
  std::vector<std::uint8_t> kinds(kinds_.begin(), kinds_.end());
  for (auto& kind : kinds) {
    if (kind == static_cast<std::uint8_t>(RouteKind::multicast)) {
      kind = static_cast<std::uint8_t>(RouteKind::reduce);
    } else if (kind == static_cast<std::uint8_t>(RouteKind::reduce)) {
      kind = static_cast<std::uint8_t>(RouteKind::multicast);
    }
  }
  std::vector<LinkId> turned(links_.begin(), links_.end());
  for (RouteId r = 0; r < count(); ++r) {
    std::reverse(turned.begin() + static_cast<std::ptrdiff_t>(from(r)),
                 turned.begin() + static_cast<std::ptrdiff_t>(from(r + 1)));
  }
  return Routes(std::move(reversed_topology), std::move(kinds), link_begin_, std::move(turned));
}

namespace {

// Finds the paths of shortest_routes, one source at a time.
class Router {
 public:
  explicit Router(const Topology& topology) : topology_(topology), ports_(topology) {
    by_dimension_ = !topology.spec().dims.empty();
    for (const auto& dimension : topology.spec().dims) {
      const auto& kind = dimension.kind;
      by_dimension_ = by_dimension_ &&
                      (kind == "ring" || kind == "line" || kind == "clique" || kind == "switch");
    }
  }

  // Appends the route that a message takes; returns its kind.
  RouteKind append_route(NodeId src, NodeId dst, std::vector<LinkId>& out) {
    const auto before = out.size();
    append_path(src, dst, out);
    return ports_.replace(out, before);
  }

  // The number of links and nodes looked at since the last call.
  std::size_t take_looked_at() { return std::exchange(looked_at_, 0); }

 private:
  void append_path(NodeId src, NodeId dst, std::vector<LinkId>& out) {
    if (src != source_) list_neighbours(src);
    if (const LinkId direct = direct_[static_cast<std::size_t>(dst)]; direct >= 0) {
      out.push_back(direct);
      return;
    }
    const auto before = out.size();
    // If both plug into one switch, a path by dimensions would only add an NPU that has to forward.
    if (by_dimension_ && (append_hop(src, dst, out) || append_by_dimension(src, dst, out))) return;
    out.resize(before);
    append_fewest_hops(src, dst, out);
  }

  // One entry per node, so that a pair costs no search: pairs come by source.
  void list_neighbours(NodeId src) {
    direct_.resize(static_cast<std::size_t>(topology_.nodes()), -1);
    if (source_ >= 0) {
      for (const LinkId link : topology_.out_links(source_)) {
        direct_[static_cast<std::size_t>(topology_.dst(link))] = -1;
      }
    }
    source_ = src;
    for (const LinkId link : topology_.out_links(src)) {
      LinkId& direct = direct_[static_cast<std::size_t>(topology_.dst(link))];
      if (direct < 0) direct = link;
    }
  }

  // The first link; a switch may have many, so the node with fewer links is searched.
  LinkId link_between(NodeId src, NodeId dst) const {
    const auto out = topology_.out_links(src), in = topology_.in_links(dst);
    const bool forward = out.size() <= in.size();
    for (const LinkId link : forward ? out : in) {
      ++looked_at_;
      if (forward ? topology_.dst(link) == dst : topology_.src(link) == src) return link;
    }
    return -1;
  }

  // One hop between two NPUs: their link, or the two links of a switch that both plug into.
  bool append_hop(NodeId src, NodeId dst, std::vector<LinkId>& out) const {
    if (const LinkId direct = link_between(src, dst); direct >= 0) {
      out.push_back(direct);
      return true;
    }
    for (const LinkId up : topology_.out_links(src)) {
      if (topology_.is_npu(topology_.dst(up))) continue;
      if (const LinkId down = link_between(topology_.dst(up), dst); down >= 0) {
        out.push_back(up);
        out.push_back(down);
        return true;
      }
    }
    return false;
  }

  bool append_by_dimension(NodeId src, NodeId dst, std::vector<LinkId>& out) const {
    NodeId at = src;
    std::int32_t stride = 1;
    for (const auto& [kind, size] : topology_.spec().dims) {
      const std::int32_t to = dst / stride % size;
      const bool stepwise = kind == "ring" || kind == "line";
      for (std::int32_t here = at / stride % size; here != to; here = at / stride % size) {
        std::int32_t next = to;
        if (stepwise) {
          const std::int32_t ahead = (to - here + size) % size;
          const bool up = kind == "line" ? to > here : 2 * ahead <= size;
          next = (here + (up ? 1 : size - 1)) % size;
        }
        const NodeId then = at + (next - here) * stride;
        if (!append_hop(at, then, out)) return false;
        at = then;
      }
      stride *= size;
    }
    return true;
  }

  void append_fewest_hops(NodeId src, NodeId dst, std::vector<LinkId>& out) {
    if (src != tree_root_) grow_tree(src);
    if (into_[static_cast<std::size_t>(dst)] < 0) {
      throw InfeasibleError(topology_.name(src) + " cannot reach " + topology_.name(dst));
    }
    const auto before = static_cast<std::ptrdiff_t>(out.size());
    for (NodeId node = dst; node != src;
         node = topology_.src(into_[static_cast<std::size_t>(node)])) {
      out.push_back(into_[static_cast<std::size_t>(node)]);
    }
    std::reverse(out.begin() + before, out.end());
  }

  void grow_tree(NodeId root) {  // breadth first, links in order of id
    tree_root_ = root;
    into_.assign(static_cast<std::size_t>(topology_.nodes()), -1);
    looked_at_ += into_.size();
    std::vector<NodeId> queue{root};
    for (std::size_t head = 0; head < queue.size(); ++head) {
      for (const LinkId link : topology_.out_links(queue[head])) {
        ++looked_at_;
        const NodeId next = topology_.dst(link);
        if (next == root || into_[static_cast<std::size_t>(next)] >= 0) continue;
        into_[static_cast<std::size_t>(next)] = link;
        queue.push_back(next);
      }
    }
  }

  const Topology& topology_;
  PortRoutes ports_;
  bool by_dimension_ = false;
  NodeId source_ = -1;
  std::vector<LinkId> direct_;  // of source_: the first link to each node, or -1
  mutable std::size_t looked_at_ = 0;
  NodeId tree_root_ = -1;
  std::vector<LinkId> into_;  // of the tree rooted at tree_root_: the link that reaches each node
};

}  // namespace

Routes shortest_routes(std::shared_ptr<const Topology> topology, std::span<const NodeId> src,
                       std::span<const NodeId> dst, const Progress& progress) {
  if (src.size() != dst.size()) invalid("the numbers of sources and destinations must be equal");
  for (std::size_t i = 0; i < src.size(); ++i) {
    for (const NodeId npu : {src[i], dst[i]}) {
      if (npu < 0 || npu >= topology->npus()) {
        invalid("NPU " + std::to_string(npu) + " is not one of 0 to " +
                std::to_string(topology->npus() - 1));
      }
    }
    if (src[i] == dst[i]) invalid("a route from NPU " + std::to_string(src[i]) + " to itself");
  }
  // Pairs are visited by source, so that one tree serves all pairs of a source.
  std::vector<std::size_t> order(src.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return src[a] < src[b]; });
  Router router(*topology);
  std::vector<LinkId> found;
  std::vector<std::pair<std::size_t, std::size_t>> where(src.size());
  std::vector<std::uint8_t> kinds(src.size());
  std::size_t done = 0, looked_at = 0;
  for (const std::size_t i : order) {
    if ((++done & 0xffff) == 0) {
      progress(static_cast<double>(done) / static_cast<double>(order.size()));
    }
    const auto begin = found.size();
    kinds[i] = static_cast<std::uint8_t>(router.append_route(src[i], dst[i], found));
    looked_at += router.take_looked_at() + found.size() - begin + 1;
    if (looked_at > 0xffff || done == order.size()) {
      progress.spend(static_cast<double>(std::exchange(looked_at, 0)) * work::kStep);
    }
    where[i] = {begin, found.size()};
  }
  std::vector<LinkId> links;
  links.reserve(found.size());
  std::vector<std::int64_t> link_begin{0};
  link_begin.reserve(src.size() + 1);
  for (const auto& [begin, end] : where) {
    links.insert(links.end(), found.begin() + static_cast<std::ptrdiff_t>(begin),
                 found.begin() + static_cast<std::ptrdiff_t>(end));
    link_begin.push_back(static_cast<std::int64_t>(links.size()));
  }
  return Routes(std::move(topology), std::move(kinds), std::move(link_begin), std::move(links));
}

}  // namespace tacos
