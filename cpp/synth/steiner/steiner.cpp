#include "synth/steiner/steiner.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "support/error.hpp"
#include "support/index.hpp"
#include "synth/both_ways.hpp"
#include "synth/forest/chunks.hpp"
#include "synth/path_table.hpp"
#include "synth/steiner/trees.hpp"

namespace tacos {

namespace {

using steiner::Tree;
using steiner::TreeDemand;
using steiner::Way;

constexpr std::size_t kMostTrees = 2048;  // more hardly balance better (measured)

// The trees to grow, and the tree and the turn of each chunk.
struct Demands {
  std::vector<TreeDemand> demands;
  std::vector<std::size_t> tree_of;                        // by chunk; 0 if it does not move
  std::vector<std::pair<std::int64_t, ChunkId>> in_order;  // turns and chunks that move
};

TreeDemand demand_of(const Collective& collective, ChunkId chunk) {
  const auto inputs = collective.inputs(chunk), outputs = collective.outputs(chunk);
  TreeDemand demand;
  demand.bytes = collective.bytes(chunk);
  if (!collective.reduces(chunk)) {
    demand.way = Way::down;
    demand.root = inputs[0];
    demand.terminals.assign(outputs.begin(), outputs.end());
  } else if (outputs.size() == 1) {
    demand.way = Way::up;
    demand.root = outputs[0];
    demand.terminals.assign(inputs.begin(), inputs.end());
  } else {
    demand.way = Way::both;
    demand.terminals.assign(inputs.begin(), inputs.end());
    demand.terminals.insert(demand.terminals.end(), outputs.begin(), outputs.end());
    std::sort(demand.terminals.begin(), demand.terminals.end());
    demand.terminals.erase(std::unique(demand.terminals.begin(), demand.terminals.end()),
                           demand.terminals.end());
  }
  return demand;
}

// Chunks of a part with the same root share trees, in turns, if there are too many chunks.
Demands demands_of(const Collective& collective) {
  Demands result;
  std::map<std::pair<std::size_t, NodeId>, std::vector<ChunkId>> alike;
  for (ChunkId chunk = 0; chunk < collective.chunks(); ++chunk) {
    if (collective.outputs(chunk).empty()) continue;
    const auto root =
        collective.reduces(chunk)
            ? (collective.outputs(chunk).size() == 1 ? collective.outputs(chunk)[0] : -1)
            : collective.inputs(chunk)[0];
    alike[{collective.part_of(chunk), root}].push_back(chunk);
  }
  std::size_t most = 0;
  for (const auto& [key, chunks] : alike) most = std::max(most, chunks.size());
  result.tree_of.assign(collective.chunks(), 0);
  for (const auto& [key, chunks] : alike) {
    const auto trees = std::min(chunks.size(), std::max<std::size_t>(1, kMostTrees / alike.size()));
    const auto first = result.demands.size();
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      if (i < trees) {
        result.demands.push_back(demand_of(collective, chunks[i]));
      } else {
        ++result.demands[first + i % trees].chunks;
      }
      result.tree_of[chunks[i]] = first + i % trees;
      // A root with fewer chunks starts them at larger intervals.
      result.in_order.emplace_back(static_cast<std::int64_t>(i * most / chunks.size()), chunks[i]);
    }
  }
  std::stable_sort(result.in_order.begin(), result.in_order.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  return result;
}

class MoveList {
 public:
  MoveList(const Topology& topology, const std::vector<LinkId>& back,
           const std::vector<TreeDemand>& demands, const std::vector<Tree>& trees)
      : topology_(topology),
        back_(back),
        depth_(at(topology.npus()), 0),
        into_(at(topology.npus()), -1) {
    for (std::size_t i = 0; i < trees.size(); ++i) {
      depth_[at(trees[i].root)] = 0;
      for (const auto& hop : trees[i].hops) {
        const auto [top, end] = ends(hop, demands[i].way);
        depth_[at(end)] = depth_[at(top)] + 1;
        highest_ = std::max(highest_, depth_[at(end)]);
      }
    }
  }

