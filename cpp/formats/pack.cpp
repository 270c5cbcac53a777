#include "formats/pack.hpp"

#include <functional>
#include <map>

#include "formats/actions.hpp"
#include "formats/channels.hpp"
#include "formats/merge.hpp"

namespace tacos {

using namespace threadblocks;

namespace {

struct Thread {
  std::int32_t channel = 0;
  NodeId recv_peer = -1, send_peer = -1;
  ThreadId local = -1;  // the original thread, if it has no peer
  auto operator<=>(const Thread&) const = default;
};

class Writer {
 public:
  Writer(const Program& program, const Places& places, const std::vector<Action>& actions,
         const Onward& onward, const Assignment& assignment, bool few_threads)
      : program_(program), places_(places), actions_(actions) {
    ops_.resize(actions.size());
    partner_.resize(actions.size(), kNone);
    std::vector<std::uint8_t> gone(actions.size(), 0);
    for (std::size_t i = 0; i < actions.size(); ++i) {
      ops_[i] = actions[i].op;
      if (receives(actions[i].op)) partner_[i] = actions[i].partner;
      const Node send = assignment.fused[i];
      if (send == kNone) continue;
      gone[at(send)] = 1;
      const bool sums = actions[i].op == StepOp::recv_reduce;
      ops_[i] = !sums                  ? StepOp::recv_send
                : onward.needed[i] < 2 ? StepOp::recv_reduce_forward
                                       : StepOp::recv_reduce_send;
    }
    // The message of a fused send now comes from the step that contains it.
    std::vector<Node> sender(actions.size());
    std::iota(sender.begin(), sender.end(), 0);
    for (std::size_t i = 0; i < actions.size(); ++i) {
      if (assignment.fused[i] != kNone) sender[at(assignment.fused[i])] = static_cast<Node>(i);
    }
    for (auto& from : partner_) from = from == kNone ? kNone : sender[at(from)];
    list_threads(gone, assignment, few_threads);
    order_steps();
  }

  std::int64_t longest() const { return longest_; }

  Program finish() {
    std::vector<NodeId> rank, send_peer, recv_peer, peer;
    std::vector<std::int32_t> channel, count, src_slot, dst_slot;
    std::vector<std::int64_t> begin{0}, dep_begin{0};
    std::vector<std::uint8_t> op, src_buffer, dst_buffer;
    std::vector<StepId> id(actions_.size(), -1), comes_from, dep;
    std::vector<Node> listed;
    for (NodeId r = 0; r < program_.ranks(); ++r) {
      for (const auto t : in_order(r)) {
        const auto& thread = threads_[at(r)][t];
        rank.push_back(r);
        channel.push_back(thread.channel);
        send_peer.push_back(thread.send_peer);
        recv_peer.push_back(thread.recv_peer);
        for (const Node node : rows_[at(r)][t]) {
          id[at(node)] = static_cast<StepId>(listed.size());
          listed.push_back(node);
        }
        begin.push_back(static_cast<std::int64_t>(listed.size()));
      }
    }
    auto scratch = number_scratch(listed);
    for (const Node node : listed) {
      const Action& action = actions_[at(node)];
      const StepOp what = ops_[at(node)];
      op.push_back(static_cast<std::uint8_t>(what));
      count.push_back(action.count);
      for (const bool source : {true, false}) {
        const bool used = source ? has_src(what) : has_dst(what);
        const Range range = used ? (source ? action.src : action.dst) : Range{};
        (source ? src_buffer : dst_buffer).push_back(static_cast<std::uint8_t>(range.buffer));
        (source ? src_slot : dst_slot).push_back(renumbered(action.rank, range));
      }
      comes_from.push_back(partner_[at(node)] == kNone ? -1 : id[at(partner_[at(node)])]);
      for (const Node before : after_[at(node)]) dep.push_back(id[at(before)]);
      std::sort(dep.begin() + static_cast<std::ptrdiff_t>(dep_begin.back()), dep.end());
      dep_begin.push_back(static_cast<std::int64_t>(dep.size()));
    }
    ProgramSpec spec;
    spec.collective = program_.spec().collective;
    spec.in_place = program_.spec().in_place;
    spec.scratch_slots = std::move(scratch);
    spec.thread_rank = std::move(rank);
    spec.thread_channel = std::move(channel);
    spec.thread_send_peer = std::move(send_peer);
    spec.thread_recv_peer = std::move(recv_peer);
    spec.thread_begin = std::move(begin);
    spec.peer = std::vector<NodeId>(op.size(), -1);
    spec.op = std::move(op);
    spec.src_buffer = std::move(src_buffer);
    spec.dst_buffer = std::move(dst_buffer);
    spec.src_slot = std::move(src_slot);
    spec.dst_slot = std::move(dst_slot);
    spec.count = std::move(count);
    spec.comes_from = std::move(comes_from);
    spec.dep_begin = std::move(dep_begin);
    spec.dep = std::move(dep);
    spec.provenance = program_.spec().provenance;
    spec.facts = program_.spec().facts;
    return Program(std::move(spec));
  }

