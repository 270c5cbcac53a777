#include "formats/chakra_reader.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <queue>
#include <tuple>

#include "formats/protobuf.hpp"
#include "support/index.hpp"

namespace tacos::chakra {

namespace {

using protobuf::Field;
using protobuf::Reader;
using protobuf::Wire;

constexpr std::size_t kMaxDims = 8;  // the bits of a byte of flags
constexpr std::int64_t kLongest_us = kLongestComp_ps / 1'000'000;
constexpr std::array<std::string_view, 8> kTypeNames = {
    "INVALID_NODE", "METADATA_NODE",  "MEM_LOAD_NODE",  "MEM_STORE_NODE",
    "COMP_NODE",    "COMM_SEND_NODE", "COMM_RECV_NODE", "COMM_COLL_NODE"};
constexpr std::array<std::string_view, 2> kKinds = {"send", "recv"};

std::int64_t zigzag(std::uint64_t value) {
  return static_cast<std::int64_t>(value >> 1) ^ -static_cast<std::int64_t>(value & 1);
}

// The value of an attribute; the attribute's name determines which members are used.
struct Attribute {
  std::string_view name;
  std::uint32_t field = 0;
  Wire wire = Wire::varint;
  std::uint64_t value = 0;
  std::string_view bytes;
  std::size_t position = 0;

  // Returns it as a whole number; fails if it is outside the limits.
  std::int64_t whole(std::int64_t low, std::int64_t high) const {
    const auto refuse = [&](const std::string& found) {
      Reader::fail(position, std::string(name) + " is " + found + "; it must be " +
                                 std::to_string(low) + " to " + std::to_string(high));
    };
    const Wire expected = field == 19 || field == 23   ? Wire::fixed32
                          : field == 21 || field == 25 ? Wire::fixed64
                                                       : Wire::varint;
    if (field < 7 || field > 27 || field % 2 == 0 || wire != expected) refuse("not a whole number");
    std::int64_t number = static_cast<std::int64_t>(value);
    switch (field) {
      case 7:  // int32: writers may or may not sign-extend it to 64 bits
        number = static_cast<std::int32_t>(value);
        break;
      case 11:
        number = static_cast<std::uint32_t>(value);
        break;
      case 15:
      case 17:
        number = zigzag(value);
        break;
      case 23:
        number = static_cast<std::int32_t>(value);
        break;
      case 13:
      case 21:
        if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
          refuse(std::to_string(value));
        }
        break;
      default:
        break;
    }
    if (number < low || number > high) refuse(std::to_string(number));
    return number;
  }

  // Calls `visit` for each value of a list with field number `list`.
  template <typename Visit>
  void each(std::uint32_t list, const Visit& visit) const {
    if (field != list || wire != Wire::bytes) {
      Reader::fail(position, std::string(name) + " has the wrong kind");
    }
    Reader reader(bytes, position);
    while (!reader.done()) {
      const Field values = reader.field();
      if (values.number != 1) continue;
      if (values.wire == Wire::varint) {
        visit(values.value);
      } else if (values.wire == Wire::bytes) {
        Reader packed(values.bytes, reader.position(values.bytes));
        while (!packed.done()) visit(packed.varint());
      } else {
        Reader::fail(position, std::string(name) + " has the wrong kind");
      }
    }
  }
};

Attribute attribute_of(std::string_view bytes, std::size_t position) {
  Attribute found;
  found.position = position;
  Reader reader(bytes, position);
  while (!reader.done()) {
    const Field field = reader.field();
    if (field.number == 1) {
      if (field.wire != Wire::bytes) Reader::fail(position, "an attribute's name is not text");
      found.name = field.bytes;
    } else if (field.number >= 3 && field.number <= 32) {
      found.field = field.number;
      found.wire = field.wire;
      found.value = field.value;
      found.bytes = field.bytes;
      if (field.wire == Wire::bytes) found.position = reader.position(field.bytes);
    }
  }
  return found;
}

}  // namespace

