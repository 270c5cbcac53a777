#include "model/chunk_lists.hpp"

#include <algorithm>

#include "support/index.hpp"

namespace tacos {

ChunkLists::ChunkLists(const Collective& collective) : collective_(&collective) {
  for (std::size_t p = 0; p < collective.parts().size(); ++p) {
    const auto& what = collective.parts()[p];
    auto& part = parts_.emplace_back();
    part.first = collective.first_chunk(p);
    part.end = collective.first_chunk(p + 1);
    if (what.traits().listed()) {
      for (const auto side : {kIn, kOut}) part.listed[side] = sorted_by_rank(part, side);
      continue;
    }
    // The last piece of a quantity is the smallest.
    part.has_empty =
        !what.traits().even || (part.end > part.first && collective.bytes(part.end - 1) == 0);
    for (std::int32_t i = 0; i < what.members(); ++i) {
      part.positions.emplace_back(what.group[at(i)], i);
    }
    std::sort(part.positions.begin(), part.positions.end());
  }
}

ChunkLists::Listed ChunkLists::sorted_by_rank(const Part& part, std::size_t side) const {
  const auto members = [&](ChunkId chunk) {
    return side == kIn ? collective_->inputs(chunk) : collective_->outputs(chunk);
  };
  Listed listed;
  listed.begin.resize(at(collective_->npus()) + 1, 0);
  for (ChunkId chunk = part.first; chunk < part.end; ++chunk) {
    for (const NodeId rank : members(chunk)) ++listed.begin[at(rank) + 1];
  }
  for (std::size_t r = 1; r < listed.begin.size(); ++r) listed.begin[r] += listed.begin[r - 1];
  listed.chunks.resize(at(listed.begin.back()));
  auto next = listed.begin;
  for (ChunkId chunk = part.first; chunk < part.end; ++chunk) {
    for (const NodeId rank : members(chunk)) listed.chunks[at(next[at(rank)]++)] = chunk;
  }
  return listed;
}

std::vector<ChunkId> ChunkLists::chunks_of(NodeId rank, std::size_t side) const {
  std::vector<ChunkId> chunks;
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    append(collective_->parts()[p], parts_[p], rank, side, chunks);
  }
  return chunks;
}

std::size_t ChunkLists::count(NodeId rank, std::size_t side) const {
  std::size_t total = 0;
  std::vector<ChunkId> chunks;
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    const auto& what = collective_->parts()[p];
    const bool all = (side == kIn ? what.traits().inputs : what.traits().outputs) == Ends::group;
    const auto& [first, end, has_empty, positions, listed] = parts_[p];
    if (all && !has_empty && !what.traits().listed()) {
      const auto found =
          std::lower_bound(positions.begin(), positions.end(), std::pair(rank, std::int32_t{0}));
      if (found != positions.end() && found->first == rank) total += end - first;
      continue;
    }
    chunks.clear();
    append(what, parts_[p], rank, side, chunks);
    total += chunks.size();
  }
  return total;
}

void ChunkLists::append(const CollectivePart& what, const Part& part, NodeId rank, std::size_t side,
                        std::vector<ChunkId>& chunks) const {
  if (what.traits().listed()) {
    const auto& [begin, listed] = part.listed[side];
    chunks.insert(chunks.end(), listed.begin() + begin[at(rank)],
                  listed.begin() + begin[at(rank) + 1]);
    return;
  }
  const auto found = std::lower_bound(part.positions.begin(), part.positions.end(),
                                      std::pair(rank, std::int32_t{0}));
  if (found == part.positions.end() || found->first != rank) return;
  const auto n = static_cast<ChunkId>(what.members()), pieces = static_cast<ChunkId>(what.chunks);
  const auto position = static_cast<ChunkId>(found->second);
  const auto add = [&](ChunkId first, ChunkId count) {
    for (ChunkId chunk = part.first + first; chunk < part.first + first + count; ++chunk) {
      if (!part.has_empty || collective_->bytes(chunk) > 0) chunks.push_back(chunk);
    }
  };
  const bool pairs = what.traits().per_pair();
  switch (side == kIn ? what.traits().inputs : what.traits().outputs) {
    case Ends::owner:
      return pairs ? add(position * n * pieces, n * pieces) : add(position * pieces, pieces);
    case Ends::peer:
      for (ChunkId i = 0; i < n; ++i) add((i * n + position) * pieces, pieces);
      return;
    case Ends::root:
      if (found->second != what.root) return;
      [[fallthrough]];
    case Ends::group:
      return add(0, part.end - part.first);
    case Ends::listed:
      return;
  }
}

}  // namespace tacos
