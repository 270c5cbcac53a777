#include "verify/verify_program.hpp"

#include <algorithm>
#include <map>
#include <optional>

#include "verify/program_graph.hpp"
#include "verify/values.hpp"

namespace tacos {

namespace {

using namespace program_check;

constexpr std::size_t kMostShown =
    8;  // most steps of a cycle, or contributions of a sum, in a message

// --- messages

void check_messages(const Program& program, const WaitGraph& graph, ProgramFindings& findings) {
  const auto& s = program.spec();
  std::vector<std::uint8_t> received(at(program.steps()), 0);
  for (StepId step = 0; step < program.steps(); ++step) {
    const StepOp op = program.op(step);
    const StepId from = s.comes_from[at(step)];
    if (!receives(op) && op != StepOp::wait) continue;
    const bool waits = op == StepOp::wait;
    const NodeId peer = waits ? s.peer[at(step)] : s.thread_recv_peer[at(graph.thread(step))];
    if (from < 0) {
      findings.add("unmatched", step,
                   std::string(waits ? "waits for a signal from" : "waits for a message from") +
                       " rank " + std::to_string(peer) + " that is never sent");
      continue;
    }
    const StepOp source = program.op(from);
    const NodeId to = waits ? s.peer[at(from)] : s.thread_send_peer[at(graph.thread(from))];
    const bool fits = waits ? source == StepOp::signal : sends(source);
    if (!fits || to != graph.rank(step) || peer != graph.rank(from)) {
      findings.add("unmatched", step,
                   "receives from " + program.describe(from) + ", which does not send to it");
    } else if (!waits && s.count[at(from)] != s.count[at(step)]) {
      findings.add("unmatched", step,
                   "receives " + std::to_string(s.count[at(step)]) + " slots, but " +
                       program.describe(from) + " sends " + std::to_string(s.count[at(from)]));
    }
    if (received[at(from)]++ == 1) {
      findings.add("unmatched", from, "sends one message that is received twice");
    }
  }
  for (StepId step = 0; step < program.steps(); ++step) {
    if (received[at(step)] > 0 || (!sends(program.op(step)) && program.op(step) != StepOp::signal))
      continue;
    const NodeId to = program.op(step) == StepOp::signal
                          ? s.peer[at(step)]
                          : s.thread_send_peer[at(graph.thread(step))];
    findings.add("unmatched", step,
                 "sends a message to rank " + std::to_string(to) + " that is never received");
  }
}

// --- values

std::uint64_t mixed(std::uint64_t x) {
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93;
  return x ^ (x >> 32);
}

// Most times that a sum counts a contribution: counts of a sum that is added to itself again and again stay here.
constexpr std::int64_t kMost = std::int64_t{1} << 61;

struct Sum {
  std::int64_t count = -1;  // of contributions; -1: nothing was written
  std::uint64_t low = 0, high = 0;
  std::uint64_t order =
      0;  // hash of how the sum was added up, operands of one addition swapped or not

  static Sum one(NodeId rank, ChunkId chunk) {
    const auto key = (static_cast<std::uint64_t>(chunk) << 32) | static_cast<std::uint32_t>(rank);
    const auto low = mixed(key + 0x9e3779b97f4a7c15);
    return {1, low, mixed(~key * 0xc2b2ae3d27d4eb4f + 1), low};
  }
  bool defined() const { return count >= 0; }
  Sum operator+(const Sum& other) const {
    if (!defined() || !other.defined()) return {};
    const auto both = mixed(order + 0x632be59bd9b4e019) + mixed(other.order + 0x632be59bd9b4e019);
    return {std::min(count + other.count, kMost), low + other.low, high + other.high, mixed(both)};
  }
  // Whether both sums have the same contributions, in whatever order.
  bool operator==(const Sum& other) const {
    return count == other.count && low == other.low && high == other.high;
  }
};

// The true multiset of what the ranks contributed to one chunk; contributions to others have the
// rank -1.
struct Multiset {
  std::optional<std::map<NodeId, std::int64_t>> ranks;

