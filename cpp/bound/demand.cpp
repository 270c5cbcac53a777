#include "bound/demand.hpp"

#include <algorithm>
#include <numeric>

#include "support/index.hpp"

namespace tacos {

namespace {

using enum CollectiveKind;

// Piece i of `total` cut into `pieces`; the first ones take the remainder.
std::int64_t piece(std::int64_t total, std::int64_t pieces, std::int64_t i) {
  return total / pieces + (i < total % pieces ? 1 : 0);
}

std::int64_t largest_piece(std::int64_t total, std::int64_t pieces) {
  return pieces == 0 ? 0 : piece(total, pieces, 0);
}

constexpr std::int64_t kLargestDemand = std::int64_t{1}
                                        << 60;  // of one NPU, in the search for cuts

// `times` blocks of `total` bytes, each cut into `pieces` (0: not chosen).
void add(Crossing& result, std::int64_t total, std::int64_t pieces, std::int64_t times) {
  result.bytes += static_cast<__int128>(total) * times;
  if (pieces == 0 || times == 0) return;
  const auto small = total / pieces, large_ones = total % pieces;
  if (large_ones > 0) result.chunks[small + 1] += large_ones * times;
  if (small > 0) result.chunks[small] += (pieces - large_ones) * times;
}

// Members inside a set, by whether their piece of the buffer has a byte of the remainder.
struct Count {
  std::int64_t more = 0, less = 0;
  std::int64_t all() const { return more + less; }
};

Count count(const CollectivePart& part, const NodeSet& inside) {
  Count result;
  const auto remainder = at(part.size % part.members());
  for (std::size_t i = 0; i < part.group.size(); ++i) {
    if (inside[at(part.group[i])]) ++(i < remainder ? result.more : result.less);
  }
  return result;
}

Count rest(const CollectivePart& part, Count inside) {
  const auto remainder = part.size % part.members();
  return {remainder - inside.more, part.members() - remainder - inside.less};
}

// The pieces of `members` members, `times` over.
void add(Crossing& result, const CollectivePart& part, Count members, std::int64_t times) {
  const auto small = part.size / part.members();
  add(result, small + 1, part.chunks, members.more * times);
  add(result, small, part.chunks, members.less * times);
}

std::span<const NodeId> inputs(const CollectivePart& part, std::size_t chunk) {
  return part.inputs.slice(at(part.input_begin[chunk]), at(part.input_begin[chunk + 1]));
}

std::span<const NodeId> outputs(const CollectivePart& part, std::size_t chunk) {
  return part.outputs.slice(at(part.output_begin[chunk]), at(part.output_begin[chunk + 1]));
}

bool contains(std::span<const NodeId> nodes, NodeId node) {
  return std::find(nodes.begin(), nodes.end(), node) != nodes.end();
}

void add_custom(Crossing& result, const CollectivePart& part, const NodeSet& inside) {
  const auto is_inside = [&](NodeId npu) { return inside[at(npu)] != 0; };
  for (std::size_t x = 0; x < part.bytes.size(); ++x) {
    const auto from = inputs(part, x), to = outputs(part, x);
    const bool leaves = part.reduces[x] ? std::any_of(from.begin(), from.end(), is_inside)
                                        : std::all_of(from.begin(), from.end(), is_inside);
    if (leaves && !std::all_of(to.begin(), to.end(), is_inside)) {
      add(result, part.bytes[x], part.chunks, 1);
    }
  }
}

void add(Crossing& result, const CollectivePart& part, const NodeSet& inside) {
  if (part.kind == custom) return add_custom(result, part, inside);
  if (part.kind == send_recv) {
    for (std::size_t i = 0; i < part.bytes.size(); ++i) {
      if (inside[at(part.inputs[i])] && !inside[at(part.outputs[i])]) {
        add(result, part.bytes[i], part.chunks, 1);
      }
    }
    return;
  }
  const auto n = at(part.members());
  if (part.kind == all_to_all_v) {
    for (std::size_t i = 0; i < n; ++i) {
      if (!inside[at(part.group[i])]) continue;
      for (std::size_t j = 0; j < n; ++j) {
        if (!inside[at(part.group[j])]) add(result, part.bytes[i * n + j], part.chunks, 1);
      }
    }
    return;
  }
  const Count in = count(part, inside), out = rest(part, in);
  const bool split = in.all() > 0 && out.all() > 0;
  const bool root_inside = part.root >= 0 && inside[at(part.group[at(part.root)])];
  if (!split) return;
  switch (part.kind) {
    case all_gather:
      return add(result, part, in, 1);
    case reduce_scatter:
      return add(result, part, out, 1);
    case all_reduce:
      return add(result, part.size, std::int64_t{part.members()} * part.chunks, 1);
    case all_to_all:
      return add(result, part, out, in.all());
    case broadcast:
      if (root_inside) add(result, part.size, part.chunks, 1);
      return;
    case reduce:
      if (!root_inside) add(result, part.size, part.chunks, 1);
      return;
    case gather:
      if (!root_inside) add(result, part, in, 1);
      return;
    case scatter:
      if (root_inside) add(result, part, out, 1);
      return;
    default:
      return;
  }
}

// Calls take(member, bytes) for what must enter the member at `position` from that member (`reversed`: leave it to
// that member).
template <typename Take>
void member_supplies(const CollectivePart& part, std::int64_t position, bool reversed,
                     const Take& take) {
  const std::int64_t n = part.members();
  const bool at_root = position == part.root;
  const auto own = piece(part.size, n, position);
  const auto all_pieces = [&] {
    for (std::int64_t i = 0; i < n; ++i) take(i, piece(part.size, n, i));
  };
  switch (part.kind) {
    case all_gather:
      if (!reversed) all_pieces();
      return;
    case reduce_scatter:
      if (reversed) all_pieces();
      return;
    case all_reduce:
      return take(0, part.size);
    case all_to_all:
      if (reversed) return all_pieces();
      for (std::int64_t i = 0; i < n; ++i) take(i, own);
      return;
    case all_to_all_v:
      for (std::int64_t i = 0; i < n; ++i) {
        take(i, part.bytes[at(reversed ? position * n + i : i * n + position)]);
      }
      return;
    case broadcast:
      if (!reversed) take(part.root, part.size);
      return;
    case reduce:
      if (reversed) take(part.root, part.size);
      return;
    case gather:
      if (reversed) return take(part.root, own);
      if (at_root) all_pieces();
      return;
    case scatter:
      if (!reversed) return take(part.root, own);
      if (at_root) all_pieces();
      return;
    default:
      return;
  }
}

void named_deliveries(const CollectivePart& part,
                      const std::function<bool(const Delivery&)>& take) {
  const auto group = part.group.span();
  const auto n = group.size();
  const auto holding = group.first(std::min(n, at(part.size)));  // whose piece has any bytes
  const auto smallest = largest_piece(std::max<std::int64_t>(part.size / part.members(), 1),
                                      part.chunks);  // chunk of the smallest piece with bytes
  std::vector<NodeId> to;
  switch (part.kind) {
    case broadcast:
    case reduce:
      take({group.subspan(at(part.root), 1), group, largest_piece(part.size, part.chunks),
            part.kind == reduce});
      return;
    case gather:
    case scatter:
      take({group.subspan(at(part.root), 1), holding, smallest, part.kind == gather});
      return;
    default:
      break;
  }
  for (std::size_t i = 0; i < n; ++i) {
    Delivery delivery{group.subspan(i, 1), group, 0, part.kind == reduce_scatter};
    if (part.kind == all_reduce) {
      delivery.bytes = largest_piece(part.size, std::int64_t{part.members()} * part.chunks);
    } else if (part.kind == all_to_all) {
      delivery.bytes = smallest;
      delivery.to = holding;
    } else if (part.kind == all_to_all_v) {
      to.clear();
      for (std::size_t j = 0; j < n; ++j) {
        const auto bytes = part.bytes[i * n + j];
        if (bytes == 0) continue;
        const auto chunk = largest_piece(bytes, part.chunks);
        delivery.bytes = to.empty() ? chunk : std::min(delivery.bytes, chunk);
        to.push_back(group[j]);
      }
      delivery.to = to;
      delivery.own = true;
    } else {
      if (i >= holding.size()) return;
      delivery.bytes = largest_piece(piece(part.size, part.members(), static_cast<std::int64_t>(i)),
                                     part.chunks);
    }
    if (!take(delivery)) return;
  }
}

void custom_deliveries(const CollectivePart& part,
                       const std::function<bool(const Delivery&)>& take) {
  for (std::size_t x = 0; x < part.bytes.size(); ++x) {
    if (part.bytes[x] == 0) continue;
    const auto from = inputs(part, x), to = outputs(part, x);
    const auto bytes = largest_piece(part.bytes[x], part.chunks);
    if (!part.reduces[x]) {
      if (!take({from, to, bytes, false})) return;
      continue;
    }
    for (std::size_t i = 0; i < to.size(); ++i) {
      if (!take({to.subspan(i, 1), from, bytes, true})) return;
    }
  }
}

}  // namespace

Crossing crossing(const Collective& collective, const NodeSet& inside) {
  Crossing result;
  for (const auto& part : collective.parts()) add(result, part, inside);
  if (!collective.resolved()) result.chunks.clear();
  return result;
}

Crossing whole_buffer(const CollectivePart& part, std::int64_t times) {
  Crossing result;
  add(result, part.size, std::int64_t{part.members()} * part.chunks, times);
  return result;
}

Ports ports(const Collective& collective) {
  Ports result;
  result.out.resize(at(collective.npus()));
  result.in.resize(at(collective.npus()));
  for (const auto& part : collective.parts()) {
    const auto n = part.members();
    const auto size = static_cast<double>(part.size);
    if (part.kind == send_recv) {
      for (std::size_t i = 0; i < part.bytes.size(); ++i) {
        result.out[at(part.inputs[i])] += static_cast<double>(part.bytes[i]);
        result.in[at(part.outputs[i])] += static_cast<double>(part.bytes[i]);
      }
    }
    if (n < 2) continue;
    for (std::int64_t i = 0; i < n; ++i) {
      const auto npu = at(part.group[at(i)]);
      const auto own = static_cast<double>(piece(part.size, n, i)), others = size - own;
      const bool root = i == part.root;
      double out = 0, in = 0;
      switch (part.kind) {
        case all_gather:
          out = own, in = others;
          break;
        case reduce_scatter:
          out = others, in = own;
          break;
        case all_reduce:
          out = in = size;
          break;
        case all_to_all:
          out = others, in = own * (n - 1);
          break;
        case all_to_all_v:
          for (std::int64_t j = 0; j < n; ++j) {
            if (j == i) continue;
            out += static_cast<double>(part.bytes[at(i * n + j)]);
            in += static_cast<double>(part.bytes[at(j * n + i)]);
          }
          break;
        case broadcast:
          (root ? out : in) = size;
          break;
        case reduce:
          (root ? in : out) = size;
          break;
        case gather:
          (root ? in : out) = root ? others : own;
          break;
        case scatter:
          (root ? out : in) = root ? others : own;
          break;
        default:
          break;
      }
      result.out[npu] += out;
      result.in[npu] += in;
    }
  }
  return result;
}

std::optional<SinkDemand> demand_at(const Collective& collective, NodeId npu, bool reversed) {
  SinkDemand result{npu, 0, {}};
  std::map<NodeId, std::int64_t> supplies;
  const auto add_supply = [&](NodeId node, std::int64_t bytes) {
    bytes = std::min(bytes, kLargestDemand - result.bytes);
    if (node == npu || bytes == 0) return;
    supplies[node] += bytes;
    result.bytes += bytes;
  };
  for (const auto& part : collective.parts()) {
    if (part.kind == send_recv) {
      const auto& here = reversed ? part.inputs : part.outputs;
      const auto& there = reversed ? part.outputs : part.inputs;
      for (std::size_t i = 0; i < part.bytes.size(); ++i) {
        if (here[i] == npu) add_supply(there[i], part.bytes[i]);
      }
    }
    const auto found = std::find(part.group.begin(), part.group.end(), npu);
    if (found == part.group.end()) continue;
    member_supplies(
        part, found - part.group.begin(), reversed,
        [&](std::int64_t i, std::int64_t bytes) { add_supply(part.group[at(i)], bytes); });
  }
  if (result.bytes == 0) return std::nullopt;
  for (const auto& [node, bytes] : supplies) result.supplies.push_back({node, bytes});
  return result;
}

void custom_demands(const Collective& collective,
                    const std::function<bool(const SinkDemand&)>& take) {
  for (const auto& part : collective.parts()) {
    if (part.kind != custom) continue;
    for (std::size_t x = 0; x < part.bytes.size(); ++x) {
      const auto from = inputs(part, x);
      if (part.bytes[x] == 0) continue;
      for (const NodeId sink : outputs(part, x)) {
        SinkDemand demand{sink, part.bytes[x], {}};
        if (part.reduces[x]) {
          for (const NodeId npu : from) {
            demand.supplies.assign(1, {npu, part.bytes[x]});
            if (npu != sink && !take(demand)) return;
          }
        } else if (!contains(from, sink)) {
          for (const NodeId npu : from) demand.supplies.push_back({npu, part.bytes[x]});
          if (!take(demand)) return;
        }
      }
    }
  }
}

std::vector<std::int32_t> alike(const Collective& collective) {
  std::vector<std::int32_t> result(at(collective.npus()));
  std::vector<std::vector<std::int64_t>> marks(result.size());
  for (const auto& part : collective.parts()) {
    if (!part.traits().even) {
      std::iota(result.begin(), result.end(), 0);
      return result;
    }
    for (auto& mark : marks) mark.push_back(-2);
    for (std::int64_t i = 0; i < part.members(); ++i) {
      const auto root = part.kind == all_reduce ? 0 : part.root;
      const auto own = part.kind == all_reduce ? 0 : piece(part.size, part.members(), i);
      marks[at(part.group[at(i)])].back() = i == root ? -1 : own;
    }
  }
  std::map<std::vector<std::int64_t>, std::int32_t> numbers;
  for (std::size_t npu = 0; npu < marks.size(); ++npu) {
    const auto next = static_cast<std::int32_t>(numbers.size());
    result[npu] = numbers.emplace(std::move(marks[npu]), next).first->second;
  }
  return result;
}

void deliveries(const Collective& collective, const std::function<bool(const Delivery&)>& take) {
  for (const auto& part : collective.parts()) {
    if (part.kind == custom) {
      custom_deliveries(part, take);
    } else if (part.kind == send_recv) {
      for (std::size_t i = 0; i < part.bytes.size(); ++i) {
        if (part.bytes[i] == 0) continue;
        if (!take({part.inputs.span().subspan(i, 1), part.outputs.span().subspan(i, 1),
                   largest_piece(part.bytes[i], part.chunks), false})) {
          return;
        }
      }
    } else {
      named_deliveries(part, take);
    }
  }
}

}  // namespace tacos
