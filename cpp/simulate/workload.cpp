#include "simulate/workload.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "simulate/hash_order.hpp"

namespace tacos {

namespace {

constexpr std::int64_t kLongestComp = 1'000'000'000'000;  // µs: eleven days
constexpr std::uint32_t kNobody = std::numeric_limits<std::uint32_t>::max();
constexpr int kNodeKinds = 4, kComms = 10;
constexpr const char* kKindNames[] = {"send", "recv", "comp", "coll"};

// How a node is named in messages: by its number within the rank.
std::string name(const WorkloadColumns& c, std::size_t row) {
  return "node " + std::to_string(c.id[row]) + " of rank " + std::to_string(c.rank[row]);
}

}  // namespace

Workload::Workload(WorkloadColumns columns) : c_(std::move(columns)) {
  check_shape();
  for (std::size_t row = 0; row < c_.rank.size(); ++row) check_node(row);
  for (std::int32_t rank = 0; rank < c_.npus; ++rank) check_ids(rank);
  link();
  check_cycles();
}

void Workload::refuse(std::size_t row, const std::string& why) const {
  invalid(name(c_, row) + ": " + why);
}

void Workload::check_shape() const {
  if (c_.npus < 1) invalid("npus is " + std::to_string(c_.npus) + ", it must be at least 1");
  const auto rows = c_.rank.size();
  if (rows > std::numeric_limits<std::uint32_t>::max())
    invalid("a workload has at most 2^32 nodes");
  const std::pair<const char*, std::size_t> sizes[] = {
      {"kind", c_.kind.size()},   {"peer", c_.peer.size()},
      {"bytes", c_.bytes.size()}, {"tag", c_.tag.size()},
      {"comm", c_.comm.size()},   {"duration_us", c_.duration_us.size()},
      {"id", c_.id.size()},       {"on_cpu", c_.on_cpu.size()},
      {"group", c_.group.size()}, {"priority", c_.priority.size()},
      {"dims", c_.dims.size()},   {"dep_begin", c_.dep_begin.size() - 1},
  };
  for (const auto& [column, size] : sizes) {
    if (size != rows) {
      invalid(std::string(column) + " has " + std::to_string(size) + " entries for " +
              std::to_string(rows) + " nodes");
    }
  }
  for (std::size_t row = 0; row < rows; ++row) {
    if (c_.rank[row] < 0 || c_.rank[row] >= c_.npus) {
      invalid("rank is " + std::to_string(c_.rank[row]) + " in row " + std::to_string(row) +
              ", it must be from 0 to " + std::to_string(c_.npus - 1));
    }
    if (row > 0 && c_.rank[row] < c_.rank[row - 1]) {
      invalid("rank falls from " + std::to_string(c_.rank[row - 1]) + " to " +
              std::to_string(c_.rank[row]) + " in row " + std::to_string(row) +
              ", the nodes must be ordered by rank");
    }
  }
  const auto& begin = c_.dep_begin;
  if (begin[0] != 0 || begin[rows] != static_cast<std::int64_t>(c_.dep.size()) ||
      !std::is_sorted(begin.begin(), begin.end())) {
    invalid("dep_begin must ascend from 0 to the number of dependencies");
  }
  for (const auto& [number, members] : c_.groups) {
    const auto what = "group " + std::to_string(number);
    if (number < 1) invalid(what + ": groups are numbered from 1; 0 stands for all ranks");
    if (members.size() < 2) invalid(what + " needs at least two ranks");
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (members[i] < 0 || members[i] >= c_.npus || (i > 0 && members[i] <= members[i - 1])) {
        invalid(what + " must list its ranks in ascending order, each once and below " +
                std::to_string(c_.npus));
      }
    }
  }
}

