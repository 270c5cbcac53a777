#include "formats/chakra_writer.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "formats/protobuf.hpp"
#include "support/index.hpp"

namespace tacos::chakra {

namespace {

using protobuf::put_bytes;
using protobuf::put_number;
using protobuf::put_varint;

constexpr std::string_view kVersion = "0.0.4";
enum NodeType : std::uint8_t { kComp = 4, kSend = 5, kRecv = 6, kColl = 7 };
// Fields of AttributeProto.
enum Kind : std::uint32_t {
  kInt32 = 7,
  kInt32List = 8,
  kInt64 = 9,
  kUint64 = 13,
  kBool = 27,
  kString = 29
};
constexpr std::uint32_t kAttr = 10;

bool sums(StepOp op) {
  return op == StepOp::recv_reduce || op == StepOp::recv_reduce_forward ||
         op == StepOp::recv_reduce_send;
}

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

// One node: begun, filled with attributes, and closed behind its length.
class Node {
 public:
  Node(std::string& out, std::uint64_t id, std::string_view name, NodeType type,
       std::span<const std::uint64_t> deps, std::int64_t after = -1)
      : out_(out) {
    body_.clear();
    if (id != 0) put_number(body_, 1, id);
    put_bytes(body_, 2, name);
    put_number(body_, 3, type);
    if (after >= 0) put_number(body_, 4, static_cast<std::uint64_t>(after));
    if (deps.empty()) return;
    std::size_t bytes = 0;
    for (const auto dep : deps) bytes += protobuf::varint_bytes(dep);
    put_varint(body_, protobuf::key(5, protobuf::Wire::bytes));
    put_varint(body_, bytes);
    for (const auto dep : deps) put_varint(body_, dep);
  }
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  ~Node() {
    put_attr(body_, "is_cpu_op", kBool, 0);
    put_varint(out_, body_.size());
    out_.append(body_);
  }

  std::string& body() { return body_; }