// A node while it is being read.
struct Traces::Node {
  std::uint64_t id = 0, type = 0, duration_us = 0, start_us = 0;
  std::string_view name;
  std::optional<std::int64_t> src, dst, bytes, chunks, tag, comm, duration_ps, flops, tensor_bytes;
  std::int64_t priority = 0, group = 0, device = 0, stream = -1;
  std::string_view input_values;
  std::uint8_t dims = 255;
  bool on_cpu = false;
  std::optional<std::uint64_t> step_of;
  std::array<std::int32_t, kStepFields> step{};
  std::size_t step_size = 0;
};

std::string Traces::describe(std::size_t row) const {
  std::string text = "rank " + std::to_string(rank[row]) + ", node " + std::to_string(id[row]);
  if (kind[row] < 2) {
    text += ": the " + std::string(kKinds[kind[row]]) + " of " + std::to_string(bytes[row]) +
            " bytes " + (kind[row] == 0 ? "to" : "from") + " rank " + std::to_string(peer[row]) +
            " with tag " + std::to_string(tag[row]);
  }
  return text;
}

void Traces::add(std::string_view file) {
  if (file.empty()) invalid("the file is empty, a trace begins with its metadata");
  const auto first_row = nodes();
  about.emplace_back();
  Reader reader(file, 0);
  for (bool metadata = true; !reader.done(); metadata = false) {
    const auto message = reader.length_and_bytes();
    const auto position = reader.position(message);
    metadata ? add_metadata(message, position) : add_node(message, position);
  }
  resolve(first_row);
  runnable(first_row, nodes());
  chain_streams(first_row);
}

void Traces::add_metadata(std::string_view bytes_read, std::size_t position) {
  Reader reader(bytes_read, position);
  while (!reader.done()) {
    const Field field = reader.field();
    const bool text = field.wire == Wire::bytes;
    if (!text || field.number > 2) {
      Reader::fail(position, "the metadata have the unknown field " + std::to_string(field.number));
    }
    if (field.number != 2) continue;
    const auto attribute = attribute_of(field.bytes, reader.position(field.bytes));
    if (attribute.name == "tacos" && attribute.field == 29) about.back() = attribute.bytes;
  }
}

