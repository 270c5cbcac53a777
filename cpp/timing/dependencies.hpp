// The dependencies in an ordered list of transfers, by the rules at the top of retime.hpp; used only
// there. Writers and readers of each `acc` are counted, and a transfer waits until a counter reaches a
// threshold. So a transfer costs a few words, not a list of its predecessors.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "model/collective.hpp"
#include "model/routes.hpp"
#include "support/fetch_ahead.hpp"
#include "support/index.hpp"
#include "support/large.hpp"
#include "support/progress.hpp"
#include "timing/cells.hpp"
#include "timing/retime.hpp"
#include "timing/service.hpp"

namespace tacos::dependencies {

using service::Item;  // a transfer's position in the order, sorted by step
using service::kNone;

// What the event loop reads of a transfer, in one place of memory.
struct Move {
  RouteId route;
  ChunkId chunk;
  std::uint32_t pending;  // unmet waits; those of a gang are counted at its head
  std::uint32_t gang;     // its number, or kNone
  // The cells it reads and writes; with trees, their positions in touched_.
  std::uint32_t source, destination;
  std::uint32_t first_start;  // position of its first leg among the legs of all transfers
  bool reduces, reads_acc;
};

// A cell is the `acc` of one chunk at one node. Its counters only grow, so the waits for a counter are
// a list sorted by threshold.
struct Cell {
  std::uint32_t arrived = 0, started = 0;  // numbers of writers, readers
  std::uint32_t arrived_waits = kNone, started_waits = kNone;
};

struct Wait {
  std::uint32_t threshold;
  Item item;
  std::uint32_t next;
};

// The dependencies, by the rules of retime.hpp.
class Dependencies {
 public:
  Dependencies(const Collective& collective, const Routes& routes, const Order& order,
               std::span<const Item> rows, const Progress& progress)
      : routes_(routes) {
    list_moves(collective, order, rows, progress);
    building_.resize(cells_.size());
    waits_.reserve(2 * rows.size());  // memory that is not needed is never touched
    std::uint32_t step = 0;
    for (Item begin = 0; begin < rows.size();) {
      Item end = begin + 1;
      while (end < rows.size() && order.step[rows[end]] == order.step[rows[begin]]) ++end;
      add_step(begin, end, ++step, progress);
      begin = end;
    }
    collect_gangs();
    building_ = {};
    exchanged_ = {};
    above_ = {};
  }

  Item size() const { return static_cast<Item>(moves_.size()); }
  std::size_t legs() const { return legs_; }
  const Move& move(Item item) const { return moves_[item]; }
  bool is_free(Item item) const {
    return moves_[item].pending == 0 && (gangs_.empty() || leads(item));
  }

  // The transfers that must start together with this one, itself included; empty if there are none.
  std::span<const Item> gang(Item item) const {
    if (gangs_.empty() || moves_[item].gang == kNone) return {};
    const auto begin = gangs_[moves_[item].gang], end = gangs_[moves_[item].gang + 1];
    return std::span(members_).subspan(begin, end - begin);
  }

  // The cells a transfer reads, if it reads `acc`, and those it writes.
  std::span<const std::uint32_t> source_cells(Item item) const {
    const Move& move = moves_[item];
    if (!trees_) return {&move.source, 1};
    return std::span(touched_).subspan(move.source, move.destination - move.source);
  }
  std::span<const std::uint32_t> destination_cells(Item item) const {
    const Move& move = moves_[item];
    if (!trees_) return {&move.destination, 1};
    return std::span(touched_).subspan(move.destination, routes_.destinations(move.route).size());
  }

  // Prefetch what on_arrival and on_start will touch; each needs what the one before it fetched.
  void prefetch_move(Item item) const { fetch_ahead(&moves_[item]); }
  void prefetch_source(Item item) const {
    if (!trees_) fetch_ahead(&cells_[moves_[item].source]);
  }
  void prefetch_destination(Item item) const {
    if (!trees_) fetch_ahead(&cells_[moves_[item].destination]);
  }
  void prefetch_wait(Item item) const {
    if (const auto wait = next_wait(item); wait != kNone) fetch_ahead(&waits_[wait]);
  }
  void prefetch_waiting(Item item) const {
    if (const auto wait = next_wait(item); wait != kNone) prefetch_move(waits_[wait].item);
  }

  // Events. They call `release(head)` for each transfer or gang that need not wait any more.
  template <typename Release>
  void on_start(Item item, Release&& release) {
    if (!moves_[item].reads_acc) return;
    for (const auto cell : source_cells(item)) {
      ++cells_[cell].started;
      wake(cells_[cell].started_waits, cells_[cell].started, release);
    }
  }
  template <typename Release>
  void on_arrival(Item item, std::size_t destination, Release&& release) {
    Cell& cell = cells_[destination_cells(item)[destination]];
    ++cell.arrived;
    wake(cell.arrived_waits, cell.arrived, release);
  }

