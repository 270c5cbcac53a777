#include "model/program.hpp"

#include <algorithm>
#include <limits>
#include <span>

#include "support/index.hpp"

namespace tacos {

Collective counted_in_chunks(const Collective& collective) {
  auto parts = collective.parts();
  for (auto& part : parts) {
    if (!part.traits().even) continue;
    const bool whole = part.traits().unit == Unit::buffer;
    part.size = std::int64_t{whole ? 1 : part.members()} * part.chunks;
  }
  return Collective(collective.npus(), std::move(parts));
}

Program::Program(ProgramSpec spec) : spec_(std::move(spec)) {
  if (!spec_.collective) invalid("a program needs a collective");
  if (!collective().resolved()) invalid("a program's collective needs a number of chunks");
  chunk_lists_ = std::make_shared<const ChunkLists>(collective());
  for (NodeId rank = 0; rank < ranks(); ++rank) {
    input_slots_.push_back(static_cast<std::int32_t>(chunk_lists_->input_count(rank)));
    output_slots_.push_back(static_cast<std::int32_t>(chunk_lists_->output_count(rank)));
  }
  check();
}

std::int32_t Program::slots(NodeId rank, Buffer buffer) const {
  switch (buffer) {
    case Buffer::input:
      return input_slots_[at(rank)];
    case Buffer::output:
      return output_slots_[at(rank)];
    case Buffer::scratch:
      return spec_.scratch_slots[at(rank)];
    case Buffer::none:
      break;
  }
  return 0;
}

ThreadId Program::thread_of(StepId step) const {
  const auto& begin = spec_.thread_begin;
  return static_cast<ThreadId>(std::upper_bound(begin.begin(), begin.end(), step) - begin.begin() -
                               1);
}

std::string Program::describe(StepId step) const {
  const ThreadId thread = thread_of(step);
  ThreadId first = thread;
  while (first > 0 && spec_.thread_rank[at(first) - 1] == spec_.thread_rank[at(thread)]) --first;
  return "rank " + std::to_string(spec_.thread_rank[at(thread)]) + ", thread " +
         std::to_string(thread - first) + ", step " +
         std::to_string(step - spec_.thread_begin[at(thread)]);
}

void Program::check() const {
  const auto& s = spec_;
  const auto count = s.op.size(), threads = s.thread_rank.size();
  if (count > at(std::numeric_limits<StepId>::max()))
    invalid("a program has at most 2^31 - 1 steps");
  if (s.scratch_slots.size() != at(ranks())) {
    invalid("scratch_slots has " + std::to_string(s.scratch_slots.size()) + " entries for " +
            std::to_string(ranks()) + " ranks");
  }
  for (const auto slots : s.scratch_slots) {
    if (slots < 0)
      invalid("a rank has " + std::to_string(slots) + " scratch slots; it must be at least 0");
  }
  if (s.thread_channel.size() != threads || s.thread_send_peer.size() != threads ||
      s.thread_recv_peer.size() != threads || s.thread_begin.size() != threads + 1) {
    invalid("the thread columns differ in length");
  }
  if (s.src_buffer.size() != count || s.dst_buffer.size() != count || s.src_slot.size() != count ||
      s.dst_slot.size() != count || s.count.size() != count || s.peer.size() != count ||
      s.comes_from.size() != count || s.dep_begin.size() != count + 1) {
    invalid("the step columns differ in length");
  }
  const auto ascending = [](const Column<std::int64_t>& begin, std::size_t total) {
    return begin[0] == 0 && std::is_sorted(begin.begin(), begin.end()) &&
           at(begin[begin.size() - 1]) == total;
  };
  if (!ascending(s.thread_begin, count)) invalid("thread_begin does not divide the steps");
  if (!ascending(s.dep_begin, s.dep.size())) invalid("dep_begin does not divide the dependencies");
  const auto is_rank = [&](NodeId node) { return node >= 0 && node < ranks(); };
  for (std::size_t t = 0; t < threads; ++t) {
    const NodeId rank = s.thread_rank[t];
    if (!is_rank(rank) || (t > 0 && rank < s.thread_rank[t - 1])) {
      invalid("thread " + std::to_string(t) + " is of rank " + std::to_string(rank) +
              "; threads must be in order of ranks 0 to " + std::to_string(ranks() - 1));
    }
    for (const NodeId peer : {s.thread_send_peer[t], s.thread_recv_peer[t]}) {
      if (peer == -1 || (is_rank(peer) && peer != rank)) continue;
      invalid("a thread of rank " + std::to_string(rank) + " has the peer " + std::to_string(peer) +
              "; it must be another rank, or -1 for none");
    }
    if (s.thread_channel[t] < 0) {
      invalid("a thread of rank " + std::to_string(rank) + " has channel " +
              std::to_string(s.thread_channel[t]));
    }
    for (auto step = s.thread_begin[t]; step < s.thread_begin[t + 1]; ++step) {
      check_step(static_cast<ThreadId>(t), static_cast<StepId>(step));
    }
  }
}

void Program::check_step(ThreadId thread, StepId step) const {
  const auto& s = spec_;
  const auto i = at(step);
  const auto refuse = [&](const std::string& why) { invalid(describe(step) + " " + why); };
  if (s.op[i] >= kStepOps) refuse("has the unknown operation " + std::to_string(s.op[i]));
  const StepOp what = op(step);
  const NodeId rank = s.thread_rank[at(thread)];
  const bool has_peer = one_sided(what) || what == StepOp::signal || what == StepOp::wait;
  if (has_peer && (s.peer[i] < 0 || s.peer[i] >= ranks() || s.peer[i] == rank)) {
    refuse("has the peer " + std::to_string(s.peer[i]) + "; it must be another rank");
  }
  if (sends(what) && s.thread_send_peer[at(thread)] < 0) refuse("sends in a thread without a peer");
  if (receives(what) && s.thread_recv_peer[at(thread)] < 0) {
    refuse("receives in a thread without a peer");
  }
  const auto check_slots = [&](const char* name, bool used, std::uint8_t buffer, std::int32_t slot,
                               NodeId owner) {
    if (!used) {
      if (buffer != static_cast<std::uint8_t>(Buffer::none) || slot != -1) {
        refuse("has a " + std::string(name) + ", which its operation does not use");
      }
      return;
    }
    if (buffer >= static_cast<std::uint8_t>(Buffer::none)) {
      refuse("needs a " + std::string(name));
    }
    const auto slots_there = slots(owner, static_cast<Buffer>(buffer));
    if (slot < 0 || slot > slots_there - s.count[i]) {
      static constexpr const char* kNames[] = {"input", "output", "scratch"};
      refuse("uses " + std::string(name) + " slots " + std::to_string(slot) + " to " +
             std::to_string(static_cast<std::int64_t>(slot) + s.count[i] - 1) + " of the " +
             kNames[buffer] + " buffer, which has " + std::to_string(slots_there));
    }
  };
  const bool moves = has_src(what) || has_dst(what);
  if (s.count[i] < (moves ? 1 : 0)) refuse("has the count " + std::to_string(s.count[i]));
  const bool reads_peer = what == StepOp::get || what == StepOp::get_reduce;
  check_slots("src", has_src(what), s.src_buffer[i], s.src_slot[i], reads_peer ? s.peer[i] : rank);
  check_slots("dst", has_dst(what), s.dst_buffer[i], s.dst_slot[i],
              what == StepOp::put ? s.peer[i] : rank);
  const StepId from = s.comes_from[i];
  if (from < -1 || from >= steps() || from == step) {
    refuse("receives from step " + std::to_string(from) + ", which does not exist");
  }
  if (from >= 0 && !receives(what) && what != StepOp::wait) {
    refuse("receives nothing, but has a step that it comes from");
  }
  for (auto d = s.dep_begin[i]; d < s.dep_begin[i + 1]; ++d) {
    const StepId before = s.dep[at(d)];
    if (before < 0 || before >= steps() || before == step ||
        s.thread_rank[at(thread_of(before))] != rank) {
      refuse("depends on step " + std::to_string(before) +
             ", which is not another step of its rank");
    }
  }
}

Program Program::with_facts(ProgramFacts facts) const {
  Program copy = *this;
  copy.spec_.facts = std::move(facts);
  return copy;
}

Program Program::with_provenance(std::string provenance) const {
  Program copy = *this;
  copy.spec_.provenance = std::move(provenance);
  return copy;
}

Program Program::with_in_place(bool in_place) const {
  Program copy = *this;
  copy.spec_.in_place = in_place;
  return copy;
}

bool Program::operator==(const Program& other) const {
  const auto &a = spec_, &b = other.spec_;
  return *a.collective == *b.collective && a.in_place == b.in_place &&
         a.scratch_slots == b.scratch_slots && a.thread_rank == b.thread_rank &&
         a.thread_channel == b.thread_channel && a.thread_send_peer == b.thread_send_peer &&
         a.thread_recv_peer == b.thread_recv_peer && a.thread_begin == b.thread_begin &&
         a.op == b.op && a.src_buffer == b.src_buffer && a.dst_buffer == b.dst_buffer &&
         a.src_slot == b.src_slot && a.dst_slot == b.dst_slot && a.count == b.count &&
         a.peer == b.peer && a.comes_from == b.comes_from && a.dep_begin == b.dep_begin &&
         a.dep == b.dep;
}

Walk walk(const Program& program) {
  const auto& s = program.spec();
  const auto steps = at(program.steps());
  std::vector<std::uint8_t> is_first(steps, 0);
  for (const auto begin : s.thread_begin) {
    if (at(begin) < steps) is_first[at(begin)] = 1;
  }
  const auto predecessors = [&](std::size_t step, const auto& visit) {
    if (is_first[step] == 0) visit(step - 1);
    if (s.comes_from[step] >= 0) visit(at(s.comes_from[step]));
    for (auto d = s.dep_begin[step]; d < s.dep_begin[step + 1]; ++d) visit(at(s.dep[at(d)]));
  };
  std::vector<std::int64_t> begin(steps + 2, 0);
  std::vector<std::int32_t> waits(steps, 0);
  for (std::size_t step = 0; step < steps; ++step) {
    predecessors(step, [&](std::size_t before) {
      ++begin[before + 2];
      ++waits[step];
    });
  }
  for (std::size_t i = 2; i < begin.size(); ++i) begin[i] += begin[i - 1];
  std::vector<StepId> next(at(begin.back())), order;
  for (std::size_t step = 0; step < steps; ++step) {
    predecessors(step, [&](std::size_t before) {
      next[at(begin[before + 1]++)] = static_cast<StepId>(step);
    });
  }
  const auto followers = [&](std::size_t step) {
    return std::span(next).subspan(at(begin[step]), at(begin[step + 1] - begin[step]));
  };
  order.reserve(steps);
  for (std::size_t step = 0; step < steps; ++step) {
    if (waits[step] == 0) order.push_back(static_cast<StepId>(step));
  }
  for (std::size_t head = 0; head < order.size(); ++head) {
    for (const StepId after : followers(at(order[head]))) {
      if (--waits[at(after)] == 0) order.push_back(after);
    }
  }
  if (order.size() < steps) {
    const auto stuck = std::find_if(waits.begin(), waits.end(), [](auto w) { return w > 0; });
    invalid(program.describe(static_cast<StepId>(stuck - waits.begin())) +
            " can never run, since steps wait for each other in a cycle");
  }
  std::vector<std::int32_t> still_to_come(steps, 0);
  for (auto step = order.rbegin(); step != order.rend(); ++step) {
    auto& mine = still_to_come[at(*step)];
    for (const StepId after : followers(at(*step))) {
      mine = std::max(mine, still_to_come[at(after)] + 1);
    }
  }
  return {std::move(order), std::move(still_to_come)};
}

}  // namespace tacos