 private:
  std::string& out_;
  static thread_local std::string body_;  // its memory serves all nodes
};

thread_local std::string Node::body_;

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

}  // namespace

Writer::Writer(std::shared_ptr<const Program> program, std::vector<std::int64_t> chunk_bytes,
               std::int64_t reduce_Bps, const Departures& departures, const Progress& progress)
    : program_(std::move(program)), chunk_bytes_(std::move(chunk_bytes)), reduce_Bps_(reduce_Bps) {
  if (chunk_bytes_.size() != program_->collective().chunks()) {
    invalid("chunk_bytes has " + std::to_string(chunk_bytes_.size()) + " entries for " +
            std::to_string(program_->collective().chunks()) + " chunks");
  }
  const auto& s = program_->spec();
  thread_of_.resize(s.op.size());
  first_thread_.assign(at(program_->ranks()), 0);
  for (ThreadId t = program_->threads() - 1; t >= 0; --t) {
    first_thread_[at(s.thread_rank[at(t)])] = t;
    std::fill(thread_of_.begin() + s.thread_begin[at(t)],
              thread_of_.begin() + s.thread_begin[at(t) + 1], t);
  }
  match();
  after_.assign(s.op.size(), -1);
  if (!sort(progress)) {
    std::vector<bool> runs(s.op.size(), false);
    for (const StepId step : order_) runs[at(step)] = true;
    const auto stuck = std::find(runs.begin(), runs.end(), false) - runs.begin();
    invalid("the program deadlocks: " + program_->describe(static_cast<StepId>(stuck)) +
            " never starts");
  }
  follow();
  if (!departures.src.empty()) {
    keep_order(departures);
    if (!sort(progress)) {  // the order is that of another program
      std::fill(after_.begin(), after_.end(), -1);
      sort(progress);
    }
  }
  number();
}

// The send before each on the link that they share. Of several messages with the same ends and chunk
// the first to start is the first that can run.
void Writer::keep_order(const Departures& departures) {
  const auto& s = program_->spec();
  using Key = std::tuple<NodeId, NodeId, ChunkId>;
  std::vector<std::pair<Key, std::size_t>> planned, made;  // the place among departures, in order_
  for (std::size_t i = 0; i < departures.src.size(); ++i) {
    planned.emplace_back(Key(departures.src[i], departures.dst[i], departures.chunk[i]), i);
  }
  for (std::size_t i = 0; i < order_.size(); ++i) {
    if (!sends(program_->op(order_[i]))) continue;
    const auto thread = at(thread_of_[at(order_[i])]);
    made.emplace_back(
        Key(s.thread_rank[thread], s.thread_send_peer[thread], message_[at(order_[i])].chunk), i);
  }
  std::sort(planned.begin(), planned.end());
  std::sort(made.begin(), made.end());
  std::vector<StepId> step(departures.src.size(), -1);
  for (std::size_t i = 0, j = 0; i < planned.size() && j < made.size();) {
    if (planned[i].first == made[j].first) {
      step[planned[i++].second] = order_[made[j++].second];
    } else {
      planned[i].first < made[j].first ? ++i : ++j;
    }
  }
  std::unordered_map<std::int32_t, StepId> last;  // by link
  for (std::size_t i = 0; i < step.size(); ++i) {
    if (step[i] < 0) continue;
    const auto [found, first] = last.try_emplace(departures.link[i], step[i]);
    if (first) continue;
    const StepId before = std::exchange(found->second, step[i]);
    // Within a thread the order is kept anyhow.
    if (thread_of_[at(before)] != thread_of_[at(step[i])]) after_[at(step[i])] = before;
  }
}

// Who receives what a step sends.
void Writer::match() {
  const auto& s = program_->spec();
  receiver_.assign(s.op.size(), -1);
  for (StepId step = 0; step < program_->steps(); ++step) {
    const StepOp op = program_->op(step);
    if (one_sided(op) || op == StepOp::signal || op == StepOp::wait) {
      invalid(program_->describe(step) + " is one-sided, which a Chakra trace cannot say");
    }
    if (!receives(op)) continue;
    const StepId from = s.comes_from[at(step)];
    if (from < 0 || !sends(program_->op(from))) {
      invalid(program_->describe(step) + " receives what nobody sends");
    }
    const auto mine = at(thread_of_[at(step)]), theirs = at(thread_of_[at(from)]);
    if (s.thread_rank[theirs] != s.thread_recv_peer[mine] ||
        s.thread_rank[mine] != s.thread_send_peer[theirs] ||
        s.count[at(step)] != s.count[at(from)]) {
      invalid(program_->describe(step) + " does not fit the send it comes from, " +
              program_->describe(from));
    }
    if (receiver_[at(from)] >= 0) invalid(program_->describe(from) + " is received twice");
    receiver_[at(from)] = step;
  }
  for (StepId step = 0; step < program_->steps(); ++step) {
    if (sends(program_->op(step)) && receiver_[at(step)] < 0) {
      invalid(program_->describe(step) + " sends what nobody receives");
    }
  }
}

// An order in which the steps can run, first come first served; false if some never do.
bool Writer::sort(const Progress& progress) {
  const auto& s = program_->spec();
  const auto steps = s.op.size();
  const auto first_of_thread = [&](std::size_t step) {
    return s.thread_begin[at(thread_of_[step])] == static_cast<std::int64_t>(step);
  };
  std::vector<std::uint32_t> waits(steps);
  std::vector<std::int64_t> later_begin(steps + 1, 0);
  for (const auto before : s.dep) ++later_begin[at(before) + 1];
  for (const auto before : after_) {
    if (before >= 0) ++later_begin[at(before) + 1];
  }
  for (std::size_t i = 0; i < steps; ++i) later_begin[i + 1] += later_begin[i];
  std::vector<StepId> later(at(later_begin[steps]));
  auto next = later_begin;
  for (std::size_t i = 0; i < steps; ++i) {
    for (auto d = s.dep_begin[i]; d < s.dep_begin[i + 1]; ++d) {
      later[at(next[at(s.dep[at(d)])]++)] = static_cast<StepId>(i);
    }
    if (after_[i] >= 0) later[at(next[at(after_[i])]++)] = static_cast<StepId>(i);
    waits[i] = static_cast<std::uint32_t>(s.dep_begin[i + 1] - s.dep_begin[i]) +
               (first_of_thread(i) ? 0 : 1) + (s.comes_from[i] >= 0 ? 1 : 0) +
               (after_[i] >= 0 ? 1 : 0);
  }
  std::vector<StepId> queue;
  queue.reserve(steps);
  for (std::size_t i = 0; i < steps; ++i) {
    if (waits[i] == 0) queue.push_back(static_cast<StepId>(i));
  }
  const auto free = [&](StepId step) {
    if (--waits[at(step)] == 0) queue.push_back(step);
  };
  fenced_.assign(steps, false);
  for (std::size_t done = 0; done < queue.size(); ++done) {
    const auto step = at(queue[done]);
    const bool last =
        s.thread_begin[at(thread_of_[step]) + 1] == static_cast<std::int64_t>(step) + 1;
    const bool awaited = !last || later_begin[step] < later_begin[step + 1];
    fenced_[step] = awaited && sends(program_->op(queue[done]));
    if (!last) free(static_cast<StepId>(step) + 1);
    for (auto i = later_begin[step]; i < later_begin[step + 1]; ++i) free(later[at(i)]);
    if (receiver_[step] >= 0) free(receiver_[step]);
    if (progress && (done & 0xffff) == 0) progress(0.5 * double(done) / double(steps));
  }
  order_ = std::move(queue);
  return order_.size() == steps;
}

// Which chunks every message carries: what was written last to the slots that it reads.
void Writer::follow() {
  const auto& s = program_->spec();
  constexpr ChunkId kNothing = std::numeric_limits<ChunkId>::max();
  // Slots of all ranks in one row: inputs, outputs and scratch of rank 0, of rank 1, …
  std::vector<std::array<std::size_t, 3>> begin(at(program_->ranks()));
  std::vector<ChunkId> content;
  std::vector<std::size_t> shared;  // in place, the input slot of an output slot
  for (NodeId rank = 0; rank < program_->ranks(); ++rank) {
    auto& here = begin[at(rank)];
    const auto inputs = program_->input_chunks(rank);
    here[0] = content.size();
    content.insert(content.end(), inputs.begin(), inputs.end());
    here[1] = content.size();
    content.resize(here[1] + at(program_->slots(rank, Buffer::output)), kNothing);
    here[2] = content.size();
    content.resize(here[2] + at(s.scratch_slots[at(rank)]), kNothing);
    if (!s.in_place) continue;
    const auto outputs = program_->output_chunks(rank);
    shared.resize(content.size());
    for (std::size_t i = 0, o = 0; o < outputs.size(); ++o) {
      while (i < inputs.size() && inputs[i] < outputs[o]) ++i;
      const bool both = i < inputs.size() && inputs[i] == outputs[o];
      shared[here[1] + o] = both ? here[0] + i : here[1] + o;
    }
  }
  const auto slot = [&](std::size_t rank, std::uint8_t buffer, std::int64_t number) -> ChunkId& {
    const auto place = begin[rank][buffer] + at(number);
    return content[s.in_place && buffer == 1 ? shared[place] : place];
  };
  message_.resize(s.op.size());
  std::vector<std::size_t> carried_begin(s.op.size());
  std::vector<ChunkId> carried;
  std::unordered_map<std::uint64_t, std::int32_t> tags;
  std::vector<ChunkId> value;
  for (const StepId step : order_) {
    const auto i = at(step);
    const StepOp op = program_->op(step);
    const auto rank = at(s.thread_rank[at(thread_of_[i])]);
    const auto count = s.count[i];
    value.clear();
    for (std::int32_t k = 0; k < count; ++k) {
      if (has_src(op)) {
        value.push_back(slot(rank, s.src_buffer[i], s.src_slot[i] + k));
      } else if (receives(op)) {
        value.push_back(carried[carried_begin[at(s.comes_from[i])] + at(k)]);
      }
      if (!value.empty() && value.back() == kNothing) {
        invalid(program_->describe(step) + " reads a slot that nothing has been written to");
      }
    }
    if (has_dst(op)) {
      for (std::int32_t k = 0; k < count; ++k)
        slot(rank, s.dst_buffer[i], s.dst_slot[i] + k) = value[at(k)];
    }
    if (!sends(op)) continue;
    carried_begin[i] = carried.size();
    carried.insert(carried.end(), value.begin(), value.end());
    Message& message = message_[i];
    message.chunk = value[0];
    for (const auto chunk : value) message.bytes += chunk_bytes_[chunk];
    if (message.bytes <= 0) {
      invalid(program_->describe(step) + " sends " + std::to_string(message.bytes) +
              " bytes, a message has at least 1");
    }
    const auto peer = static_cast<std::uint64_t>(s.thread_send_peer[at(thread_of_[i])]);
    message.tag = tags[rank << 32 | peer]++;
  }
}

void Writer::number() {
  const auto ranks = at(program_->ranks());
  const auto& s = program_->spec();
  const auto rank_of = [&](StepId step) { return at(s.thread_rank[at(thread_of_[at(step)])]); };
  order_begin_.assign(ranks + 1, 0);
  for (const StepId step : order_) ++order_begin_[rank_of(step) + 1];
  for (std::size_t r = 0; r < ranks; ++r) order_begin_[r + 1] += order_begin_[r];
  std::vector<StepId> by_rank(order_.size());
  auto next = order_begin_;
  for (const StepId step : order_) by_rank[next[rank_of(step)]++] = step;
  order_ = std::move(by_rank);
  first_node_.resize(order_.size());
  for (std::size_t r = 0; r < ranks; ++r) {
    std::uint32_t node = 0;
    for (auto i = order_begin_[r]; i < order_begin_[r + 1]; ++i) {
      first_node_[at(order_[i])] = node;
      node += step_nodes(order_[i]);
    }
  }
}

std::uint32_t Writer::step_nodes(StepId step) const {
  const StepOp op = program_->op(step);
  const bool fused = receives(op) && sends(op);
  return 1 + (sums(op) ? 1 : 0) + (fused ? 1 : 0) + (fenced(step) ? 1 : 0);
}

std::int64_t Writer::nodes(NodeId rank) const {
  std::int64_t nodes = 0;
  for (auto i = order_begin_[at(rank)]; i < order_begin_[at(rank) + 1]; ++i) {
    nodes += step_nodes(order_[i]);
  }
  return std::max<std::int64_t>(nodes, 1);
}

// Of a sum, to the nearest microsecond.
std::int64_t Writer::duration_us(StepId step) const {
  if (reduce_Bps_ == 0) return 0;
  const auto bytes = message_[at(program_->spec().comes_from[at(step)])].bytes;
  const __int128 exact = static_cast<__int128>(bytes) * 1'000'000 + reduce_Bps_ / 2;
  return static_cast<std::int64_t>(exact / reduce_Bps_);
}

std::string Writer::file(NodeId rank, std::string_view about) const {
  std::string out;
  put_metadata(out, about);
  const auto begin = order_begin_[at(rank)], end = order_begin_[at(rank) + 1];
  for (auto i = begin; i < end; ++i) put_step(out, order_[i]);
  if (begin == end) Node(out, 0, "idle", kComp, {});
  return out;
}

void Writer::put_step(std::string& out, StepId step) const {
  static constexpr std::array<std::string_view, 3> kNames = {"nop", "copy", "reduce"};
  const auto& s = program_->spec();
  const auto i = at(step);
  const auto thread = at(thread_of_[i]);
  const NodeId rank = s.thread_rank[thread];
  const StepOp op = program_->op(step);
  std::uint64_t id = first_node_[i];

  const auto last_node = [&](StepId before) {
    return first_node_[at(before)] + step_nodes(before) - 1;
  };
  std::vector<std::uint64_t> deps;
  if (s.thread_begin[thread] < step) deps.push_back(last_node(step - 1));
  for (auto d = s.dep_begin[i]; d < s.dep_begin[i + 1]; ++d) {
    deps.push_back(last_node(s.dep[at(d)]));
  }
  const std::int64_t turn = after_[i] < 0 ? -1 : std::int64_t{last_node(after_[i])};
  std::sort(deps.begin(), deps.end());
  deps.erase(std::unique(deps.begin(), deps.end()), deps.end());

  const auto belongs = [&](std::string& body) {
    if (id != first_node_[i]) {
      put_attr(body, "tacos_of", kUint64, first_node_[i]);
      return;
    }
    std::string list, attribute;
    const std::int32_t own = thread_of_[i] - first_thread_[at(rank)];
    for (const std::int64_t value :
         {std::int64_t{s.op[i]}, std::int64_t{own}, std::int64_t{s.src_buffer[i]},
          std::int64_t{s.src_slot[i]}, std::int64_t{s.dst_buffer[i]}, std::int64_t{s.dst_slot[i]},
          std::int64_t{s.count[i]}}) {
      // -1 stands for "none" only where the buffer says so, too; as a varint it would take 10 bytes.
      put_varint(list, static_cast<std::uint64_t>(std::max<std::int64_t>(value, 0)));
    }
    std::string values;
    put_bytes(values, 1, list);
    put_bytes(attribute, 1, "tacos_step");
    put_bytes(attribute, kInt32List, values);
    put_bytes(body, kAttr, attribute);
  };
  const auto put_message = [&](std::string_view name, NodeType type, StepId sender, NodeId src,
                               NodeId dst) {
    const Message& message = message_[at(sender)];
    Node node(out, id, name, type, deps, type == kSend ? turn : -1);
    std::string& body = node.body();
    put_int(body, "comm_src", kInt32, src);
    put_int(body, "comm_dst", kInt32, dst);
    put_int(body, "comm_size", kInt64, message.bytes);
    put_int(body, "comm_tag", kInt32, message.tag);
    put_int(body, "total_chunk_cnt", kInt64, static_cast<std::int64_t>(chunk_bytes_.size()));
    put_int(body, "msg_chunk_cnt", kInt64, s.count[at(sender)]);
    put_int(body, "msg_chunk_idx", kInt64, message.chunk);
    belongs(body);
    ++id;
  };
  const auto put_comp = [&](std::string_view name, std::int64_t duration, std::int64_t after = -1) {
    Node node(out, id, name, kComp, deps, after);
    if (duration != 0) put_number(node.body(), 7, static_cast<std::uint64_t>(duration));
    belongs(node.body());
    ++id;
  };

  if (receives(op)) {
    put_message("recv", kRecv, s.comes_from[i], s.thread_recv_peer[thread], rank);
    deps = {id - 1};
    if (sums(op)) {
      put_comp("reduce", duration_us(step));
      deps = {id - 1};
    }
  }
  if (sends(op)) put_message("send", kSend, step, rank, s.thread_send_peer[thread]);
  if (fenced(step)) put_comp("fence", 0, turn);
  if (!receives(op) && !sends(op)) put_comp(kNames[s.op[i]], 0);
}

std::string collective_file(std::int64_t comm_type, std::int64_t bytes) {
  std::string out;
  put_metadata(out, "");
  {
    Node node(out, 0, "collective", kColl, {});
    put_int(node.body(), "comm_type", kInt64, comm_type);
    put_int(node.body(), "comm_size", kInt64, bytes);
  }
  return out;
}

}  // namespace tacos::chakra
