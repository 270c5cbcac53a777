#include "synth/forest/growth.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "support/error.hpp"
#include "support/index.hpp"
#include "support/work.hpp"

namespace tacos::forest {

namespace {

constexpr std::size_t kRemembered = 256;  // narrow sets (chosen)
constexpr double kSlowest = 1e15;         // largest time of a chunk on a link, in ps
constexpr std::size_t kEntries = 4;       // cells that cost as much as testing a link against a set
constexpr std::int64_t kShare = 4;        // prefer hops that carry at least 1/4 of the tree weight

// The arcs are the links, then arcs from a source to every node, from a node that represents the current tree to
// every node, and from the source to that node.
MaxFlow network(const Topology& topology) {
  const auto& spec = topology.spec();
  const NodeId source = topology.nodes(), tree = source + 1;
  std::vector<NodeId> from(spec.link_src.begin(), spec.link_src.end());
  std::vector<NodeId> to(spec.link_dst.begin(), spec.link_dst.end());
  for (const NodeId origin : {source, tree}) {
    for (NodeId node = 0; node < topology.nodes(); ++node) {
      from.push_back(origin);
      to.push_back(node);
    }
  }
  from.push_back(source);
  to.push_back(tree);
  return MaxFlow(topology.nodes() + 2, from, to);
}

}  // namespace

bool Growth::Later::operator()(const Hop& a, const Hop& b) const {
  return std::forward_as_tuple(a.arrival, a.path.size(), a.to, a.from, a.path) >
         std::forward_as_tuple(b.arrival, b.path.size(), b.to, b.from, b.path);
}

Growth::Growth(const Topology& topology, std::span<const std::int64_t> capacity,
               std::span<const NodeId> members)
    : topology_(topology),
      members_(members.begin(), members.end()),
      is_member_(at(topology.nodes()), 0),
      left_(capacity.begin(), capacity.end()),
      rest_(at(topology.nodes()), 0),
      flow_(network(topology)),
      uses_(at(topology.links()), 0),
      arrival_(at(topology.nodes()), -1),
      search_(topology.nodes()) {
  for (const NodeId member : members_) is_member_[at(member)] = 1;
  Time longest = 1;
  std::int64_t fastest = 1;
  for (LinkId link = 0; link < topology.links(); ++link) {
    longest = std::max(longest, topology.latency(link));
    fastest = std::max(fastest, topology.bandwidth(link));
  }
  for (LinkId link = 0; link < topology.links(); ++link) {
    const double times =
        static_cast<double>(fastest) / static_cast<double>(topology.bandwidth(link));
    slowness_.push_back(
        static_cast<Time>(std::min(static_cast<double>(longest) * times, kSlowest)));
  }
}

void Growth::wants(NodeId root, std::int64_t weight) {
  rest_[at(root)] += weight;
  rest_total_ += weight;
}

void Growth::plant(NodeId root) {
  tree_ = {root, rest_[at(root)], {}};
  rest_total_ -= tree_.weight;
  rest_[at(root)] = 0;
  std::fill(uses_.begin(), uses_.end(), 0);
  looked_at_ += uses_.size() + arrival_.size();
  std::fill(arrival_.begin(), arrival_.end(), -1);
  arrival_[at(root)] = 0;
  queue_.clear();
  partial_.clear();
  for (auto& narrow : narrow_) narrow.holds_tree = narrow.inside[at(root)] != 0;
}

std::optional<Tree> Growth::tree(NodeId root, const Progress& progress) {
  plant(root);
  offer(root);
  while (tree_.hops.size() + 1 < members_.size()) {
    if (progress) progress(0);
    spend(progress);
    if (!queue_.empty()) {
      std::pop_heap(queue_.begin(), queue_.end(), Later());
      Hop hop = std::move(queue_.back());
      queue_.pop_back();
      if (joined(hop.to)) continue;
      const auto whole = std::ranges::all_of(hop.path, [&](LinkId l) { return left_[at(l)] > 0; });
      if (!whole) {
        if (hop.path.size() > 1) offer(hop.from, hop.path[0], hop.to);
        continue;
      }
      const Amount most = room(hop);
      const Amount amount = kShare * most < tree_.weight ? most : limit(hop);
      if (kShare * amount >= tree_.weight) {
        accept(hop, amount);
      } else if (amount > 0) {
        partial_.push_back(std::move(hop));
      }
      continue;
    }
    // No hop carries enough, so reduce the tree's weight as little as possible.
    std::size_t best = partial_.size();
    Amount most = 0;
    for (std::size_t i = 0; i < partial_.size(); ++i) {
      if (joined(partial_[i].to) || room(partial_[i]) <= most) continue;
      const Amount amount = limit(partial_[i]);
      if (amount > most) {
        most = amount;
        best = i;
      }
    }
    if (best == partial_.size()) {
      shrink(0);
      return std::nullopt;
    }
    const Hop hop = std::move(partial_[best]);
    queue_ = std::move(partial_);
    partial_.clear();
    queue_.erase(queue_.begin() + static_cast<std::ptrdiff_t>(best));
    std::erase_if(queue_, [&](const Hop& other) { return other.path.empty() || joined(other.to); });
    std::make_heap(queue_.begin(), queue_.end(), Later());
    accept(hop, most);
  }
  return std::move(tree_);
}

void Growth::spend(const Progress& progress) {
  progress.spend(static_cast<double>(search_.take_offers()) * work::kVisit +
                 static_cast<double>(flow_.take_visits()) * work::kArc +
                 static_cast<double>(std::exchange(looked_at_, 0)) * work::kCell);
}

void Growth::offer(NodeId from) {
  for (const LinkId link : topology_.out_links(from)) offer(from, link);
}

// Finds hops through nodes that are not members, by latency, or directly to a member.
void Growth::offer(NodeId from, LinkId first, NodeId only) {
  if (left_[at(first)] == 0) return;
  search_.clear();
  const auto reach = [&](LinkId link, const Way& before) {
    const NodeId node = topology_.dst(link);
    if (node == from || (is_member_[at(node)] && joined(node))) return;
    const Time latency = before.latency + topology_.latency(link);
    const Time slowest = std::max(before.slowest, slowness_[at(link)]);
    search_.offer(node, latency + slowest, {latency, slowest, link});
  };
  reach(first, {arrival_[at(from)]});
  while (const auto found = search_.next()) {
    const NodeId node = *found;
    if (!is_member_[at(node)]) {
      const Way way = search_.mark(node);
      for (const LinkId link : topology_.out_links(node)) {
        if (left_[at(link)] > 0) reach(link, way);
      }
      continue;
    }
    if (only >= 0 && node != only) continue;
    Hop hop{search_.key(node), from, node, {}};
    for (NodeId back = node; back != from; back = topology_.src(hop.path.back())) {
      hop.path.push_back(search_.mark(back).into);
    }
    std::reverse(hop.path.begin(), hop.path.end());
    queue_.push_back(std::move(hop));
    std::push_heap(queue_.begin(), queue_.end(), Later());
  }
}

Growth::Amount Growth::room(const Hop& hop) const {
  Amount amount = tree_.weight;
  for (const LinkId link : hop.path) amount = std::min(amount, left_[at(link)]);
  looked_at_ += narrow_.size() * hop.path.size() * kEntries;
  for (const auto& narrow : narrow_) {
    const auto lost = losses(hop, narrow);
    if (lost > 0) amount = std::min(amount, narrow.slack / lost);
  }
  return amount;
}

Growth::Amount Growth::limit(const Hop& hop) {
  Amount amount = std::min(room(hop), limit_by_flow(hop));
  if (hop.path.size() > 1 && amount > 0) amount = limit_inside(hop, amount);
  return amount;
}

// Minimizes over sets that contain the hop's end but not its start. The current tree's own source is left out: a set
// that the tree has not reached has room for its weight, which it needs anyway.
Growth::Amount Growth::limit_by_flow(const Hop& hop) {
  const auto links = at(topology_.links()), nodes = at(topology_.nodes());
  const Amount enough = rest_total_ + tree_.weight;
  for (std::size_t l = 0; l < links; ++l) flow_.set_capacity(l, left_[l]);
  for (std::size_t v = 0; v < nodes; ++v) {
    flow_.set_capacity(links + v, rest_[v]);
    flow_.set_capacity(links + nodes + v, 0);
  }
  flow_.set_capacity(links + 2 * nodes, 0);
  flow_.set_capacity(links + at(hop.from), enough);
  const Amount flow = flow_.run(topology_.nodes(), hop.to, enough);
  if (flow < enough) {
    Set inside = flow_.sink_side();
    inside.resize(nodes);
    remember(std::move(inside));
  }
  return flow - rest_total_;
}

Growth::Amount Growth::limit_inside(const Hop& hop, Amount amount) {
  const auto links = at(topology_.links()), nodes = at(topology_.nodes());
  // A path can enter a set at most at every second node.
  const auto most_entries = static_cast<Amount>((hop.path.size() + 1) / 2);
  const Amount total = rest_total_ + tree_.weight;
  for (std::size_t i = 0; i < members_.size() && amount > 0;) {
    for (std::size_t l = 0; l < links; ++l) {
      flow_.set_capacity(l, left_[l] + (tree_.weight - amount) * uses_[l]);
    }
    for (const LinkId link : hop.path) {
      flow_.set_capacity(at(link),
                         left_[at(link)] + (tree_.weight - amount) * uses_[at(link)] - amount);
    }
    for (std::size_t v = 0; v < nodes; ++v) {
      flow_.set_capacity(links + v, rest_[v]);
      const bool inside = (is_member_[v] && arrival_[v] >= 0) || hop.to == static_cast<NodeId>(v);
      flow_.set_capacity(links + nodes + v, inside ? total : 0);
    }
    flow_.set_capacity(links + at(tree_.root), rest_[at(tree_.root)] + tree_.weight - amount);
    flow_.set_capacity(links + 2 * nodes, amount);
    if (keeps_enough(hop, amount)) break;
    Amount lacking = 0;
    for (; i < members_.size() && lacking == 0; ++i) {
      lacking = total - flow_.run(topology_.nodes(), members_[i], total);
    }
    if (lacking == 0) break;
    Set inside = flow_.sink_side();
    inside.resize(nodes);
    remember(std::move(inside));
    amount -= std::max<Amount>(1, (lacking + most_entries - 1) / most_entries);
    amount = std::min(amount, room(hop));
    i = 0;
  }
  return std::max<Amount>(amount, 0);
}

// Before the hop every set had enough, so only sets that the path enters can lack any: for each of its links, the sets
// with the link's end but not its start. Sets without members are included, which need nothing: if one of them has
// less, the answer is false although the hop may be possible.
bool Growth::keeps_enough(const Hop& hop, Amount amount) {
  const auto links = at(topology_.links());
  const Amount total = rest_total_ + tree_.weight;
  return std::ranges::all_of(hop.path, [&](LinkId link) {
    const NodeId start = topology_.src(link);
    const Amount own = rest_[at(start)] + (start == tree_.root ? tree_.weight - amount : 0);
    flow_.set_capacity(links + at(start), total);
    const bool enough = flow_.run(topology_.nodes(), topology_.dst(link), total) >= total;
    flow_.set_capacity(links + at(start), own);
    return enough;
  });
}

void Growth::accept(const Hop& hop, Amount amount) {
  if (amount < tree_.weight) shrink(amount);
  for (auto& narrow : narrow_) {
    narrow.slack -= tree_.weight * losses(hop, narrow);
    narrow.holds_tree |= narrow.inside[at(hop.to)] != 0;
  }
  for (const LinkId link : hop.path) {
    left_[at(link)] -= tree_.weight;
    ++uses_[at(link)];
  }
  arrival_[at(hop.to)] = hop.arrival;
  tree_.hops.push_back(hop.path);
  offer(hop.to);
}

// Returns capacity that the tree no longer uses; weight 0 removes the tree.
void Growth::shrink(Amount weight) {
  const Amount less = tree_.weight - weight;
  tree_.weight = weight;
  rest_[at(tree_.root)] += less;
  rest_total_ += less;
  for (std::size_t l = 0; l < left_.size(); ++l) left_[l] += less * uses_[l];
  looked_at_ += left_.size();
  for (auto& narrow : narrow_) narrow.slack = slack(narrow.inside);
}

void Growth::remember(Set inside) {
  const bool known =
      std::ranges::any_of(narrow_, [&](const Narrow& narrow) { return narrow.inside == inside; });
  if (known) return;
  Narrow narrow{std::move(inside), 0, false};
  narrow.slack = slack(narrow.inside);
  for (std::size_t v = 0; v < narrow.inside.size(); ++v) {
    narrow.holds_tree |= narrow.inside[v] && is_member_[v] && arrival_[v] >= 0;
  }
  if (narrow_.size() >= kRemembered) narrow_.erase(narrow_.begin());
  narrow_.push_back(std::move(narrow));
}

Growth::Amount Growth::slack(const Set& inside) const {
  looked_at_ += left_.size() + inside.size();
  Amount result = 0;
  bool holds_tree = false;
  for (LinkId link = 0; link < topology_.links(); ++link) {
    if (inside[at(topology_.dst(link))] && !inside[at(topology_.src(link))]) {
      result += left_[at(link)];
    }
  }
  for (std::size_t v = 0; v < inside.size(); ++v) {
    if (!inside[v]) result -= rest_[v];
    holds_tree |= inside[v] && is_member_[v] && arrival_[v] >= 0;
  }
  return holds_tree ? result : result - tree_.weight;
}

std::int64_t Growth::entries(const Hop& hop, const Set& inside) const {
  std::int64_t count = 0;
  for (const LinkId link : hop.path) {
    count += inside[at(topology_.dst(link))] && !inside[at(topology_.src(link))];
  }
  return count;
}

// The number of times that the hop enters the set, beyond what the tree needs there.
std::int64_t Growth::losses(const Hop& hop, const Narrow& narrow) const {
  const auto count = entries(hop, narrow.inside);
  return count - (!narrow.holds_tree && narrow.inside[at(hop.to)]);
}

// Repeating the tree with its weight divided by the number of images is always possible: the result is the average of
// states that each add a single image.
std::int64_t Growth::repeat(const Tree& tree, std::span<const NodeId> roots,
                            std::span<const LinkId> links_used, std::span<const NodeId> enough) {
  const auto links = at(topology_.links()), nodes = at(topology_.nodes());
  tree_ = {tree.root, 0, {}};
  for (const auto& hop : tree.hops) {
    for (const LinkId link : hop) left_[at(link)] += tree.weight;
  }
  rest_[at(tree.root)] += tree.weight;
  rest_total_ += tree.weight;
  std::vector<Amount> used(links, 0);
  for (const LinkId link : links_used) ++used[at(link)];
  const auto possible = [&](Amount amount) {
    for (std::size_t l = 0; l < links; ++l) {
      if (left_[l] < amount * used[l]) return false;
      flow_.set_capacity(l, left_[l] - amount * used[l]);
    }
    for (std::size_t v = 0; v < nodes; ++v) {
      flow_.set_capacity(links + v, rest_[v]);
      flow_.set_capacity(links + nodes + v, 0);
    }
    flow_.set_capacity(links + 2 * nodes, 0);
    for (const NodeId root : roots) {
      if (rest_[at(root)] < amount) return false;
      flow_.set_capacity(links + at(root), rest_[at(root)] - amount);
    }
    const Amount total = rest_total_ - amount * static_cast<Amount>(roots.size());
    return std::ranges::all_of(enough, [&](NodeId member) {
      return flow_.run(topology_.nodes(), member, total) >= total;
    });
  };
  Amount low = tree.weight / static_cast<Amount>(roots.size()), high = tree.weight;
  if (possible(high)) low = high;
  while (low + 1 < high) {
    const Amount middle = low + (high - low) / 2;
    (possible(middle) ? low : high) = middle;
  }
  for (std::size_t l = 0; l < links; ++l) left_[l] -= low * used[l];
  for (const NodeId root : roots) rest_[at(root)] -= low;
  rest_total_ -= low * static_cast<Amount>(roots.size());
  for (auto& narrow : narrow_) narrow.slack = slack(narrow.inside);
  return low;
}

Tree Growth::fastest_tree(NodeId root) {
  plant(root);
  std::fill(left_.begin(), left_.end(), Amount{1} << 60);
  narrow_.clear();
  offer(root);
  while (tree_.hops.size() + 1 < members_.size()) {
    std::pop_heap(queue_.begin(), queue_.end(), Later());
    const Hop hop = std::move(queue_.back());
    queue_.pop_back();
    if (!joined(hop.to)) accept(hop, tree_.weight);
  }
  return std::move(tree_);
}

}  // namespace tacos::forest
