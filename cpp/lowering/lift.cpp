#include "lowering/lift.hpp"

#include <algorithm>
#include <limits>
#include <span>
#include <unordered_map>

#include "lowering/lift_order.hpp"
#include "model/channel_routes.hpp"
#include "support/index.hpp"
#include "support/pairs.hpp"
#include "timing/retime.hpp"

namespace tacos {

namespace {

// Executes the program on symbols, see lift.hpp.
class SymbolicRun {
 public:
  explicit SymbolicRun(const Program& program) : program_(program), s_(program.spec()) {
    const auto& collective = program.collective();
    for (NodeId rank = 0; rank < program.ranks(); ++rank) {
      for (const auto buffer : {Buffer::input, Buffer::output, Buffer::scratch}) {
        first_.push_back(slots_.size());
        slots_.resize(slots_.size() + at(program.slots(rank, buffer)), kNothing);
      }
      const auto& brings = brings_.emplace_back(program.input_chunks(rank));
      if (s_.in_place) share(rank);
      for (std::size_t i = 0; i < brings.size(); ++i) {
        slot(rank, Buffer::input, static_cast<std::int32_t>(i)) =
            add_value({Kind::own, 1, brings[i], -1, -1});
      }
    }
    reduces_.resize(collective.chunks());
    for (ChunkId chunk = 0; chunk < collective.chunks(); ++chunk) {
      reduces_[chunk] = collective.reduces(chunk);
    }
    message_.assign(at(program.steps()), kNotSent);
    threads_.resize(at(program.steps()));
    for (ThreadId t = 0; t < program.threads(); ++t) {
      std::fill(threads_.begin() + s_.thread_begin[at(t)],
                threads_.begin() + s_.thread_begin[at(t) + 1], t);
    }
    std::int64_t moved = 0;
    for (const auto count : s_.count) moved += count;
    if (moved > std::numeric_limits<ValueId>::max() / 4) {
      invalid("the program's steps move " + std::to_string(moved) + " slots, which is too many");
    }
  }

  std::vector<LiftedTransfer> run(const Progress& progress) {
    const auto [order, still_to_come] = walk(program_);
    std::size_t done = 0;
    for (const StepId step : order) {
      if (progress && (++done & 0xffff) == 0) {
        progress(0.5 * static_cast<double>(done) / static_cast<double>(program_.steps()));
      }
      execute(step);
    }
    for (StepId step = 0; step < program_.steps(); ++step) {
      if (message_[at(step)] >= 0) refuse(step, "sends a message that is never received");
    }
    for (NodeId rank = 0; rank < program_.ranks(); ++rank) settle_outputs(rank);
    for (LiftedTransfer& transfer : transfers_) {
      transfer.urgency = still_to_come[at(transfer.sender)];
      if (transfer.version >= 0 || !reduces_[transfer.chunk]) continue;
      refuse(transfer.receiver, "takes in " + named(transfer.chunk) +
                                    " that is neither sent on nor ends as output" + kInexpressible);
    }
    return std::move(transfers_);
  }

 private:
  enum class Kind : std::uint8_t { own, arrived, acc, sum };
  using ValueId = std::int32_t;
  struct Value {
    Kind kind;
    std::uint8_t bases;  // inputs and versions of `acc` in it: none, one, or too many
    ChunkId chunk;       // kMixed: several
    std::int32_t a, b;   // arrived: the transfer; acc: the version; sum: two values
  };
  struct Acc {
    std::int32_t version = 0;
    std::int32_t lone = -1;  // the only transfer so far to a rank that had nothing of the chunk
  };
  static constexpr ValueId kNothing = -1;
  static constexpr std::int32_t kNotSent = -1, kReceived = -2;
  static constexpr ChunkId kMixed = ~ChunkId{0};
  static constexpr const char* kInexpressible = ", which a schedule cannot express";

  [[noreturn]] void refuse(StepId step, const std::string& what) const {
    invalid(program_.describe(step) + " " + what);
  }
  static std::string named(ChunkId chunk) { return "a part of chunk " + std::to_string(chunk); }

  // --- memory