 private:
  // Accesses to a cell so far: in the steps before the one that touched it last, and (new) in that one.
  struct Building {
    std::uint32_t arrived_tail = kNone, started_tail = kNone;  // of its lists
    std::uint32_t writers = 0, readers = 0;
    std::uint32_t new_writers = 0, new_readers = 0;
    std::uint32_t step = 0;
    bool has_copy = false, new_copy = false;
  };
  // The last transfers that touched a cell, in steps in which transfers write where others read.
  struct Exchanged {
    Item last_reader = kNone, last_writer = kNone;
  };

  std::uint32_t next_wait(Item item) const {
    return trees_ ? kNone : cells_[moves_[item].destination].arrived_waits;
  }
  bool leads(Item item) const {
    return moves_[item].gang == kNone || members_[gangs_[moves_[item].gang]] == item;
  }

  // Every 65,536 things; reports may end the work.
  static void report(const Progress& progress, std::size_t done) {
    if (progress && (done & 0xffff) == 0) progress(0);
  }

  void list_moves(const Collective& collective, const Order& order, std::span<const Item> rows,
                  const Progress& progress) {
    std::vector<std::uint32_t> ends(at(collective.chunks()), 0);  // per chunk
    std::vector<std::uint32_t> route_ends(at(routes_.count()));
    std::vector<std::pair<NodeId, NodeId>> ways(route_ends.size());
    for (RouteId route = 0; route < routes_.count(); ++route) {
      const auto sources = routes_.sources(route), to = routes_.destinations(route);
      route_ends[at(route)] = static_cast<std::uint32_t>(sources.size() + to.size());
      ways[at(route)] = {sources[0], to[0]};
    }
    std::size_t touched = 0;
    for (const Item row : rows) {
      const auto count = route_ends[at(order.route[row])];
      ends[order.chunk[row]] += count;
      touched += count;
      trees_ = trees_ || count > 2;
    }
    Cells numbers(routes_.topology().nodes(), ends);
    if (touched >= kNone || numbers.size() >= kNone) too_many();
    cells_.resize(numbers.size());
    if (trees_) touched_.reserve(touched);
    moves_.reserve(rows.size());
    for (const Item row : rows) {
      report(progress, moves_.size());
      const RouteId route = order.route[row];
      const ChunkId chunk = order.chunk[row];
      Move move{route,
                chunk,
                0,
                kNone,
                0,
                0,
                static_cast<std::uint32_t>(legs_),
                order.op[row] == static_cast<std::uint8_t>(Op::reduce),
                order.reads[row] == static_cast<std::uint8_t>(Reads::acc)};
      const auto number = [&](NodeId node) {
        return static_cast<std::uint32_t>(numbers(chunk, node));
      };
      if (trees_) {
        move.source = static_cast<std::uint32_t>(touched_.size());
        for (const NodeId node : routes_.sources(route)) touched_.push_back(number(node));
        move.destination = static_cast<std::uint32_t>(touched_.size());
        for (const NodeId node : routes_.destinations(route)) touched_.push_back(number(node));
      } else {
        move.source = number(ways[at(route)].first);
        move.destination = number(ways[at(route)].second);
      }
      moves_.push_back(move);
      legs_ += at(routes_.legs(route));
      if (legs_ >= kNone) too_many();
    }
  }
  [[noreturn]] static void too_many() {
    invalid("too many legs or ends of trees; an order has fewer than 2^32 - 1");
  }

  void add_step(Item begin, Item end, std::uint32_t step, const Progress& progress) {
    bool exchange = false;
    for (Item item = begin; item < end; ++item) {
      report(progress, item);
      if (!trees_) prefetch_building(item);
      if (moves_[item].reads_acc) {
        for (const auto cell : source_cells(item)) {
          auto& known = enter(cell, step);
          add_wait(cells_[cell].arrived_waits, known.arrived_tail, known.writers, item);
          ++known.new_readers;
          exchange = exchange || known.new_writers > 0;
        }
      }
      for (const auto cell : destination_cells(item)) {
        auto& known = enter(cell, step);
        const bool copies = !moves_[item].reduces;
        add_wait(cells_[cell].started_waits, known.started_tail, known.readers, item);
        if (copies || known.has_copy) {
          add_wait(cells_[cell].arrived_waits, known.arrived_tail, known.writers, item);
        }
        ++known.new_writers;
        known.new_copy = known.new_copy || copies;
        exchange = exchange || known.new_readers > 0;
      }
    }
    if (exchange) join_exchanges(begin, end);
  }
  Building& enter(std::uint32_t cell, std::uint32_t step) {
    auto& known = building_[cell];
    if (known.step != step) {
      known.step = step;
      known.writers += std::exchange(known.new_writers, 0);
      known.readers += std::exchange(known.new_readers, 0);
      known.has_copy = known.has_copy || known.new_copy;
    }
    return known;
  }
  void prefetch_building(Item item) const {
    if (item + 16 >= moves_.size()) return;
    const Move& later = moves_[item + 16];
    fetch_ahead(&building_[later.source]);
    fetch_ahead(&building_[later.destination]);
    fetch_ahead(&cells_[later.source]);
    fetch_ahead(&cells_[later.destination]);
    const auto& soon = building_[moves_[item + 8].source];
    if (soon.arrived_tail != kNone) fetch_ahead(&waits_[soon.arrived_tail]);
  }

