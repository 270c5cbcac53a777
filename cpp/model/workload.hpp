// A workload: the operations of each rank as a graph of nodes, one row per node.
//
//   send, recv   `bytes` to or from rank `peer`; a send matches the recv with the same ranks, tag and size
//   comp         takes `duration_ps`, or does `flops` operations over `bytes` of memory, whose time
//                the simulated device determines
//   coll         the collective `comm` over `bytes` by all ranks or by a group
//   load, store  move `bytes` from or to a memory outside of the NPU
//
// The rows of a rank are adjacent and ranks ascend. A node starts after all nodes of its rank that it
// depends on.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "support/column.hpp"
#include "support/error.hpp"

namespace tacos {

enum class NodeKind : std::uint8_t { send, recv, comp, coll, load, store };
constexpr int kNodeKinds = 6;

// Chakra's numbers.
enum class Comm : std::uint8_t {
  all_reduce,
  reduce,
  all_gather,
  gather,
  scatter,
  broadcast,
  all_to_all,
  reduce_scatter,
  reduce_scatter_block,
  barrier
};
constexpr int kComms = 10;

// The longest computation, in picoseconds: eleven days.
constexpr std::int64_t kLongestComp_ps = 1'000'000'000'000'000'000;

struct WorkloadColumns {
  std::int32_t npus = 0;
  Column<std::int32_t> rank;
  Column<std::uint8_t> kind;
  Column<std::int32_t> peer;
  Column<std::int64_t> bytes;
  Column<std::int32_t> tag;
  Column<std::int64_t> duration_ps;
  Column<std::int64_t> flops;  // of a comp
  Column<std::uint8_t> comm;
  Column<std::int64_t> id;        // unique within the rank; the lowest ready id starts first
  Column<std::uint8_t> on_cpu;    // 1 for a comp that does not occupy the NPU
  Column<std::int32_t> group;     // for a coll: 0 for all ranks, otherwise a number in `groups`
  Column<std::int32_t> priority;  // for a coll
  Column<std::uint8_t> dims;      // for a coll: bit d is set if it uses dimension d
  Column<std::int32_t> name;      // an index into `names`
  Column<std::int64_t> dep_begin;
  Column<std::int64_t> dep;  // rows
  std::vector<std::pair<std::int32_t, std::vector<std::int32_t>>> groups;
  std::vector<std::string> names;
};

// Numbers names for `WorkloadColumns::names`, in order of first use.
class NameTable {
 public:
  std::int32_t number(std::string_view name) {
    const auto [found, is_new] =
        numbers_.try_emplace(std::string(name), static_cast<std::int32_t>(names_.size()));
    if (is_new) names_.emplace_back(name);
    return found->second;
  }
  std::vector<std::string> take() { return std::move(names_); }

 private:
  std::unordered_map<std::string, std::int32_t> numbers_;
  std::vector<std::string> names_;
};

class Workload {
 public:
  // The only constructor; throws std::invalid_argument. Columns other than rank and kind may be
  // empty: they are filled with defaults (peer -1, dims 255, ids by position, otherwise 0).
  explicit Workload(WorkloadColumns columns);

  const WorkloadColumns& columns() const { return c_; }
  std::int32_t npus() const { return c_.npus; }
  std::int64_t nodes() const { return static_cast<std::int64_t>(c_.rank.size()); }
  NodeKind kind(std::size_t row) const { return static_cast<NodeKind>(c_.kind[row]); }
  // The rows of a rank.
  std::size_t begin(std::int32_t rank) const { return begin_[static_cast<std::size_t>(rank)]; }
  std::size_t end(std::int32_t rank) const { return begin_[static_cast<std::size_t>(rank) + 1]; }
  // The members of a group other than 0.
  const std::vector<std::int32_t>& group(std::int32_t number) const;
  const std::string& name(std::size_t row) const {
    return c_.names[static_cast<std::size_t>(c_.name[row])];
  }

  // "recv node 3 of rank 1 (from rank 0, tag 7, 1024 B)"
  std::string describe(std::size_t row) const;

  bool operator==(const Workload& other) const;

 private:
  void fill();
  void check_shape();
  void check_groups();
  void check_node(std::size_t row) const;
  void check_ids(std::int32_t rank) const;
  void check_cycles() const;
  [[noreturn]] void refuse(std::size_t row, const std::string& why) const;

  WorkloadColumns c_;
  std::vector<std::size_t> begin_;
};

}  // namespace tacos