  // In place, the input slot of a chunk is its output slot.
  void share(NodeId rank) {
    const auto& inputs = brings_[at(rank)];
    const auto outputs = program_.output_chunks(rank);
    auto& shared = shared_.emplace_back(inputs.size(), -1);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const auto found = std::lower_bound(outputs.begin(), outputs.end(), inputs[i]);
      if (found == outputs.end() || *found != inputs[i]) continue;
      shared[i] = static_cast<std::int32_t>(found - outputs.begin());
    }
  }
  ValueId& slot(NodeId rank, Buffer buffer, std::int32_t number) {
    if (s_.in_place && buffer == Buffer::input) {
      const auto shared = shared_[at(rank)][at(number)];
      if (shared >= 0) return slot(rank, Buffer::output, shared);
    }
    return slots_[first_[at(rank) * 3 + at(buffer)] + at(number)];
  }

  // --- steps

  void execute(StepId step) {
    const auto i = at(step);
    const StepOp op = program_.op(step);
    const ThreadId thread = thread_of(step);
    const NodeId rank = s_.thread_rank[at(thread)], peer = s_.peer[i];
    if (op == StepOp::wait && s_.comes_from[i] < 0) {
      refuse(step, "waits for a signal that is never sent");
    }
    if (!has_src(op) && !has_dst(op)) return;
    const bool gets = op == StepOp::get || op == StepOp::get_reduce;
    const NodeId reader = gets ? peer : rank, writer = op == StepOp::put ? peer : rank;
    const auto message = receives(op) ? receive(step, thread) : -1;
    if (sends(op)) message_[i] = static_cast<std::int32_t>(transfers_.size());
    for (std::int32_t k = 0; k < s_.count[i]; ++k) {
      ValueId value = receives(op) ? arrival(message + k) : kNothing;
      if (has_src(op)) {
        ValueId read = slot(reader, static_cast<Buffer>(s_.src_buffer[i]), s_.src_slot[i] + k);
        check_written(step, read);
        if (reader != writer) {
          read = arrival(send(step, read, reader, writer));
          transfers_.back().receiver = step;
        }
        value = receives(op) ? sum(rank, read, value) : read;
      }
      if (has_dst(op)) {
        auto& into = slot(writer, static_cast<Buffer>(s_.dst_buffer[i]), s_.dst_slot[i] + k);
        if (op == StepOp::reduce || op == StepOp::get_reduce) {
          check_written(step, into);
          value = sum(rank, into, value);
        }
        into = value;
      }
      if (sends(op)) send(step, value, rank, s_.thread_send_peer[at(thread)]);
    }
  }

  ThreadId thread_of(StepId step) const { return threads_[at(step)]; }

  void check_written(StepId step, ValueId value) const {
    if (value == kNothing) refuse(step, "reads a slot to which nothing has been written");
  }

  // The first transfer of the message that a step receives.
  std::int32_t receive(StepId step, ThreadId thread) {
    const StepId from = s_.comes_from[at(step)];
    if (from < 0) refuse(step, "waits for a message that is never sent");
    const ThreadId sender = thread_of(from);
    if (!sends(program_.op(from)) ||
        s_.thread_send_peer[at(sender)] != s_.thread_rank[at(thread)] ||
        s_.thread_recv_peer[at(thread)] != s_.thread_rank[at(sender)]) {
      refuse(step, "receives from " + program_.describe(from) + ", which does not send to it");
    }
    if (s_.count[at(from)] != s_.count[at(step)]) {
      refuse(step, "receives " + std::to_string(s_.count[at(step)]) + " slots, but " +
                       program_.describe(from) + " sends " + std::to_string(s_.count[at(from)]));
    }
    if (message_[at(from)] == kReceived) refuse(from, "sends one message that is received twice");
    const auto message = std::exchange(message_[at(from)], kReceived);
    for (std::int32_t k = 0; k < s_.count[at(step)]; ++k) {
      transfers_[at(message + k)].receiver = step;
    }
    return message;
  }

