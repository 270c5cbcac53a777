#include "simulate/astra_setup.hpp"

#include <algorithm>
#include <bit>
#include <set>
#include <string>
#include <tuple>

#include "support/error.hpp"
#include "support/index.hpp"

namespace tacos::astra {

namespace {

constexpr std::size_t kMostDims = 4;  // dimensions of a collective that names none

bool native(Comm comm) {
  return comm == Comm::all_reduce || comm == Comm::all_gather || comm == Comm::reduce_scatter ||
         comm == Comm::all_to_all;
}

// ASTRA-sim ends with an error if a message or collective has no bytes.
void check_messages(const Workload& workload) {
  const auto& bytes = workload.columns().bytes;
  for (std::size_t row = 0; row < at(workload.nodes()); ++row) {
    const bool talks = workload.kind(row) < NodeKind::load && workload.kind(row) != NodeKind::comp;
    if (talks && bytes[row] < 1) {
      invalid(workload.describe(row) + ": bytes is 0, ASTRA-sim needs at least 1");
    }
  }
}

}  // namespace

void check(const std::vector<Dimension>& dims, const Workload& workload,
           const std::vector<std::shared_ptr<const Workload>>& algorithms,
           const Column<std::int32_t>& algorithm_of, const System& system) {
  const auto& c = workload.columns();
  if (system.replay_only) return;  // nothing is sent
  const auto& memory = system.memory;
  if (memory.kind != MemoryKind::none && !(memory.bytes_per_ns > 0)) {
    invalid("the remote memory has no bandwidth, so that loads and stores would never end");
  }
  for (const auto& algorithm : algorithms) {
    check_messages(*algorithm);
    for (std::size_t row = 0; row < at(algorithm->nodes()); ++row) {
      if (algorithm->kind(row) < NodeKind::coll) continue;
      invalid(algorithm->describe(row) +
              " cannot run inside a custom collective, which has only sends, recvs and comps");
    }
  }
  check_messages(workload);
  for (std::size_t row = 0; row < at(workload.nodes()); ++row) {
    if (workload.kind(row) == NodeKind::load || workload.kind(row) == NodeKind::store) {
      if (memory.kind == MemoryKind::none) {
        invalid(workload.describe(row) +
                " needs a memory outside of the NPU, which the simulated system does not have");
      }
      if (memory.kind == MemoryKind::per_node &&
          (memory.npus_per_node < 1 || c.rank[row] / memory.npus_per_node >= memory.nodes)) {
        invalid(workload.describe(row) + " belongs to none of the " + std::to_string(memory.nodes) +
                " nodes of " + std::to_string(memory.npus_per_node) +
                " NPUs that have a remote memory");
      }
    }
    const auto comm = static_cast<Comm>(c.comm[row]);
    if (workload.kind(row) != NodeKind::coll || comm == Comm::broadcast) continue;
    if (!native(comm)) {
      invalid(workload.describe(row) + ": ASTRA-sim has no reduce, gather, scatter or barrier");
    }
    const auto members =
        c.group[row] == 0 ? at(workload.npus()) : workload.group(c.group[row]).size();
    if (members < 2) {
      invalid(workload.describe(row) + " is one of a single rank, which ASTRA-sim never finishes");
    }
    if (algorithm_of[row] >= 0) {
      const auto npus = algorithms[at(algorithm_of[row])]->npus();
      if (at(npus) != members) {
        invalid(workload.describe(row) + " is one of " + std::to_string(members) +
                " ranks, its algorithm is for " + std::to_string(npus));
      }
      if (system.splits != 1)
        invalid("splits is " + std::to_string(system.splits) +
                ", with a custom collective it must be 1");
      continue;
    }
    const auto& list = system.of(comm);
    if (list.empty()) {
      invalid(workload.describe(row) + ": the system has no implementation of this collective");
    }
    const bool sums = comm == Comm::all_reduce || comm == Comm::reduce_scatter;
    if (sums && !(system.memory_Bps > 0)) {
      invalid(workload.describe(row) + " sums in a local memory whose bandwidth is not given");
    }
    if (list.empty() || list.size() > dims.size() || dims.size() > kMostDims) {
      invalid("a collective needs an implementation for each of 1 to " + std::to_string(kMostDims) +
              " dimensions, here " + std::to_string(list.size()) + " for " +
              std::to_string(dims.size()));
    }
    const bool part = members != at(workload.npus());
    for (std::size_t dim = 0; dim < list.size(); ++dim) {
      const auto size = part              ? static_cast<std::int32_t>(members)
                        : list[dim].whole ? workload.npus()
                                          : dims[dim].size;
      const bool tree = list[dim].algorithm == Algorithm::double_binary_tree;
      const bool halving = list[dim].algorithm == Algorithm::halving_doubling;
      if (halving && comm == Comm::all_to_all) invalid("halvingDoubling makes no all-to-all");
      if (tree && part && list.size() == 1)
        invalid("doubleBinaryTree works on whole dimensions, not on groups");
      if ((tree || halving) && !(part && list.size() > 1) &&
          !std::has_single_bit(static_cast<unsigned>(size))) {
        invalid(std::string(tree ? "doubleBinaryTree" : "halvingDoubling") +
                " needs a power of two, dimension " + std::to_string(dim) + " has " +
                std::to_string(size) + " ranks");
      }
    }
  }
}

namespace {

void add_all_pairs(const std::vector<std::int32_t>& ranks, Pairs& pairs) {
  for (const auto a : ranks) {
    for (const auto b : ranks) {
      if (a != b) pairs.emplace_back(a, b);
    }
  }
}

void add_messages(const Workload& workload, const std::vector<std::int32_t>* members,
                  Pairs& pairs) {
  const auto& c = workload.columns();
  const auto rank = [&](std::int32_t r) { return members == nullptr ? r : (*members)[at(r)]; };
  for (std::size_t row = 0; row < at(workload.nodes()); ++row) {
    if (workload.kind(row) == NodeKind::send) {
      pairs.emplace_back(rank(c.rank[row]), rank(c.peer[row]));
    } else if (workload.kind(row) == NodeKind::recv) {
      pairs.emplace_back(rank(c.peer[row]), rank(c.rank[row]));
    }
  }
}

}  // namespace

Pairs pairs_that_talk(const std::vector<Dimension>& dims, const Workload& workload,
                      const std::vector<std::shared_ptr<const Workload>>& algorithms,
                      const Column<std::int32_t>& algorithm_of, const System& system) {
  Pairs pairs;
  add_messages(workload, nullptr, pairs);
  const auto& c = workload.columns();
  std::set<std::tuple<std::uint8_t, std::int32_t, std::int32_t>> seen;
  for (std::size_t row = 0; row < at(workload.nodes()); ++row) {
    if (workload.kind(row) != NodeKind::coll) continue;
    if (!seen.emplace(c.comm[row], c.group[row], algorithm_of[row]).second) continue;
    const auto* members = c.group[row] == 0 ? nullptr : &workload.group(c.group[row]);
    if (algorithm_of[row] >= 0) {
      add_messages(*algorithms[at(algorithm_of[row])], members, pairs);
      continue;
    }
    if (members != nullptr) {
      add_all_pairs(*members, pairs);
      continue;
    }
    std::int32_t stride = 1;
    const auto& list = system.of(static_cast<Comm>(c.comm[row]));
    for (std::size_t dim = 0; dim < list.size(); ++dim) {
      const auto size = list[dim].whole ? workload.npus() : dims[dim].size;
      std::vector<std::int32_t> line(at(size));
      for (std::int32_t rank = 0; rank < workload.npus(); ++rank) {
        if (rank / stride % size != 0) continue;
        for (std::int32_t i = 0; i < size; ++i) line[at(i)] = rank + i * stride;
        add_all_pairs(line, pairs);
      }
      stride *= size;
    }
  }
  if (system.rendezvous) {
    const auto count = pairs.size();
    for (std::size_t i = 0; i < count; ++i) pairs.emplace_back(pairs[i].second, pairs[i].first);
  }
  return pairs;
}

}  // namespace tacos::astra