void Traces::add_node(std::string_view message, std::size_t position) {
  Node node;
  std::vector<std::int64_t> control;
  const auto deps = dep.size();
  Reader reader(message, position);
  const auto fail = [&](const std::string& what) {
    Reader::fail(position, "node " + std::to_string(node.id) + ": " + what);
  };
  while (!reader.done()) {
    const Field field = reader.field();
    const bool is_number = field.wire == Wire::varint;
    switch (field.number) {
      case 1:
      case 3:
      case 6:
      case 7:
        if (!is_number) fail("field " + std::to_string(field.number) + " is not a number");
        (field.number == 1   ? node.id
         : field.number == 3 ? node.type
         : field.number == 6 ? node.start_us
                             : node.duration_us) = field.value;
        break;
      case 8: {
        if (field.wire != Wire::bytes) fail("its inputs are not a message");
        Reader inputs(field.bytes, reader.position(field.bytes));
        while (!inputs.done()) {
          const Field part = inputs.field();
          if (part.number == 1 && part.wire == Wire::bytes) node.input_values = part.bytes;
        }
        break;
      }
      case 2:
        if (field.wire != Wire::bytes) fail("its name is not a text");
        node.name = field.bytes;
        break;
      case 4:
      case 5: {
        auto& list = field.number == 4 ? control : dep;
        if (is_number) {
          list.push_back(static_cast<std::int64_t>(field.value));
        } else if (field.wire == Wire::bytes) {
          Reader packed(field.bytes, reader.position(field.bytes));
          while (!packed.done()) list.push_back(static_cast<std::int64_t>(packed.varint()));
        } else {
          fail("its dependencies are not numbers");
        }
        break;
      }
      case 10: {
        if (field.wire != Wire::bytes) fail("an attribute is not a message");
        const auto a = attribute_of(field.bytes, reader.position(field.bytes));
        constexpr std::int64_t kInt32 = std::numeric_limits<std::int32_t>::max();
        constexpr std::int64_t kInt64 = std::numeric_limits<std::int64_t>::max();
        if (a.name == "comm_src") {
          node.src = a.whole(0, kInt32);
        } else if (a.name == "comm_dst") {
          node.dst = a.whole(0, kInt32);
        } else if (a.name == "comm_size") {
          node.bytes = a.whole(0, kInt64);
        } else if (a.name == "comm_tag") {
          node.tag = a.whole(0, kInt32);
        } else if (a.name == "comm_type") {
          node.comm = a.whole(0, kComms - 1);
        } else if (a.name == "comm_priority") {
          node.priority = a.whole(-kInt32, kInt32);
        } else if (a.name == "num_ops") {
          node.flops = a.whole(0, kInt64);
        } else if (a.name == "tensor_size") {
          node.tensor_bytes = a.whole(0, kInt64);
        } else if (a.name == "tacos_duration_ps") {
          node.duration_ps = a.whole(0, kLongestComp_ps);
        } else if (a.name == "is_cpu_op") {
          node.on_cpu = a.whole(0, 1) != 0;
        } else if (a.name == "msg_chunk_cnt") {
          node.chunks = a.whole(1, kInt64);
        } else if (a.name == "pg_name") {
          if (a.field != 29 || a.wire != Wire::bytes) fail("pg_name is not text");
          const auto end = a.bytes.data() + a.bytes.size();
          std::int32_t number = 0;
          const auto result = std::from_chars(a.bytes.data(), end, number);
          const bool is_whole = result.ec == std::errc() && result.ptr == end && number >= 0;
          node.group = a.bytes.empty() ? 0 : is_whole ? number : named_group(a.bytes);
        } else if (a.name == "stream") {
          node.stream = a.whole(-1, kInt64);
        } else if (a.name == "device") {
          node.device = a.whole(-1, kInt64);
        } else if (a.name == "involved_dim") {
          std::size_t dim = 0;
          node.dims = 0;
          a.each(28, [&](std::uint64_t flag) {
            if (dim == kMaxDims) fail("involved_dim has more than 8 dimensions");
            if (flag != 0) node.dims = static_cast<std::uint8_t>(node.dims | 1u << dim);
            ++dim;
          });
        } else if (a.name == "tacos_of") {
          node.step_of = static_cast<std::uint64_t>(a.whole(0, kInt64 - 2));
        } else if (a.name == "tacos_step") {
          a.each(8, [&](std::uint64_t value) {
            if (node.step_size == kStepFields || value > static_cast<std::uint64_t>(kInt32)) {
              fail("tacos_step must be 7 numbers below 2^31");
            }
            node.step[node.step_size++] = static_cast<std::int32_t>(value);
          });
          if (node.step_size != kStepFields) fail("tacos_step must be 7 numbers below 2^31");
        }
        break;
      }
      default:
        break;
    }
  }
  // Drop duplicate dependencies.
  const auto data = dep.begin() + static_cast<std::ptrdiff_t>(deps);
  std::sort(data, dep.end());
  dep.erase(std::unique(data, dep.end()), dep.end());
  const auto data_deps = dep.size();
  std::sort(control.begin(), control.end());
  control.erase(std::unique(control.begin(), control.end()), control.end());
  for (const auto before : control) {
    const auto end = dep.begin() + static_cast<std::ptrdiff_t>(data_deps);
    if (!std::binary_search(end - static_cast<std::ptrdiff_t>(data_deps - deps), end, before)) {
      dep.push_back(before);
    }
  }
  dep_is_control.resize(data_deps, 0);
  dep_is_control.resize(dep.size(), 1);
  add_row(node, position);
}

