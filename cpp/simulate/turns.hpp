// The order in which every `acc` is read and written, derived from a schedule's own times.
//
// A cell is the `acc` of one chunk at one node. Its accesses, ordered by time (an arrival at t before a
// start at t), are divided into turns: a sequence of reads, a sequence of sums, or one copy. A turn begins when the
// previous one is over. A read whose turn has not begun is a transfer that waits; a write whose turn has
// not begun has arrived and is kept beside the cell. Within a turn the order does not matter:
// reads change nothing, and sums may be added in any order.
//
// A turn takes 8 bytes. Most cells of most schedules need none: either nothing waits for an access, or one read
// waits for one write, which then stores that read directly.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "model/schedule.hpp"
#include "support/fetch_ahead.hpp"
#include "support/index.hpp"
#include "support/large.hpp"
#include "support/progress.hpp"
#include "support/radix.hpp"
#include "timing/service.hpp"

namespace tacos::simulation {

using service::Item;
using service::kNone;
using service::Leg;

// The data of a transfer in a run, kept together in memory. Tasks are sorted by `start`, the start of the first
// leg in quanta.
struct Task {
  std::uint32_t lane, transfer, start;
  std::uint32_t waits = 0;  // remaining dependencies of its first leg
  // The turns in which its source is read and its destination is written; for a transfer with several
  // sources or destinations, `reads` is the position of its list.
  std::uint32_t reads = kNone, writes = kNone;
};

// All transfers, sorted by the start of their first leg, then by number: a radix sort, because starts have few bits.
inline LargeVector<Task> sorted_by_start(const Schedule& schedule) {
  const auto at = [](auto i) { return static_cast<std::size_t>(i); };
  struct Row {
    std::uint32_t lane, transfer, start;
  };
  LargeVector<Row> rows, other;
  rows.reserve(at(schedule.stored_transfers()));
  std::size_t first = 0;
  const auto& stored = schedule.stored();
  for (std::int32_t lane = 0; lane < schedule.lanes(); ++lane) {
    const auto begin = stored.lane_begin[at(lane)], end = stored.lane_begin[at(lane) + 1];
    for (auto i = begin; i < end; ++i) {
      rows.push_back({static_cast<std::uint32_t>(lane), static_cast<std::uint32_t>(i),
                      stored.start[first + at(i - begin)]});
    }
    first += at(end - begin) * at(schedule.routes().legs(stored.lane_route[at(lane)]));
  }
  radix_sort(rows, other, [](const Row& row) { return row.start; });
  other = {};
  LargeVector<Task> tasks;
  tasks.reserve(rows.size());
  for (const auto& [lane, transfer, start] : rows) tasks.push_back({lane, transfer, start});
  return tasks;
}

class Turns {
 public:
  // An access that nothing waits for.
  static constexpr std::uint32_t kFree = kNone;
  // If this bit of a turn is set, the other bits are the one transfer that waits for this write.
  static constexpr std::uint32_t kDirect = 1u << 31;

  Turns(const Schedule& schedule, std::span<Task> tasks, const Progress& progress)
      : schedule_(schedule), tasks_(tasks), durations_(static_cast<std::size_t>(schedule.lanes())) {
    number_accesses();
    count_.assign(at(schedule.topology().nodes()), 0);
    holds_.assign(at(schedule.topology().nodes()), kNone);
    spread_.resize(at(schedule.topology().nodes()));
    std::vector<std::size_t> chunk_end;
    const auto by_chunk = sorted_by_chunk(chunk_end);
    std::size_t begin = 0, told = 0;
    for (ChunkId chunk = 0; chunk < schedule.collective().chunks(); ++chunk) {
      const auto end = chunk_end[chunk];
      if (begin < end) add_chunk(chunk, std::span(by_chunk).subspan(begin, end - begin));
      begin = end;
      if (progress && begin - told > 0xffff) {
        told = begin;
        progress(0);
      }
    }
    durations_ = {};
    events_ = sorted_ = {};
    count_ = holds_ = {};
    spread_ = {};
    nodes_ = {};
  }

