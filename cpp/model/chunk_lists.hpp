// The chunks in the slots of a rank's input and output buffer, in order of their ids.
//
// Parts of named collectives use formulas, since the lists of all ranks would have N² entries. Parts that
// list their chunks' ranks (send_recv, custom) are sorted by rank once, so that a query for all ranks takes
// time proportional to the result.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "model/collective.hpp"

namespace tacos {

class ChunkLists {
 public:
  explicit ChunkLists(const Collective& collective);  // must be resolved and outlive this

  std::vector<ChunkId> inputs(NodeId rank) const { return chunks_of(rank, kIn); }
  std::vector<ChunkId> outputs(NodeId rank) const { return chunks_of(rank, kOut); }
  // The lengths of these lists, without listing chunks where formulas give them.
  std::size_t input_count(NodeId rank) const { return count(rank, kIn); }
  std::size_t output_count(NodeId rank) const { return count(rank, kOut); }

 private:
  static constexpr std::size_t kIn = 0, kOut = 1;
  struct Listed {
    std::vector<std::int64_t> begin;  // per rank, then the number of chunks
    std::vector<ChunkId> chunks;
  };
  struct Part {
    ChunkId first = 0, end = 0;
    bool has_empty = false;  // whether there are chunks without bytes, which no NPU holds
    // Positions of the group's members, sorted.
    std::vector<std::pair<NodeId, std::int32_t>> positions;
    std::array<Listed, 2> listed;  // of send_recv and custom
  };

  Listed sorted_by_rank(const Part& part, std::size_t side) const;
  std::vector<ChunkId> chunks_of(NodeId rank, std::size_t side) const;
  std::size_t count(NodeId rank, std::size_t side) const;
  void append(const CollectivePart& what, const Part& part, NodeId rank, std::size_t side,
              std::vector<ChunkId>& chunks) const;

  const Collective* collective_;
  std::vector<Part> parts_;
};

}  // namespace tacos