  bool defined() const { return ranks.has_value(); }
  Multiset operator+(const Multiset& other) const {
    if (!defined() || !other.defined()) return {};
    auto both = *this;
    for (const auto& [rank, times] : *other.ranks) {
      auto& sum = (*both.ranks)[rank];
      sum = std::min(sum + times, kMost);
    }
    return both;
  }
};

// Runs all steps in the given order. `initial(rank, chunk)` returns what an input slot holds, and
// `undefined(step, place)` is called if a step reads a slot that was never written.
template <typename Value, typename Initial, typename Undefined>
std::vector<Value> execute(const Program& program, const WaitGraph& graph, const Memory& memory,
                           const std::vector<StepId>& order, const Initial& initial,
                           const Undefined& undefined, const Progress& progress) {
  const auto& s = program.spec();
  std::vector<Value> slots(memory.size());
  for (NodeId rank = 0; rank < program.ranks(); ++rank) {
    const auto chunks = program.input_chunks(rank);
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      slots[memory.place(rank, Buffer::input, static_cast<std::int32_t>(i))] =
          initial(rank, chunks[i]);
    }
  }
  std::vector<std::vector<Value>> sent(at(program.steps()));
  std::vector<Value> moved;
  std::size_t done = 0;
  for (const StepId step : order) {
    if (progress && (++done & 0xffff) == 0)
      progress(0.5 * static_cast<double>(done) / static_cast<double>(order.size()));
    const StepOp op = program.op(step);
    if (!has_src(op) && !has_dst(op)) continue;
    const auto i = at(step);
    const NodeId rank = graph.rank(step);
    const NodeId reads = op == StepOp::get || op == StepOp::get_reduce ? s.peer[i] : rank;
    const NodeId writes = op == StepOp::put ? s.peer[i] : rank;
    std::vector<Value> arrived;
    if (receives(op) && s.comes_from[i] >= 0) arrived = std::move(sent[at(s.comes_from[i])]);
    arrived.resize(at(s.count[i]));
    moved.clear();
    for (std::int32_t k = 0; k < s.count[i]; ++k) {
      Value value = receives(op) ? arrived[at(k)] : Value();
      if (has_src(op)) {
        const auto from =
            memory.place(reads, static_cast<Buffer>(s.src_buffer[i]), s.src_slot[i] + k);
        if (!slots[from].defined()) undefined(step, from);
        value = receives(op) ? slots[from] + value : slots[from];
      }
      if (has_dst(op)) {
        const auto into =
            memory.place(writes, static_cast<Buffer>(s.dst_buffer[i]), s.dst_slot[i] + k);
        if (op == StepOp::reduce || op == StepOp::get_reduce) {
          if (!slots[into].defined()) undefined(step, into);
          value = slots[into] + value;
        }
        slots[into] = value;
      }
      moved.push_back(std::move(value));
    }
    if (sends(op)) sent[i] = moved;
  }
  return slots;
}

// Explains why an output slot has a wrong value.
std::string explain(const Multiset& value, const Collective& collective, ChunkId chunk) {
  const auto listed = [](const std::vector<NodeId>& ranks) {
    std::string text;
    for (std::size_t i = 0; i < ranks.size() && i < kMostShown; ++i) {
      text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
    }
    if (ranks.size() > kMostShown) text += ", …";
    return (ranks.size() > 1 ? "ranks " : "rank ") + text;
  };
  const auto inputs = collective.inputs(chunk);
  if (!collective.reduces(chunk)) return "holds something else";
  std::vector<NodeId> missing, twice;
  bool foreign = false;
  for (const NodeId rank : inputs) {
    const auto found = value.ranks->find(rank);
    if (found == value.ranks->end()) missing.push_back(rank);
    if (found != value.ranks->end() && found->second > 1) twice.push_back(rank);
  }
  for (const auto& [rank, times] : *value.ranks) foreign = foreign || rank < 0;
  std::string why;
  if (!missing.empty()) why += "lacks the contribution of " + listed(missing);
  if (!twice.empty())
    why += (why.empty() ? "counts " : " and counts ") + listed(twice) + " more than once";
  if (foreign) why += std::string(why.empty() ? "" : " and ") + "contains other chunks";
  return why;
}

// Two ranks that end with one sum, added up in different orders, in a sentence; empty if there are none.
std::string different_orders(const Program& program, const Memory& memory,
                             const std::vector<Sum>& slots) {
  struct First {
    NodeId rank = -1;
    std::uint64_t order = 0;
  };
  const auto& collective = program.collective();
  std::vector<First> first(collective.chunks());
  ChunkId lowest = collective.chunks();
  NodeId other = -1;
  for (NodeId rank = 0; rank < program.ranks(); ++rank) {
    const auto chunks = program.output_chunks(rank);
    for (std::size_t i = 0; i < chunks.size() && chunks[i] < lowest; ++i) {
      if (!collective.reduces(chunks[i])) continue;
      const Sum& value = slots[memory.place(rank, Buffer::output, static_cast<std::int32_t>(i))];
      auto& [who, order] = first[chunks[i]];
      if (who < 0) {
        who = rank;
        order = value.order;
      } else if (order != value.order) {
        lowest = chunks[i];
        other = rank;
      }
    }
  }
  if (other < 0) return "";
  return "ranks " + std::to_string(first[lowest].rank) + " and " + std::to_string(other) +
         " add up chunk " + std::to_string(lowest) + " in different orders";
}

void check_values(const Program& program, const WaitGraph& graph, const Memory& memory,
                  const std::vector<StepId>& order, ProgramFindings& findings,
                  const Progress& progress) {
  const auto& collective = program.collective();
  const auto slots = execute<Sum>(
      program, graph, memory, order, Sum::one,
      [&](StepId step, std::size_t place) {
        findings.add("undefined", step,
                     "reads " + memory.describe(place) + ", to which nothing has been written");
      },
      progress);
  findings.compared(different_orders(program, memory, slots));
  struct Wrong {
    NodeId rank;
    std::int32_t slot;
  };
  std::map<ChunkId, std::vector<Wrong>> wrong;
  std::vector<Sum> sums(collective.chunks());
  for (ChunkId chunk = 0; chunk < collective.chunks(); ++chunk) {
    if (!collective.reduces(chunk)) continue;
    sums[chunk].count = 0;
    for (const NodeId rank : collective.inputs(chunk))
      sums[chunk] = sums[chunk] + Sum::one(rank, chunk);
  }
  for (NodeId rank = 0; rank < program.ranks(); ++rank) {
    const auto chunks = program.output_chunks(rank);
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      const auto slot = static_cast<std::int32_t>(i);
      const Sum& value = slots[memory.place(rank, Buffer::output, slot)];
      if (!value.defined()) {
        findings.add("postcondition", -1,
                     "output slot " + std::to_string(slot) + " of rank " + std::to_string(rank) +
                         ", for chunk " + std::to_string(chunks[i]) + ", ends undefined",
                     chunks[i]);
        continue;
      }
      bool right = value == sums[chunks[i]];
      if (!collective.reduces(chunks[i])) {
        for (const NodeId from : collective.inputs(chunks[i])) {
          right = right || value == Sum::one(from, chunks[i]);
        }
      }
      if (!right) wrong[chunks[i]].push_back({rank, slot});
    }
  }
  std::size_t explained = 0;
  for (const auto& [chunk, places] : wrong) {
    std::vector<Multiset> truth;
    if (explained++ < kMostShown) {
      truth = execute<Multiset>(
          program, graph, memory, order,
          [&, c = chunk](NodeId rank, ChunkId held) {
            return Multiset{{{{held == c ? rank : -1, 1}}}};
          },
          [](StepId, std::size_t) {}, progress);
    }
    for (const auto& [rank, slot] : places) {
      const auto why = truth.empty() ? std::string("is wrong, too")
                                     : explain(truth[memory.place(rank, Buffer::output, slot)],
                                               collective, chunk);
      findings.add(collective.reduces(chunk) ? "contribution" : "postcondition", -1,
                   "output slot " + std::to_string(slot) + " of rank " + std::to_string(rank) +
                       ", for chunk " + std::to_string(chunk) + ", " + why,
                   chunk);
    }
  }
}

