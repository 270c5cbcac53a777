#include "synth/forest/orbits.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "support/index.hpp"
#include "synth/forest/balance.hpp"
#include "synth/forest/growth.hpp"
#include "synth/forest/rates.hpp"
#include "synth/forest/translations.hpp"
#include "synth/path_table.hpp"

namespace tacos {

namespace {

using forest::Translations;

constexpr std::int64_t kMostNodes = 1 << 24;    // of all trees together
constexpr Time kWhole = 1'000'000'000'000'000;  // the cost of an orbit's whole capacity

constexpr std::int64_t kFiner = 1 << 16;  // parts of a unit of weight
constexpr NodeId kMostGrown = 64;         // NPUs; more take too long
constexpr std::int64_t kMostTrees = 64;   // of one root

// Collects trees, and merges equal ones.
class Trees {
 public:
  Trees(std::shared_ptr<const Topology> topology, const forest::Rates& rates)
      : topology_(std::move(topology)), depth_(at(topology_->nodes())) {
    forest_.demand_weight = rates.demand_weight;
    forest_.unit_Bps = rates.unit_Bps;
    forest_.unit_parts = rates.unit_parts;
    forest_.tolerance = rates.tolerance;
    forest_.hop_begin.push_back(0);
  }

  void add(const forest::Tree& tree) {
    const auto [found, added] = known_.try_emplace({tree.root, tree.hops}, forest_.root.size());
    if (!added) {
      forest_.weight[found->second] += tree.weight;
      return;
    }
    forest_.root.push_back(tree.root);
    forest_.weight.push_back(tree.weight);
    depth_[at(tree.root)] = 0;
    for (const auto& hop : tree.hops) {
      auto& end = depth_[at(topology_->dst(hop.back()))];
      end = depth_[at(topology_->src(hop.front()))] + 1;
      forest_.depth.push_back(end);
      forest_.hop.push_back(table_.number(hop));
    }
    forest_.hop_begin.push_back(static_cast<std::int64_t>(forest_.hop.size()));
  }

  Forest forest(const Symmetry& symmetry) && {
    forest_.routes = std::move(table_).routes(topology_);
    forest_.symmetry = symmetry;
    return std::move(forest_);
  }

 private:
  std::shared_ptr<const Topology> topology_;
  std::vector<std::int32_t> depth_;
  std::map<std::pair<NodeId, std::vector<std::vector<LinkId>>>, std::size_t> known_;
  PathTable table_;
  Forest forest_;
};

// If all NPUs are images of NPU 0: its trees, balanced over the orbits.
std::optional<Forest> balanced(const std::shared_ptr<const Topology>& topology,
                               const Translations& translations, const forest::Rates& rates,
                               const Progress& progress) {
  const auto hops = forest::hops(topology, translations);
  std::vector<Time> cost(at(translations.orbits())), time;
  for (LinkId link = 0; link < topology->links(); ++link) {
    cost[at(translations.orbit()[at(link)])] = kWhole / rates.capacity[at(link)];
  }
  for (const auto& way : hops.classes) time.push_back(way.latency + 1);
  forest::Balance balance(translations, hops, static_cast<std::int32_t>(rates.demand_weight),
                          std::move(cost), std::move(time));
  balance.relieve(kWhole, progress);
  if (balance.busiest() > kWhole) return std::nullopt;
  Trees trees(topology, rates);
  for (std::int32_t number = 0; number < balance.count(); ++number) {
    forest::Tree tree{0, 1, {}};
    for (const auto& step : balance.tree(number)) {
      auto& path = tree.hops.emplace_back();
      for (const LinkId link : hops.routes->links(step.route)) {
        path.push_back(translations.moved(link, step.from));
      }
    }
    trees.add(tree);
  }
  return std::move(trees).forest(translations.symmetry());
}

// Trees of one NPU of each orbit, each grown alone and then repeated by all its images.
std::optional<Forest> repeated(const std::shared_ptr<const Topology>& topology,
                               const Translations& translations, forest::Rates rates,
                               const Progress& progress) {
  // Use finer units, so that weights can be divided by the number of images several times.
  std::int64_t finer = 1;
  while (finer < kFiner) finer *= translations.order();
  rates.demand_weight *= finer;
  rates.unit_parts *= finer;
  for (auto& capacity : rates.capacity) capacity *= finer;
  std::vector<NodeId> all, bases;
  for (NodeId npu = 0; npu < topology->npus(); ++npu) {
    all.push_back(npu);
    if (translations.base(npu) == npu) bases.push_back(npu);
  }
  forest::Growth growth(*topology, rates.capacity, all);
  for (const NodeId npu : all) growth.wants(npu, rates.demand_weight);
  Trees trees(topology, rates);
  std::int64_t rounds = 0;
  for (bool grew = true; grew;) {
    grew = false;
    if (++rounds > kMostTrees) return std::nullopt;
    for (const NodeId base : bases) {
      if (growth.wanted(base) == 0) continue;
      auto tree = growth.tree(base, progress);
      if (!tree) return std::nullopt;
      std::vector<NodeId> roots;
      std::vector<LinkId> links;
      for (const NodeId npu : all) {
        if (translations.base(npu) != base) continue;
        roots.push_back(npu);
        for (const auto& hop : tree->hops) {
          for (const LinkId link : hop) {
            links.push_back(translations.moved(link, translations.element(npu)));
          }
        }
      }
      tree->weight = growth.repeat(*tree, roots, links, bases);
      growth.spend(progress);
      if (tree->weight == 0) return std::nullopt;
      trees.add(*tree);
      grew = true;
    }
  }
  return std::move(trees).forest(translations.symmetry());
}

}  // namespace

std::optional<Forest> pack_orbits(const std::shared_ptr<const Topology>& topology,
                                  const Progress& progress) {
  std::optional<Forest> found;
  // A smaller group leaves more freedom.
  for (std::size_t first = 0; first < topology->spec().dims.size() && !found; ++first) {
    const auto translations = Translations::of(*topology, first);
    if (!translations) break;
    std::vector<Demand> demands;
    std::vector<NodeId> bases;
    for (NodeId npu = 0; npu < topology->npus(); ++npu) {
      demands.push_back({npu, 1});
      if (translations->base(npu) == npu) bases.push_back(npu);
    }
    // The images of the bases have the same cuts.
    const auto rates = forest::largest_rates(*topology, bases, demands, 0, progress);
    if (!translations->transitive()) {
      if (topology->npus() > kMostGrown) return std::nullopt;
      found = repeated(topology, *translations, rates, progress);
    } else if (rates.demand_weight * topology->npus() <= kMostNodes) {
      found = balanced(topology, *translations, rates, progress);
    }
  }
  return found;
}

bool all_alike(const Topology& topology) {
  const auto translations = Translations::of(topology);
  return translations && translations->transitive();
}

}  // namespace tacos
