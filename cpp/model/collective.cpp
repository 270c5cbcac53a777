#include "model/collective.hpp"

#include <algorithm>
#include <limits>

namespace tacos {

namespace {

constexpr std::int64_t kLargestSize = std::int64_t{1} << 50;  // a pebibyte; sums stay in 64 bits

// Size of piece i of `total` in `pieces` pieces; the first pieces are larger if it does not divide evenly.
std::int64_t piece(std::int64_t total, std::int64_t pieces, std::int64_t i) {
  return total / pieces + (i < total % pieces ? 1 : 0);
}

__int128 chunk_count(const CollectivePart& part) {  // wide: n·n·c is not checked yet
  const __int128 n = part.members(), c = part.chunks;
  switch (part.traits().unit) {
    case Unit::member:
    case Unit::share:
      return n * c;
    case Unit::pair:
      return n * n * c;
    case Unit::buffer:
      return c;
    case Unit::row:
      return static_cast<__int128>(part.bytes.size()) * c;
  }
  return 0;
}

// The size of all chunks of an even part that divides evenly; 0 for all others.
std::int64_t even_bytes(const CollectivePart& part) {
  if (part.chunks == 0 || !part.traits().even) return 0;
  const bool whole = part.traits().unit == Unit::buffer;
  const std::int64_t pieces = (whole ? 1 : std::int64_t{part.members()}) * part.chunks;
  return part.size % pieces == 0 ? part.size / pieces : 0;
}

std::int64_t bytes_of(const CollectivePart& part, std::int64_t x) {
  const std::int64_t n = part.members(), c = part.chunks;
  const auto& kind = part.traits();
  if (!kind.even) return piece(part.bytes[static_cast<std::size_t>(x / c)], c, x % c);
  switch (kind.unit) {
    case Unit::member:
      return piece(piece(part.size, n, x / c), c, x % c);
    case Unit::share:
      return piece(part.size, n * c, x);
    case Unit::pair:
      return piece(piece(part.size, n, x / c % n), c, x % c);
    case Unit::buffer:
      return piece(part.size, c, x);
    case Unit::row:
      break;
  }
  return 0;
}

std::span<const NodeId> one(const Column<NodeId>& column, std::int64_t i) {
  return column.span().subspan(static_cast<std::size_t>(i), 1);
}

// The NPUs of a row; without `begin` each row has one.
std::span<const NodeId> listed(const Column<std::int64_t>& begin, const Column<NodeId>& nodes,
                               std::int64_t row) {
  if (begin.empty()) return one(nodes, row);
  const auto i = static_cast<std::size_t>(row);
  return nodes.slice(static_cast<std::size_t>(begin[i]), static_cast<std::size_t>(begin[i + 1]));
}

std::span<const NodeId> ends(const CollectivePart& part, std::int64_t x, bool input) {
  const std::int64_t unit = x / part.chunks;
  const bool pairs = part.traits().per_pair();
  switch (input ? part.traits().inputs : part.traits().outputs) {
    case Ends::owner:
      return one(part.group, pairs ? unit / part.members() : unit);
    case Ends::peer:
      return one(part.group, unit % part.members());
    case Ends::root:
      return one(part.group, part.root);
    case Ends::group:
      return part.group.span();
    case Ends::listed:
      return input ? listed(part.input_begin, part.inputs, unit)
                   : listed(part.output_begin, part.outputs, unit);
  }
  return {};
}

std::string at(const CollectivePart& part) { return std::string(part.kind_name()) + ": "; }

}  // namespace

bool CollectivePart::sums() const {
  if (!traits().listed()) return traits().reduces;
  return std::any_of(reduces.begin(), reduces.end(), [](auto one) { return one != 0; });
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
    invalid(at(part) + "chunks is " + std::to_string(part.chunks) + "; it must be positive");
  if (part.size <= 0) {
    invalid(at(part) + "size is " + std::to_string(part.size) + " B; it must be positive");
  }
  if (part.size > kLargestSize) {
    invalid(at(part) + "size is " + std::to_string(part.size) + " B; it must be at most 2^50");
  }
  for (const auto bytes : part.bytes) {
    if (bytes < 0 || bytes > kLargestSize) {
      invalid(at(part) + "a message of " + std::to_string(bytes) + " B; it must have 0 to 2^50 B");
    }
  }
  if (!part.name.empty() && part.kind != CollectiveKind::custom) {
    invalid(at(part) + "only a collective that lists its chunks may have a name of its own");
  }
  if (part.traits().listed()) {
    for (const auto npu : part.inputs) {
      if (!is_npu(npu)) outside(npu);
    }
    for (const auto npu : part.outputs) {
      if (!is_npu(npu)) outside(npu);
    }
    const auto rows = part.bytes.size();
    if (part.kind == CollectiveKind::send_recv) {
      if (part.inputs.size() != rows || part.outputs.size() != rows || !part.input_begin.empty() ||
          !part.output_begin.empty() || !part.reduces.empty()) {
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
          invalid(at(part) + "chunk " + std::to_string(x) + " is not held by any NPU at the start");
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
  if (part.traits().rooted() && (part.root < 0 || part.root >= part.members())) {
    invalid(at(part) + "the root is not in the group");
  }
  if (part.kind == CollectiveKind::all_to_all_v &&
      part.bytes.size() != part.group.size() * part.group.size()) {
    invalid(at(part) + "the size matrix must have one row and column per member (" +
            std::to_string(part.members()) + ")");
  }
}

Collective Collective::with_chunks(std::int32_t chunks) const {
  if (chunks < 1) invalid("chunks is " + std::to_string(chunks) + "; it must be positive");
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
  const auto p = part_of(chunk);
  const auto& part = parts_[p];
  if (!part.traits().listed() || part.reduces.empty()) return part.traits().reduces;
  return part.reduces[(chunk - first_[p]) / static_cast<ChunkId>(part.chunks)] != 0;
}

std::span<const NodeId> Collective::inputs(ChunkId chunk) const {
  const auto p = part_of(chunk);
  const std::int64_t x = chunk - first_[p];
  return bytes_of(parts_[p], x) == 0 ? std::span<const NodeId>() : ends(parts_[p], x, true);
}

std::span<const NodeId> Collective::outputs(ChunkId chunk) const {
  const auto p = part_of(chunk);
  const std::int64_t x = chunk - first_[p];
  return bytes_of(parts_[p], x) == 0 ? std::span<const NodeId>() : ends(parts_[p], x, false);
}

std::int64_t Collective::size() const {
  std::int64_t sum = 0;
  bool alike = true;
  for (const auto& part : parts_) {
    sum += part.size;
    alike = alike && part.kind_name() == parts_[0].kind_name() && part.size == parts_[0].size;
  }
  return alike ? parts_[0].size : sum;
}

double Collective::bus_factor() const {
  const auto factor = [](const CollectivePart& part) {
    return tacos::bus_factor(part.traits().bus, part.members());
  };
  const double first = factor(parts_[0]);
  for (const auto& part : parts_) {
    if (factor(part) != first) return 0.0;
  }
  return first;
}

namespace {

void reverse_rows(CollectivePart& part) {
  if (part.kind == CollectiveKind::custom) {
    if (part.sums()) throw InfeasibleError("a custom collective that reduces has no reverse");
    if (part.inputs.size() != part.bytes.size()) {
      throw InfeasibleError("a custom collective with replicated inputs has no reverse");
    }
    // The reverse of a chunk that was sent to several NPUs is the sum of several contributions.
    part.reduces = std::vector<std::uint8_t>(part.bytes.size(), 1);
    part.name.clear();
  }
  std::swap(part.inputs, part.outputs);
  std::swap(part.input_begin, part.output_begin);
}

void reverse_pairs(CollectivePart& part) {
  if (part.traits().even) return;
  const auto n = part.group.size();
  std::vector<std::int64_t> turned(n * n);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) turned[j * n + i] = part.bytes[i * n + j];
  }
  part.bytes = std::move(turned);
}

}  // namespace

Collective Collective::reversed() const {
  auto parts = parts_;
  for (auto& part : parts) {
    if (part.traits().listed()) reverse_rows(part);
    if (part.traits().per_pair()) reverse_pairs(part);
    part.kind = part.traits().reverse;
  }
  return Collective(npus_, std::move(parts));
}

ChunkId Collective::reversed_chunk(ChunkId chunk) const {
  const auto p = part_of(chunk);
  const auto& part = parts_[p];
  if (!part.traits().per_pair()) return chunk;
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
  const auto& kind = parts_[0].traits();
  if (parts_.size() != 1 || kind.listed()) {
    throw InfeasibleError("only a single named collective has translated chunks");
  }
  if (kind.rooted()) {
    throw InfeasibleError("a " + std::string(kind.name) + " has a root that no symmetry moves");
  }
  return kind.per_pair();
}

}  // namespace tacos