 private:
  struct Place {
    Node writer = kNone;
    std::vector<Node> readers;  // since that write
  };

  using Coupling = std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t>;  // link, channel

  // Couples the remaining links into and out of a rank, in the order of their first messages.
  void join_others(const std::vector<std::pair<NodeId, NodeId>>& ends, const Assignment& assignment,
                   Coupling& onto, Coupling& from) const {
    // Rank, channel.
    std::map<std::pair<NodeId, std::int32_t>, std::vector<std::int32_t>> into, out_of;
    for (std::size_t i = 0; i < actions_.size(); ++i) {
      const auto link = assignment.link[i];
      if (actions_[i].op != StepOp::send) continue;
      const auto channel = assignment.channel[i];
      const auto add = [&](auto& map, const Coupling& done, NodeId rank) {
        auto& links = map[{rank, channel}];
        if (done.contains({link, channel})) return;
        if (std::find(links.begin(), links.end(), link) == links.end()) links.push_back(link);
      };
      add(out_of, from, ends[at(link)].first);
      add(into, onto, ends[at(link)].second);
    }
    for (const auto& [where, links] : into) {
      const auto& others = out_of[where];
      for (std::size_t k = 0; k < std::min(links.size(), others.size()); ++k) {
        onto[{links[k], where.second}] = others[k];
        from[{others[k], where.second}] = links[k];
      }
    }
  }

  void list_threads(const std::vector<std::uint8_t>& gone, const Assignment& assignment,
                    bool few_threads) {
    // A link in and a link out share a thread if a step receives from one and sends to the other.
    std::vector<std::pair<NodeId, NodeId>> ends(at(assignment.links));
    Coupling onto, from;
    for (std::size_t i = 0; i < actions_.size(); ++i) {
      const auto link = assignment.link[i];
      if (actions_[i].op == StepOp::send) {
        ends[at(link)] = {actions_[i].rank, actions_[at(actions_[i].partner)].rank};
      }
      if (assignment.fused[i] == kNone) continue;
      const auto out = assignment.link[at(assignment.fused[i])];
      onto[{link, assignment.channel[i]}] = out;
      from[{out, assignment.channel[i]}] = link;
    }
    if (few_threads) join_others(ends, assignment, onto, from);
    const auto coupled = [](const auto& to, std::int32_t link, std::int32_t channel) {
      const auto found = to.find({link, channel});
      return found == to.end() ? -1 : found->second;
    };
    threads_.resize(at(program_.ranks()));
    std::vector<std::map<Thread, std::size_t>> numbers(at(program_.ranks()));
    std::vector<Thread> thread_of(actions_.size());
    for (std::size_t i = 0; i < actions_.size(); ++i) {
      if (gone[i]) continue;
      Thread& thread = thread_of[i];
      if (const auto link = assignment.link[i]; link >= 0) {
        thread.channel = assignment.channel[i];
        const bool arrives = receives(actions_[i].op);
        const auto in = arrives ? link : coupled(from, link, thread.channel);
        const auto out = arrives ? coupled(onto, link, thread.channel) : link;
        if (in >= 0) thread.recv_peer = ends[at(in)].first;
        if (out >= 0) thread.send_peer = ends[at(out)].second;
      } else {
        thread.local = actions_[i].thread;
      }
      numbers[at(actions_[i].rank)][thread] = 0;
    }
    rows_.resize(threads_.size());
    for (std::size_t r = 0; r < numbers.size(); ++r) {
      for (auto& [thread, number] : numbers[r]) {
        number = threads_[r].size();
        threads_[r].push_back(thread);
      }
      rows_[r].resize(threads_[r].size());
    }
    of_.assign(actions_.size(), 0);
    for (std::size_t i = 0; i < actions_.size(); ++i) {
      if (gone[i]) continue;
      const auto rank = at(actions_[i].rank);
      of_[i] = numbers[rank].at(thread_of[i]);
      rows_[rank][of_[i]].push_back(static_cast<Node>(i));
      nodes_.push_back(static_cast<Node>(i));
    }
  }

