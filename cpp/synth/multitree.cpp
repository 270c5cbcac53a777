#include "synth/multitree.hpp"

#include <algorithm>
#include <utility>

#include "support/error.hpp"
#include "support/index.hpp"
#include "support/work.hpp"
#include "synth/path_table.hpp"

namespace tacos {

namespace {

constexpr std::size_t kCountAfter = 1
                                    << 14;  // links looked at, after which work is counted (chosen)

enum class Role : std::uint8_t { relay, waiting, joined };

struct Tree {
  std::vector<Role> role;      // of each node
  std::vector<NodeId> joined;  // in order
  std::size_t rim = 0;         // the neighbours of all nodes before this position have joined
  std::size_t earlier = 0;     // number of nodes that had joined when the step began
  std::size_t waiting = 0;
};

class TreeGrower {
 public:
  explicit TreeGrower(const Topology& topology)
      : topology_(topology),
        busy_until_(at(topology.links()), 0),
        seen_(at(topology.nodes()), 0),
        into_(at(topology.nodes()), -1) {}

  void begin_step() { ++step_; }

  // The links looked at since they were counted as work.
  std::size_t visited() const { return visited_; }
  void spend(const Progress& progress) {
    progress.spend(static_cast<double>(std::exchange(visited_, 0)) * work::kStep);
  }

  // Adds a member; returns the links to it from a node that joined earlier, or none if no free links lead to one.
  std::span<const LinkId> grow(Tree& tree) {
    while (tree.rim < tree.earlier && exhausted(tree, tree.joined[tree.rim])) ++tree.rim;
    for (auto i = tree.rim; i < tree.earlier; ++i) {
      const NodeId from = tree.joined[i];
      const NodeId found = search(tree, from);
      if (found < 0) continue;
      path_.clear();
      for (NodeId node = found; node != from; node = topology_.src(path_.back())) {
        path_.push_back(into_[at(node)]);
        busy_until_[at(path_.back())] = step_;
      }
      std::reverse(path_.begin(), path_.end());
      tree.role[at(found)] = Role::joined;
      tree.joined.push_back(found);
      --tree.waiting;
      return path_;
    }
    return {};
  }

 private:
  bool exhausted(const Tree& tree, NodeId node) const {
    return std::ranges::all_of(topology_.out_links(node), [&](LinkId link) {
      return tree.role[at(topology_.dst(link))] == Role::joined;
    });
  }

  // The nearest waiting member over free links and through relays, or -1; into_ leads back from it.
  NodeId search(const Tree& tree, NodeId from) {
    queue_.assign(1, from);
    ++search_;
    ++visited_;
    for (std::size_t head = 0; head < queue_.size(); ++head) {
      for (const LinkId link : topology_.out_links(queue_[head])) {
        ++visited_;
        const NodeId next = topology_.dst(link);
        if (busy_until_[at(link)] == step_ || seen_[at(next)] == search_) continue;
        const Role role = tree.role[at(next)];
        if (role == Role::joined) continue;
        seen_[at(next)] = search_;
        into_[at(next)] = link;
        if (role == Role::waiting) return next;
        queue_.push_back(next);
      }
    }
    return -1;
  }

  const Topology& topology_;
  std::int32_t step_ = 0;
  std::int64_t search_ = 0;
  std::vector<std::int32_t> busy_until_;  // the last step in which the link was taken
  std::vector<std::int64_t> seen_;        // the last search that visited the node
  std::vector<LinkId> into_, path_;
  std::vector<NodeId> queue_;
  std::size_t visited_ = 0;
};

Tree plant(const Topology& topology, NodeId root, std::span<const NodeId> members) {
  Tree tree;
  tree.role.assign(at(topology.nodes()), Role::relay);
  for (const NodeId member : members) tree.role[at(member)] = Role::waiting;
  tree.role[at(root)] = Role::joined;
  tree.joined.push_back(root);
  tree.waiting =
      static_cast<std::size_t>(std::count(tree.role.begin(), tree.role.end(), Role::waiting));
  return tree;
}

[[noreturn]] void stuck(const Topology& topology, const Tree& tree) {
  const auto waiting = std::find(tree.role.begin(), tree.role.end(), Role::waiting);
  throw InfeasibleError(topology.name(tree.joined[0]) + " cannot reach " +
                        topology.name(static_cast<NodeId>(waiting - tree.role.begin())));
}

void check_nodes(const Topology& topology, std::span<const NodeId> nodes) {
  for (const NodeId node : nodes) {
    if (node < 0 || !topology.is_npu(node)) {
      invalid("NPU " + std::to_string(node) + " is not one of the topology's " +
              std::to_string(topology.npus()));
    }
  }
}

}  // namespace

Trees multitree(const std::shared_ptr<const Topology>& topology, std::span<const NodeId> roots,
                std::span<const std::int64_t> member_begin, std::span<const NodeId> members,
                const Progress& progress) {
  if (member_begin.size() != roots.size() + 1 || member_begin.front() != 0 ||
      !std::is_sorted(member_begin.begin(), member_begin.end()) ||
      member_begin.back() != static_cast<std::int64_t>(members.size())) {
    invalid("member_begin must delimit the members of each tree");
  }
  check_nodes(*topology, roots);
  check_nodes(*topology, members);
  std::vector<Tree> trees;
  std::size_t edges = 0;
  for (std::size_t t = 0; t < roots.size(); ++t) {
    const auto first = at(member_begin[t]);
    trees.push_back(
        plant(*topology, roots[t], members.subspan(first, at(member_begin[t + 1]) - first)));
    edges += trees.back().waiting;
  }
  Trees result;
  PathTable paths;
  TreeGrower growth(*topology);
  std::vector<std::size_t> open,
      growing;  // trees that wait for members; that can grow in this step
  for (std::size_t t = 0; t < trees.size(); ++t) open.push_back(t);
  const auto complete = [&](std::size_t t) { return trees[t].waiting == 0; };
  std::erase_if(open, complete);
  for (std::int32_t step = 0; !open.empty(); ++step) {
    growth.begin_step();
    for (const auto t : open) trees[t].earlier = trees[t].joined.size();
    const auto before = result.tree.size();
    growing = open;
    std::ranges::rotate(growing,
                        growing.begin() + step % static_cast<std::ptrdiff_t>(growing.size()));
    while (!growing.empty()) {
      std::erase_if(growing, [&](std::size_t t) {
        const auto path = growth.grow(trees[t]);
        if (growth.visited() > kCountAfter) growth.spend(progress);
        if (path.empty()) return true;
        result.tree.push_back(static_cast<std::int32_t>(t));
        result.step.push_back(step);
        result.route.push_back(paths.number(path));
        return complete(t);
      });
      growth.spend(progress);
      if (progress) progress(static_cast<double>(result.tree.size()) / static_cast<double>(edges));
    }
    if (result.tree.size() == before) stuck(*topology, trees[open.front()]);
    std::erase_if(open, complete);
  }
  result.routes = std::move(paths).routes(topology);
  return result;
}

}  // namespace tacos
