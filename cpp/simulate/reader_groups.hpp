// The dependencies of a schedule's transfers, grouped by what they wait for; for transfers over single links.
//
// The order in which a chunk is read and written at a node is that of turns.hpp. Transfers are numbered such that those that read a
// chunk at a node in the same turn have successive numbers: when the turn begins, they are one stretch of memory. All numbers of a
// chunk lie together, so that a chunk's transfers are grouped within the cache. This takes 20 bytes per transfer, and 8 per turn;
// a write that only one transfer waits for needs no turn.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <tuple>
#include <vector>

#include "model/schedule.hpp"
#include "support/fetch_ahead.hpp"
#include "support/index.hpp"
#include "support/large.hpp"
#include "support/progress.hpp"

namespace tacos::simulation {

class ReaderGroups {
 public:
  using Number = std::uint32_t;  // of a transfer
  static constexpr std::uint32_t kFree = std::numeric_limits<std::uint32_t>::max();
  // If this bit of a turn is set, the other bits are the one transfer that waits for this write.
  static constexpr std::uint32_t kDirect = 1u << 31;

  struct Task {
    std::uint32_t start, transfer;  // its position: by start, then by transfer
    std::uint32_t lane;
    std::uint32_t reads, writes;  // turns, or kFree if nothing waits for them
  };

  // The routes of the schedule are paths of one leg.
  ReaderGroups(const Schedule& schedule, const Progress& progress)
      : schedule_(schedule), lanes_(at(schedule.lanes())) {
    const auto nodes = at(schedule.topology().nodes());
    at_node_.resize(nodes);
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
      const RouteId route = schedule.stored().lane_route[lane];
      lanes_[lane] = {
          .from = schedule.routes().sources(route)[0],
          .to = schedule.routes().destinations(route)[0],
          .reads_acc = schedule.stored().lane_reads[lane] == static_cast<std::uint8_t>(Reads::acc),
          .copies = schedule.stored().lane_op[lane] == static_cast<std::uint8_t>(Op::copy)};
    }
    build(progress);
    at_node_ = {};
    events_ = {};
    index_ = {};
  }

  // Whether the schedule makes sense. If not, turns.hpp tells why.
  bool complete() const { return complete_; }
  std::size_t size() const { return schedule_.stored().chunk.size(); }
  const Task& operator[](Number number) const { return tasks_[number]; }
  // Transfers that wait for no data.
  const LargeVector<Number>& initial() const { return initial_; }

  void prefetch_write(std::uint32_t turn) const {
    if ((turn & kDirect) != 0) {
      fetch_ahead(&tasks_[turn ^ kDirect]);
    } else {
      fetch_ahead(&turns_[turn]);
    }
  }
  void prefetch_readers(std::uint32_t turn) const {
    if ((turn & kDirect) != 0 || turns_[turn].last != 0) return;
    const Turn& next = turns_[turn + 1];
    if (next.reads == 0) return;
    fetch_ahead(&tasks_[next.first]);
    fetch_ahead(&tasks_[next.first + std::min<std::uint32_t>(next.left, 4) - 1]);
  }
  void prefetch_read(std::uint32_t turn) const {
    if (turn != kFree) fetch_ahead(&turns_[turn]);
  }
  // Calls visit(number) for the first transfers that wait for a write.
  template <typename Visit>
  void each_reader(std::uint32_t turn, const Visit& visit) const {
    if ((turn & kDirect) != 0) {
      visit(turn ^ kDirect);
    } else if (turns_[turn].last == 0 && turns_[turn + 1].reads != 0) {
      const Turn& next = turns_[turn + 1];
      for (std::uint32_t i = 0; i < std::min<std::uint32_t>(next.left, 4); ++i) {
        visit(next.first + i);
      }
    }
  }
  // Whether other writes of this turn are still to come.
  bool others_write(std::uint32_t turn) const {
    return (turn & kDirect) == 0 && turns_[turn].left > 1;
  }

  // A write happens, not one of kFree. Calls ready(number) for each transfer that need not wait any more. Returns false if the write is
  // before its turn.
  template <typename Ready>
  bool write(std::uint32_t turn, const Ready& ready) {
    if ((turn & kDirect) != 0) {
      ready(turn ^ kDirect);
      return true;
    }
    if (turns_[turn].first == kClosed) return false;
    if (--turns_[turn].left > 0 || turns_[turn].last != 0) return true;
    auto& next = turns_[turn + 1];
    if (next.reads == 0) {
      next.first = kOpen;
      return true;
    }
    for (std::uint32_t i = 0; i < next.left; ++i) ready(next.first + i);
    return true;
  }
  // A transfer starts.
  void read(std::uint32_t turn) {
    if (turn == kFree || --turns_[turn].left > 0 || turns_[turn].last != 0) return;
    turns_[turn + 1].first = kOpen;
  }

