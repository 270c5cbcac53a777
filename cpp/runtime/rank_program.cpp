#include "runtime/rank_program.hpp"

#include <algorithm>
#include <map>

#include "support/index.hpp"

namespace tacos {

namespace {

constexpr ChunkId kUnknown = ~ChunkId{0};

// For each input slot, the output slot that is the same memory, or -1.
std::vector<std::int32_t> shared_slots(const Program& program, const std::vector<ChunkId>& inputs,
                                       const std::vector<ChunkId>& outputs) {
  std::vector<std::int32_t> shared(inputs.size(), -1);
  if (!program.spec().in_place) return shared;
  for (std::size_t i = 0; i < inputs.size(); ++i) {  // both are sorted by chunk
    const auto found = std::lower_bound(outputs.begin(), outputs.end(), inputs[i]);
    if (found != outputs.end() && *found == inputs[i]) {
      shared[i] = static_cast<std::int32_t>(found - outputs.begin());
    }
  }
  return shared;
}

// Follows chunks through the slots of all ranks, to find out which chunks every step moves.
class Contents {
 public:
  explicit Contents(const Program& program) : program_(program), s_(program.spec()) {
    for (NodeId rank = 0; rank < program.ranks(); ++rank) {
      const auto inputs = program.input_chunks(rank);
      const auto outputs = program.output_chunks(rank);
      shared_.push_back(shared_slots(program, inputs, outputs));
      const auto add = [&](const std::vector<ChunkId>& homes) {
        first_.push_back(home_.size());
        home_.insert(home_.end(), homes.begin(), homes.end());
      };
      add(inputs);
      add(outputs);
      add(std::vector<ChunkId>(at(program.slots(rank, Buffer::scratch)), kUnknown));
    }
    holds_.assign(home_.size(), kUnknown);
    for (NodeId rank = 0; rank < program.ranks(); ++rank) {
      for (std::int32_t i = 0; i < program.slots(rank, Buffer::input); ++i) {
        holds_[place(rank, Buffer::input, i)] = home_[first_[at(rank) * 3] + at(i)];
      }
    }
    thread_.resize(at(program.steps()));
    begin_.assign(at(program.steps()) + 1, 0);
    for (ThreadId t = 0; t < program.threads(); ++t) {
      for (auto i = s_.thread_begin[at(t)]; i < s_.thread_begin[at(t) + 1]; ++i) {
        thread_[at(i)] = t;
        const auto op = program.op(static_cast<StepId>(i));
        begin_[at(i) + 1] = begin_[at(i)] + (has_src(op) || has_dst(op) ? s_.count[at(i)] : 0);
      }
    }
    content_.assign(at(begin_.back()), kUnknown);
    for (const StepId step : walk(program).order) follow(step);
  }

  std::vector<ChunkId> of(StepId step) const {
    return {content_.begin() + begin_[at(step)], content_.begin() + begin_[at(step) + 1]};
  }
  ThreadId thread(StepId step) const { return thread_[at(step)]; }
  bool misplaced() const { return misplaced_; }

 private:
  std::size_t place(NodeId rank, Buffer buffer, std::int32_t slot) const {
    if (buffer == Buffer::input && shared_[at(rank)][at(slot)] >= 0) {
      return place(rank, Buffer::output, shared_[at(rank)][at(slot)]);
    }
    return first_[at(rank) * 3 + at(buffer)] + at(slot);
  }

  void follow(StepId step) {
    const auto i = at(step);
    const StepOp op = program_.op(step);
    if (!has_src(op) && !has_dst(op)) return;
    const NodeId rank = s_.thread_rank[at(thread_[i])];
    const NodeId reads = op == StepOp::get || op == StepOp::get_reduce ? s_.peer[i] : rank;
    const NodeId writes = op == StepOp::put ? s_.peer[i] : rank;
    const StepId from = s_.comes_from[i];
    for (std::int32_t k = 0; k < s_.count[i]; ++k) {
      ChunkId chunk = kUnknown;
      bool alike = true;
      if (has_src(op)) {
        chunk = holds_[place(reads, static_cast<Buffer>(s_.src_buffer[i]), s_.src_slot[i] + k)];
      }
      if (receives(op)) {
        const bool fits = from >= 0 && k < s_.count[at(from)];
        const ChunkId arrived = fits ? content_[at(begin_[at(from)] + k)] : kUnknown;
        alike = !has_src(op) || chunk == arrived;
        chunk = arrived;
      }
      if (has_dst(op)) {
        const auto into = place(writes, static_cast<Buffer>(s_.dst_buffer[i]), s_.dst_slot[i] + k);
        const bool adds = op == StepOp::reduce || op == StepOp::get_reduce;
        alike = alike && (!adds || holds_[into] == chunk);
        alike = alike && (home_[into] == kUnknown || home_[into] == chunk);
        holds_[into] = chunk;
      }
      misplaced_ = misplaced_ || !alike || chunk == kUnknown;
      content_[at(begin_[i] + k)] = chunk;
    }
  }