  bool trees() const { return trees_; }

  // Prefetches the memory that `write` will access, in three steps; for transfers with one destination.
  void prefetch_turn(Item item) const {
    const auto turn = trees_ ? kFree : tasks_[item].writes;
    if (turn == kFree) return;
    if ((turn & kDirect) != 0) {
      fetch_ahead(&tasks_[turn ^ kDirect]);
    } else {
      fetch_ahead(&turns_[turn]);
    }
  }
  void prefetch_read(Item item) const {
    if (!trees_ && tasks_[item].reads != kFree) fetch_ahead(&turns_[tasks_[item].reads]);
  }
  void prefetch_readers(Item item) const {
    const auto turn = trees_ ? kFree : tasks_[item].writes;
    if ((turn & kDirect) != 0 || turns_[turn].last != 0) return;  // true for kFree too
    const auto& next = turns_[turn + 1];
    if (next.reads == 0) return;
    if (next.left == 1) {
      fetch_ahead(&tasks_[next.first]);
    } else {
      fetch_ahead(&readers_[next.first]);
    }
  }
  void prefetch_many(Item item) const {
    const auto turn = trees_ ? kFree : tasks_[item].writes;
    if ((turn & kDirect) != 0 || turns_[turn].last != 0) return;
    const auto& next = turns_[turn + 1];
    if (next.reads == 0 || next.left == 1) return;
    const auto count = std::min<std::uint32_t>(next.left, 4);
    for (std::uint32_t i = 0; i < count; ++i) {
      fetch_ahead(&tasks_[readers_[next.first + i]]);
    }
  }

  // The transfer has started. Calls `release(item)` once for every turn that a transfer has waited
  // for, and `visible(item, end)` for every write that had to wait beside its cell.
  template <typename Release, typename Visible>
  void read(Item item, Release&& release, Visible&& visible) {
    if (!trees_) {
      take(tasks_[item].reads, release, visible);
      return;
    }
    const auto sources = this->sources(item).size();
    for (std::size_t i = 0; i < sources; ++i) take(turns_of(item)[i], release, visible);
  }

  // The transfer is complete at destination `end`; calls `visible(item, end)` now or later.
  template <typename Release, typename Visible>
  void write(Item item, std::size_t end, Release&& release, Visible&& visible) {
    const auto turn = trees_ ? turns_of(item)[sources(item).size() + end] : tasks_[item].writes;
    if ((turn & kDirect) != 0) {
      visible(item, end);
      if (turn != kFree) release(turn ^ kDirect);
      return;
    }
    if (turns_[turn].first == kClosed) {
      held_[turn].emplace_back(item, end);
      return;
    }
    visible(item, end);
    take(turn, release, visible);
  }

 private:
  static constexpr std::uint32_t kClosed = 0, kOpen = 1;
  static constexpr std::uint32_t kMostAccesses = (1u << 30) - 1;  // per turn
  struct Turn {
    std::uint32_t left : 30;  // accesses still to come
    std::uint32_t reads : 1;
    std::uint32_t last : 1;  // whether it is the last turn of its cell
    // For reads: the reader if there is only one, otherwise the position of the first in readers_. For writes: whether the
    // turn has begun.
    std::uint32_t first;
  };
  struct Event {
    std::int64_t key;  // time, and writes before reads
    std::uint32_t node, item;
    std::size_t access;
    bool reads, copies;
  };
  // The state of a cell while a chunk that is only copied is added.
  struct Spread {
    Item write = kNone, reader = kNone;
    Time arrival = 0;
    std::uint32_t reads = 0, next = 0;
  };
  struct Duration {
    std::int64_t bytes = -1;
    Time time = 0;  // from the start of the last leg to the arrival
  };

