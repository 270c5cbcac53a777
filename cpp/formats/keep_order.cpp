#include "formats/keep_order.hpp"

#include <functional>
#include <map>
#include <set>

#include "formats/actions.hpp"

namespace tacos {

using namespace threadblocks;

namespace {

// Per step, the dependencies that are not implied by the order of threads and by other dependencies. A step's clock has, for
// each thread of its rank, the number of steps that are complete when this step is.
using Dependencies = std::vector<std::vector<StepId>>;

Dependencies needed_dependencies(const Program& program, const StepGraph& graph,
                                 const Dependencies& all) {
  const auto& s = program.spec();
  const auto level = graph.levels([](StepId, const auto&) {});
  std::vector<StepId> first_of(at(program.ranks()) + 1, 0);
  std::vector<ThreadId> first_thread(at(program.ranks()) + 1, 0);
  for (ThreadId t = 0; t < program.threads(); ++t) {
    const auto rank = at(s.thread_rank[at(t)]);
    first_thread[rank + 1] = t + 1;
    first_of[rank + 1] = static_cast<StepId>(s.thread_begin[at(t) + 1]);
  }
  for (std::size_t r = 0; r < at(program.ranks()); ++r) {  // ranks without steps
    first_thread[r + 1] = std::max(first_thread[r], first_thread[r + 1]);
    first_of[r + 1] = std::max(first_of[r], first_of[r + 1]);
  }
  Dependencies needed(at(program.steps()));
  std::vector<std::int32_t> clocks;
  std::vector<StepId> order, before;
  for (std::size_t r = 0; r < at(program.ranks()); ++r) {
    const auto width = at(first_thread[r + 1] - first_thread[r]);
    const StepId begin = first_of[r];
    order.resize(at(first_of[r + 1] - begin));
    std::iota(order.begin(), order.end(), begin);
    std::stable_sort(order.begin(), order.end(),
                     [&](StepId a, StepId b) { return level[at(a)] < level[at(b)]; });
    clocks.assign(order.size() * width, 0);
    const auto clock_of = [&](StepId step) { return clocks.data() + at(step - begin) * width; };
    for (const StepId step : order) {
      if (level[at(step)] < 0) invalid(program.describe(step) + " can never run");
      auto* clock = clock_of(step);
      if (!graph.is_first(step)) std::copy_n(clock_of(step - 1), width, clock);
      before = all[at(step)];
      // The latest first, because it implies most of the others.
      std::sort(before.begin(), before.end(), [&](StepId a, StepId b) {
        return std::pair(level[at(a)], a) > std::pair(level[at(b)], b);
      });
      for (const StepId other : before) {
        const auto thread = at(graph.thread(other) - first_thread[r]);
        const auto* theirs = clock_of(other);
        if (clock[thread] >= theirs[thread]) continue;
        needed[at(step)].push_back(other);
        for (std::size_t t = 0; t < width; ++t) clock[t] = std::max(clock[t], theirs[t]);
      }
      const auto mine = at(graph.thread(step));
      clock[mine - at(first_thread[r])] = step - static_cast<StepId>(s.thread_begin[mine]) + 1;
    }
  }
  return needed;
}

class OrderKeeper {
 public:
  OrderKeeper(const Program& program, const OrderOptions& options)
      : program_(program), options_(options), graph_(program), all_(at(program.steps())) {
    const auto& s = program.spec();
    for (StepId step = 0; step < program.steps(); ++step) {
      all_[at(step)].assign(s.dep.begin() + s.dep_begin[at(step)],
                            s.dep.begin() + s.dep_begin[at(step) + 1]);
    }
    needed_ = needed_dependencies(program, graph_, all_);
    if (spare_awaited()) needed_ = needed_dependencies(program, graph_, all_);
    for (ThreadId t = 0; t < program.threads(); ++t) {
      const bool sends = s.thread_send_peer[at(t)] >= 0, receives = s.thread_recv_peer[at(t)] >= 0;
      if (sends && receives) invalid("a thread that sends and receives keeps its steps");
      if (s.thread_begin[at(t)] == s.thread_begin[at(t) + 1]) continue;
      if (sends) cut(t, receiver_of(t));
      if (!sends && !receives) cut(t, -1);
    }
  }