void Traces::add_row(const Node& node, std::size_t position) {
  const auto fail = [&](const std::string& what) {
    Reader::fail(position, "node " + std::to_string(node.id) + ": " + what);
  };
  const auto need = [&](const char* attribute, const std::optional<std::int64_t>& value) {
    if (!value) fail("it has no " + std::string(attribute));
    return *value;
  };
  if (node.type >= kTypeNames.size()) {
    fail("its type is " + std::to_string(node.type) + "; it must be 0 (" +
         std::string(kTypeNames[0]) + ") to 7 (" + std::string(kTypeNames[7]) + ")");
  }
  if (node.duration_us > static_cast<std::uint64_t>(kLongest_us)) {
    fail("duration_micros is " + std::to_string(node.duration_us) + "; it must be 0 to 10^12");
  }
  if (node.id > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    fail("the id is above 2^63 - 1");
  }
  // By Chakra's type. Metadata takes no time, but nodes may wait for it.
  constexpr std::array<NodeKind, 8> kKindOf = {NodeKind::comp,  NodeKind::comp, NodeKind::load,
                                               NodeKind::store, NodeKind::comp, NodeKind::send,
                                               NodeKind::recv,  NodeKind::coll};
  const bool is_note = node.type <= 1;
  const NodeKind what = kKindOf[node.type];
  const std::int32_t self = ranks() - 1;
  const bool message = what == NodeKind::send || what == NodeKind::recv;
  const auto size = node.bytes ? node.bytes : node.chunks;  // some converters write chunks only
  std::int64_t other = -1;
  if (message) {
    const bool out = what == NodeKind::send;
    other = need(out ? "comm_dst" : "comm_src", out ? node.dst : node.src);
    const auto& own = out ? node.src : node.dst;
    if (own && *own != self) {
      fail(std::string(out ? "comm_src" : "comm_dst") + " is " + std::to_string(*own) +
           ", but the file is that of rank " + std::to_string(self));
    }
    if (other == self) fail("it talks to its own rank");
  }
  const bool known = std::find(process_groups.begin(), process_groups.end(), node.input_values) !=
                     process_groups.end();
  if (node.type == 1 && !node.input_values.empty() && !known) {
    process_groups.emplace_back(node.input_values);
  }
  is_note_.push_back(is_note ? 1 : 0);
  start_us_.push_back(static_cast<std::int64_t>(
      std::min<std::uint64_t>(node.start_us, std::numeric_limits<std::int64_t>::max())));
  const bool kernel = node.stream >= 0 && !node.on_cpu && !is_note;
  stream_.emplace_back(node.device, kernel ? node.stream : -1);
  rank.push_back(self);
  id.push_back(static_cast<std::int64_t>(node.id));
  kind.push_back(static_cast<std::uint8_t>(what));
  peer.push_back(static_cast<std::int32_t>(other));
  const bool computes = what == NodeKind::comp && !is_note;
  const bool moves_memory = what == NodeKind::load || what == NodeKind::store;
  bytes.push_back(is_note        ? 0
                  : computes     ? node.tensor_bytes.value_or(0)
                  : moves_memory ? need("tensor_size", node.tensor_bytes)
                                 : need("comm_size", size));
  tag.push_back(message ? static_cast<std::int32_t>(need("comm_tag", node.tag)) : 0);
  const auto duration = static_cast<std::int64_t>(node.duration_us) * 1'000'000;
  duration_ps.push_back(is_note ? 0 : node.duration_ps.value_or(duration));
  flops.push_back(computes ? node.flops.value_or(0) : 0);
  name.push_back(names_.number(node.name));
  comm.push_back(what == NodeKind::coll ? static_cast<std::uint8_t>(need("comm_type", node.comm))
                                        : std::uint8_t{0});
  on_cpu.push_back(node.on_cpu ? 1 : 0);
  group.push_back(what == NodeKind::coll ? static_cast<std::int32_t>(node.group) : 0);
  priority.push_back(what == NodeKind::coll ? static_cast<std::int32_t>(node.priority) : 0);
  dims.push_back(node.dims);
  if (node.on_cpu && what != NodeKind::comp) fail("is_cpu_op is true, but only a COMP_NODE can be");
  dep_begin.push_back(static_cast<std::int64_t>(dep.size()));
  if (about.back().empty()) return;
  step_of.resize(nodes(), kNoRow);
  step_fields.resize(nodes() * kStepFields);
  if (node.step_size != 0) {
    step_of.back() = static_cast<std::int64_t>(nodes()) - 1;
    std::copy(node.step.begin(), node.step.end(), step_fields.end() - std::ptrdiff_t{kStepFields});
  } else if (node.step_of) {
    // An id, until `resolve` replaces it by a row.
    step_of.back() = -2 - static_cast<std::int64_t>(*node.step_of);
  }
}