  // Adds dependencies between threads, except those that others imply. A step's clock has, for
  // each thread of its rank, the number of steps that are complete when this step is.
  void order_steps() {
    after_.resize(actions_.size());
    std::vector<std::vector<Node>> of_rank(at(program_.ranks()));
    for (const Node node : nodes_) of_rank[at(actions_[at(node)].rank)].push_back(node);
    std::vector<Place> touched(places_.size());
    std::vector<std::size_t> index(actions_.size());
    std::vector<std::int32_t> clocks;
    std::vector<Node> before;
    for (std::size_t r = 0; r < of_rank.size(); ++r) {
      const auto width = threads_[r].size();
      clocks.assign(of_rank[r].size() * width, 0);
      std::vector<std::int32_t> done(width, 0);
      std::vector<std::size_t> last(width, 0);  // index + 1 of each thread's last step
      std::vector<std::int64_t> length(width, 0);
      for (std::size_t i = 0; i < of_rank[r].size(); ++i) {
        const Node node = of_rank[r][i];
        const auto mine = of_[at(node)];
        index[at(node)] = i;
        auto* clock = clocks.data() + i * width;
        if (last[mine] > 0) std::copy_n(clocks.data() + (last[mine] - 1) * width, width, clock);
        last[mine] = i + 1;
        before.clear();
        touch(node, touched, before);
        std::sort(before.begin(), before.end(), std::greater<>());
        for (const Node other : before) {
          const auto* theirs = clocks.data() + index[at(other)] * width;
          if (clock[of_[at(other)]] >= theirs[of_[at(other)]]) continue;
          after_[at(node)].push_back(other);
          for (std::size_t t = 0; t < width; ++t) clock[t] = std::max(clock[t], theirs[t]);
        }
        clock[mine] = ++done[mine];
        length[mine] +=
            std::max<std::int64_t>(1, static_cast<std::int64_t>(after_[at(node)].size()));
        longest_ = std::max(longest_, length[mine]);
      }
    }
  }
  void touch(Node node, std::vector<Place>& touched, std::vector<Node>& before) const {
    const Action& action = actions_[at(node)];
    const StepOp op = ops_[at(node)];
    for (std::int32_t k = 0; has_src(op) && k < action.count; ++k) {
      Place& place = touched[places_.of(action.rank, action.src.buffer, action.src.slot + k)];
      if (place.writer != kNone) before.push_back(place.writer);
      place.readers.push_back(node);
    }
    for (std::int32_t k = 0; has_dst(op) && k < action.count; ++k) {
      Place& place = touched[places_.of(action.rank, action.dst.buffer, action.dst.slot + k)];
      if (place.writer != kNone) before.push_back(place.writer);
      for (const Node reader : place.readers) {
        if (reader != node) before.push_back(reader);
      }
      place.readers.clear();
      place.writer = node;
    }
  }

