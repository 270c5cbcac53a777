#include "verify/verify_program.hpp"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>
#include <optional>
#include <span>

namespace tacos {

namespace {

template <typename Int>
std::size_t at(Int i) {
  return static_cast<std::size_t>(i);
}

constexpr std::size_t kNamed =
    8;  // steps of a circle, contributions of a sum: more fill no sentence

class Findings {
 public:
  explicit Findings(const Program& program, std::int64_t limit)
      : program_(program), limit_(limit) {}

  void add(std::string rule, StepId step, const std::string& what, std::int64_t chunk = -1) {
    ++report_.found;
    if (report_.found > limit_) return;
    const auto where = step >= 0 ? program_.describe(step) + " " : "";
    report_.violations.push_back({std::move(rule), step, -1, chunk, -1, where + what});
  }
  bool any() const { return report_.found > 0; }
  VerifyReport take() {
    report_.checked = program_.steps();
    return std::move(report_);
  }

 private:
  const Program& program_;
  std::int64_t limit_;
  VerifyReport report_;
};

// --- who waits for whom

class Graph {
 public:
  explicit Graph(const Program& program) : program_(program), thread_(at(program.steps())) {
    const auto& s = program.spec();
    for (ThreadId t = 0; t < program.threads(); ++t) {
      for (auto i = s.thread_begin[at(t)]; i < s.thread_begin[at(t) + 1]; ++i) thread_[at(i)] = t;
    }
  }

  ThreadId thread(StepId step) const { return thread_[at(step)]; }
  NodeId rank(StepId step) const { return program_.spec().thread_rank[at(thread(step))]; }
  bool is_first(StepId step) const {
    return program_.spec().thread_begin[at(thread(step))] == step;
  }
  std::span<const StepId> dependencies(StepId step) const {
    const auto& s = program_.spec();
    return s.dep.slice(at(s.dep_begin[at(step)]), at(s.dep_begin[at(step) + 1]));
  }
  template <typename Visit>
  void predecessors(StepId step, const Visit& visit) const {
    if (!is_first(step)) visit(step - 1);
    for (const StepId before : dependencies(step)) visit(before);
    if (const StepId from = program_.spec().comes_from[at(step)]; from >= 0) visit(from);
  }

  // Steps in an order in which each comes after those it waits for; those of circles are missing.
  std::vector<StepId> order() const {
    const auto steps = at(program_.steps());
    std::vector<std::int64_t> begin(steps + 2, 0);
    std::vector<std::int32_t> waits(steps, 0);
    for (StepId step = 0; step < program_.steps(); ++step) {
      predecessors(step, [&](StepId before) {
        ++begin[at(before) + 2];
        ++waits[at(step)];
      });
    }
    for (std::size_t i = 2; i < begin.size(); ++i) begin[i] += begin[i - 1];
    std::vector<StepId> next(at(begin.back()));
    for (StepId step = 0; step < program_.steps(); ++step) {
      predecessors(step, [&](StepId before) { next[at(begin[at(before) + 1]++)] = step; });
    }
    std::vector<StepId> result;
    result.reserve(steps);
    for (StepId step = 0; step < program_.steps(); ++step) {
      if (waits[at(step)] == 0) result.push_back(step);
    }
    for (std::size_t head = 0; head < result.size(); ++head) {
      const auto step = at(result[head]);
      for (auto i = begin[step]; i < begin[step + 1]; ++i) {
        if (--waits[at(next[at(i)])] == 0) result.push_back(next[at(i)]);
      }
    }
    return result;
  }

  // Some circle among the steps that are not in `order`.
  std::vector<StepId> circle(const std::vector<StepId>& order) const {
    std::vector<std::uint8_t> runs(at(program_.steps()), 0);
    for (const StepId step : order) runs[at(step)] = 1;
    const auto stuck = std::find(runs.begin(), runs.end(), 0);
    std::vector<StepId> path;
    std::vector<std::int32_t> seen(runs.size(), -1);
    for (auto step = static_cast<StepId>(stuck - runs.begin()); seen[at(step)] < 0;) {
      seen[at(step)] = static_cast<std::int32_t>(path.size());
      path.push_back(step);
      StepId before = -1;
      predecessors(step, [&](StepId p) {
        if (runs[at(p)] == 0) before = p;
      });
      step = before;
      if (seen[at(step)] >= 0) path.erase(path.begin(), path.begin() + seen[at(step)]);
    }
    std::reverse(path.begin(), path.end());
    return path;
  }