// Replaces ids by rows.
void Traces::resolve(std::size_t first_row) {
  if (nodes() == first_row) invalid("the trace has no nodes, which leaves the rank nothing to do");
  std::vector<std::pair<std::uint64_t, std::int64_t>> rows;  // by id
  for (auto row = first_row; row < nodes(); ++row) {
    rows.emplace_back(static_cast<std::uint64_t>(id[row]), static_cast<std::int64_t>(row));
  }
  if (!std::is_sorted(rows.begin(), rows.end())) std::sort(rows.begin(), rows.end());
  for (std::size_t i = 1; i < rows.size(); ++i) {
    if (rows[i].first == rows[i - 1].first) {
      invalid("node " + std::to_string(rows[i].first) + " is there twice");
    }
  }
  const bool dense = rows.back().first == rows.size() - 1;
  const auto row_of = [&](std::uint64_t wanted) {
    if (dense) return wanted < rows.size() ? rows[wanted].second : kNoRow;
    const auto found =
        std::lower_bound(rows.begin(), rows.end(), std::pair(wanted, std::int64_t{0}));
    return found != rows.end() && found->first == wanted ? found->second : kNoRow;
  };
  for (auto row = first_row; row < nodes(); ++row) {
    for (auto d = dep_begin[row]; d < dep_begin[row + 1]; ++d) {
      const auto wanted = static_cast<std::uint64_t>(dep[at(d)]);
      dep[at(d)] = row_of(wanted);
      if (dep[at(d)] == kNoRow) {
        invalid("node " + std::to_string(id[row]) + " depends on node " + std::to_string(wanted) +
                ", which is not there");
      }
    }
    if (step_of.size() <= row || step_of[row] > kNoRow) continue;
    const bool named = step_of[row] < kNoRow;
    const auto first = named ? row_of(static_cast<std::uint64_t>(-2 - step_of[row])) : kNoRow;
    if (named && (first == kNoRow || step_of[at(first)] != first)) {
      invalid("node " + std::to_string(id[row]) + ": tacos_of is " +
              std::to_string(-2 - step_of[row]) + ", which is not a node with a tacos_step");
    }
    step_of[row] = first;
  }
  step_of.resize(nodes(), kNoRow);
  step_fields.resize(nodes() * kStepFields);
}

// The rows from first to last in dependency order; throws if the dependencies form a cycle.
std::vector<std::size_t> Traces::runnable(std::size_t first, std::size_t last) const {
  std::vector<std::size_t> order;
  order.reserve(last - first);
  std::vector<std::uint8_t> state(last - first, 0);  // unseen, on the way, done
  std::vector<std::pair<std::size_t, std::int64_t>> way;
  for (auto begin = first; begin < last; ++begin) {
    if (state[begin - first] != 0) continue;
    way.assign(1, {begin, dep_begin[begin]});
    state[begin - first] = 1;
    while (!way.empty()) {
      auto& [row, next] = way.back();
      if (next == dep_begin[row + 1]) {
        state[row - first] = 2;
        order.push_back(row);
        way.pop_back();
        continue;
      }
      const auto before = at(dep[at(next++)]);
      if (state[before - first] == 1) {
        invalid("node " + std::to_string(id[before]) +
                " waits for itself: the dependencies form a circle");
      }
      if (state[before - first] == 0) {
        state[before - first] = 1;
        way.emplace_back(before, dep_begin[before]);
      }
    }
  }
  return order;
}