  std::span<const NodeId> sources(Item item) const {
    return schedule_.routes().sources(schedule_.stored().lane_route[tasks_[item].lane]);
  }
  const std::uint32_t* turns_of(Item item) const { return &tree_turns_[tasks_[item].reads]; }
  // The number of an access: its position in tree_turns_, or 2·item for a read and 2·item + 1 for a write.
  std::size_t first_access(Item item) const {
    return trees_ ? tasks_[item].reads : 2 * static_cast<std::size_t>(item);
  }
  std::uint32_t& turn_of(std::size_t access) {
    if (trees_) return tree_turns_[access];
    Task& task = tasks_[access / 2];
    return access % 2 == 0 ? task.reads : task.writes;
  }

  template <typename Release, typename Visible>
  void take(std::uint32_t turn, Release&& release, Visible&& visible) {
    while (turn != kFree && --turns_[turn].left == 0 && turns_[turn].last == 0) {
      ++turn;
      auto& next = turns_[turn];
      if (next.reads != 0) {
        if (next.left == 1) {
          release(next.first);
        } else {
          for (std::uint32_t i = 0; i < next.left; ++i) release(readers_[next.first + i]);
        }
        return;
      }
      next.first = kOpen;
      const auto found = held_.find(turn);
      if (found == held_.end()) return;
      const auto waiting = std::move(found->second);
      held_.erase(found);
      for (const auto& [item, end] : waiting) visible(item, end);
      // The event loop counts one of them itself.
      const auto counted = static_cast<std::uint32_t>(waiting.size()) - 1;
      next.left = (next.left - counted) & kMostAccesses;
    }
  }

  void number_accesses() {
    const auto& routes = schedule_.routes();
    for (std::int32_t lane = 0; lane < schedule_.lanes(); ++lane) {
      trees_ = trees_ || !routes.unicast(schedule_.stored().lane_route[at(lane)]);
    }
    if (!trees_) return;
    std::size_t accesses = 0;
    for (Task& task : tasks_) {
      const RouteId route = schedule_.stored().lane_route[task.lane];
      task.reads = static_cast<std::uint32_t>(accesses);
      accesses += routes.sources(route).size() + routes.destinations(route).size();
    }
    if (accesses >= kNone) invalid("the schedule's trees have too many ends to simulate");
    tree_turns_.assign(accesses, kFree);
  }

  // The accesses of one chunk, with the data that add_chunk needs, to avoid slow lookups.
  struct Access {
    Item item;
    std::uint32_t lane, start;
  };
  LargeVector<Access> sorted_by_chunk(std::vector<std::size_t>& next) const {
    const auto& chunks = schedule_.stored().chunk;
    next.assign(at(schedule_.collective().chunks()) + 1, 0);
    for (const ChunkId chunk : chunks) ++next[at(chunk) + 1];
    std::partial_sum(next.begin(), next.end(), next.begin());
    LargeVector<Access> sorted(tasks_.size());
    for (Item item = 0; item < tasks_.size(); ++item) {
      if (item + 16 < tasks_.size()) fetch_ahead(&chunks[tasks_[item + 16].transfer]);
      const Task& task = tasks_[item];
      sorted[next[at(chunks[task.transfer])]++] = {item, task.lane, task.start};
    }
    return sorted;
  }

  Time arrival(const Access& access, Time start, std::int64_t bytes, std::size_t end) {
    const auto lane = static_cast<std::int32_t>(access.lane);
    const std::int32_t legs = schedule_.routes().legs(schedule_.stored().lane_route[access.lane]);
    if (trees_ || legs > 1) return schedule_.arrival(lane, tasks_[access.item].transfer, end);
    auto& known = durations_[access.lane];
    if (known.bytes != bytes) {
      known = {bytes, schedule_.arrival(lane, tasks_[access.item].transfer) - start};
    }
    return start + known.time;
  }