  Program finish() {
    if (options_.join) join();
    std::stable_sort(pieces_.begin(), pieces_.end(), [](const Piece& a, const Piece& b) {
      return std::tie(a.rank, a.send_peer, a.recv_peer, a.channel) <
             std::tie(b.rank, b.send_peer, b.recv_peer, b.channel);
    });
    const auto& s = program_.spec();
    std::vector<StepId> old, id(at(program_.steps()));
    ProgramSpec spec;
    std::vector<NodeId> rank, send_peer, recv_peer;
    std::vector<std::int32_t> channel;
    std::vector<std::int64_t> begin{0};
    for (const Piece& piece : pieces_) {
      rank.push_back(piece.rank);
      channel.push_back(piece.channel);
      send_peer.push_back(piece.send_peer);
      recv_peer.push_back(piece.recv_peer);
      for (const StepId step : piece.steps) {
        id[at(step)] = static_cast<StepId>(old.size());
        old.push_back(step);
      }
      begin.push_back(static_cast<std::int64_t>(old.size()));
    }
    std::vector<std::size_t> piece_of(old.size());
    for (std::size_t p = 0; p + 1 < begin.size(); ++p) {
      std::fill(piece_of.begin() + begin[p], piece_of.begin() + begin[p + 1], p);
    }
    std::vector<StepId> dep, comes_from;
    std::vector<std::int64_t> dep_begin{0};
    for (const StepId step : old) {
      for (const StepId before : needed_[at(step)]) {
        if (piece_of[at(id[at(before)])] != piece_of[at(id[at(step)])]) {
          dep.push_back(id[at(before)]);
        }
      }
      std::sort(dep.begin() + dep_begin.back(), dep.end());
      dep_begin.push_back(static_cast<std::int64_t>(dep.size()));
      const StepId from = s.comes_from[at(step)];
      comes_from.push_back(from < 0 ? -1 : id[at(from)]);
    }
    const auto picked = [&](const auto& column) {
      auto values = std::vector(column.begin(), column.end());
      std::transform(old.begin(), old.end(), values.begin(),
                     [&](StepId i) { return column[at(i)]; });
      return values;
    };
    spec.collective = s.collective;
    spec.in_place = s.in_place;
    spec.scratch_slots = s.scratch_slots;
    spec.thread_rank = std::move(rank);
    spec.thread_channel = std::move(channel);
    spec.thread_send_peer = std::move(send_peer);
    spec.thread_recv_peer = std::move(recv_peer);
    spec.thread_begin = std::move(begin);
    spec.op = picked(s.op);
    spec.src_buffer = picked(s.src_buffer);
    spec.dst_buffer = picked(s.dst_buffer);
    spec.src_slot = picked(s.src_slot);
    spec.dst_slot = picked(s.dst_slot);
    spec.count = picked(s.count);
    spec.peer = picked(s.peer);
    spec.comes_from = std::move(comes_from);
    spec.dep_begin = std::move(dep_begin);
    spec.dep = std::move(dep);
    spec.provenance = s.provenance;
    spec.facts = s.facts;
    return Program(std::move(spec));
  }

 private:
  // A part of a thread, which becomes a thread of its own.
  struct Piece {
    NodeId rank = 0, send_peer = -1, recv_peer = -1;
    std::int32_t channel = 0;
    std::vector<StepId> steps;
  };

  // On each rank and channel, joins the k-th thread that sends with the k-th thread that receives.
  void join() {
    const auto level = graph_.levels([](StepId, const auto&) {});
    const auto rows_of = [&](const Piece& piece) {
      std::int64_t sum = 0;
      for (const StepId step : piece.steps) sum += rows(step);
      return sum;
    };
    const auto earlier = [&](StepId a, StepId b) {
      return std::tuple(level[at(a)], graph_.receiver(a) < 0, a) <
             std::tuple(level[at(b)], graph_.receiver(b) < 0, b);
    };
    std::stable_sort(pieces_.begin(), pieces_.end(), [&](const Piece& a, const Piece& b) {
      return std::tuple(a.rank, a.channel, level[at(a.steps[0])]) <
             std::tuple(b.rank, b.channel, level[at(b.steps[0])]);
    });
    for (std::size_t first = 0, end = 0; first < pieces_.size(); first = end) {
      std::vector<std::size_t> sending, receiving;
      for (; end < pieces_.size() && pieces_[end].rank == pieces_[first].rank &&
             pieces_[end].channel == pieces_[first].channel;
           ++end) {
        if (pieces_[end].send_peer >= 0) sending.push_back(end);
        if (pieces_[end].recv_peer >= 0) receiving.push_back(end);
      }
      for (std::size_t k = 0; k < std::min(sending.size(), receiving.size()); ++k) {
        Piece &one = pieces_[sending[k]], &other = pieces_[receiving[k]];
        if (rows_of(one) + rows_of(other) > options_.steps) continue;
        std::vector<StepId> merged;
        std::merge(one.steps.begin(), one.steps.end(), other.steps.begin(), other.steps.end(),
                   std::back_inserter(merged), earlier);
        one.steps = std::move(merged);
        one.recv_peer = other.recv_peer;
        other.steps.clear();
      }
    }
    std::erase_if(pieces_, [](const Piece& piece) { return piece.steps.empty(); });
  }

