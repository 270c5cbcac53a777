// Programs from traces: pairs sends with receives, and arranges nodes as steps of threads.
#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "formats/chakra_reader.hpp"
#include "support/index.hpp"

namespace tacos::chakra {

namespace {}  // namespace

std::vector<std::int64_t> Traces::pairs() const {
  std::vector<std::int64_t> out, in;
  for (std::size_t row = 0; row < nodes(); ++row) {
    if (kind[row] == 0) out.push_back(static_cast<std::int64_t>(row));
    if (kind[row] == 1) in.push_back(static_cast<std::int64_t>(row));
  }
  const auto key = [&](std::int64_t row) {
    const auto i = at(row);
    const bool sent = kind[i] == 0;
    return std::tuple(sent ? rank[i] : peer[i], sent ? peer[i] : rank[i], tag[i], bytes[i]);
  };
  // Rows break ties, so the first send is paired with the first receive.
  const auto less = [&](std::int64_t a, std::int64_t b) {
    const auto ka = key(a), kb = key(b);
    return ka != kb ? ka < kb : a < b;
  };
  std::sort(out.begin(), out.end(), less);
  std::sort(in.begin(), in.end(), less);
  std::vector<std::int64_t> send_of(nodes(), kNoRow);
  for (std::size_t i = 0; i < std::max(out.size(), in.size()); ++i) {
    if (i < out.size() && i < in.size() && key(out[i]) == key(in[i])) {
      send_of[at(in[i])] = out[i];
      continue;
    }
    const bool extra_send = i >= in.size() || (i < out.size() && key(out[i]) < key(in[i]));
    invalid(describe(at(extra_send ? out[i] : in[i])) +
            (extra_send ? " has no receive" : " has no send"));
  }
  return send_of;
}

namespace {

Buffer buffer_of(std::int32_t number) {
  return static_cast<Buffer>(std::min(number, std::int32_t{255}));  // Program refuses it
}

}  // namespace

void Traces::refuse_other_nodes() const {
  for (std::size_t row = 0; row < nodes(); ++row) {
    if (kind[row] < 2 && bytes[row] == 0)
      invalid(describe(row) + ": a message of a program has bytes");
    if (kind[row] <= static_cast<std::uint8_t>(NodeKind::comp)) continue;
    const bool whole = kind[row] == static_cast<std::uint8_t>(NodeKind::coll);
    invalid(describe(row) +
            (whole ? " is a collective, which a program does not have"
                   : " moves data to or from a memory, which a program does not do") +
            ": read the traces with tacos.workload.load");
  }
}

Program Traces::restored(std::shared_ptr<const Collective> collective, bool in_place,
                         std::vector<std::int32_t> scratch_slots, const Threads& threads,
                         std::string provenance) const {
  refuse_other_nodes();
  std::vector<std::size_t> first_thread(at(ranks()) + 1, 0);
  for (const auto r : threads.rank) ++first_thread[at(r) + 1];
  for (std::size_t r = 0; r < at(ranks()); ++r) first_thread[r + 1] += first_thread[r];

  Steps steps;
  std::vector<std::int64_t> step(nodes(), kNoRow);
  for (std::size_t row = 0; row < nodes(); ++row) {
    const auto r = at(rank[row]);
    const auto of_rank = first_thread[r + 1] - first_thread[r];
    if (step_of[row] == kNoRow) {
      if (of_rank == 0 && kind[row] == 2) continue;  // an idle rank
      invalid(describe(row) + " has neither tacos_step nor tacos_of");
    }
    if (step_of[row] != static_cast<std::int64_t>(row)) continue;
    const auto* fields = &step_fields[row * kStepFields];
    if (at(fields[1]) >= of_rank || fields[0] >= kStepOps) {
      invalid(describe(row) + ": tacos_step has operation " + std::to_string(fields[0]) +
              " of thread " + std::to_string(fields[1]) + "; operations must be 0 to " +
              std::to_string(kStepOps - 1) + " and threads below " + std::to_string(of_rank));
    }
    step[row] = static_cast<std::int64_t>(steps.op.size());
    steps.add(static_cast<StepOp>(fields[0]), static_cast<ThreadId>(first_thread[r]) + fields[1],
              buffer_of(fields[2]), fields[3], buffer_of(fields[4]), fields[5], fields[6]);
  }
  const auto owner = [&](std::size_t row) {
    return step_of[row] == kNoRow ? kNoRow : step[at(step_of[row])];
  };

  const auto send_of = pairs();
  std::vector<bool> sent(steps.op.size(), false), received(steps.op.size(), false);
  for (std::size_t row = 0; row < nodes(); ++row) {
    if (owner(row) == kNoRow) continue;
    const auto mine = at(owner(row));
    const StepOp op = static_cast<StepOp>(steps.op[mine]);
    if (kind[row] < 2) {
      const bool out = kind[row] == 0;
      auto& there = out ? sent : received;
      const NodeId meant = (out ? threads.send_peer : threads.recv_peer)[at(steps.thread[mine])];
      if (there[mine] || !(out ? sends(op) : receives(op)) || peer[row] != meant) {
        invalid(describe(row) + " does not suit the step it belongs to");
      }
      there[mine] = true;
      if (!out) steps.comes_from[mine] = owner(at(send_of[row]));
    }
    for (auto d = dep_begin[row]; d < dep_begin[row + 1]; ++d) {
      const auto before = owner(at(dep[at(d)]));
      if (before != kNoRow && at(before) != mine && dep_is_control[at(d)] == 0) {
        steps.waits.emplace_back(static_cast<std::int64_t>(mine), before);
      }
    }
  }
  for (std::size_t row = 0; row < nodes(); ++row) {
    if (step[row] == kNoRow) continue;
    const auto mine = at(step[row]);
    const StepOp op = static_cast<StepOp>(steps.op[mine]);
    if (sends(op) != sent[mine] || receives(op) != received[mine]) {
      invalid(describe(row) + ": its step lacks the node that sends or receives");
    }
  }
  ProgramSpec spec = arranged(std::move(steps), threads);
  spec.collective = std::move(collective);
  spec.in_place = in_place;
  spec.scratch_slots = std::move(scratch_slots);
  spec.provenance = std::move(provenance);
  return Program(std::move(spec));
}

Program Traces::derived(std::string provenance) const {
  refuse_other_nodes();
  const auto send_of = pairs();
  // Messages are numbered in the order of their sends; slots in the order of these numbers.
  CollectivePart part;
  part.kind = CollectiveKind::send_recv;
  part.chunks = 1;
  std::vector<std::int64_t> recv_of(nodes(), kNoRow), sizes;
  std::vector<NodeId> sources, destinations;
  std::vector<std::int32_t> slot(nodes(), -1), inputs(at(ranks()), 0), outputs(at(ranks()), 0);
  for (std::size_t row = 0; row < nodes(); ++row) {
    if (kind[row] == 1) recv_of[at(send_of[row])] = static_cast<std::int64_t>(row);
  }
  for (std::size_t row = 0; row < nodes(); ++row) {
    if (kind[row] != 0) continue;
    sources.push_back(rank[row]);
    destinations.push_back(peer[row]);
    sizes.push_back(bytes[row]);
    part.size = std::max(part.size, bytes[row]);
    slot[row] = inputs[at(rank[row])]++;
    slot[at(recv_of[row])] = outputs[at(peer[row])]++;
  }
  if (sizes.empty()) invalid("no node sends anything");
  part.bytes = std::move(sizes);
  part.inputs = std::move(sources);
  part.outputs = std::move(destinations);

  Threads threads;
  Steps steps;
  std::vector<ThreadId> thread(nodes());
  std::vector<std::int64_t> step(nodes()), tail;  // last row of each thread
  const auto fits = [&](std::size_t t, std::size_t row) {
    const auto suits = [&](NodeId known) { return known == -1 || known == peer[row]; };
    return kind[row] == 2 || suits((kind[row] == 0 ? threads.send_peer : threads.recv_peer)[t]);
  };
  std::size_t first = 0;
  for (std::int32_t r = 0; r < ranks(); ++r) {
    auto last = first;
    while (last < nodes() && rank[last] == r) ++last;
    for (const auto row : runnable(first, last)) {
      std::optional<std::size_t> chosen;
      for (auto d = dep_begin[row]; d < dep_begin[row + 1] && !chosen; ++d) {
        const auto t = at(thread[at(dep[at(d)])]);
        if (tail[t] == dep[at(d)] && fits(t, row)) chosen = t;
      }
      if (!chosen) {
        chosen = at(threads.add(r));
        tail.push_back(0);
      }
      const auto t = *chosen;
      tail[t] = static_cast<std::int64_t>(row);
      thread[row] = static_cast<ThreadId>(t);
      step[row] = static_cast<std::int64_t>(steps.op.size());
      if (kind[row] == 0) {
        threads.send_peer[t] = peer[row];
        steps.add(StepOp::send, thread[row], Buffer::input, slot[row], Buffer::none, -1, 1);
      } else if (kind[row] == 1) {
        threads.recv_peer[t] = peer[row];
        steps.add(StepOp::recv, thread[row], Buffer::none, -1, Buffer::output, slot[row], 1);
      } else {
        steps.add(StepOp::nop, thread[row], Buffer::none, -1, Buffer::none, -1, 0);
      }
      for (auto d = dep_begin[row]; d < dep_begin[row + 1]; ++d) {
        steps.waits.emplace_back(step[row], step[at(dep[at(d)])]);
      }
    }
    first = last;
  }
  for (std::size_t row = 0; row < nodes(); ++row) {
    if (kind[row] == 1) steps.comes_from[at(step[row])] = step[at(send_of[row])];
  }
  ProgramSpec spec = arranged(std::move(steps), threads);
  spec.collective = std::make_shared<Collective>(ranks(), std::vector{std::move(part)});
  spec.scratch_slots = std::vector<std::int32_t>(at(ranks()), 0);
  spec.provenance = std::move(provenance);
  return Program(std::move(spec));
}

}  // namespace tacos::chakra
