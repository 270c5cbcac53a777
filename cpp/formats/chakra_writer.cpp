#include "formats/chakra_writer.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "formats/protobuf.hpp"
#include "support/index.hpp"

namespace tacos::chakra {

namespace {

using protobuf::put_bytes;
using protobuf::put_number;
using protobuf::put_varint;

constexpr std::string_view kVersion = "0.0.4";
// By NodeKind: COMM_SEND, COMM_RECV, COMP, COMM_COLL, MEM_LOAD and MEM_STORE nodes.
constexpr std::array<std::uint8_t, kNodeKinds> kTypeNumbers = {5, 6, 4, 7, 2, 3};
constexpr std::uint8_t kEveryDim = 255;
constexpr std::int64_t kMicrosecond = 1'000'000;
// Fields of AttributeProto.
enum Kind : std::uint32_t {
  kInt32 = 7,
  kInt32List = 8,
  kInt64 = 9,
  kUint64 = 13,
  kBool = 27,
  kBoolList = 28,
  kString = 29
};
constexpr std::uint32_t kAttr = 10;

void put_attr(std::string& out, std::string_view name, Kind kind, std::uint64_t value) {
  const auto key = protobuf::key(kind, protobuf::Wire::varint);
  put_varint(out, protobuf::key(kAttr, protobuf::Wire::bytes));
  put_varint(out, 2 + name.size() + protobuf::varint_bytes(key) + protobuf::varint_bytes(value));
  put_bytes(out, 1, name);
  put_varint(out, key);
  put_varint(out, value);
}

void put_int(std::string& out, std::string_view name, Kind kind, std::int64_t value) {
  put_attr(out, name, kind, static_cast<std::uint64_t>(value));
}

void put_text(std::string& out, std::string_view name, std::string_view text) {
  std::string attribute;
  put_bytes(attribute, 1, name);
  put_bytes(attribute, kString, text);
  put_bytes(out, kAttr, attribute);
}

// The dimensions that a collective uses; ASTRA-sim looks at the first four.
std::string flags(std::uint8_t dims) {
  std::string list;
  for (int dim = 0; dim < 8; ++dim) list.push_back(static_cast<char>(dims >> dim & 1));
  return list;
}

void put_metadata(std::string& out, std::string_view about) {
  std::string body;
  put_bytes(body, 1, kVersion);
  if (!about.empty()) {
    std::string attribute;
    put_bytes(attribute, 1, "tacos");
    put_bytes(attribute, kString, about);
    put_bytes(body, 2, attribute);
  }
  put_varint(out, body.size());
  out.append(body);
}

void put_list(std::string& out, std::string_view name, Kind kind, std::string_view varints) {
  std::string values, attribute;
  put_bytes(values, 1, varints);
  put_bytes(attribute, 1, name);
  put_bytes(attribute, kind, values);
  put_bytes(out, kAttr, attribute);
}

void put_packed(std::string& out, std::uint32_t field, std::span<const std::uint64_t> values) {
  if (values.empty()) return;
  std::size_t bytes = 0;
  for (const auto value : values) bytes += protobuf::varint_bytes(value);
  put_varint(out, protobuf::key(field, protobuf::Wire::bytes));
  put_varint(out, bytes);
  for (const auto value : values) put_varint(out, value);
}

// Writes the nodes of one rank. `wait_of(d)` returns the reason for dependency d; `extra(out, row)` adds attributes.
template <typename WaitOf, typename Extra>
std::string written(const Workload& workload, NodeId rank, std::string_view about,
                    const WaitOf& wait_of, const Extra& extra) {
  const auto& c = workload.columns();
  std::string out, body;
  std::vector<std::uint64_t> control, data;
  put_metadata(out, about);
  for (auto row = workload.begin(rank); row < workload.end(rank); ++row) {
    const NodeKind kind = workload.kind(row);
    body.clear();
    control.clear();
    data.clear();
    for (auto d = c.dep_begin[row]; d < c.dep_begin[row + 1]; ++d) {
      const auto before = static_cast<std::uint64_t>(c.id[at(c.dep[at(d)])]);
      const Wait wait = wait_of(at(d));
      if (wait != Wait::data) control.push_back(before);
      if (wait != Wait::control) data.push_back(before);
    }
    if (c.id[row] != 0) put_number(body, 1, static_cast<std::uint64_t>(c.id[row]));
    put_bytes(body, 2, workload.name(row));
    put_number(body, 3, kTypeNumbers[c.kind[row]]);
    for (const auto id : control) put_number(body, 4, id);
    put_packed(body, 5, data);
    const auto duration = (c.duration_ps[row] + kMicrosecond / 2) / kMicrosecond;
    if (duration != 0) put_number(body, 7, static_cast<std::uint64_t>(duration));
    if (c.duration_ps[row] != duration * kMicrosecond) {
      put_int(body, "tacos_duration_ps", kInt64, c.duration_ps[row]);
    }
    switch (kind) {
      case NodeKind::send:
      case NodeKind::recv:
        put_int(body, "comm_src", kInt32, kind == NodeKind::send ? rank : c.peer[row]);
        put_int(body, "comm_dst", kInt32, kind == NodeKind::send ? c.peer[row] : rank);
        put_int(body, "comm_size", kInt64, c.bytes[row]);
        put_int(body, "comm_tag", kInt32, c.tag[row]);
        break;
      case NodeKind::coll:
        put_int(body, "comm_type", kInt64, c.comm[row]);
        put_int(body, "comm_size", kInt64, c.bytes[row]);
        if (c.priority[row] != 0) put_int(body, "comm_priority", kInt32, c.priority[row]);
        if (c.group[row] != 0) put_text(body, "pg_name", std::to_string(c.group[row]));
        if (c.dims[row] != kEveryDim) put_list(body, "involved_dim", kBoolList, flags(c.dims[row]));
        break;
      case NodeKind::comp:
        if (c.flops[row] != 0) put_int(body, "num_ops", kInt64, c.flops[row]);
        if (c.bytes[row] != 0) put_int(body, "tensor_size", kUint64, c.bytes[row]);
        break;
      case NodeKind::load:
      case NodeKind::store:
        put_int(body, "tensor_size", kUint64, c.bytes[row]);
        break;
    }
    extra(body, row);
    put_attr(body, "is_cpu_op", kBool, c.on_cpu[row]);
    put_varint(out, body.size());
    out.append(body);
  }
  return out;
}

// Attributes for the chunks that a message carries and the step that a node belongs to.
class StepNotes {
 public:
  StepNotes(const ProgramNodes& nodes, NodeId rank)
      : nodes_(nodes), s_(nodes.program->spec()), chunks_(nodes.program->collective().chunks()) {
    const auto begin = s_.thread_rank.begin();
    first_thread_ = std::lower_bound(begin, s_.thread_rank.end(), rank) - begin;
  }

