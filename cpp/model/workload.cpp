#include "model/workload.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

namespace tacos {

namespace {

constexpr const char* kKindNames[] = {"send", "recv", "comp", "coll", "load", "store"};

// How a node is named in messages: by its number within the rank.
std::string name_of(const WorkloadColumns& c, std::size_t row) {
  return "node " + std::to_string(c.id[row]) + " of rank " + std::to_string(c.rank[row]);
}

template <typename T>
void fill_with(Column<T>& column, std::size_t rows, T value) {
  if (column.empty()) column = std::vector<T>(rows, value);
}

}  // namespace

Workload::Workload(WorkloadColumns columns) : c_(std::move(columns)) {
  fill();
  check_shape();
  check_groups();
  for (std::size_t row = 0; row < c_.rank.size(); ++row) check_node(row);
  for (std::int32_t rank = 0; rank < c_.npus; ++rank) check_ids(rank);
  check_cycles();
}

void Workload::refuse(std::size_t row, const std::string& why) const {
  invalid(name_of(c_, row) + ": " + why);
}

void Workload::fill() {
  const auto rows = c_.rank.size();
  fill_with(c_.peer, rows, -1);
  fill_with(c_.bytes, rows, std::int64_t{0});
  fill_with(c_.tag, rows, 0);
  fill_with(c_.duration_ps, rows, std::int64_t{0});
  fill_with(c_.flops, rows, std::int64_t{0});
  fill_with(c_.comm, rows, std::uint8_t{0});
  fill_with(c_.on_cpu, rows, std::uint8_t{0});
  fill_with(c_.group, rows, 0);
  fill_with(c_.priority, rows, 0);
  fill_with(c_.dims, rows, std::uint8_t{255});
  fill_with(c_.name, rows, 0);
  fill_with(c_.dep_begin, rows + 1, std::int64_t{0});
  if (c_.names.empty()) c_.names.emplace_back();
  if (c_.id.empty()) {
    std::vector<std::int64_t> ids(rows, 0);
    for (std::size_t row = 1; row < rows; ++row) {
      ids[row] = c_.rank[row] == c_.rank[row - 1] ? ids[row - 1] + 1 : 0;
    }
    c_.id = std::move(ids);
  }
}

void Workload::check_shape() {
  if (c_.npus < 1) invalid("npus is " + std::to_string(c_.npus) + "; it must be at least 1");
  const auto rows = c_.rank.size();
  if (rows > std::numeric_limits<std::uint32_t>::max())
    invalid("a workload has at most 2^32 - 1 nodes");
  const std::pair<const char*, std::size_t> sizes[] = {
      {"kind", c_.kind.size()},     {"peer", c_.peer.size()},
      {"bytes", c_.bytes.size()},   {"tag", c_.tag.size()},
      {"flops", c_.flops.size()},   {"duration_ps", c_.duration_ps.size()},
      {"comm", c_.comm.size()},     {"id", c_.id.size()},
      {"on_cpu", c_.on_cpu.size()}, {"group", c_.group.size()},
      {"name", c_.name.size()},     {"priority", c_.priority.size()},
      {"dims", c_.dims.size()},     {"dep_begin", c_.dep_begin.size() - 1},
  };
  for (const auto& [column, size] : sizes) {
    if (size != rows) {
      invalid(std::string(column) + " has " + std::to_string(size) + " entries for " +
              std::to_string(rows) + " nodes");
    }
  }
  begin_.assign(static_cast<std::size_t>(c_.npus) + 1, 0);
  for (std::size_t row = 0; row < rows; ++row) {
    if (c_.rank[row] < 0 || c_.rank[row] >= c_.npus) {
      invalid("rank is " + std::to_string(c_.rank[row]) + " in row " + std::to_string(row) +
              "; it must be from 0 to " + std::to_string(c_.npus - 1));
    }
    if (row > 0 && c_.rank[row] < c_.rank[row - 1]) {
      invalid("rank falls from " + std::to_string(c_.rank[row - 1]) + " to " +
              std::to_string(c_.rank[row]) + " in row " + std::to_string(row) +
              "; the nodes must be ordered by rank");
    }
    ++begin_[static_cast<std::size_t>(c_.rank[row]) + 1];
  }
  for (std::size_t r = 1; r < begin_.size(); ++r) begin_[r] += begin_[r - 1];
  const auto& begin = c_.dep_begin;
  if (begin[0] != 0 || begin[rows] != static_cast<std::int64_t>(c_.dep.size()) ||
      !std::is_sorted(begin.begin(), begin.end())) {
    invalid("dep_begin must ascend from 0 to the number of dependencies");
  }
}

void Workload::check_groups() {
  // By number, so that a node finds its group by bisection.
  const auto by_number = [](const auto& a, const auto& b) { return a.first < b.first; };
  if (!std::is_sorted(c_.groups.begin(), c_.groups.end(), by_number)) {
    std::stable_sort(c_.groups.begin(), c_.groups.end(), by_number);
  }
  for (std::size_t g = 0; g < c_.groups.size(); ++g) {
    const auto& [number, members] = c_.groups[g];
    const auto what = "group " + std::to_string(number);
    if (number < 1) invalid(what + ": groups are numbered from 1; 0 stands for all ranks");
    if (g > 0 && c_.groups[g - 1].first == number) invalid(what + " is defined twice");
    if (members.empty()) invalid(what + " has no ranks");
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (members[i] < 0 || members[i] >= c_.npus) {
        invalid(what + " names rank " + std::to_string(members[i]) + ", but the ranks are 0 to " +
                std::to_string(c_.npus - 1));
      }
      if (i > 0 && members[i] <= members[i - 1]) {
        invalid(what + " must list its ranks in ascending order, each once and below " +
                std::to_string(c_.npus));
      }
    }
  }
}