  void add_chunk(ChunkId chunk, std::span<const Access> transfers) {
    const auto& stored = schedule_.stored();
    for (const NodeId node : schedule_.collective().inputs(chunk)) holds_[at(node)] = chunk;
    const auto bytes = schedule_.collective().bytes(chunk);
    if (!trees_ && add_spread(chunk, bytes, transfers)) return;
    events_.clear();
    for (const auto& transfer : transfers) {
      const Item item = transfer.item;
      if (!trees_) fetch_ahead(&tasks_[item]);  // add_cell writes there
      const RouteId route = stored.lane_route[transfer.lane];
      const bool acc = stored.lane_reads[transfer.lane] == static_cast<std::uint8_t>(Reads::acc);
      const bool copies = stored.lane_op[transfer.lane] == static_cast<std::uint8_t>(Op::copy);
      const Time start = static_cast<Time>(transfer.start) * stored.quantum;
      auto access = first_access(item);
      for (const NodeId node : schedule_.routes().sources(route)) {
        if (acc) {
          add({2 * start + 1, static_cast<std::uint32_t>(node), item, access, true, false});
        } else if (holds_[at(node)] != chunk) {
          refuse(item, node);
        }
        ++access;
      }
      const auto ends = schedule_.routes().destinations(route);
      for (std::size_t end = 0; end < ends.size(); ++end, ++access) {
        add({2 * arrival(transfer, start, bytes, end), static_cast<std::uint32_t>(ends[end]), item,
             access, false, copies});
      }
    }
    // Groups events by cell: nodes_ are in order of first access; count_ is where the next event of a node goes.
    std::size_t total = 0;
    for (const std::uint32_t node : nodes_) {
      const auto here = count_[node];
      count_[node] = static_cast<std::uint32_t>(total);
      total += here;
    }
    sorted_.resize(total);
    for (const auto& event : events_) sorted_[count_[event.node]++] = event;
    std::size_t begin = 0;
    for (const std::uint32_t node : nodes_) {
      add_cell(chunk, std::span(sorted_).subspan(begin, count_[node] - begin));
      begin = count_[node];
      count_[node] = 0;
    }
    nodes_.clear();
  }

  // Handles the most frequent case, a chunk that arrives at every node once, before it is read there; it
  // needs no sorting. Returns false for other chunks.
  bool add_spread(ChunkId chunk, std::int64_t bytes, std::span<const Access> transfers) {
    const auto& stored = schedule_.stored();
    const auto clear = [&] {
      for (const std::uint32_t node : nodes_) spread_[node] = {};
      nodes_.clear();
    };
    const auto cell = [&](NodeId node) -> Spread& {
      auto& found = spread_[at(node)];
      if (found.write == kNone && found.reads == 0)
        nodes_.push_back(static_cast<std::uint32_t>(node));
      return found;
    };
    for (const auto& transfer : transfers) {
      fetch_ahead(&tasks_[transfer.item]);
      const RouteId route = stored.lane_route[transfer.lane];
      const Time start = static_cast<Time>(transfer.start) * stored.quantum;
      auto& to = cell(schedule_.routes().destinations(route)[0]);
      if (to.write != kNone || to.reads > 0) return clear(), false;
      to.write = transfer.item;
      to.arrival = arrival(transfer, start, bytes, 0);
      const NodeId source = schedule_.routes().sources(route)[0];
      const bool acc = stored.lane_reads[transfer.lane] == static_cast<std::uint8_t>(Reads::acc);
      if (acc) {
        auto& from = cell(source);
        if (from.write == kNone ? holds_[at(source)] != chunk : from.arrival > start) {
          return clear(), false;
        }
        from.reader = transfer.item;
        ++from.reads;
      } else if (holds_[at(source)] != chunk) {
        refuse(transfer.item, source);
      }
    }
    for (const std::uint32_t node : nodes_) {
      auto& at_node = spread_[node];
      if (at_node.write == kNone || at_node.reads == 0) continue;
      if (at_node.reads == 1) {
        tasks_[at_node.write].writes = kDirect | at_node.reader;
        continue;
      }
      const auto turn = next_turn();
      const auto first = static_cast<std::uint32_t>(readers_.size());
      tasks_[at_node.write].writes = turn;
      turns_.push_back({1, 0, 0, kOpen});
      turns_.push_back({at_node.reads & kMostAccesses, 1, 1, first});
      readers_.resize(readers_.size() + at_node.reads);
      at_node.next = first;
    }
    for (const auto& transfer : transfers) {
      const RouteId route = stored.lane_route[transfer.lane];
      if (stored.lane_reads[transfer.lane] != static_cast<std::uint8_t>(Reads::acc)) continue;
      auto& from = spread_[at(schedule_.routes().sources(route)[0])];
      if (from.write == kNone) continue;
      ++tasks_[transfer.item].waits;
      if (from.reads > 1) readers_[from.next++] = transfer.item;
    }
    clear();
    return true;
  }