 private:
  static constexpr std::uint32_t kClosed = 0, kOpen = 1;
  static constexpr std::uint32_t kMostAccesses = (1u << 30) - 1;  // per turn
  struct Turn {
    std::uint32_t left : 30;  // accesses still to come
    std::uint32_t reads : 1;
    std::uint32_t last : 1;  // whether it is the last turn of its chunk and node
    std::uint32_t first;     // for reads: the first reader; for writes: whether the turn has begun
  };
  struct Lane {
    NodeId from = 0, to = 0;
    bool reads_acc = false, copies = false;
    std::int64_t bytes = -1;
    Time time = 0;  // that a chunk of `bytes` takes in the schedule
  };
  struct Row {
    std::uint32_t start, transfer, lane;
  };
  // Of the chunk that is added: its accesses at a node.
  struct AtNode {
    ChunkId chunk = std::numeric_limits<ChunkId>::max();
    bool holds = false;
    std::uint32_t inputs = 0, readers = 0,
                  writers = 0;  // transfers that read its input, its acc; that write
    // Numbers: of the first transfer that reads its input, of the next one, and of the next one that reads its acc.
    std::uint32_t first = 0, next = 0, next_reader = 0;
    std::uint32_t turn = kFree;  // of its one write
    Time arrival = 0, first_read = 0;
    std::uint32_t event = 0;  // if it has several turns: where its events begin
  };
  struct Event {
    std::int64_t key;  // time, and writes before reads
    std::uint32_t start, transfer, row;
    bool reads, copies;
  };