void Workload::check_node(std::size_t row) const {
  if (c_.kind[row] >= kNodeKinds) {
    refuse(row, "kind is " + std::to_string(c_.kind[row]) +
                    "; it must be 0 (send), 1 (recv), 2 (comp), 3 (coll), 4 (load) or 5 (store)");
  }
  if (c_.id[row] < 0) refuse(row, "id is negative");
  const auto kind = static_cast<NodeKind>(c_.kind[row]);
  if (kind == NodeKind::send || kind == NodeKind::recv) {
    if (c_.peer[row] < 0 || c_.peer[row] >= c_.npus || c_.peer[row] == c_.rank[row]) {
      refuse(row, "peer is " + std::to_string(c_.peer[row]) + "; it must be another rank below " +
                      std::to_string(c_.npus));
    }
    if (c_.tag[row] < 0)
      refuse(row, "tag is " + std::to_string(c_.tag[row]) + "; it must be at least 0");
  }
  if (c_.bytes[row] < 0) {
    refuse(row, "bytes is " + std::to_string(c_.bytes[row]) + "; it must be at least 0");
  }
  if (c_.flops[row] < 0) {
    refuse(row, "flops is " + std::to_string(c_.flops[row]) + "; it must be at least 0");
  }
  if (c_.duration_ps[row] < 0 || c_.duration_ps[row] > kLongestComp_ps) {
    refuse(row, "duration_ps is " + std::to_string(c_.duration_ps[row]) +
                    "; it must be from 0 to 10^18");
  }
  if (c_.name[row] < 0 || static_cast<std::size_t>(c_.name[row]) >= c_.names.size()) {
    refuse(row, "name is " + std::to_string(c_.name[row]) + ", but there are " +
                    std::to_string(c_.names.size()) + " names");
  }
  if (kind == NodeKind::coll) {
    if (c_.comm[row] >= kComms) {
      refuse(row, "comm is " + std::to_string(c_.comm[row]) + "; it must be from 0 to 9");
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
      refuse(row, "it depends on row " + std::to_string(dep) + ", which is not a node of its rank");
    }
  }
}