void Traces::check_peers() const {
  for (std::size_t row = 0; row < nodes(); ++row) {
    if (kind[row] < 2 && peer[row] >= ranks()) {
      invalid(describe(row) + ": the ranks are 0 to " + std::to_string(ranks() - 1));
    }
  }
}

std::int32_t Traces::named_group(std::string_view text) {
  const auto found = std::find(group_names.begin(), group_names.end(), text);
  const auto number = static_cast<std::int32_t>(found - group_names.begin());
  if (found == group_names.end()) group_names.emplace_back(text);
  return -1 - number;
}

// Makes each kernel of a stream wait for the one before, in an order that no dependency contradicts.
void Traces::chain_streams(std::size_t first_row) {
  const auto rows = nodes() - first_row;
  const auto used = std::any_of(stream_.begin() + static_cast<std::ptrdiff_t>(first_row),
                                stream_.end(), [](const auto& s) { return s.second >= 0; });
  if (!chain_streams_ || !used || !about.back().empty()) return;
  std::vector<std::uint32_t> waits(rows, 0);
  std::vector<std::vector<std::size_t>> children(rows);
  for (auto row = first_row; row < nodes(); ++row) {
    for (auto d = dep_begin[row]; d < dep_begin[row + 1]; ++d) {
      ++waits[row - first_row];
      children[at(dep[at(d)]) - first_row].push_back(row);
    }
  }
  using Entry = std::tuple<std::int64_t, std::int64_t, std::size_t>;  // start, id, row
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> ready;
  const auto free = [&](std::size_t row) { ready.emplace(start_us_[row], id[row], row); };
  for (auto row = first_row; row < nodes(); ++row) {
    if (waits[row - first_row] == 0) free(row);
  }
  std::map<std::pair<std::int64_t, std::int64_t>, std::size_t> last;  // last row of each stream
  std::vector<std::int64_t> before(rows, kNoRow);
  while (!ready.empty()) {
    const auto row = std::get<2>(ready.top());
    ready.pop();
    if (stream_[row].second >= 0) {
      const auto [found, is_first] = last.try_emplace(stream_[row], row);
      if (!is_first) before[row - first_row] = static_cast<std::int64_t>(found->second);
      found->second = row;
    }
    for (const auto child : children[row - first_row]) {
      if (--waits[child - first_row] == 0) free(child);
    }
  }
  std::vector<std::int64_t> deps;
  std::vector<std::uint8_t> control;
  const auto begin = dep_begin[first_row];
  auto from = begin;
  for (auto row = first_row; row < nodes(); ++row) {
    const auto to = dep_begin[row + 1];
    bool known = before[row - first_row] == kNoRow;
    for (auto d = from; d < to; ++d) {
      known = known || dep[at(d)] == before[row - first_row];
      deps.push_back(dep[at(d)]);
      control.push_back(dep_is_control[at(d)]);
    }
    if (!known) {
      deps.push_back(before[row - first_row]);
      control.push_back(1);
    }
    from = to;
    dep_begin[row + 1] = begin + static_cast<std::int64_t>(deps.size());
  }
  dep.resize(at(begin));
  dep.insert(dep.end(), deps.begin(), deps.end());
  dep_is_control.resize(at(begin));
  dep_is_control.insert(dep_is_control.end(), control.begin(), control.end());
}