  std::int32_t send(StepId step, ValueId id, NodeId src, NodeId dst) {
    if (const char* problem = settle(id, src)) {
      refuse(step, std::string("sends ") + problem + kInexpressible);
    }
    const Value& value = values_[at(id)];
    LiftedTransfer transfer{src, dst, value.chunk, step, -1};
    transfer.channel = s_.thread_channel[at(thread_of(step))];
    if (value.kind != Kind::own) transfer.reads = Reads::acc;
    if (value.kind == Kind::arrived) transfer.after = value.a;
    if (value.kind == Kind::acc) {
      transfer.source = acc_of(src, value.chunk);
      transfer.source_version = value.a;
    }
    transfers_.push_back(transfer);
    seen_.push_back(0);
    return static_cast<std::int32_t>(transfers_.size()) - 1;
  }

  // --- values

  ValueId add_value(const Value& value) {
    values_.push_back(value);
    return static_cast<ValueId>(values_.size()) - 1;
  }
  ValueId arrival(std::int32_t transfer) {
    return add_value({Kind::arrived, 0, transfers_[at(transfer)].chunk, transfer, -1});
  }
  ValueId sum(NodeId rank, ValueId a, ValueId b) {
    const Value &left = values_[at(a)], &right = values_[at(b)];
    const auto bases = static_cast<std::uint8_t>(std::min(2, left.bases + right.bases));
    const ValueId id =
        add_value({Kind::sum, bases, left.chunk == right.chunk ? left.chunk : kMixed, a, b});
    if (bases == 1 && settle(id, rank) != nullptr) values_[at(id)].bases = 2;
    return id;
  }

  // Makes a value the input or a version of `acc`; for a chunk that does not reduce, a value that arrived is
  // `acc` already. If that is impossible, changes nothing and returns the reason.
  const char* settle(ValueId id, NodeId rank) {
    const Value value = values_[at(id)];
    if (value.kind == Kind::own || value.kind == Kind::acc) return nullptr;
    if (value.chunk == kMixed) return "a sum of different chunks";
    if (!reduces_[value.chunk]) {
      return value.kind == Kind::arrived ? nullptr : "a sum of a chunk that does not reduce";
    }
    ValueId base = kNothing;
    parts_.clear();
    stack_.assign(1, id);
    ++searches_;
    while (!stack_.empty()) {
      const ValueId part = stack_.back();
      const Value& there = values_[at(part)];
      stack_.pop_back();
      if (there.kind == Kind::sum) {
        stack_.push_back(there.b);
        stack_.push_back(there.a);
      } else if (there.kind == Kind::arrived) {
        if (transfers_[at(there.a)].version >= 0 || seen_[at(there.a)] == searches_) {
          return "a sum with a part that its rank has added up elsewhere";
        }
        seen_[at(there.a)] = searches_;
        parts_.push_back(there.a);
      } else {
        if (base != kNothing) return "a sum of two values of which a rank keeps only one";
        base = part;
      }
    }
    const auto number = acc_of(rank, value.chunk);
    Acc& acc = accs_[at(number)];
    if (base != kNothing) {
      const Value& from = values_[at(base)];
      if ((from.kind == Kind::own ? 0 : from.a) != acc.version) {
        return "a sum beside the one that its rank keeps";
      }
    }
    write(acc, number, base != kNothing, rank, value.chunk);
    values_[at(id)] = {Kind::acc, 1, value.chunk, acc.version, -1};
    return nullptr;
  }

  // Lets the transfers in `parts_` make the next version of an `acc`.
  void write(Acc& acc, std::int32_t number, bool adds, NodeId rank, ChunkId chunk) {
    const auto& brings = brings_[at(rank)];
    const bool empty =
        !adds && acc.version == 0 && !std::binary_search(brings.begin(), brings.end(), chunk);
    ++acc.version;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      LiftedTransfer& transfer = transfers_[at(parts_[i])];
      transfer.op = adds || i > 0 ? Op::reduce : Op::copy;
      transfer.target = number;
      transfer.version = acc.version;
    }
    // If the rank had nothing of the chunk, several parts are added in any order, so the first is not a copy.
    if (adds && acc.lone >= 0) transfers_[at(acc.lone)].op = Op::reduce;
    if (empty && parts_.size() > 1) transfers_[at(parts_[0])].op = Op::reduce;
    acc.lone = empty && parts_.size() == 1 ? parts_[0] : -1;
  }