  // Drops dependencies of sends on sends if too many threads are awaited; returns whether it dropped any.
  bool spare_awaited() {
    const auto& s = program_.spec();
    const auto sends = [&](StepId step) { return graph_.receiver(step) >= 0; };
    std::vector<std::int64_t> waits(at(program_.threads()), 0);
    std::vector<std::uint8_t> kept(waits.size(), 0);  // awaited by steps other than sends
    for (StepId step = 0; step < program_.steps(); ++step) {
      for (const StepId before : needed_[at(step)]) ++waits[at(graph_.thread(before))];
      for (const StepId before : all_[at(step)]) {
        if (!sends(step) || !sends(before)) kept[at(graph_.thread(before))] = 1;
      }
    }
    std::vector<std::vector<ThreadId>> awaited(at(program_.ranks()));
    for (ThreadId t = 0; t < program_.threads(); ++t) {
      if (waits[at(t)] > 0) awaited[at(s.thread_rank[at(t)])].push_back(t);
    }
    std::vector<std::uint8_t> spared(waits.size(), 0);
    bool any = false;
    for (auto& threads : awaited) {
      if (std::ssize(threads) <= options_.awaited) continue;
      // The threads that are awaited most come last; among the others, each rank starts with a different peer.
      const auto turn = [&](ThreadId t) {
        const NodeId to = s.thread_send_peer[at(t)] - s.thread_rank[at(t)];
        return std::tuple(kept[at(t)], waits[at(t)], to < 0 ? to + program_.ranks() : to);
      };
      std::stable_sort(threads.begin(), threads.end(),
                       [&](ThreadId a, ThreadId b) { return turn(a) < turn(b); });
      std::for_each(threads.begin(), threads.end() - options_.awaited, [&](ThreadId t) {
        spared[at(t)] = static_cast<std::uint8_t>(1 - kept[at(t)]);
        any |= kept[at(t)] == 0;
      });
    }
    if (!any) return false;
    const auto level = graph_.levels([](StepId, const auto&) {});
    std::vector<StepId> order(level.size()), others;
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](StepId a, StepId b) { return level[at(a)] < level[at(b)]; });
    for (const StepId step : order) {
      auto& mine = all_[at(step)];
      if (std::none_of(mine.begin(), mine.end(),
                       [&](StepId before) { return spared[at(graph_.thread(before))]; })) {
        continue;
      }
      others.clear();
      for (const StepId before : mine) {
        if (spared[at(graph_.thread(before))] == 0) {
          others.push_back(before);
          continue;
        }
        // That send is earlier in the order, so the sends that it waits for stay awaited.
        std::copy_if(all_[at(before)].begin(), all_[at(before)].end(), std::back_inserter(others),
                     [&](StepId b) { return sends(b) && graph_.thread(b) != graph_.thread(step); });
      }
      std::sort(others.begin(), others.end());
      others.erase(std::unique(others.begin(), others.end()), others.end());
      mine = others;
    }
    return true;
  }

  ThreadId receiver_of(ThreadId sender) const {
    const StepId first = static_cast<StepId>(program_.spec().thread_begin[at(sender)]);
    const StepId receive = graph_.receiver(first);
    if (receive < 0) invalid(program_.describe(first) + " has no message to match");
    const ThreadId receiver = graph_.thread(receive);
    if (length(receiver) != length(sender) || !graph_.is_first(receive)) {
      invalid(program_.describe(receive) + " receives out of the order of the sends");
    }
    return receiver;
  }
  std::int64_t length(ThreadId thread) const {
    const auto& begin = program_.spec().thread_begin;
    return begin[at(thread) + 1] - begin[at(thread)];
  }
  std::int64_t rows(StepId step) const {
    return std::max<std::int64_t>(1, static_cast<std::int64_t>(needed_[at(step)].size()));
  }

