// A workload: what each rank does, as a graph of nodes. It is what an ASTRA-sim run reads from a set
// of Chakra files, one row per node and the columns named after the Chakra attributes.
//
//   send, recv   `bytes` to or from `peer`; matched by (tag, sender, receiver, bytes), first come
//                first served
//   comp         takes `duration_us`, or 1 ns where that is 0
//   coll         a collective of all ranks or of a group, made by the simulated system
//
// Rows of a rank stand together, ranks ascend. A node starts after all nodes of its rank that it
// depends on.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "support/column.hpp"
#include "support/error.hpp"

namespace tacos {

enum class NodeKind : std::uint8_t { send, recv, comp, coll };

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

struct WorkloadColumns {
  std::int32_t npus = 0;
  Column<std::int32_t> rank;
  Column<std::uint8_t> kind;
  Column<std::int32_t> peer;
  Column<std::int64_t> bytes;
  Column<std::int32_t> tag;
  Column<std::int64_t> duration_us;
  Column<std::uint8_t> comm;
  Column<std::int64_t> id;        // of the node within its rank; only the order and hash count
  Column<std::uint8_t> on_cpu;    // a comp that leaves the NPU free
  Column<std::int32_t> group;     // of a coll: 0 for all ranks, else a number in `groups`
  Column<std::int32_t> priority;  // of a coll, under the policy "explicit"
  Column<std::uint8_t> dims;      // of a coll: bit d set where it uses dimension d
  Column<std::int64_t> dep_begin;
  Column<std::int64_t> dep;  // rows
  std::vector<std::pair<std::int32_t, std::vector<std::int32_t>>> groups;
};

class Workload {
 public:
  explicit Workload(WorkloadColumns columns);  // throws std::invalid_argument

  const WorkloadColumns& columns() const { return c_; }
  std::int32_t npus() const { return c_.npus; }
  std::int64_t nodes() const { return static_cast<std::int64_t>(c_.rank.size()); }
  NodeKind kind(std::size_t row) const { return static_cast<NodeKind>(c_.kind[row]); }
  std::size_t begin(std::int32_t rank) const { return begin_[static_cast<std::size_t>(rank)]; }
  std::size_t end(std::int32_t rank) const { return begin_[static_cast<std::size_t>(rank) + 1]; }
  const std::vector<std::int32_t>& group(std::int32_t number) const;

  std::uint64_t hash(std::size_t row) const { return static_cast<std::uint64_t>(c_.id[row]); }
  // How many nodes a row waits for, and who waits for it, in the order of ASTRA-sim's hash sets.
  std::uint32_t parents(std::size_t row) const { return parents_[row]; }
  std::span<const std::uint32_t> children(std::size_t row) const {
    return std::span(children_).subspan(child_begin_[row],
                                        child_begin_[row + 1] - child_begin_[row]);
  }
  // The rows of a rank that wait for nothing, in the order in which ASTRA-sim finds them.
  std::vector<std::uint32_t> roots(std::int32_t rank) const;

  // "recv node 3 of rank 1 (from rank 0, tag 7, 1024 B)"
  std::string describe(std::size_t row) const;

 private:
  void check_shape() const;
  void check_node(std::size_t row) const;
  void check_ids(std::int32_t rank) const;
  void link();
  void check_cycles() const;
  [[noreturn]] void refuse(std::size_t row, const std::string& why) const;

  WorkloadColumns c_;
  std::vector<std::size_t> begin_;
  std::vector<std::uint32_t> parents_, children_;
  std::vector<std::size_t> child_begin_;
};

}  // namespace tacos