  std::int32_t acc_of(NodeId rank, ChunkId chunk) {
    const auto key = (static_cast<std::uint64_t>(chunk) << 32) | static_cast<std::uint32_t>(rank);
    const auto [found, added] = acc_at_.try_emplace(key, static_cast<std::int32_t>(accs_.size()));
    if (added) accs_.emplace_back();
    return found->second;
  }

  void settle_outputs(NodeId rank) {
    const auto chunks = program_.output_chunks(rank);
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      const auto number = static_cast<std::int32_t>(i);
      const ValueId id = slot(rank, Buffer::output, number);
      const auto wrong = [&](const std::string& what) {
        invalid("output slot " + std::to_string(number) + " of rank " + std::to_string(rank) +
                " ends with " + what + kInexpressible);
      };
      if (id == kNothing) wrong("nothing");
      if (const char* problem = settle(id, rank)) wrong(problem);
      const Value& value = values_[at(id)];
      if (value.chunk != chunks[i]) {
        wrong("chunk " + std::to_string(value.chunk) + " instead of chunk " +
              std::to_string(chunks[i]));
      }
      if (!reduces_[value.chunk]) continue;
      const auto version = value.kind == Kind::own ? 0 : value.a;
      if (version != accs_[at(acc_of(rank, value.chunk))].version) {
        wrong("a sum beside the one that the rank keeps");
      }
    }
  }

  const Program& program_;
  const ProgramSpec& s_;
  std::vector<std::vector<ChunkId>> brings_;  // per rank
  std::vector<bool> reduces_;                 // per chunk
  std::vector<std::size_t> first_;            // slot of every rank's three buffers
  std::vector<ValueId> slots_;
  std::vector<std::vector<std::int32_t>>
      shared_;                         // in place: output slot of each input slot, or -1
  std::vector<ThreadId> threads_;      // per step
  std::vector<std::int32_t> message_;  // per step: first transfer of what it sends
  std::vector<LiftedTransfer> transfers_;
  std::vector<std::int64_t> seen_;  // per transfer, the last search that visited it
  std::int64_t searches_ = 0;
  std::vector<Value> values_;
  std::vector<Acc> accs_;
  std::unordered_map<std::uint64_t, std::int32_t> acc_at_;
  std::vector<ValueId> stack_;
  std::vector<std::int32_t> parts_;  // transfers in the value being settled
};

}  // namespace

Schedule lift(const Program& program, const std::shared_ptr<const Topology>& topology,
              std::int64_t size, std::string provenance, const Progress& progress) {
  if (topology->npus() != program.ranks()) {
    invalid("the topology has " + std::to_string(topology->npus()) + " NPUs, the program " +
            std::to_string(program.ranks()) + " ranks");
  }
  auto collective = std::make_shared<const Collective>(program.collective().resized(size));
  const auto transfers = SymbolicRun(program).run(progress);
  const auto order = find_order(transfers, program.ranks(), progress);
  if (order.circular >= 0) {
    const auto& transfer = transfers[at(order.circular)];
    invalid(program.describe(transfer.sender) + " sends chunk " + std::to_string(transfer.chunk) +
            " in an order that a schedule cannot express");
  }
  std::vector<std::uint64_t> pairs;
  for (const auto& transfer : transfers) pairs.push_back(pair_key(transfer.src, transfer.dst));
  const ChannelRoutes paths(topology, std::move(pairs), progress);
  std::vector<RouteId> route;
  std::vector<ChunkId> chunk;
  std::vector<std::uint8_t> op, reads;
  for (const auto t : order.transfers) {
    const auto& transfer = transfers[at(t)];
    route.push_back(paths.of(transfer.src, transfer.dst, transfer.channel));
    chunk.push_back(transfer.chunk);
    op.push_back(static_cast<std::uint8_t>(transfer.op));
    reads.push_back(static_cast<std::uint8_t>(transfer.reads));
  }
  const Order columns{route, chunk, order.steps, op, reads};
  const Schedule lifted = retime(std::move(collective), paths.routes(), columns,
                                 std::move(provenance), part_of(progress, 0.5, 1));
  ScheduleFacts facts;
  facts.engine = program.spec().facts.engine;
  facts.file = program.spec().facts.file;
  return lifted.with_facts(std::move(facts));
}

}  // namespace tacos
