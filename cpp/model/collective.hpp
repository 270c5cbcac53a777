// A collective: the chunks that each NPU holds at the start, and the chunks or sums that it must hold at the end.
//
// A collective has one or several parts that run at once (several process groups, or different
// collectives sharing the network). Named parts are stored symbolically (kind, group, size, chunks
// per NPU) and answer queries about a chunk in O(1); nothing of size N² is ever stored for them.
//
// Chunk ids are consecutive over the parts. Within a part of n members and c chunks per unit, they are
//   all_gather, reduce_scatter, gather, scatter:  i·c + k          piece k of member i's part
//   all_reduce:                                   x                piece x of n·c, nominal owner x/c
//   all_to_all, all_to_all_v:                     (i·n + j)·c + k  piece k of the block from i to j
//   broadcast, reduce:                            k                piece k of the buffer
//   send_recv, custom:                            row·c + k        piece k of that row
// If a quantity does not divide evenly, the first pieces are larger. A piece of
// zero bytes has neither inputs nor outputs.
//
// Every chunk has inputs (the NPUs that hold a contribution) and outputs (the NPUs that must end
// with its value). If the chunk reduces, the value is the sum of all inputs, each exactly once;
// otherwise the inputs are equal replicas, any of which may be used.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/collective_kind.hpp"
#include "model/topology.hpp"
#include "support/column.hpp"
#include "support/error.hpp"

namespace tacos {

using ChunkId = std::uint32_t;

struct CollectivePart {
  CollectiveKind kind = CollectiveKind::all_gather;
  std::string name;         // custom: name of a kind that lists its chunks; otherwise empty
  Column<NodeId> group;     // members in rank order; empty for send_recv and custom
  std::int64_t size = 0;    // bytes, counted as nccl-tests counts them
  std::int32_t chunks = 0;  // pieces per unit of the list above; 0: not chosen yet
  std::int32_t root = -1;   // position in the group
  // all_to_all_v: n·n sizes, row i has those that member i sends; send_recv and custom: one per row.
  Column<std::int64_t> bytes;
  // send_recv: one input and one output per row; custom: CSR lists per row.
  Column<std::int64_t> input_begin, output_begin;
  Column<NodeId> inputs, outputs;
  Column<std::uint8_t> reduces;  // custom: per row

  const KindTraits& traits() const { return tacos::traits(kind); }
  std::string_view kind_name() const { return name.empty() ? traits().name : name; }
  bool sums() const;  // whether the value of any chunk is a sum
  std::int32_t members() const { return static_cast<std::int32_t>(group.size()); }
  bool operator==(const CollectivePart&) const = default;
};

class Collective {
 public:
  Collective(std::int32_t npus, std::vector<CollectivePart> parts);  // throws std::invalid_argument

  std::int32_t npus() const { return npus_; }
  const std::vector<CollectivePart>& parts() const { return parts_; }
  bool resolved() const { return resolved_; }  // whether every part's chunk count is chosen
  Collective with_chunks(std::int32_t chunks) const;
  // The collective scaled to this size; sizes are rounded up.
  Collective resized(std::int64_t size) const;

  // The functions below need a resolved collective.
  ChunkId chunks() const { return first_.back(); }
  ChunkId first_chunk(std::size_t part) const {
    return first_[part];
  }  // or, past the last, chunks()
  std::size_t part_of(ChunkId chunk) const;
  std::int64_t bytes(ChunkId chunk) const {
    return uniform_bytes_ > 0 ? uniform_bytes_ : cut_bytes(chunk);
  }
  // Bytes of every chunk if all are equal by construction, otherwise 0.
  std::int64_t uniform_bytes() const { return uniform_bytes_; }
  bool reduces(ChunkId chunk) const;
  std::span<const NodeId> inputs(ChunkId chunk) const;   // empty if the chunk has no bytes
  std::span<const NodeId> outputs(ChunkId chunk) const;  // empty if the chunk has no bytes

  // nccl-tests' figures: size is the parts' common size, or their sum if they differ;
  // busbw = algbw · factor, 0 if the parts' factors differ or none is defined.
  std::int64_t size() const;
  double bus_factor() const;

  // The collective with inputs and outputs exchanged: all_gather <-> reduce_scatter, broadcast <->
  // reduce, gather <-> scatter, all_to_all with i and j exchanged. Chunk x corresponds to chunk
  // `reversed_chunk(x)`. Throws if there is no such collective (custom sums).
  Collective reversed() const;
  ChunkId reversed_chunk(ChunkId chunk) const;

  // The image of a chunk under a renumbering of the NPUs: `moved` returns the image of an NPU, and
  // `position` is the inverse of the group, from positions(). Throws unless this is one named
  // part without a root whose group is mapped to itself.
  template <typename Moved>
  ChunkId image(ChunkId chunk, const Moved& moved, std::span<const std::int32_t> position) const {
    const bool pairs = has_pairs();
    const auto& part = parts_[0];
    const auto n = static_cast<ChunkId>(part.members());
    const auto pieces = static_cast<ChunkId>(part.chunks);
    const auto member = [&](ChunkId i) {
      const NodeId npu = moved(part.group[i]);
      const auto to = position[static_cast<std::size_t>(npu)];
      if (to < 0) throw InfeasibleError("the symmetry does not map the process group to itself");
      return static_cast<ChunkId>(to);
    };
    const ChunkId block = chunk / pieces;
    return (pairs ? member(block / n) * n + member(block % n) : member(block)) * pieces +
           chunk % pieces;
  }
  std::vector<std::int32_t> positions() const;  // NPU -> position in the (only) part's group, or -1

  bool operator==(const Collective& other) const {
    return npus_ == other.npus_ && parts_ == other.parts_;
  }

 private:
  void check(const CollectivePart& part) const;
  // Whether chunks belong to pairs of members or to single members; throws if neither.
  bool has_pairs() const;
  std::int64_t cut_bytes(ChunkId chunk) const;

  std::int32_t npus_ = 0;
  std::vector<CollectivePart> parts_;
  std::vector<ChunkId> first_;  // first chunk of each part, then the number of chunks
  bool resolved_ = false;
  std::int64_t uniform_bytes_ = 0;  // see uniform_bytes()
};

}  // namespace tacos