  // Within one step, a transfer that writes where another one reads starts together with it.
  void join_exchanges(Item begin, Item end) {
    if (above_.empty()) {
      above_.resize(moves_.size());
      std::iota(above_.begin(), above_.end(), Item{0});
      exchanged_.resize(cells_.size());
    }
    for (Item item = begin; item < end; ++item) {
      if (!moves_[item].reads_acc) continue;
      for (const auto cell : source_cells(item)) exchanged_[cell].last_reader = item;
    }
    for (Item item = begin; item < end; ++item) {
      for (const auto cell : destination_cells(item)) {
        auto& known = exchanged_[cell];
        if (known.last_reader == kNone || known.last_reader < begin) continue;
        join(item, known.last_reader);
        known.last_writer = item;
      }
    }
    for (Item item = begin; item < end; ++item) {
      if (!moves_[item].reads_acc) continue;
      for (const auto cell : source_cells(item)) {
        const Item writer = exchanged_[cell].last_writer;
        if (writer != kNone && writer >= begin) join(item, writer);
      }
    }
  }

  // Union-find with path halving; a root is the lowest member of its gang.
  Item root(Item item) {
    while (above_[item] != item) item = above_[item] = above_[above_[item]];
    return item;
  }
  void join(Item a, Item b) {
    const auto [low, high] = std::minmax({root(a), root(b)});
    if (low == high) return;
    above_[high] = low;
    moves_[low].pending += moves_[high].pending;
    moves_[high].pending = 0;
  }

  void collect_gangs() {
    if (above_.empty()) return;
    for (Wait& wait : waits_) wait.item = root(wait.item);
    std::vector<std::uint32_t> size(moves_.size(), 0);
    for (Item item = 0; item < moves_.size(); ++item) ++size[root(item)];
    gangs_.push_back(0);
    for (Item item = 0; item < moves_.size(); ++item) {
      if (size[item] < 2) continue;
      moves_[item].gang = static_cast<std::uint32_t>(gangs_.size() - 1);
      gangs_.push_back(gangs_.back() + size[item]);
    }
    members_.resize(gangs_.back());
    auto next = gangs_;
    for (Item item = 0; item < moves_.size(); ++item) {
      const Item head = root(item);
      if (size[head] < 2) continue;
      moves_[item].gang = moves_[head].gang;
      members_[next[moves_[item].gang]++] = item;
    }
  }

  // `item` waits until the counter of the list reaches the threshold.
  void add_wait(std::uint32_t& head, std::uint32_t& tail, std::uint32_t threshold, Item item) {
    if (threshold == 0) return;
    const auto wait = static_cast<std::uint32_t>(waits_.size());
    waits_.push_back({threshold, item, kNone});
    (head == kNone ? head : waits_[tail].next) = wait;
    tail = wait;
    ++moves_[item].pending;
  }

  template <typename Release>
  void wake(std::uint32_t& head, std::uint32_t counter, Release&& release) {
    while (head != kNone && waits_[head].threshold <= counter) {
      const Item item = waits_[head].item;
      head = waits_[head].next;
      if (--moves_[item].pending == 0) release(item);
    }
  }

  const Routes& routes_;
  LargeVector<Move> moves_;
  std::size_t legs_ = 0;
  bool trees_ = false;  // whether some transfers have more than one source and one destination
  std::vector<std::uint32_t> touched_;  // with trees: source cells, then destination cells
  LargeVector<Cell> cells_;
  LargeVector<Wait> waits_;
  std::vector<std::uint32_t> gangs_;  // where each begins in members_; empty if there is none
  std::vector<Item> members_;
  // While building only:
  LargeVector<Building> building_;    // per cell
  std::vector<Exchanged> exchanged_;  // per cell, once there is a gang
  std::vector<Item> above_;           // parents in the union-find, once there is a gang
};

}  // namespace tacos::dependencies