void Workload::check_node(std::size_t row) const {
  if (c_.kind[row] >= kNodeKinds) {
    refuse(row, "kind is " + std::to_string(c_.kind[row]) +
                    "; it must be 0 (send), 1 (recv), 2 (comp) or 3 (coll)");
  }
  if (c_.id[row] < 0) refuse(row, "id is negative");
  const auto kind = static_cast<NodeKind>(c_.kind[row]);
  if (kind == NodeKind::send || kind == NodeKind::recv) {
    if (c_.peer[row] < 0 || c_.peer[row] >= c_.npus || c_.peer[row] == c_.rank[row]) {
      refuse(row, "peer is " + std::to_string(c_.peer[row]) + ", it must be another rank below " +
                      std::to_string(c_.npus));
    }
    if (c_.tag[row] < 0) refuse(row, "tag is " + std::to_string(c_.tag[row]) + ", below 0");
  }
  if (kind != NodeKind::comp && c_.bytes[row] < 1) {
    refuse(row, "bytes is " + std::to_string(c_.bytes[row]) + ", it must be at least 1");
  }
  if (c_.duration_us[row] < 0 || c_.duration_us[row] > kLongestComp) {
    refuse(row, "duration_us is " + std::to_string(c_.duration_us[row]) +
                    ", it must be from 0 to 10^12");
  }
  if (kind == NodeKind::coll) {
    if (c_.comm[row] >= kComms) {
      refuse(row, "comm is " + std::to_string(c_.comm[row]) + ", it must be from 0 to 9");
    }
    if (c_.group[row] != 0) {
      const auto& members = group(c_.group[row]);
      if (!std::binary_search(members.begin(), members.end(), c_.rank[row])) {
        refuse(row, "group " + std::to_string(c_.group[row]) + " does not hold this rank");
      }
    }
  }
  for (auto i = c_.dep_begin[row]; i < c_.dep_begin[row + 1]; ++i) {
    const auto dep = c_.dep[static_cast<std::size_t>(i)];
    if (dep < 0 || dep >= nodes() || c_.rank[static_cast<std::size_t>(dep)] != c_.rank[row]) {
      refuse(row, "it depends on row " + std::to_string(dep) + ", which is no node of its rank");
    }
  }
}

void Workload::check_ids(std::int32_t rank) const {
  const auto from = std::lower_bound(c_.rank.begin(), c_.rank.end(), rank) - c_.rank.begin();
  const auto to = std::upper_bound(c_.rank.begin(), c_.rank.end(), rank) - c_.rank.begin();
  if (from == to) {
    invalid("rank " + std::to_string(rank) + " has no node; a comp of 0 us will do");
  }
  const auto ids = c_.id.slice(static_cast<std::size_t>(from), static_cast<std::size_t>(to));
  if (std::is_sorted(ids.begin(), ids.end(), std::less_equal<>())) return;
  std::vector<std::int64_t> sorted(ids.begin(), ids.end());
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) {
    invalid("two nodes of rank " + std::to_string(rank) + " have the id " + std::to_string(*twice));
  }
}

const std::vector<std::int32_t>& Workload::group(std::int32_t number) const {
  for (const auto& [known, members] : c_.groups) {
    if (known == number) return members;
  }
  invalid("group " + std::to_string(number) + " is not defined");
}

// Children in the order of a hash set into which they were put one by one, row by row.
void Workload::link() {
  const auto rows = c_.rank.size();
  begin_.assign(static_cast<std::size_t>(c_.npus) + 1, 0);
  for (const auto rank : c_.rank) ++begin_[static_cast<std::size_t>(rank) + 1];
  for (std::size_t r = 1; r < begin_.size(); ++r) begin_[r] += begin_[r - 1];

  parents_.assign(rows, 0);
  child_begin_.assign(rows + 1, 0);
  // A dependency may be named twice; the last row that named each parent tells.
  std::vector<std::uint32_t> named;
  const auto each_edge = [&](auto&& visit) {
    named.assign(rows, kNobody);
    for (std::size_t row = 0; row < rows; ++row) {
      for (auto i = c_.dep_begin[row]; i < c_.dep_begin[row + 1]; ++i) {
        const auto parent = static_cast<std::size_t>(c_.dep[static_cast<std::size_t>(i)]);
        const auto now = static_cast<std::uint32_t>(row);
        if (std::exchange(named[parent], now) != now) visit(parent, row);
      }
    }
  };
  each_edge([&](std::size_t parent, std::size_t row) {
    ++child_begin_[parent + 1];
    ++parents_[row];
  });
  for (std::size_t row = 0; row < rows; ++row) child_begin_[row + 1] += child_begin_[row];
  children_.resize(child_begin_[rows]);
  auto next = child_begin_;
  each_edge([&](std::size_t parent, std::size_t row) {
    children_[next[parent]++] = static_cast<std::uint32_t>(row);
  });
  for (std::size_t row = 0; row < rows; ++row) {
    const auto from = child_begin_[row], to = child_begin_[row + 1];
    if (to - from < 2) continue;
    HashOrder order;
    for (auto i = from; i < to; ++i) order.insert(hash(children_[i]), children_[i]);
    auto out = from;
    order.for_each([&](std::uint32_t child) { children_[out++] = child; });
  }
}

