#include "formats/merge.hpp"

#include <limits>

namespace tacos::threadblocks {

namespace {

class Merger {
 public:
  Merger(const Program& program, const StepGraph& graph, const Places& places,
         const PackOptions& options)
      : program_(program), graph_(graph), places_(places), options_(options) {
    const auto level = graph.levels([](StepId, const auto&) {});
    order_.resize(at(program.steps()));
    std::iota(order_.begin(), order_.end(), 0);
    std::stable_sort(order_.begin(), order_.end(),
                     [&](StepId a, StepId b) { return level[at(a)] < level[at(b)]; });
    for (const StepId step : order_) {
      if (level[at(step)] < 0) invalid(program.describe(step) + " can never run");
    }
    position_.resize(order_.size());
    number_positions();
    check();
    postpone_sums();
    find_conflicts();
  }

  // The steps in an order in which they can run, without nops.
  std::vector<Action> actions() const {
    std::vector<Action> all;
    for (StepId step = 0; step < program_.steps(); ++step) {
      const StepOp op = program_.op(step);
      if (op == StepOp::nop || receives(op)) continue;
      Action action = action_of(step);
      if (op == StepOp::reduce) {
        if (row_[at(step)].count == 0) continue;  // merged into another action
        action.count = row_[at(step)].count;
        action.key = row_[at(step)].key;
      }
      if (!sends(op)) {
        all.push_back(action);
        continue;
      }
      Action partner = action_of(graph_.receiver(step));
      while (can_join(action, partner, step)) {
        ++step;
        action.count += program_.spec().count[at(step)];
        partner.count = action.count;
        action.key = position_[at(step)];
        partner.key = position_[at(graph_.receiver(step))];
      }
      action.partner = static_cast<Node>(all.size()) + 1;
      partner.partner = static_cast<Node>(all.size());
      all.push_back(action);
      all.push_back(partner);
    }
    std::vector<Node> order(all.size()), number(all.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(),
              [&](Node a, Node b) { return all[at(a)].key < all[at(b)].key; });
    for (std::size_t i = 0; i < order.size(); ++i) number[at(order[i])] = static_cast<Node>(i);
    std::vector<Action> sorted;
    sorted.reserve(all.size());
    for (const Node node : order) {
      sorted.push_back(all[at(node)]);
      auto& action = sorted.back();
      if (action.partner >= 0) action.partner = number[at(action.partner)];
    }
    return sorted;
  }

 private:
  void check() const {
    for (StepId step = 0; step < program_.steps(); ++step) {
      const StepOp op = program_.op(step);
      const bool plain = op == StepOp::nop || op == StepOp::copy || op == StepOp::reduce ||
                         op == StepOp::send || op == StepOp::recv || op == StepOp::recv_reduce;
      if (!plain)
        invalid(program_.describe(step) + " is fused or one-sided, so it cannot be packed");
      const StepId from = program_.spec().comes_from[at(step)];
      const bool matched =
          receives(op) ? from >= 0 && sends(program_.op(from)) &&
                             program_.spec().count[at(from)] == program_.spec().count[at(step)]
                       : !sends(op) || graph_.receiver(step) >= 0;
      if (!matched) invalid(program_.describe(step) + " has no message to match");
    }
  }

  Action action_of(StepId step) const {
    const auto& s = program_.spec();
    const auto i = at(step);
    return {program_.op(step),
            graph_.rank(step),
            graph_.thread(step),
            {static_cast<Buffer>(s.src_buffer[i]), s.src_slot[i]},
            {static_cast<Buffer>(s.dst_buffer[i]), s.dst_slot[i]},
            s.count[i],
            kNone,
            position_[i]};
  }

  void number_positions() {
    for (std::size_t i = 0; i < order_.size(); ++i) {
      position_[at(order_[i])] = static_cast<std::int32_t>(i);
    }
  }