  // The threads of a rank, those with local work first.
  std::vector<std::size_t> in_order(NodeId rank) const {
    const auto& threads = threads_[at(rank)];
    std::vector<std::size_t> order(threads.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_partition(order.begin(), order.end(),
                          [&](std::size_t t) { return threads[t].local >= 0; });
    return order;
  }

  // Renumbers scratch slots without the ones that fusing has made unused.
  std::vector<std::int32_t> number_scratch(const std::vector<Node>& listed) {
    scratch_.resize(at(program_.ranks()));
    for (NodeId r = 0; r < program_.ranks(); ++r) {
      scratch_[at(r)].assign(at(program_.slots(r, Buffer::scratch)), -1);
    }
    for (const Node node : listed) {
      const Action& action = actions_[at(node)];
      for (const bool source : {true, false}) {
        const Range range = source ? action.src : action.dst;
        if (!(source ? has_src(ops_[at(node)]) : has_dst(ops_[at(node)]))) continue;
        if (range.buffer != Buffer::scratch) continue;
        std::fill_n(scratch_[at(action.rank)].begin() + range.slot, action.count, 0);
      }
    }
    std::vector<std::int32_t> counts;
    for (auto& slots : scratch_) {
      std::int32_t next = 0;
      for (auto& slot : slots) slot = slot < 0 ? -1 : next++;
      counts.push_back(next);
    }
    return counts;
  }
  std::int32_t renumbered(NodeId rank, const Range& range) const {
    return range.buffer == Buffer::scratch ? scratch_[at(rank)][at(range.slot)] : range.slot;
  }

  const Program& program_;
  const Places& places_;
  const std::vector<Action>& actions_;
  std::vector<StepOp> ops_;
  std::vector<Node> partner_, nodes_;
  std::vector<std::vector<Thread>> threads_;          // per rank
  std::vector<std::vector<std::vector<Node>>> rows_;  // per rank and thread
  std::vector<std::size_t> of_;                       // thread of each node
  std::vector<std::vector<Node>> after_;
  std::vector<std::vector<std::int32_t>> scratch_;
  std::int64_t longest_ = 0;
};

}  // namespace

Program pack(const Program& program, const PackOptions& options, const Progress& progress) {
  const Places places(program);
  const auto actions = merged(program, places, options);
  const auto onward = find_onward(actions, places);
  if (progress) progress(0.3);
  // Dependencies are known only after threads are assigned, and may need nops. If a thread then has too many steps, retry
  // with a smaller budget.
  for (auto budget = options.steps;;) {
    const auto assignment = assign_channels(actions, onward, options, budget, program.ranks());
    Writer writer(program, places, actions, onward, assignment, options.few_threads);
    if (progress) progress(0.8);
    if (writer.longest() <= options.steps) return writer.finish();
    // Even a thread of one action has too many.
    if (budget == 1) {
      invalid("a step waits for more than " + std::to_string(options.steps) + " others");
    }
    const auto smaller =
        static_cast<std::int32_t>(std::int64_t{budget} * options.steps / writer.longest());
    budget = std::max(std::min(budget - 1, smaller), 1);
  }
}

StepId stuck(const Program& program, std::int32_t depth) {
  const StepGraph graph(program);
  // Per send: the receive that makes room for it.
  std::vector<StepId> blocker(at(program.steps()), -1);
  std::vector<StepId> under_way;
  for (StepId step = 0; step < program.steps(); ++step) {
    if (graph.is_first(step)) under_way.clear();
    if (!sends(program.op(step))) continue;
    if (under_way.size() >= at(depth)) {
      blocker[at(step)] = graph.receiver(under_way[under_way.size() - at(depth)]);
    }
    under_way.push_back(step);
  }
  const auto level = graph.levels([&](StepId step, const auto& visit) {
    if (blocker[at(step)] >= 0) visit(blocker[at(step)]);
  });
  const auto found = std::find(level.begin(), level.end(), -1);
  return found == level.end() ? -1 : static_cast<StepId>(found - level.begin());
}

}  // namespace tacos
