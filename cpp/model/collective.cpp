#include "model/collective.hpp"

#include <algorithm>
#include <array>
#include <limits>

namespace tacos {

namespace {

constexpr std::array<std::string_view, 11> kNames = {
    "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "all_to_all_v", "broadcast",
    "reduce",     "gather",         "scatter",    "send_recv",  "custom"};

constexpr std::int64_t kLargestSize = std::int64_t{1} << 50;  // a pebibyte; sums stay in 64 bits

// Piece i of `total` cut into `pieces`; the first ones take the remainder.
std::int64_t piece(std::int64_t total, std::int64_t pieces, std::int64_t i) {
  return total / pieces + (i < total % pieces ? 1 : 0);
}

bool rooted(CollectiveKind kind) {
  using enum CollectiveKind;
  return kind == broadcast || kind == reduce || kind == gather || kind == scatter;
}

bool explicit_rows(CollectiveKind kind) {
  return kind == CollectiveKind::send_recv || kind == CollectiveKind::custom;
}

__int128 chunk_count(const CollectivePart& part) {  // wide: n·n·c may be anything yet
  using enum CollectiveKind;
  const __int128 n = part.members(), c = part.chunks;
  switch (part.kind) {
    case all_gather:
    case reduce_scatter:
    case all_reduce:
    case gather:
    case scatter:
      return n * c;
    case all_to_all:
    case all_to_all_v:
      return n * n * c;
    case broadcast:
    case reduce:
      return c;
    case send_recv:
      return static_cast<__int128>(part.bytes.size()) * c;
    case custom:
      return static_cast<__int128>(part.bytes.size());
  }
  return 0;
}

// The size of all chunks of a named part that divides evenly; 0 for all others.
std::int64_t even_bytes(const CollectivePart& part) {
  using enum CollectiveKind;
  if (part.chunks == 0 || explicit_rows(part.kind) || part.kind == all_to_all_v) return 0;
  const bool whole = part.kind == broadcast || part.kind == reduce;
  const std::int64_t pieces = (whole ? 1 : std::int64_t{part.members()}) * part.chunks;
  return part.size % pieces == 0 ? part.size / pieces : 0;
}

std::int64_t bytes_of(const CollectivePart& part, std::int64_t x) {
  using enum CollectiveKind;
  const std::int64_t n = part.members(), c = part.chunks;
  switch (part.kind) {
    case all_gather:
    case reduce_scatter:
    case gather:
    case scatter:
      return piece(piece(part.size, n, x / c), c, x % c);
    case all_reduce:
      return piece(part.size, n * c, x);
    case all_to_all:
      return piece(piece(part.size, n, x / c % n), c, x % c);
    case all_to_all_v:
    case send_recv:
      return piece(part.bytes[static_cast<std::size_t>(x / c)], c, x % c);
    case broadcast:
    case reduce:
      return piece(part.size, c, x);
    case custom:
      return part.bytes[static_cast<std::size_t>(x)];
  }
  return 0;
}

std::span<const NodeId> one(const Column<NodeId>& column, std::int64_t i) {
  return column.span().subspan(static_cast<std::size_t>(i), 1);
}

std::span<const NodeId> listed(const Column<std::int64_t>& begin, const Column<NodeId>& nodes,
                               std::int64_t x) {
  const auto i = static_cast<std::size_t>(x);
  return nodes.slice(static_cast<std::size_t>(begin[i]), static_cast<std::size_t>(begin[i + 1]));
}

std::string at(const CollectivePart& part) { return std::string(name_of(part.kind)) + ": "; }

}  // namespace

std::string_view name_of(CollectiveKind kind) { return kNames[static_cast<std::size_t>(kind)]; }

CollectiveKind collective_kind(std::string_view name) {
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  if (found == kNames.end()) invalid("unknown collective \"" + std::string(name) + "\"");
  return static_cast<CollectiveKind>(found - kNames.begin());
}

Collective::Collective(std::int32_t npus, std::vector<CollectivePart> parts)
    : npus_(npus), parts_(std::move(parts)) {
  if (npus_ < 1) invalid("a collective needs at least one NPU, not " + std::to_string(npus_));
  if (parts_.empty()) invalid("a collective needs at least one part");
  resolved_ = true;
  std::int64_t total = 0;
  for (const auto& part : parts_) {
    check(part);
    first_.push_back(static_cast<ChunkId>(total));
    resolved_ = resolved_ && part.chunks > 0;
    const auto count = chunk_count(part);
    if (count >= std::numeric_limits<ChunkId>::max() - total) {
      invalid(at(part) + "too many chunks; a collective has fewer than 2^32");
    }
    total += static_cast<std::int64_t>(count);
  }
  first_.push_back(static_cast<ChunkId>(total));
  uniform_bytes_ = even_bytes(parts_[0]);
  for (const auto& part : parts_) {
    if (even_bytes(part) != uniform_bytes_) uniform_bytes_ = 0;
  }
}

void Collective::check(const CollectivePart& part) const {
  const auto is_npu = [&](NodeId npu) { return npu >= 0 && npu < npus_; };
  const auto outside = [&](NodeId npu) {
    invalid(at(part) + "NPU " + std::to_string(npu) + " is not one of 0 to " +
            std::to_string(npus_ - 1));
  };
  if (part.chunks < 0)
    invalid(at(part) + "chunks is " + std::to_string(part.chunks) + ", it must be positive");
  if (part.size <= 0) {
    invalid(at(part) + "size is " + std::to_string(part.size) + " B, it must be positive");
  }
  if (part.size > kLargestSize) {
    invalid(at(part) + "size is " + std::to_string(part.size) + " B; it must be at most 2^50");
  }
  for (const auto bytes : part.bytes) {
    if (bytes < 0 || bytes > kLargestSize) {
      invalid(at(part) + "a message of " + std::to_string(bytes) + " B; it must have 0 to 2^50 B");
    }
  }
  if (explicit_rows(part.kind)) {
    for (const auto npu : part.inputs) {
      if (!is_npu(npu)) outside(npu);
    }
    for (const auto npu : part.outputs) {
      if (!is_npu(npu)) outside(npu);
    }
    const auto rows = part.bytes.size();
    if (part.kind == CollectiveKind::send_recv) {
      if (part.inputs.size() != rows || part.outputs.size() != rows) {
        invalid(at(part) + "the columns differ in length");
      }
      return;
    }
    const auto csr = [&](const Column<std::int64_t>& begin, const Column<NodeId>& nodes) {
      return begin.size() == rows + 1 && begin[0] == 0 &&
             std::is_sorted(begin.begin(), begin.end()) &&
             begin[rows] == static_cast<std::int64_t>(nodes.size());
    };
    if (part.reduces.size() != rows || !csr(part.input_begin, part.inputs) ||
        !csr(part.output_begin, part.outputs)) {
      invalid(at(part) + "the columns do not describe the same number of chunks");
    }
    std::vector<NodeId> sorted;
    for (std::size_t x = 0; x < rows; ++x) {
      for (const bool input : {true, false}) {
        const auto nodes =
            input ? listed(part.input_begin, part.inputs, static_cast<std::int64_t>(x))
                  : listed(part.output_begin, part.outputs, static_cast<std::int64_t>(x));
        sorted.assign(nodes.begin(), nodes.end());
        std::sort(sorted.begin(), sorted.end());
        const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
        if (twice != sorted.end()) {
          invalid(at(part) + "chunk " + std::to_string(x) + " lists NPU " + std::to_string(*twice) +
                  " twice as an " + (input ? "input" : "output"));
        }
        if (input && nodes.empty()) {
          invalid(at(part) + "chunk " + std::to_string(x) + " is held by nobody at the start");
        }
      }
    }
    return;
  }
  if (part.group.empty()) invalid(at(part) + "the group has no NPU");
  std::vector<bool> seen(static_cast<std::size_t>(npus_));
  for (const auto npu : part.group) {
    if (!is_npu(npu)) outside(npu);
    if (seen[static_cast<std::size_t>(npu)]) {
      invalid(at(part) + "NPU " + std::to_string(npu) + " is twice in the group");
    }
    seen[static_cast<std::size_t>(npu)] = true;
  }
  if (rooted(part.kind) && (part.root < 0 || part.root >= part.members())) {
    invalid(at(part) + "the root is not in the group");
  }
  if (part.kind == CollectiveKind::all_to_all_v &&
      part.bytes.size() != part.group.size() * part.group.size()) {
    invalid(at(part) + "the size matrix must have one row and column per member (" +
            std::to_string(part.members()) + ")");
  }
}

Collective Collective::with_chunks(std::int32_t chunks) const {
  if (chunks < 1) invalid("chunks is " + std::to_string(chunks) + ", it must be positive");
  auto parts = parts_;
  for (auto& part : parts) {
    if (part.chunks == 0) part.chunks = chunks;
  }
  return Collective(npus_, std::move(parts));
}

Collective Collective::resized(std::int64_t size) const {
  const __int128 whole = this->size();
  const auto scaled = [&](std::int64_t bytes) {
    return static_cast<std::int64_t>((static_cast<__int128>(bytes) * size + whole - 1) / whole);
  };
  auto parts = parts_;
  for (auto& part : parts) {
    part.size = scaled(part.size);
    std::vector<std::int64_t> bytes(part.bytes.begin(), part.bytes.end());
    std::transform(bytes.begin(), bytes.end(), bytes.begin(), scaled);
    part.bytes = std::move(bytes);
  }
  return Collective(npus_, std::move(parts));
}

std::size_t Collective::part_of(ChunkId chunk) const {
  if (parts_.size() == 1) return 0;
  const auto after = std::upper_bound(first_.begin(), first_.end() - 1, chunk);
  return static_cast<std::size_t>(after - first_.begin()) - 1;
}

std::int64_t Collective::cut_bytes(ChunkId chunk) const {
  const auto p = part_of(chunk);
  return bytes_of(parts_[p], chunk - first_[p]);
}

bool Collective::reduces(ChunkId chunk) const {
  using enum CollectiveKind;
  const auto p = part_of(chunk);
  const auto& part = parts_[p];
  if (part.kind == custom) return part.reduces[chunk - first_[p]] != 0;
  return part.kind == reduce_scatter || part.kind == all_reduce || part.kind == reduce;
}

std::span<const NodeId> Collective::inputs(ChunkId chunk) const {
  using enum CollectiveKind;
  const auto p = part_of(chunk);
  const auto& part = parts_[p];
  const std::int64_t x = chunk - first_[p];
  if (bytes_of(part, x) == 0) return {};
  switch (part.kind) {
    case all_gather:
    case gather:
      return one(part.group, x / part.chunks);
    case all_to_all:
    case all_to_all_v:
      return one(part.group, x / part.chunks / part.members());
    case broadcast:
    case scatter:
      return one(part.group, part.root);
    case reduce_scatter:
    case all_reduce:
    case reduce:
      return part.group.span();
    case send_recv:
      return one(part.inputs, x / part.chunks);
    case custom:
      return listed(part.input_begin, part.inputs, x);
  }
  return {};
}

std::span<const NodeId> Collective::outputs(ChunkId chunk) const {
  using enum CollectiveKind;
  const auto p = part_of(chunk);
  const auto& part = parts_[p];
  const std::int64_t x = chunk - first_[p];
  if (bytes_of(part, x) == 0) return {};
  switch (part.kind) {
    case all_gather:
    case all_reduce:
    case broadcast:
      return part.group.span();
    case reduce_scatter:
    case scatter:
      return one(part.group, x / part.chunks);
    case all_to_all:
    case all_to_all_v:
      return one(part.group, x / part.chunks % part.members());
    case reduce:
    case gather:
      return one(part.group, part.root);
    case send_recv:
      return one(part.outputs, x / part.chunks);
    case custom:
      return listed(part.output_begin, part.outputs, x);
  }
  return {};
}

std::int64_t Collective::size() const {
  std::int64_t sum = 0;
  bool alike = true;
  for (const auto& part : parts_) {
    sum += part.size;
    alike = alike && part.kind == parts_[0].kind && part.size == parts_[0].size;
  }
  return alike ? parts_[0].size : sum;
}

double Collective::bus_factor() const {
  using enum CollectiveKind;
  const auto factor = [](const CollectivePart& part) {
    const double n = part.members();
    switch (part.kind) {
      case all_reduce:
        return 2 * (n - 1) / n;
      case all_gather:
      case reduce_scatter:
      case all_to_all:
      case gather:
      case scatter:
        return (n - 1) / n;
      case broadcast:
      case reduce:
      case send_recv:
        return 1.0;
      case all_to_all_v:
      case custom:
        return 0.0;
    }
    return 0.0;
  };
  const double first = factor(parts_[0]);
  for (const auto& part : parts_) {
    if (factor(part) != first) return 0.0;
  }
  return first;
}

Collective Collective::reversed() const {
  using enum CollectiveKind;
  auto parts = parts_;
  for (auto& part : parts) {
    switch (part.kind) {
      case all_gather:
        part.kind = reduce_scatter;
        break;
      case reduce_scatter:
        part.kind = all_gather;
        break;
      case broadcast:
        part.kind = reduce;
        break;
      case reduce:
        part.kind = broadcast;
        break;
      case gather:
        part.kind = scatter;
        break;
      case scatter:
        part.kind = gather;
        break;
      case all_reduce:
      case all_to_all:
        break;
      case all_to_all_v: {
        const auto n = part.group.size();
        std::vector<std::int64_t> turned(n * n);
        for (std::size_t i = 0; i < n; ++i) {
          for (std::size_t j = 0; j < n; ++j) turned[j * n + i] = part.bytes[i * n + j];
        }
        part.bytes = std::move(turned);
        break;
      }
      case send_recv:
        std::swap(part.inputs, part.outputs);
        break;
      case custom:
        for (const auto reduces : part.reduces) {
          if (reduces) throw InfeasibleError("a custom collective that reduces has no reverse");
        }
        if (part.inputs.size() != part.bytes.size()) {
          throw InfeasibleError("a custom collective with replicated inputs has no reverse");
        }
        std::swap(part.inputs, part.outputs);
        std::swap(part.input_begin, part.output_begin);
        // A chunk that went to several NPUs comes back from several: their sum.
        part.reduces = std::vector<std::uint8_t>(part.bytes.size(), 1);
        break;
    }
  }
  return Collective(npus_, std::move(parts));
}

ChunkId Collective::reversed_chunk(ChunkId chunk) const {
  using enum CollectiveKind;
  const auto p = part_of(chunk);
  const auto& part = parts_[p];
  if (part.kind != all_to_all && part.kind != all_to_all_v) return chunk;
  const std::int64_t x = chunk - first_[p], n = part.members(), c = part.chunks;
  const std::int64_t i = x / c / n, j = x / c % n;
  return first_[p] + static_cast<ChunkId>((j * n + i) * c + x % c);
}

std::vector<std::int32_t> Collective::positions() const {
  std::vector<std::int32_t> position(static_cast<std::size_t>(npus_), -1);
  for (std::size_t i = 0; i < parts_[0].group.size(); ++i) {
    position[static_cast<std::size_t>(parts_[0].group[i])] = static_cast<std::int32_t>(i);
  }
  return position;
}

bool Collective::has_pairs() const {
  using enum CollectiveKind;
  const auto kind = parts_[0].kind;
  if (parts_.size() != 1 || explicit_rows(kind)) {
    throw InfeasibleError("only a single named collective has translated chunks");
  }
  if (kind == all_to_all || kind == all_to_all_v) return true;
  if (kind == all_gather || kind == reduce_scatter || kind == all_reduce) return false;
  throw InfeasibleError("a " + std::string(name_of(kind)) + " has a root that no symmetry moves");
}

}  // namespace tacos