void check_inputs(const Program& program, ProgramFindings& findings) {
  const auto& s = program.spec();
  if (s.in_place) return;
  for (StepId step = 0; step < program.steps(); ++step) {
    if (!has_dst(program.op(step))) continue;
    if (s.dst_buffer[at(step)] != static_cast<std::uint8_t>(Buffer::input)) continue;
    findings.add("input", step,
                 "overwrites input slot " + std::to_string(s.dst_slot[at(step)]) +
                     ", though the program is not in place");
  }
}

}  // namespace

VerifyReport verify(const Program& program, std::int64_t limit, const Progress& progress) {
  ProgramFindings findings(program, limit,
                           !verification::sums_end_at_several(program.collective()));
  const WaitGraph graph(program);
  check_messages(program, graph, findings);
  const auto order = graph.order();
  if (order.size() < at(program.steps())) {
    const auto circle = graph.circle(order);
    std::string text = "can never run: ";
    for (std::size_t i = 0; i < circle.size() && i < kMostShown; ++i) {
      text += (i > 0 ? " -> " : "") + program.describe(circle[i]);
    }
    text += circle.size() > kMostShown ? " -> …" : " -> " + program.describe(circle[0]);
    findings.add("deadlock", circle[0], text + " wait for each other");
    return findings.take();
  }
  if (findings.any()) return findings.take();  // without all messages, values mean nothing
  const Memory memory(program);
  check_inputs(program, findings);
  check_values(program, graph, memory, order, findings, progress);
  check_races(program, graph, memory, order, findings, progress);
  return findings.take();
}

}  // namespace tacos