  // Cuts both ends of a connection at the same messages.
  void cut(ThreadId sender, ThreadId receiver) {
    const auto& s = program_.spec();
    const auto begin = static_cast<StepId>(s.thread_begin[at(sender)]);
    const auto end = static_cast<StepId>(s.thread_begin[at(sender) + 1]);
    const StepId to_receive =
        receiver < 0 ? 0 : static_cast<StepId>(s.thread_begin[at(receiver)]) - begin;
    std::int64_t sent = 0, received = 0;
    StepId first = begin;
    for (StepId step = begin; step < end; ++step) {
      if (receiver >= 0 && graph_.receiver(step) != step + to_receive) {
        invalid(program_.describe(step + to_receive) + " receives out of the order of the sends");
      }
      auto more_sent = rows(step), more_received = receiver < 0 ? 0 : rows(step + to_receive);
      if (step > first && std::max(sent + more_sent, received + more_received) > options_.steps) {
        add(sender, receiver, first, step, to_receive);
        needed_[at(step)].push_back(step - 1);
        if (receiver >= 0) needed_[at(step + to_receive)].push_back(step + to_receive - 1);
        first = step;
        sent = received = 0;
        more_sent = rows(step);
        more_received = receiver < 0 ? 0 : rows(step + to_receive);
      }
      if (std::max(more_sent, more_received) > options_.steps) {
        invalid(program_.describe(step) + " waits for more than " + std::to_string(options_.steps) +
                " others");
      }
      sent += more_sent;
      received += more_received;
    }
    add(sender, receiver, first, end, to_receive);
  }

  void add(ThreadId sender, ThreadId receiver, StepId begin, StepId end, StepId to_receive) {
    const auto& s = program_.spec();
    const NodeId src = s.thread_rank[at(sender)];
    const auto from = [&](StepId first) {
      std::vector<StepId> steps(at(end - begin));
      std::iota(steps.begin(), steps.end(), first);
      return steps;
    };
    if (receiver < 0) {
      pieces_.push_back({src, -1, -1, 0, from(begin)});
      return;
    }
    const NodeId dst = s.thread_rank[at(receiver)];
    const auto channel = free_channel(src, dst, s.thread_channel[at(sender)]);
    pieces_.push_back({src, dst, -1, channel, from(begin)});
    pieces_.push_back({dst, -1, src, channel, from(begin + to_receive)});
  }

  // A channel that the pair does not use and on which both have room for a peer: the wanted one, which may decide the
  // route, or else the first.
  std::int32_t free_channel(NodeId src, NodeId dst, std::int32_t wanted) {
    auto& used = used_channels_[{src, dst}];
    const auto is_free = [&](std::int32_t channel) {
      return !used.contains(channel) && peers_out_[{src, channel}] < options_.peers &&
             peers_in_[{dst, channel}] < options_.peers;
    };
    std::int32_t channel = wanted;
    if (wanted >= options_.channels || !is_free(wanted)) {
      for (channel = 0; channel < options_.channels && !is_free(channel);) ++channel;
    }
    if (channel >= options_.channels) {
      invalid("the connections need more than " + std::to_string(options_.channels) + " channels");
    }
    ++peers_out_[{src, channel}];
    ++peers_in_[{dst, channel}];
    used.insert(channel);
    return channel;
  }

  const Program& program_;
  const OrderOptions& options_;
  const StepGraph graph_;
  Dependencies all_, needed_;  // per step: what it waits for, and what of this does not follow
  std::vector<Piece> pieces_;
  std::map<std::pair<NodeId, NodeId>, std::set<std::int32_t>> used_channels_;
  std::map<std::pair<NodeId, std::int32_t>, std::int32_t> peers_out_, peers_in_;  // rank, channel
};

}  // namespace

Program keep_order(const Program& program, const OrderOptions& options) {
  return OrderKeeper(program, options).finish();
}

}  // namespace tacos