void Workload::check_cycles() const {
  auto left = parents_;
  std::vector<std::uint32_t> free;
  for (std::uint32_t row = 0; row < left.size(); ++row) {
    if (left[row] == 0) free.push_back(row);
  }
  std::size_t done = 0;
  for (; done < free.size(); ++done) {
    for (const auto child : children(free[done])) {
      if (--left[child] == 0) free.push_back(child);
    }
  }
  if (done == left.size()) return;
  // From any node that is left, parents that are left lead back to where one has been.
  std::size_t row = 0;
  while (left[row] == 0) ++row;
  std::vector<std::size_t> path;
  std::vector<bool> seen(left.size(), false);
  while (!seen[row]) {
    seen[row] = true;
    path.push_back(row);
    for (auto i = c_.dep_begin[row]; i < c_.dep_begin[row + 1]; ++i) {
      const auto parent = static_cast<std::size_t>(c_.dep[static_cast<std::size_t>(i)]);
      if (left[parent] > 0) {
        row = parent;
        break;
      }
    }
  }
  path.erase(path.begin(), std::find(path.begin(), path.end(), row));
  std::string ids;
  constexpr std::size_t kShown = 8;
  for (std::size_t i = 0; i < std::min(path.size(), kShown); ++i) {
    ids += (i == 0 ? "" : ", ") + std::to_string(c_.id[path[i]]);
  }
  if (path.size() > kShown) ids += ", …";
  invalid("nodes " + ids + " of rank " + std::to_string(c_.rank[row]) +
          " wait for each other and can never start");
}

std::vector<std::uint32_t> Workload::roots(std::int32_t rank) const {
  // ASTRA-sim puts each node of the file and then its parents into one hash map, and walks that.
  HashOrder map;
  const auto first = begin(rank);
  std::vector<bool> known(end(rank) - first, false);
  const auto add = [&](std::uint32_t row) {
    if (known[row - first]) return;
    known[row - first] = true;
    map.insert(hash(row), row);
  };
  std::vector<std::uint32_t> named(end(rank) - first, kNobody);
  for (auto row = static_cast<std::uint32_t>(first); row < end(rank); ++row) {
    add(row);
    HashOrder parents;
    for (auto i = c_.dep_begin[row]; i < c_.dep_begin[row + 1]; ++i) {
      const auto parent = static_cast<std::uint32_t>(c_.dep[static_cast<std::size_t>(i)]);
      if (std::exchange(named[parent - first], row) != row) parents.insert(hash(parent), parent);
    }
    parents.for_each(add);
  }
  std::vector<std::uint32_t> found;
  map.for_each([&](std::uint32_t row) {
    if (parents_[row] == 0) found.push_back(row);
  });
  return found;
}

std::string Workload::describe(std::size_t row) const {
  std::string text(kKindNames[c_.kind[row]]);
  text.append(" ").append(name(c_, row));
  if (kind(row) == NodeKind::send || kind(row) == NodeKind::recv) {
    text.append(kind(row) == NodeKind::send ? " (to rank " : " (from rank ");
    text.append(std::to_string(c_.peer[row])).append(", tag ").append(std::to_string(c_.tag[row]));
    text.append(", ").append(std::to_string(c_.bytes[row])).append(" B)");
  }
  return text;
}

}  // namespace tacos