  // Moves sums within a rank to just before the first step that needs them, so that sums of
  // neighbouring chunks become adjacent and can be merged. Sums that depend on each other keep their
  // order: the longer the chain of sums that wait for one, the earlier it comes.
  void postpone_sums() {
    const auto ops = program_.spec().op;
    if (std::find(ops.begin(), ops.end(), static_cast<std::uint8_t>(StepOp::reduce)) == ops.end()) {
      return;
    }
    struct Late {
      std::int32_t anchor;     // position of the first step that needs it
      std::int32_t depth = 0;  // number of sums between them
      bool operator==(const Late&) const = default;
      // The latest position before both.
      Late before(const Late& other) const {
        if (other.anchor != anchor) return other.anchor < anchor ? other : *this;
        return {anchor, std::max(depth, other.depth)};
      }
    };
    const Late never{static_cast<std::int32_t>(order_.size())};
    std::vector<Late> written(places_.size(), never), touched(places_.size(), never);
    std::vector<Late> late(order_.size(), never);
    for (auto i = order_.rbegin(); i != order_.rend(); ++i) {
      const Action action = action_of(*i);
      Late& mine = late[at(*i)];
      const auto each = [&](const Range& range, const auto& visit) {
        for (std::int32_t k = 0; range.used() && k < action.count; ++k) {
          visit(places_.of(action.rank, range.buffer, range.slot + k));
        }
      };
      if (action.op == StepOp::reduce) {
        each(action.src, [&](std::size_t place) { mine = mine.before(written[place]); });
        each(action.dst, [&](std::size_t place) { mine = mine.before(touched[place]); });
        ++mine.depth;
      } else {
        mine = {action.key, 0};
      }
      each(action.dst, [&](std::size_t place) { touched[place] = written[place] = mine; });
      each(action.src, [&](std::size_t place) { touched[place] = touched[place].before(mine); });
    }
    const auto key = [&](StepId step) {
      const Late& mine = late[at(step)];
      const Action action = action_of(step);
      return std::tuple(mine.anchor, -mine.depth, action.rank, action.thread, action.dst.buffer,
                        mine.depth > 0 ? action.dst.slot : 0);
    };
    std::stable_sort(order_.begin(), order_.end(),
                     [&](StepId a, StepId b) { return key(a) < key(b); });
    number_positions();
    row_.assign(order_.size(), {});
    StepId first = -1;
    for (const StepId step : order_) {
      if (program_.op(step) != StepOp::reduce) {
        first = -1;
        continue;
      }
      const Action action = action_of(step);
      if (first >= 0 && graph_.thread(first) == action.thread &&
          late[at(first)] == late[at(step)] && fits(row_[at(first)], action)) {
        row_[at(first)].count += action.count;
        row_[at(first)].key = action.key;
        continue;
      }
      first = step;
      row_[at(first)] = action;
    }
  }

  // For each step, finds the first later step that must stay after it: one that writes what this step reads, or accesses
  // what it writes.
  void find_conflicts() {
    constexpr auto kNoKey = std::numeric_limits<std::int32_t>::max();
    conflict_.assign(order_.size(), kNoKey);
    std::vector<std::int32_t> written(places_.size(), kNoKey), touched(places_.size(), kNoKey);
    for (auto i = order_.rbegin(); i != order_.rend(); ++i) {
      const Action action = action_of(*i);
      auto& first = conflict_[at(*i)];
      for (std::int32_t k = 0; action.src.used() && k < action.count; ++k) {
        first = std::min(first,
                         written[places_.of(action.rank, action.src.buffer, action.src.slot + k)]);
      }
      for (std::int32_t k = 0; action.dst.used() && k < action.count; ++k) {
        first = std::min(first,
                         touched[places_.of(action.rank, action.dst.buffer, action.dst.slot + k)]);
      }
      for (std::int32_t k = 0; action.src.used() && k < action.count; ++k) {
        touched[places_.of(action.rank, action.src.buffer, action.src.slot + k)] = action.key;
      }
      for (std::int32_t k = 0; action.dst.used() && k < action.count; ++k) {
        const auto place = places_.of(action.rank, action.dst.buffer, action.dst.slot + k);
        touched[place] = written[place] = action.key;
      }
    }
  }

  // Whether the message after that of `last` can be merged with it.
  bool can_join(const Action& send, const Action& receive, StepId last) const {
    const StepId next = last + 1;
    if (next == program_.steps() || graph_.thread(next) != send.thread ||
        program_.op(next) != StepOp::send) {
      return false;
    }
    const StepId last_receive = graph_.receiver(last), next_receive = graph_.receiver(next);
    if (next_receive != last_receive + 1 || graph_.thread(next_receive) != receive.thread ||
        program_.op(next_receive) != receive.op) {
      return false;
    }
    // The merged messages happen later, so no step in between may need any of them.
    for (StepId s = last, r = last_receive, left = send.count; left > 0; --s, --r) {
      if (conflict_[at(s)] < position_[at(next)] ||
          conflict_[at(r)] < position_[at(next_receive)]) {
        return false;
      }
      left -= program_.spec().count[at(s)];
    }
    return fits(send, action_of(next)) && fits(receive, action_of(next_receive));
  }
  bool fits(const Action& action, const Action& next) const {
    const auto follows = [&](const Range& range, const Range& more) {
      if (!range.used()) return true;
      if (more.buffer != range.buffer || more.slot != range.slot + action.count) return false;
      const auto unit = range.buffer == Buffer::scratch ? 0 : options_.unit;
      return unit == 0 || range.slot / unit == (more.slot + next.count - 1) / unit;
    };
    return action.count + next.count <= options_.count && follows(action.src, next.src) &&
           follows(action.dst, next.dst);
  }

  const Program& program_;
  const StepGraph& graph_;
  const Places& places_;
  const PackOptions& options_;
  std::vector<StepId> order_;
  std::vector<std::int32_t> position_, conflict_;
  std::vector<Action> row_;  // per first sum of a row: the merged sum
};

}  // namespace

std::vector<Action> merged(const Program& program, const Places& places,
                           const PackOptions& options) {
  const StepGraph graph(program);
  return Merger(program, graph, places, options).actions();
}

}  // namespace tacos::threadblocks