// Removes nodes that take no time: their successors inherit their dependencies. Each rank keeps at least one node.
void Traces::drop_notes() {
  if (std::find(is_note_.begin(), is_note_.end(), 1) == is_note_.end()) return;
  std::vector<std::size_t> kept(at(ranks()), 0), total(at(ranks()), 0);
  for (std::size_t row = 0; row < nodes(); ++row) {
    ++total[at(rank[row])];
    kept[at(rank[row])] += is_note_[row] == 0 ? 1 : 0;
  }
  for (std::size_t row = 0; row < nodes(); ++row) {
    auto& left = kept[at(rank[row])];
    if (left == 0) is_note_[row] = 0, left = 1;
  }
  // Nodes are visited in dependency order, so a removed node's list is complete when a successor inherits it.
  std::vector<std::vector<std::int64_t>> waits(nodes());
  for (const auto row : runnable(0, nodes())) {
    auto& mine = waits[row];
    for (auto d = dep_begin[row]; d < dep_begin[row + 1]; ++d) {
      const auto parent = at(dep[at(d)]);
      if (is_note_[parent] != 0) {
        mine.insert(mine.end(), waits[parent].begin(), waits[parent].end());
      } else {
        mine.push_back(dep[at(d)]);
      }
    }
    std::sort(mine.begin(), mine.end());
    mine.erase(std::unique(mine.begin(), mine.end()), mine.end());
  }
  std::vector<std::int64_t> place(nodes(), kNoRow);
  std::size_t rows = 0;
  for (std::size_t row = 0; row < nodes(); ++row) {
    if (is_note_[row] == 0) place[row] = static_cast<std::int64_t>(rows++);
  }
  const auto squeeze = [&](auto& column) {
    std::size_t out = 0;
    for (std::size_t row = 0; row < place.size(); ++row) {
      if (place[row] != kNoRow) column[out++] = column[row];
    }
    column.resize(out);
  };
  dep.clear();
  dep_begin.assign(1, 0);
  for (std::size_t row = 0; row < place.size(); ++row) {
    if (place[row] == kNoRow) continue;
    for (const auto parent : waits[row]) dep.push_back(place[at(parent)]);
    dep_begin.push_back(static_cast<std::int64_t>(dep.size()));
  }
  squeeze(rank);
  squeeze(kind);
  squeeze(peer);
  squeeze(bytes);
  squeeze(tag);
  squeeze(duration_ps);
  squeeze(flops);
  squeeze(comm);
  squeeze(on_cpu);
  squeeze(group);
  squeeze(priority);
  squeeze(dims);
  squeeze(name);
  squeeze(id);
}

bool Traces::is_program() const {
  if (std::any_of(about.begin(), about.end(), [](const auto& note) { return !note.empty(); })) {
    return true;
  }
  bool talks = false;
  for (std::size_t row = 0; row < nodes(); ++row) {
    if (kind[row] > static_cast<std::uint8_t>(NodeKind::comp) || flops[row] != 0) return false;
    talks = talks || kind[row] != static_cast<std::uint8_t>(NodeKind::comp);
  }
  return talks;
}

Workload Traces::workload(std::vector<std::pair<std::int32_t, std::vector<std::int32_t>>> groups,
                          const std::vector<std::int32_t>& named) && {
  for (auto& number : group) {
    if (number < 0 && at(-1 - number) < named.size()) number = named[at(-1 - number)];
  }
  drop_notes();
  WorkloadColumns c;
  c.npus = ranks();
  c.rank = std::move(rank);
  c.kind = std::move(kind);
  c.peer = std::move(peer);
  c.bytes = std::move(bytes);
  c.tag = std::move(tag);
  c.duration_ps = std::move(duration_ps);
  c.flops = std::move(flops);
  c.comm = std::move(comm);
  c.id = std::move(id);
  c.on_cpu = std::move(on_cpu);
  c.group = std::move(group);
  c.priority = std::move(priority);
  c.dims = std::move(dims);
  c.name = std::move(name);
  c.names = names_.take();
  c.dep_begin = std::move(dep_begin);
  c.dep = std::move(dep);
  c.groups = std::move(groups);
  return Workload(std::move(c));
}

}  // namespace tacos::chakra