  void add(ChunkId chunk, std::int64_t turn, Way way, const Tree& tree) {
    depth_[at(tree.root)] = 0;
    into_[at(tree.root)] = -1;
    std::vector<std::vector<std::int32_t>> below(tree.hops.size() +
                                                 1);  // sums into each hop's end; last: the root
    std::vector<std::size_t> hop_into(at(topology_.npus()), tree.hops.size());
    for (std::size_t i = 0; i < tree.hops.size(); ++i) {
      const auto [top, end] = ends(tree.hops[i], way);
      depth_[at(end)] = depth_[at(top)] + 1;
      hop_into[at(end)] = i;
    }
    if (way != Way::down) {
      for (std::size_t i = tree.hops.size(); i-- > 0;) {
        const auto [top, end] = ends(tree.hops[i], way);
        std::vector<LinkId> path;
        for (auto link = tree.hops[i].rbegin(); link != tree.hops[i].rend(); ++link) {
          path.push_back(way == Way::up ? *link : back_[at(*link)]);
        }
        below[hop_into[at(top)]].push_back(static_cast<std::int32_t>(moves_.route.size()));
        push(path, chunk, highest_ - depth_[at(end)], turn, Op::reduce, below[i]);
      }
    }
    if (way == Way::up) return;
    for (const auto& hop : tree.hops) {
      const auto [top, end] = ends(hop, way);
      std::vector<std::int32_t> after;
      if (top == tree.root) {
        after = below.back();
      } else {
        after.push_back(into_[at(top)]);
      }
      into_[at(end)] = static_cast<std::int32_t>(moves_.route.size());
      push(hop, chunk, highest_ + depth_[at(end)], turn, Op::copy, after);
    }
  }

  Untimed untimed(const std::shared_ptr<const Topology>& topology) && {
    return {std::move(table_).routes(topology), std::move(moves_), std::move(op_)};
  }

 private:
  // The end of a hop that is nearer to the root, and the other one.
  std::pair<NodeId, NodeId> ends(const std::vector<LinkId>& hop, Way way) const {
    if (way == Way::up) return {topology_.dst(hop.front()), topology_.src(hop.back())};
    return {topology_.src(hop.front()), topology_.dst(hop.back())};
  }

  void push(std::span<const LinkId> path, ChunkId chunk, std::int32_t step, std::int64_t turn,
            Op op, const std::vector<std::int32_t>& after) {
    moves_.route.push_back(table_.number(path));
    moves_.chunk.push_back(chunk);
    moves_.step.push_back(step);
    moves_.piece.push_back(static_cast<std::int32_t>(turn));
    const auto ahead = topology_.dst(path.back()) - topology_.src(path.front());
    moves_.turn.push_back(ahead < 0 ? ahead + topology_.npus() : ahead);
    moves_.after.insert(moves_.after.end(), after.begin(), after.end());
    moves_.close();
    op_.push_back(static_cast<std::uint8_t>(op));
  }

  const Topology& topology_;
  const std::vector<LinkId>& back_;
  PathTable table_;
  ForestMoves moves_;
  std::vector<std::uint8_t> op_;
  std::vector<std::int32_t> depth_, into_;
  std::int32_t highest_ = 0;
};

// Transfers are numbered with 31 bits.
void check_count(const Demands& chosen, const std::vector<Tree>& trees) {
  std::int64_t count = 0;
  for (const auto& [turn, chunk] : chosen.in_order) {
    const auto tree = chosen.tree_of[chunk];
    count += std::ssize(trees[tree].hops) * (chosen.demands[tree].way == Way::both ? 2 : 1);
  }
  if (count > std::numeric_limits<std::int32_t>::max()) {
    invalid("the steiner engine would make " + std::to_string(count) +
            " transfers, more than 2^31 - 1; use fewer chunks");
  }
}

}  // namespace

Schedule steiner_schedule(const std::shared_ptr<const Topology>& topology,
                          const std::shared_ptr<const Collective>& collective,
                          const std::string& provenance, const Progress& progress) {
  const auto chosen = demands_of(*collective);
  std::vector<LinkId> back;
  if (std::ranges::any_of(chosen.demands,
                          [](const TreeDemand& demand) { return demand.way == Way::both; })) {
    back = links_back(*topology);
    if (back.empty()) throw InfeasibleError("some link has no opposite link of the same bandwidth");
  }
  const auto packing = steiner::pack(*topology, chosen.demands, back, part_of(progress, 0, 0.5));
  check_count(chosen, packing.trees);
  MoveList listing(*topology, back, chosen.demands, packing.trees);
  for (const auto& [turn, chunk] : chosen.in_order) {
    const auto tree = chosen.tree_of[chunk];
    listing.add(chunk, turn, chosen.demands[tree].way, packing.trees[tree]);
  }
  return timed(std::move(listing).untimed(topology), collective, provenance,
               part_of(progress, 0.5, 1));
}

}  // namespace tacos