 private:
  const Program& program_;
  std::vector<ThreadId> thread_;
};

// --- messages

void check_messages(const Program& program, const Graph& graph, Findings& findings) {
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
                 "sends to rank " + std::to_string(to) + " what is never received");
  }
}

// --- memory

// All slots of all ranks in one row; in place, an input slot is the output slot of its chunk.
class Memory {
 public:
  explicit Memory(const Program& program) : program_(program) {
    std::int64_t total = 0;
    for (NodeId rank = 0; rank < program.ranks(); ++rank) {
      for (const auto buffer : {Buffer::input, Buffer::output, Buffer::scratch}) {
        first_.push_back(total);
        total += program.slots(rank, buffer);
      }
    }
    first_.push_back(total);
    if (!program.spec().in_place) return;
    shared_.assign(at(program.ranks()), {});
    for (NodeId rank = 0; rank < program.ranks(); ++rank) {
      const auto inputs = program.input_chunks(rank);
      const auto outputs = program.output_chunks(rank);
      for (const ChunkId chunk : inputs) {  // both are in order of the chunks
        const auto found = std::lower_bound(outputs.begin(), outputs.end(), chunk);
        const bool both = found != outputs.end() && *found == chunk;
        shared_[at(rank)].push_back(both ? static_cast<std::int32_t>(found - outputs.begin()) : -1);
      }
    }
  }

  std::size_t size() const { return at(first_.back()); }
  std::pair<std::size_t, std::size_t> of(NodeId rank) const {
    return {at(first_[at(rank) * 3]), at(first_[at(rank) * 3 + 3])};
  }
  std::size_t place(NodeId rank, Buffer buffer, std::int32_t slot) const {
    if (buffer == Buffer::input && !shared_.empty() && shared_[at(rank)][at(slot)] >= 0) {
      return place(rank, Buffer::output, shared_[at(rank)][at(slot)]);
    }
    return at(first_[at(rank) * 3 + at(buffer)] + slot);
  }
  std::string describe(std::size_t place) const {
    const auto found =
        std::upper_bound(first_.begin(), first_.end(), static_cast<std::int64_t>(place));
    const auto row = at(found - first_.begin() - 1);
    static constexpr const char* kNames[] = {"input", "output", "scratch"};
    return std::string(kNames[row % 3]) + " slot " +
           std::to_string(static_cast<std::int64_t>(place) - first_[row]) + " of rank " +
           std::to_string(row / 3);
  }

  // Calls visit(place, writes) for all that a step touches, reads first.
  template <typename Visit>
  void touched(const Graph& graph, StepId step, const Visit& visit) const {
    const auto& s = program_.spec();
    const auto i = at(step);
    const StepOp op = program_.op(step);
    const NodeId rank = graph.rank(step);
    const NodeId reads = op == StepOp::get || op == StepOp::get_reduce ? s.peer[i] : rank;
    const NodeId writes = op == StepOp::put ? s.peer[i] : rank;
    const bool adds = op == StepOp::reduce || op == StepOp::get_reduce;
    for (std::int32_t k = 0; k < s.count[i]; ++k) {
      if (has_src(op)) {
        visit(place(reads, static_cast<Buffer>(s.src_buffer[i]), s.src_slot[i] + k), false);
      }
      if (!has_dst(op)) continue;
      const auto into = place(writes, static_cast<Buffer>(s.dst_buffer[i]), s.dst_slot[i] + k);
      if (adds) visit(into, false);
      visit(into, true);
    }
  }

 private:
  const Program& program_;
  std::vector<std::int64_t> first_;  // of every rank's three buffers
  std::vector<std::vector<std::int32_t>> shared_;
};

// --- values

std::uint64_t mixed(std::uint64_t x) {
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93;
  return x ^ (x >> 32);
}

// Times that a sum counts something; a sum that is added to itself over and over stays there.
constexpr std::int64_t kMost = std::int64_t{1} << 61;

struct Sum {
  std::int64_t count = -1;  // of contributions; -1: nothing was written
  std::uint64_t low = 0, high = 0;