  std::uint32_t next_turn() const {
    const auto turn = turns_.size();
    if (turn >= kDirect - 2) invalid("the schedule is too long to simulate");
    return static_cast<std::uint32_t>(turn);
  }

  void add(const Event& event) {
    if (count_[event.node]++ == 0) nodes_.push_back(event.node);
    events_.push_back(event);
  }

  void add_cell(ChunkId chunk, std::span<Event> cell) {
    const auto earlier = [](const Event& a, const Event& b) {
      return std::tie(a.key, a.access) < std::tie(b.key, b.access);
    };
    if (!std::is_sorted(cell.begin(), cell.end(), earlier)) {
      std::sort(cell.begin(), cell.end(), earlier);
    }
    if (cell[0].reads && holds_[cell[0].node] != chunk) {
      refuse(cell[0].item, static_cast<NodeId>(cell[0].node));
    }
    if (cell.size() == 2 && !cell[0].reads && cell[1].reads) {
      turn_of(cell[0].access) = kDirect | cell[1].item;
      ++tasks_[cell[1].item].waits;
      return;
    }
    const auto same_turn = [](const Event& a, const Event& b) {
      return a.reads == b.reads && !a.copies && !b.copies;
    };
    bool first = true;
    for (std::size_t begin = 0, end = 0; begin < cell.size(); begin = end, first = false) {
      while (end < cell.size() && (end == begin || same_turn(cell[begin], cell[end]))) ++end;
      if (first && end == cell.size()) return;
      const auto turn = next_turn();
      const bool last = end == cell.size(), reads = cell[begin].reads;
      const auto count = static_cast<std::uint32_t>(end - begin);
      std::uint32_t what = first ? kOpen : kClosed;
      if (reads) what = count == 1 ? cell[begin].item : static_cast<std::uint32_t>(readers_.size());
      turns_.push_back({count & kMostAccesses, reads, last, what});
      for (std::size_t i = begin; i < end; ++i) {
        if (!reads || !last) turn_of(cell[i].access) = turn;
        if (!reads || first) continue;
        if (count > 1) readers_.push_back(cell[i].item);
        ++tasks_[cell[i].item].waits;
      }
    }
  }

  [[noreturn]] void refuse(Item item, NodeId node) const {
    throw InfeasibleError(
        "transfer " + std::to_string(tasks_[item].transfer) +
        " can never start: " + schedule_.topology().name(node) + " has nothing of chunk " +
        std::to_string(schedule_.stored().chunk[tasks_[item].transfer]) + " that it could read");
  }

  const Schedule& schedule_;
  std::span<Task> tasks_;
  bool trees_ = false;  // whether some transfers have more than one source and one destination
  std::vector<std::uint32_t> tree_turns_;  // with trees: per source, then per destination
  LargeVector<Turn> turns_;                // grouped by cell
  std::vector<Item> readers_;
  std::unordered_map<std::uint32_t, std::vector<std::pair<Item, std::size_t>>> held_;
  // While building only:
  std::vector<Duration> durations_;  // per lane
  std::vector<Event> events_, sorted_;
  std::vector<std::uint32_t> count_, holds_, nodes_;
  std::vector<Spread> spread_;  // per node
};

}  // namespace tacos::simulation