  const Program& program_;
  const ProgramSpec& s_;
  std::vector<std::size_t> first_;  // first slot of each of every rank's three buffers
  std::vector<std::vector<std::int32_t>> shared_;
  // Per slot: the chunk whose size it has, and the chunk that it holds.
  std::vector<ChunkId> home_, holds_;
  std::vector<ThreadId> thread_;
  std::vector<std::int64_t> begin_;
  std::vector<ChunkId> content_;
  bool misplaced_ = false;
};

// All one-sided traffic between two ranks uses one connection, because a signal must not overtake a put.
std::map<std::pair<NodeId, NodeId>, std::int32_t> one_sided_channels(const Program& program,
                                                                     const Contents& contents) {
  std::map<std::pair<NodeId, NodeId>, std::int32_t> channels;
  const auto& s = program.spec();
  for (StepId step = 0; step < program.steps(); ++step) {
    const NodeId peer = s.peer[at(step)];
    if (peer < 0) continue;
    const auto thread = at(contents.thread(step));
    const NodeId rank = s.thread_rank[thread];
    for (const auto& pair : {std::pair(rank, peer), std::pair(peer, rank)}) {
      const auto [found, added] = channels.try_emplace(pair, s.thread_channel[thread]);
      if (!added) found->second = std::min(found->second, s.thread_channel[thread]);
    }
  }
  return channels;
}

}  // namespace

RankProgram compile(std::shared_ptr<const Program> program, NodeId rank) {
  const auto& p = *program;
  const auto& s = p.spec();
  if (rank < 0 || rank >= p.ranks()) {
    invalid("rank is " + std::to_string(rank) + ", the program has ranks 0 to " +
            std::to_string(p.ranks() - 1));
  }
  const Contents contents(p);
  const auto channels = one_sided_channels(p, contents);
  RankProgram result;
  result.rank = rank;
  result.inputs = p.input_chunks(rank);
  result.outputs = p.output_chunks(rank);
  result.shared = shared_slots(p, result.inputs, result.outputs);
  result.misplaced = contents.misplaced();
  result.content_begin.push_back(0);

  std::unordered_map<StepId, std::int32_t> local;
  const auto add = [&](StepId step, RankStep row) {
    row.id = step;
    row.op = p.op(step);
    row.count = s.count[at(step)];
    const auto chunks = contents.of(step);
    result.content.insert(result.content.end(), chunks.begin(), chunks.end());
    result.content_begin.push_back(static_cast<std::int64_t>(result.content.size()));
    if (row.to.peer >= 0) result.out.push_back(row.to);
    if (row.from.peer >= 0) result.in.push_back(row.from);
    result.steps.push_back(row);
  };
  const auto reads_src = [&](RankStep& row, StepId step) {
    row.src_buffer = static_cast<Buffer>(s.src_buffer[at(step)]);
    row.src_slot = s.src_slot[at(step)];
  };
  const auto writes_dst = [&](RankStep& row, StepId step) {
    row.dst_buffer = static_cast<Buffer>(s.dst_buffer[at(step)]);
    row.dst_slot = s.dst_slot[at(step)];
    for (std::int32_t k = 0; row.dst_buffer == Buffer::input && k < s.count[at(step)]; ++k) {
      if (result.shared[at(row.dst_slot + k)] < 0) result.writes_input = true;
    }
  };

  for (ThreadId t = 0; t < p.threads(); ++t) {
    if (s.thread_rank[at(t)] != rank) continue;
    const std::int32_t channel = s.thread_channel[at(t)];
    for (auto i = s.thread_begin[at(t)]; i < s.thread_begin[at(t) + 1]; ++i) {
      const auto step = static_cast<StepId>(i);
      const StepOp op = p.op(step);
      RankStep row;
      const bool gets = op == StepOp::get || op == StepOp::get_reduce;
      if (has_src(op) && !gets) reads_src(row, step);
      if (has_dst(op) && op != StepOp::put) writes_dst(row, step);
      if (sends(op)) row.to = {s.thread_send_peer[at(t)], channel};
      if (receives(op)) row.from = {s.thread_recv_peer[at(t)], channel};
      if (const NodeId peer = s.peer[at(i)]; peer >= 0) {
        const Port port{peer, channels.at({rank, peer})};
        if (op != StepOp::wait) row.to = port;
        if (gets || op == StepOp::wait) row.from = port;
      }
      row.message = s.comes_from[at(i)];
      local[step] = static_cast<std::int32_t>(result.steps.size());
      if (row.message >= 0) result.by_message[row.message] = local[step];
      if (gets) result.by_message[step] = local[step];  // the reply has the number of the get
      add(step, row);
    }
  }
  result.own = result.steps.size();

  std::vector<std::pair<std::int32_t, std::int32_t>> edges;  // before, after
  for (std::size_t i = 0; i < result.own; ++i) {
    const StepId step = result.steps[i].id;
    const auto after = static_cast<std::int32_t>(i);
    const auto wait_for = [&](StepId before) {
      edges.emplace_back(local.at(before), after);
      ++result.steps[i].waits;
    };
    if (s.thread_begin[at(contents.thread(step))] != step) wait_for(step - 1);
    for (auto d = s.dep_begin[at(step)]; d < s.dep_begin[at(step) + 1]; ++d) wait_for(s.dep[at(d)]);
  }
  std::sort(edges.begin(), edges.end());
  result.next_begin.assign(result.own + 1, 0);
  for (const auto& [before, after] : edges) {
    ++result.next_begin[at(before) + 1];
    result.next.push_back(after);
  }
  for (std::size_t i = 0; i < result.own; ++i) result.next_begin[i + 1] += result.next_begin[i];

  for (StepId step = 0; step < p.steps(); ++step) {
    if (s.peer[at(step)] != rank || !one_sided(p.op(step))) continue;
    const NodeId peer = s.thread_rank[at(contents.thread(step))];
    const Port port{peer, channels.at({peer, rank})};
    RankStep row;
    row.served = true;
    row.message = step;
    row.from = port;
    if (p.op(step) == StepOp::put) {
      writes_dst(row, step);
    } else {
      reads_src(row, step);
      row.to = port;
    }
    result.by_message[step] = static_cast<std::int32_t>(result.steps.size());
    add(step, row);
  }
  for (auto* ports : {&result.out, &result.in}) {
    std::sort(ports->begin(), ports->end());
    ports->erase(std::unique(ports->begin(), ports->end()), ports->end());
  }
  result.program = std::move(program);
  return result;
}

}  // namespace tacos