  static Sum one(NodeId rank, ChunkId chunk) {
    const auto key = (static_cast<std::uint64_t>(chunk) << 32) | static_cast<std::uint32_t>(rank);
    return {1, mixed(key + 0x9e3779b97f4a7c15), mixed(~key * 0xc2b2ae3d27d4eb4f + 1)};
  }
  bool defined() const { return count >= 0; }
  Sum operator+(const Sum& other) const {
    if (!defined() || !other.defined()) return {};
    return {std::min(count + other.count, kMost), low + other.low, high + other.high};
  }
  bool operator==(const Sum&) const = default;
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

// Runs all steps in the given order. `initial(rank, chunk)` is what an input slot holds, and
// `undefined(step, place)` is told who reads what nobody wrote.
template <typename Value, typename Initial, typename Undefined>
std::vector<Value> execute(const Program& program, const Graph& graph, const Memory& memory,
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

// Says why an output slot does not hold what it should.
std::string explain(const Multiset& value, const Collective& collective, ChunkId chunk) {
  const auto listed = [](const std::vector<NodeId>& ranks) {
    std::string text;
    for (std::size_t i = 0; i < ranks.size() && i < kNamed; ++i) {
      text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
    }
    if (ranks.size() > kNamed) text += ", …";
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

void check_values(const Program& program, const Graph& graph, const Memory& memory,
                  const std::vector<StepId>& order, Findings& findings, const Progress& progress) {
  const auto& collective = program.collective();
  const auto slots = execute<Sum>(
      program, graph, memory, order, Sum::one,
      [&](StepId step, std::size_t place) {
        findings.add("undefined", step,
                     "reads " + memory.describe(place) + ", to which nothing has been written");
      },
      progress);
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
    if (explained++ < kNamed) {
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

// --- order

// Whether steps are ordered, of those that touch one rank's memory at a time. Such a step knows how far
// it is behind each thread: at first what its thread and its dependencies know, and more once
// somebody asks for what only messages through other ranks can tell. A search looks at least twice as
// far back as the one before, and skips what its thread has seen: O(steps · log steps) for a thread.
class Ordering {
 public:
  Ordering(const Program& program, const Graph& graph, const std::vector<StepId>& order)
      : graph_(graph),
        position_(at(program.steps())),
        known_(at(program.steps())),
        seen_(at(program.steps())),
        column_(at(program.threads()), 0),
        latest_(at(program.threads()), -1) {
    for (std::size_t i = 0; i < order.size(); ++i) {
      position_[at(order[i])] = static_cast<std::int32_t>(i);
    }
  }

  // Starts with a rank; `steps` are those that touch its memory.
  void set_rank(NodeId rank, std::span<const StepId> steps) {
    rank_ = rank;
    width_ = 0;
    clock_.clear();
    for (const StepId step : steps) latest_[at(graph_.thread(step))] = -1;
    for (const StepId step : steps) {
      auto& latest = latest_[at(graph_.thread(step))];
      if (latest == -1) column_[at(graph_.thread(step))] = width_++;
      latest = kNoStep;
    }
  }

  // Takes the steps one by one, in a topological order.
  void add(StepId step) {
    known_[at(step)] = {rank_, std::numeric_limits<std::int32_t>::max(), clock_.size()};
    clock_.resize(clock_.size() + width_, -1);
    auto& latest = latest_[at(graph_.thread(step))];
    if (latest >= 0) learn(step, latest);
    for (const StepId before : graph_.dependencies(step)) {
      if (known_[at(before)].rank == rank_) learn(step, before);
    }
    clock_[known_[at(step)].clock + column_[at(graph_.thread(step))]] = step;
    latest = step;
  }

  bool before(StepId a, StepId b) {
    const auto entry = known_[at(b)].clock + column_[at(graph_.thread(a))];
    if (clock_[entry] < a && position_[at(a)] < known_[at(b)].since) {
      search(b, std::max(0, 2 * position_[at(a)] - position_[at(b)]));
    }
    return clock_[entry] >= a;
  }

 private:
  static constexpr StepId kNoStep = -2;

  struct Known {
    NodeId rank = -1;
    std::int32_t since = 0;  // all that comes before the step is known from this position on
    std::size_t clock = 0;   // the last step of each thread that comes before it, and itself
  };
  struct Seen {
    NodeId rank = -1;
    ThreadId thread = -1;
    std::int32_t since = 0;
  };

  void learn(StepId step, StepId before) {
    const auto mine = known_[at(step)].clock, theirs = known_[at(before)].clock;
    for (std::size_t t = 0; t < width_; ++t) {
      clock_[mine + t] = std::max(clock_[mine + t], clock_[theirs + t]);
    }
  }

  // Backwards from `step` to a position.
  void search(StepId step, std::int32_t since) {
    stack_.assign(1, step);
    while (!stack_.empty()) {
      const StepId from = stack_.back();
      stack_.pop_back();
      graph_.predecessors(from, [&](StepId p) {
        auto& seen = seen_[at(p)];
        const ThreadId thread = graph_.thread(step);
        if (position_[at(p)] < since ||
            (seen.rank == rank_ && seen.thread == thread && seen.since <= since)) {
          return;
        }
        seen = {rank_, thread, since};
        if (known_[at(p)].rank == rank_) {
          learn(step, p);
          if (known_[at(p)].since <= since) return;
        }
        stack_.push_back(p);
      });
    }
    known_[at(step)].since = since;
  }

  const Graph& graph_;
  std::vector<std::int32_t> position_;
  std::vector<Known> known_;
  std::vector<Seen> seen_;  // by whose search, and how far back
  std::vector<std::size_t> column_;
  std::vector<StepId> latest_;  // of a thread, among those that touch the rank's memory
  NodeId rank_ = -1;
  std::size_t width_ = 0;
  std::vector<StepId> clock_;
  std::vector<StepId> stack_;
};

// A step moves its slots in no particular order.
void check_overlap(const Program& program, const Graph& graph, const Memory& memory, StepId step,
                   Findings& findings) {
  const auto& s = program.spec();
  const auto i = at(step);
  const StepOp op = program.op(step);
  if (s.count[i] < 2 || one_sided(op) || !has_src(op) || !has_dst(op)) return;
  const auto src = static_cast<Buffer>(s.src_buffer[i]), dst = static_cast<Buffer>(s.dst_buffer[i]);
  if (src == dst ? std::abs(s.src_slot[i] - s.dst_slot[i]) >= s.count[i]
                 : !s.in_place || src == Buffer::scratch || dst == Buffer::scratch) {
    return;
  }
  const NodeId rank = graph.rank(step);
  std::vector<std::pair<std::size_t, std::int32_t>> read;
  for (std::int32_t k = 0; k < s.count[i]; ++k) {
    read.emplace_back(memory.place(rank, src, s.src_slot[i] + k), k);
  }
  std::sort(read.begin(), read.end());
  for (std::int32_t k = 0; k < s.count[i]; ++k) {
    const auto place = memory.place(rank, dst, s.dst_slot[i] + k);
    const auto found = std::lower_bound(read.begin(), read.end(), std::pair(place, 0));
    if (found == read.end() || found->first != place || found->second == k) continue;
    findings.add("race", step,
                 "writes " + memory.describe(place) +
                     " while it may still have to read it, since "
                     "its src and dst overlap");
    return;
  }
}

void check_races(const Program& program, const Graph& graph, const Memory& memory,
                 const std::vector<StepId>& order, Findings& findings, const Progress& progress) {
  struct Place {
    StepId writer = -1;
    std::vector<StepId> readers;  // since
  };
  std::vector<std::vector<StepId>> touching(at(program.ranks()));
  for (const StepId step : order) {
    touching[at(graph.rank(step))].push_back(step);
    if (one_sided(program.op(step))) {
      touching[at(program.spec().peer[at(step)])].push_back(step);
    }
  }
  Ordering ordering(program, graph, order);
  std::vector<Place> places;
  for (NodeId rank = 0; rank < program.ranks(); ++rank) {
    const auto [first, end] = memory.of(rank);
    places.assign(end - first, {});
    ordering.set_rank(rank, touching[at(rank)]);
    for (const StepId step : touching[at(rank)]) {
      ordering.add(step);
      if (graph.rank(step) == rank) check_overlap(program, graph, memory, step, findings);
      memory.touched(graph, step, [&](std::size_t where, bool writes) {
        if (where < first || where >= end) return;  // the other side of a one-sided step
        Place& place = places[where - first];
        const auto conflict = [&](StepId other, const char* verb) {
          if (other == step || ordering.before(other, step)) return;
          findings.add("race", step,
                       std::string(writes ? "writes " : "reads ") + memory.describe(where) +
                           " while " + program.describe(other) + " may be " + verb + " it");
        };
        if (place.writer >= 0) conflict(place.writer, "writing");
        if (!writes) {
          place.readers.push_back(step);
          return;
        }
        for (const StepId reader : place.readers) conflict(reader, "reading");
        place.readers.clear();
        place.writer = step;
      });
    }
    if (progress) progress(0.5 + 0.5 * static_cast<double>(rank) / program.ranks());
  }
}

void check_inputs(const Program& program, Findings& findings) {
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
  Findings findings(program, limit);
  const Graph graph(program);
  check_messages(program, graph, findings);
  const auto order = graph.order();
  if (order.size() < at(program.steps())) {
    const auto circle = graph.circle(order);
    std::string text = "can never run: ";
    for (std::size_t i = 0; i < circle.size() && i < kNamed; ++i) {
      text += (i > 0 ? " -> " : "") + program.describe(circle[i]);
    }
    text += circle.size() > kNamed ? " -> …" : " -> " + program.describe(circle[0]);
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