void Workload::check_ids(std::int32_t rank) const {
  const auto from = begin(rank), to = end(rank);
  if (from == to) {
    invalid("rank " + std::to_string(rank) + " has no node; add a comp without a duration");
  }
  const auto ids = c_.id.slice(from, to);
  if (std::is_sorted(ids.begin(), ids.end(), std::less_equal<>())) return;
  std::vector<std::int64_t> sorted(ids.begin(), ids.end());
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) {
    invalid("two nodes of rank " + std::to_string(rank) + " have the id " + std::to_string(*twice));
  }
}

const std::vector<std::int32_t>& Workload::group(std::int32_t number) const {
  const auto found =
      std::lower_bound(c_.groups.begin(), c_.groups.end(), number,
                       [](const auto& group, std::int32_t wanted) { return group.first < wanted; });
  if (found != c_.groups.end() && found->first == number) return found->second;
  invalid("group " + std::to_string(number) + " is not defined");
}

void Workload::check_cycles() const {
  enum : std::uint8_t { kUnseen, kOnPath, kDone };
  std::vector<std::uint8_t> state(c_.rank.size(), kUnseen);
  std::vector<std::pair<std::size_t, std::int64_t>> path;  // row, its next dependency
  for (std::size_t start = 0; start < state.size(); ++start) {
    if (state[start] != kUnseen) continue;
    state[start] = kOnPath;
    path.assign(1, {start, c_.dep_begin[start]});
    while (!path.empty()) {
      auto& [row, next] = path.back();
      if (next == c_.dep_begin[row + 1]) {
        state[row] = kDone;
        path.pop_back();
        continue;
      }
      const auto before = static_cast<std::size_t>(c_.dep[static_cast<std::size_t>(next++)]);
      if (state[before] == kDone) continue;
      if (state[before] == kUnseen) {
        state[before] = kOnPath;
        path.emplace_back(before, c_.dep_begin[before]);
        continue;
      }
      const auto from = std::find_if(path.begin(), path.end(),
                                     [&](const auto& step) { return step.first == before; });
      constexpr std::ptrdiff_t kShown = 8;
      std::string ids;
      for (auto i = from; i < path.end() && i - from < kShown; ++i) {
        ids += (i == from ? "" : ", ") + std::to_string(c_.id[i->first]);
      }
      if (path.end() - from > kShown) ids += ", …";
      invalid("nodes " + ids + " of rank " + std::to_string(c_.rank[before]) +
              " wait for each other and can never start");
    }
  }
}

std::string Workload::describe(std::size_t row) const {
  std::string text(kKindNames[c_.kind[row]]);
  text.append(" ").append(name_of(c_, row));
  if (kind(row) == NodeKind::send || kind(row) == NodeKind::recv) {
    text.append(kind(row) == NodeKind::send ? " (to rank " : " (from rank ");
    text.append(std::to_string(c_.peer[row])).append(", tag ").append(std::to_string(c_.tag[row]));
    text.append(", ").append(std::to_string(c_.bytes[row])).append(" B)");
  }
  return text;
}

bool Workload::operator==(const Workload& other) const {
  const auto& a = c_;
  const auto& b = other.c_;
  return a.npus == b.npus && a.rank == b.rank && a.kind == b.kind && a.peer == b.peer &&
         a.bytes == b.bytes && a.tag == b.tag && a.duration_ps == b.duration_ps &&
         a.flops == b.flops && a.comm == b.comm && a.id == b.id && a.on_cpu == b.on_cpu &&
         a.group == b.group && a.priority == b.priority && a.dims == b.dims && a.name == b.name &&
         a.dep_begin == b.dep_begin && a.dep == b.dep && a.groups == b.groups && a.names == b.names;
}

}  // namespace tacos