  void operator()(std::string& out, std::size_t row) {
    const StepId step = nodes_.step[row];
    if (step < 0) return;
    const NodeKind kind = nodes_.workload->kind(row);
    if (kind == NodeKind::send || kind == NodeKind::recv) {
      const auto sender = at(kind == NodeKind::send ? step : s_.comes_from[at(step)]);
      put_int(out, "total_chunk_cnt", kInt64, static_cast<std::int64_t>(chunks_));
      put_int(out, "msg_chunk_cnt", kInt64, s_.count[sender]);
      put_int(out, "msg_chunk_idx", kInt64, nodes_.chunk[sender]);
    }
    const auto id = static_cast<std::uint64_t>(nodes_.workload->columns().id[row]);
    if (step == last_) {
      put_attr(out, "tacos_of", kUint64, first_id_);
      return;
    }
    last_ = step;
    first_id_ = id;
    const auto i = at(step);
    const auto thread =
        std::upper_bound(s_.thread_begin.begin(), s_.thread_begin.end(), std::int64_t{step}) -
        s_.thread_begin.begin() - 1;
    std::string list;
    for (const std::int64_t value : {std::int64_t{s_.op[i]}, std::int64_t{thread - first_thread_},
                                     std::int64_t{s_.src_buffer[i]}, std::int64_t{s_.src_slot[i]},
                                     std::int64_t{s_.dst_buffer[i]}, std::int64_t{s_.dst_slot[i]},
                                     std::int64_t{s_.count[i]}}) {
      // -1 means "none", which the buffer says as well; as a varint it would take 10 bytes.
      put_varint(list, static_cast<std::uint64_t>(std::max<std::int64_t>(value, 0)));
    }
    put_list(out, "tacos_step", kInt32List, list);
  }

 private:
  const ProgramNodes& nodes_;
  const ProgramSpec& s_;
  std::size_t chunks_;
  std::ptrdiff_t first_thread_ = 0;
  StepId last_ = -1;
  std::uint64_t first_id_ = 0;
};

}  // namespace

std::string file(const ProgramNodes& nodes, NodeId rank, std::string_view about) {
  StepNotes notes(nodes, rank);
  return written(
      *nodes.workload, rank, about, [&](std::size_t d) { return nodes.wait[d]; },
      [&](std::string& out, std::size_t row) { notes(out, row); });
}

std::string file(const Workload& workload, NodeId rank) {
  return written(
      workload, rank, "", [](std::size_t) { return Wait::data; }, [](std::string&, std::size_t) {});
}

}  // namespace tacos::chakra
