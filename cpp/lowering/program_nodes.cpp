#include "lowering/program_nodes.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "support/error.hpp"
#include "support/index.hpp"

namespace tacos {

namespace {

bool sums(StepOp op) {
  return op == StepOp::recv_reduce || op == StepOp::recv_reduce_forward ||
         op == StepOp::recv_reduce_send;
}

// Finds order, messages and numbers of a program's nodes, then lists them.
class Nodes {
 public:
  Nodes(const Program& program, const std::vector<std::int64_t>& chunk_bytes,
        std::int64_t reduce_Bps, const SendOrder& departures, const Progress& progress);

  void list(ProgramNodes& out) const;

 private:
  class Rows;
  struct Message {
    std::int64_t bytes = 0;
    ChunkId chunk = 0;  // the first it carries
    std::int32_t tag = 0;
  };

  void match();
  bool sort(const Progress& progress);
  void follow();
  void keep_order(const SendOrder& departures);
  void number();
  bool fenced(StepId step) const { return fenced_[static_cast<std::size_t>(step)]; }
  std::uint32_t step_nodes(StepId step) const;
  std::int64_t duration_ps(StepId step) const;

  const Program* program_;
  const std::vector<std::int64_t>& chunk_bytes_;
  std::int64_t reduce_Bps_;
  std::vector<ThreadId> thread_of_;
  std::vector<StepId> receiver_;          // of each send
  std::vector<StepId> after_;             // the send before on a shared link, or -1
  std::vector<StepId> order_;             // by rank; within a rank as the steps can run
  std::vector<std::size_t> order_begin_;  // of each rank
  std::vector<std::uint32_t> first_node_;
  std::vector<bool> fenced_;
  std::vector<Message> message_;  // of each step that sends
};

Nodes::Nodes(const Program& program, const std::vector<std::int64_t>& chunk_bytes,
             std::int64_t reduce_Bps, const SendOrder& departures, const Progress& progress)
    : program_(&program), chunk_bytes_(chunk_bytes), reduce_Bps_(reduce_Bps) {
  if (chunk_bytes_.size() != program_->collective().chunks()) {
    invalid("chunk_bytes has " + std::to_string(chunk_bytes_.size()) + " entries for " +
            std::to_string(program_->collective().chunks()) + " chunks");
  }
  const auto& s = program_->spec();
  thread_of_.resize(s.op.size());
  for (ThreadId t = 0; t < program_->threads(); ++t) {
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

// Finds for each send the one before it on the link that they share. Of several messages with the same ends
// and chunk, the first in `departures` is the first that can run.
void Nodes::keep_order(const SendOrder& departures) {
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
    // A thread keeps the order of its steps anyway.
    if (thread_of_[at(before)] != thread_of_[at(step[i])]) after_[at(step[i])] = before;
  }
}

// Finds the step that receives each message.
void Nodes::match() {
  const auto& s = program_->spec();
  receiver_.assign(s.op.size(), -1);
  for (StepId step = 0; step < program_->steps(); ++step) {
    const StepOp op = program_->op(step);
    if (one_sided(op) || op == StepOp::signal || op == StepOp::wait) {
      invalid(program_->describe(step) + " is one-sided, which a workload cannot express");
    }
    if (!receives(op)) continue;
    const StepId from = s.comes_from[at(step)];
    if (from < 0 || !sends(program_->op(from))) {
      invalid(program_->describe(step) + " receives a message that no rank sends");
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
      invalid(program_->describe(step) + " sends a message that no rank receives");
    }
  }
}

// Finds an order in which the steps can run, first come, first served; returns false if some never can.
bool Nodes::sort(const Progress& progress) {
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

// Finds the chunks that each message carries: those last written to the slots that it reads.
void Nodes::follow() {
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
              " bytes; a message has at least 1");
    }
    const auto peer = static_cast<std::uint64_t>(s.thread_send_peer[at(thread_of_[i])]);
    message.tag = tags[rank << 32 | peer]++;
  }
}

void Nodes::number() {
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

std::uint32_t Nodes::step_nodes(StepId step) const {
  const StepOp op = program_->op(step);
  const bool fused = receives(op) && sends(op);
  return 1 + (sums(op) ? 1 : 0) + (fused ? 1 : 0) + (fenced(step) ? 1 : 0);
}

// The duration of a sum, to the nearest microsecond.
std::int64_t Nodes::duration_ps(StepId step) const {
  if (reduce_Bps_ == 0) return 0;
  const auto bytes = message_[at(program_->spec().comes_from[at(step)])].bytes;
  const __int128 exact = static_cast<__int128>(bytes) * 1'000'000 + reduce_Bps_ / 2;
  return static_cast<std::int64_t>(exact / reduce_Bps_) * 1'000'000;
}

// The columns, row by row.
class Nodes::Rows {
 public:
  Rows(const Nodes& nodes, ProgramNodes& out)
      : nodes_(nodes), s_(nodes.program_->spec()), out_(out) {}

  void add_rank(NodeId rank) {
    rank_ = rank;
    first_row_ = static_cast<std::int64_t>(kind_.size());
    const auto begin = nodes_.order_begin_[at(rank)], end = nodes_.order_begin_[at(rank) + 1];
    for (auto i = begin; i < end; ++i) add_step(nodes_.order_[i]);
    if (begin == end) add(NodeKind::comp, "idle", -1, false);
  }

  WorkloadColumns columns(std::int32_t npus) {
    WorkloadColumns c;
    c.npus = npus;
    c.rank = std::move(ranks_);
    c.kind = std::move(kind_);
    c.peer = std::move(peer_);
    c.bytes = std::move(bytes_);
    c.tag = std::move(tag_);
    c.duration_ps = std::move(duration_ps_);
    c.name = std::move(name_);
    c.names = names_.take();
    c.dep_begin = std::move(dep_begin_);
    c.dep = std::move(dep_);
    return c;
  }

 private:
  std::int64_t last_row(StepId step) const {
    return first_row_ + nodes_.first_node_[at(step)] + nodes_.step_nodes(step) - 1;
  }

  void add_step(StepId step) {
    static constexpr std::array<const char*, 3> kNames = {"nop", "copy", "reduce"};
    const auto i = at(step);
    const auto thread = at(nodes_.thread_of_[i]);
    const StepOp op = nodes_.program_->op(step);
    waits_.clear();
    if (s_.thread_begin[thread] < step) waits_.push_back(last_row(step - 1));
    for (auto d = s_.dep_begin[i]; d < s_.dep_begin[i + 1]; ++d) {
      waits_.push_back(last_row(s_.dep[at(d)]));
    }
    std::sort(waits_.begin(), waits_.end());
    waits_.erase(std::unique(waits_.begin(), waits_.end()), waits_.end());
    turn_ = nodes_.after_[i] < 0 ? -1 : last_row(nodes_.after_[i]);

    const auto wait_for_last = [&] {
      waits_.assign(1, static_cast<std::int64_t>(kind_.size()) - 1);
    };
    if (receives(op)) {
      add(NodeKind::recv, "recv", step, false);
      message(s_.comes_from[i], s_.thread_recv_peer[thread]);
      wait_for_last();
      if (sums(op)) {
        add(NodeKind::comp, "reduce", step, false);
        duration_ps_.back() = nodes_.duration_ps(step);
        wait_for_last();
      }
    }
    if (sends(op)) {
      add(NodeKind::send, "send", step, true);
      message(step, s_.thread_send_peer[thread]);
    }
    if (nodes_.fenced(step)) add(NodeKind::comp, "fence", step, true);
    if (!receives(op) && !sends(op)) add(NodeKind::comp, kNames[s_.op[i]], step, false);
  }

  void add(NodeKind kind, const char* name, StepId step, bool in_turn) {
    ranks_.push_back(rank_);
    kind_.push_back(static_cast<std::uint8_t>(kind));
    peer_.push_back(-1);
    bytes_.push_back(0);
    tag_.push_back(0);
    duration_ps_.push_back(0);
    name_.push_back(names_.number(name));
    out_.step.push_back(step);
    if (step >= 0) dep_.insert(dep_.end(), waits_.begin(), waits_.end());
    out_.wait.resize(dep_.size(), Wait::data);
    if (in_turn && turn_ >= 0) {
      const auto mine = dep_.end() - static_cast<std::ptrdiff_t>(waits_.size());
      const auto found = std::lower_bound(mine, dep_.end(), turn_);
      if (found != dep_.end() && *found == turn_) {
        out_.wait[at(found - dep_.begin())] = Wait::both;
      } else {
        dep_.push_back(turn_);
        out_.wait.push_back(Wait::control);
      }
    }
    dep_begin_.push_back(static_cast<std::int64_t>(dep_.size()));
  }

  void message(StepId sender, NodeId peer) {
    const Message& sent = nodes_.message_[at(sender)];
    peer_.back() = peer;
    bytes_.back() = sent.bytes;
    tag_.back() = sent.tag;
  }

  const Nodes& nodes_;
  const ProgramSpec& s_;
  ProgramNodes& out_;
  NodeId rank_ = 0;
  std::int64_t first_row_ = 0, turn_ = -1;
  std::vector<std::int64_t> waits_;
  std::vector<std::int32_t> ranks_, peer_, tag_, name_;
  std::vector<std::uint8_t> kind_;
  std::vector<std::int64_t> bytes_, duration_ps_, dep_begin_{0}, dep_;
  NameTable names_;
};

void Nodes::list(ProgramNodes& out) const {
  Rows rows(*this, out);
  for (NodeId rank = 0; rank < program_->ranks(); ++rank) rows.add_rank(rank);
  out.chunk.resize(message_.size());
  for (std::size_t i = 0; i < message_.size(); ++i) out.chunk[i] = message_[i].chunk;
  out.workload = std::make_shared<const Workload>(rows.columns(program_->ranks()));
}

}  // namespace

ProgramNodes program_nodes(std::shared_ptr<const Program> program,
                           const std::vector<std::int64_t>& chunk_bytes, std::int64_t reduce_Bps,
                           const SendOrder& departures, const Progress& progress) {
  ProgramNodes out;
  Nodes(*program, chunk_bytes, reduce_Bps, departures, progress).list(out);
  out.program = std::move(program);
  return out;
}

}  // namespace tacos