  void build(const Progress& progress) {
    const auto& stored = schedule_.stored();
    const auto& collective = schedule_.collective();
    const auto count = stored.chunk.size();
    if (count >= kDirect) return;
    std::vector<std::size_t> end(at(collective.chunks()) + 1, 0);
    for (const ChunkId chunk : stored.chunk) ++end[at(chunk) + 1];
    for (std::size_t i = 1; i < end.size(); ++i) end[i] += end[i - 1];
    Unfilled<Row> rows;
    rows.resize(count);
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
      for (auto i = at(stored.lane_begin[lane]); i < at(stored.lane_begin[lane + 1]); ++i) {
        rows[end[stored.chunk[i]]++] = {stored.start[i], static_cast<std::uint32_t>(i),
                                        static_cast<std::uint32_t>(lane)};
      }
    }
    tasks_.resize(count);
    // Memory that is not needed is never touched.
    turns_.reserve(4 * count);
    initial_.reserve(count);
    complete_ = true;
    std::size_t begin = 0, told = 0;
    for (ChunkId chunk = 0; chunk < collective.chunks() && complete_; ++chunk) {
      complete_ =
          add_chunk(chunk, {rows.begin() + begin, end[chunk] - begin}, static_cast<Number>(begin));
      begin = end[chunk];
      if (progress && begin - told > 0xffff) {
        told = begin;
        progress(0);
      }
    }
  }

  AtNode& at_node(ChunkId chunk, NodeId node) {
    auto& found = at_node_[at(node)];
    if (found.chunk != chunk) {
      found = {};
      found.chunk = chunk;
      found.first_read = std::numeric_limits<Time>::max();
      nodes_.push_back(node);
    }
    return found;
  }
  Time start_of(const Row& row) const {
    return static_cast<Time>(row.start) * schedule_.stored().quantum;
  }
  Time time_of(Lane& lane, std::int64_t bytes, const Row& row) const {
    if (lane.bytes != bytes) {
      const auto number = static_cast<std::int32_t>(row.lane);
      lane.bytes = bytes;
      lane.time = schedule_.arrival(number, row.transfer) - start_of(row);
    }
    return lane.time;
  }
  // Whether a chunk at a node has more than one write followed by reads.
  static bool takes_turns(const AtNode& here) {
    return here.writers > 1 || (here.writers == 1 && here.first_read < here.arrival);
  }

  bool add_chunk(ChunkId chunk, std::span<const Row> rows, Number first) {
    if (rows.empty()) return true;
    nodes_.clear();
    const auto bytes = schedule_.collective().bytes(chunk);
    for (const NodeId node : schedule_.collective().inputs(chunk)) {
      at_node(chunk, node).holds = true;
    }
    for (const Row& row : rows) {
      Lane& lane = lanes_[row.lane];
      AtNode& from = at_node(chunk, lane.from);
      ++(lane.reads_acc ? from.readers : from.inputs);
      if (lane.reads_acc) from.first_read = std::min(from.first_read, start_of(row));
      AtNode& to = at_node(chunk, lane.to);
      ++to.writers;
      to.arrival = start_of(row) + time_of(lane, bytes, row);
    }
    if (!number_readers(first) || !number_turns(bytes, rows)) return false;
    fill(rows);
    return true;
  }

  // Numbers the readers of each node: those of its input first.
  bool number_readers(Number first) {
    events_.clear();
    std::uint32_t events = 0;
    for (const NodeId node : nodes_) {
      AtNode& here = at_node_[at(node)];
      if (here.inputs > 0 && !here.holds) return false;
      if (here.readers > 0 && here.writers == 0 && !here.holds) return false;
      here.first = here.next = first;
      here.next_reader = first + here.inputs;
      first += here.inputs + here.readers;
      if (takes_turns(here)) {
        here.event = events;
        events += here.readers + here.writers;
      } else if (here.writers == 1 && here.readers == 1) {
        here.turn = kDirect | (here.first + here.inputs);
      } else if (here.writers == 1 && here.readers > 1) {
        here.turn = static_cast<std::uint32_t>(turns_.size());
        turns_.push_back({1, 0, 0, kOpen});
        turns_.push_back({here.readers & kMostAccesses, 1, 1, here.first + here.inputs});
      }
    }
    events_.resize(events);
    return turns_.size() < kDirect - 2;
  }

  // Finds the turns of nodes that have several.
  bool number_turns(std::int64_t bytes, std::span<const Row> rows) {
    index_.assign(rows.size(), {kFree, kFree, kFree});
    if (events_.empty()) return true;
    for (std::uint32_t i = 0; i < rows.size(); ++i) {
      const Row& row = rows[i];
      Lane& lane = lanes_[row.lane];
      AtNode& from = at_node_[at(lane.from)];
      const Time start = start_of(row);
      if (lane.reads_acc && takes_turns(from)) {
        events_[from.event++] = {2 * start + 1, row.start, row.transfer, i, true, false};
      }
      AtNode& to = at_node_[at(lane.to)];
      if (takes_turns(to)) {
        const Time arrival = start + time_of(lane, bytes, row);
        events_[to.event++] = {2 * arrival, row.start, row.transfer, i, false, lane.copies};
      }
    }
    std::size_t begin = 0;
    for (const NodeId node : nodes_) {
      AtNode& here = at_node_[at(node)];
      if (!takes_turns(here)) continue;
      if (!add_turns(here, std::span(events_).subspan(begin, here.event - begin))) return false;
      begin = here.event;
    }
    return turns_.size() < kDirect - 2;
  }

  bool add_turns(const AtNode& here, std::span<Event> events) {
    const auto earlier = [](const Event& a, const Event& b) {
      return std::tie(a.key, a.start, a.transfer) < std::tie(b.key, b.start, b.transfer);
    };
    std::sort(events.begin(), events.end(), earlier);
    if (events[0].reads && !here.holds) return false;
    const auto same_turn = [](const Event& a, const Event& b) {
      return a.reads == b.reads && !a.copies && !b.copies;
    };
    Number reader = here.first + here.inputs;
    for (std::size_t begin = 0, end = 0; begin < events.size(); begin = end) {
      while (end < events.size() && (end == begin || same_turn(events[begin], events[end]))) ++end;
      const bool first = begin == 0, last = end == events.size(), reads = events[begin].reads;
      if (first && last && !reads) return true;
      const auto turn = static_cast<std::uint32_t>(turns_.size());
      const auto count = static_cast<std::uint32_t>(end - begin);
      const std::uint32_t what = reads ? reader : (first ? kOpen : kClosed);
      turns_.push_back({count & kMostAccesses, reads, last, what});
      for (auto i = begin; i < end; ++i) {
        auto& index = index_[events[i].row];
        if (reads) {
          index.number = reader++;
          index.reads = last ? kFree : turn;
          if (first) initial_.push_back(index.number);
        } else {
          index.writes = turn;
        }
      }
    }
    return true;
  }

  void fill(std::span<const Row> rows) {
    for (std::uint32_t i = 0; i < rows.size(); ++i) {
      const Row& row = rows[i];
      const Lane& lane = lanes_[row.lane];
      AtNode &from = at_node_[at(lane.from)], &to = at_node_[at(lane.to)];
      auto [number, reads, writes] = index_[i];
      if (!lane.reads_acc) {
        number = from.next++;
      } else if (number == kFree) {
        number = from.next_reader++;
      }
      if (!lane.reads_acc || from.writers == 0) initial_.push_back(number);
      if (!takes_turns(to)) writes = to.turn;
      tasks_[number] = {row.start, row.transfer, row.lane, reads, writes};
    }
  }

  struct Index {
    Number number;
    std::uint32_t reads, writes;
  };
  const Schedule& schedule_;
  bool complete_ = false;
  std::vector<Lane> lanes_;
  Unfilled<Task> tasks_;
  LargeVector<Turn> turns_;
  LargeVector<Number> initial_;
  // While building only:
  std::vector<AtNode> at_node_;
  std::vector<NodeId> nodes_;  // of the current chunk
  std::vector<Event> events_;
  std::vector<Index> index_;  // per row of the current chunk
};

}  // namespace tacos::simulation
