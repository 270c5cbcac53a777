// Who waits for whom in an ordered list of transfers, by the rules at the top of retime.hpp; used there
// only. Writers and readers of one `acc` are counted, and whoever waits does so for a counter: a
// transfer costs a few words and no list of its predecessors.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "collective.hpp"
#include "progress.hpp"
#include "retime.hpp"
#include "routes.hpp"
#include "service.hpp"

namespace tacos::dependencies {

using service::Item;  // a transfer's position in the order, sorted by step
using service::kNone;

template <typename Int>
std::size_t at(Int i) {
  return static_cast<std::size_t>(i);
}

// A cell is the `acc` of one chunk at one node. Its counters only grow, so whoever waits for a
// counter to reach a threshold stands in a list sorted by threshold.
struct Cell {
  std::uint32_t arrived = 0, started = 0;  // writers, readers
  std::uint32_t arrived_waits = kNone, started_waits = kNone;
};

struct Wait {
  std::uint32_t threshold;
  Item item;
  std::uint32_t next;
};

// Who waits for whom, by the rules of retime.hpp.
class Dependencies {
 public:
  Dependencies(const Collective& collective, const Routes& routes, const Order& order,
               std::span<const Item> rows, const Progress& progress)
      : routes_(routes), order_(order), rows_(rows), pending_(rows.size(), 0) {
    find_cells(collective, progress);
    tails_.assign(cells_.size(), {kNone, kNone});
    writers_.assign(cells_.size(), 0);
    readers_.assign(cells_.size(), 0);
    has_copy_.assign(cells_.size(), false);
    for (Item begin = 0; begin < rows_.size();) {
      Item end = begin + 1;
      while (end < rows_.size() && step(end) == step(begin)) ++end;
      add_step(begin, end);
      if (progress && (begin >> 16) != (end >> 16)) progress(0);
      begin = end;
    }
    collect_gangs();
    tails_ = {};
    writers_ = readers_ = last_reader_ = {};
  }

  bool is_free(Item item) const { return pending_[leader(item)] == 0; }

  // Transfers that must start together; a single one is its own leader.
  Item leader(Item item) const {
    while (!gang_.empty()) {
      const auto found = gang_.find(item);
      if (found == gang_.end() || found->second == item) break;
      item = found->second;
    }
    return item;
  }
  std::span<const Item> gang(Item leader) const {
    if (members_.empty()) return {};
    const auto found = members_.find(leader);
    return found == members_.end() ? std::span<const Item>() : std::span<const Item>(found->second);
  }

  // Events; `release(leader)` is called for every transfer or gang that waits for nothing more.
  template <typename Release>
  void on_start(Item item, Release&& release) {
    if (!reads_acc(item)) return;
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
  std::int32_t step(Item item) const { return order_.step[rows_[item]]; }
  RouteId route(Item item) const { return order_.route[rows_[item]]; }
  bool copies(Item item) const {
    return order_.op[rows_[item]] == static_cast<std::uint8_t>(Op::copy);
  }
  bool reads_acc(Item item) const {
    return order_.reads[rows_[item]] == static_cast<std::uint8_t>(Reads::acc);
  }
  std::span<const std::uint32_t> source_cells(Item item) const {
    return std::span(touched_).subspan(touched_begin_[item], routes_.sources(route(item)).size());
  }
  std::span<const std::uint32_t> destination_cells(Item item) const {
    return std::span(touched_).subspan(touched_begin_[item] + routes_.sources(route(item)).size(),
                                       routes_.destinations(route(item)).size());
  }

  // Numbers the cells that occur, chunk by chunk so that one array over the nodes suffices.
  void find_cells(const Collective& collective, const Progress& progress) {
    std::vector<std::uint32_t> chunk_begin(at(collective.chunks()) + 1, 0);
    touched_begin_.reserve(rows_.size() + 1);
    std::size_t total = 0;
    for (Item item = 0; item < rows_.size(); ++item) {
      touched_begin_.push_back(total);
      total += routes_.sources(route(item)).size() + routes_.destinations(route(item)).size();
      ++chunk_begin[at(order_.chunk[rows_[item]]) + 1];
    }
    touched_begin_.push_back(total);
    std::partial_sum(chunk_begin.begin(), chunk_begin.end(), chunk_begin.begin());
    std::vector<Item> by_chunk(rows_.size());
    for (Item item = 0; item < rows_.size(); ++item) {
      by_chunk[chunk_begin[at(order_.chunk[rows_[item]])]++] = item;
    }
    touched_.resize(total);
    std::vector<std::uint32_t> cell_at(at(routes_.topology().nodes()), kNone);
    std::vector<NodeId> nodes;  // that the current chunk touched
    ChunkId chunk = kNone;
    std::size_t seen = 0;
    for (const Item item : by_chunk) {
      if (progress && (++seen & 0xffff) == 0) progress(0);
      if (order_.chunk[rows_[item]] != chunk) {
        chunk = order_.chunk[rows_[item]];
        for (const NodeId node : nodes) cell_at[at(node)] = kNone;
        nodes.clear();
      }
      auto next = touched_begin_[item];
      for (const auto ends : {routes_.sources(route(item)), routes_.destinations(route(item))}) {
        for (const NodeId node : ends) {
          if (cell_at[at(node)] == kNone) {
            cell_at[at(node)] = static_cast<std::uint32_t>(cells_.size());
            cells_.emplace_back();
            nodes.push_back(node);
          }
          touched_[next++] = cell_at[at(node)];
        }
      }
    }
  }

  void add_step(Item begin, Item end) {
    for (Item item = begin; item < end; ++item) {
      if (!reads_acc(item)) continue;
      for (const auto cell : source_cells(item)) {
        add_wait(cells_[cell].arrived_waits, tails_[cell].first, writers_[cell], item);
      }
    }
    for (Item item = begin; item < end; ++item) {
      for (const auto cell : destination_cells(item)) {
        add_wait(cells_[cell].started_waits, tails_[cell].second, readers_[cell], item);
        if (writers_[cell] > 0 && (copies(item) || has_copy_[cell])) {
          add_wait(cells_[cell].arrived_waits, tails_[cell].first, writers_[cell], item);
        }
      }
    }
    join_exchanges(begin, end);
    for (Item item = begin; item < end; ++item) {
      if (reads_acc(item)) {
        for (const auto cell : source_cells(item)) ++readers_[cell];
      }
      for (const auto cell : destination_cells(item)) {
        ++writers_[cell];
        if (copies(item)) has_copy_[cell] = true;
      }
    }
  }

  // Within one step, whoever writes where another reads starts together with it.
  void join_exchanges(Item begin, Item end) {
    if (last_reader_.empty()) last_reader_.assign(cells_.size(), kNone);
    for (Item item = begin; item < end; ++item) {
      if (!reads_acc(item)) continue;
      for (const auto cell : source_cells(item)) last_reader_[cell] = item;
    }
    bool any = false;
    for (Item item = begin; item < end && !any; ++item) {
      for (const auto cell : destination_cells(item)) {
        any = any || (last_reader_[cell] != kNone && last_reader_[cell] >= begin);
      }
    }
    if (!any) return;
    std::unordered_map<std::uint32_t, std::vector<Item>> readers;
    for (Item item = begin; item < end; ++item) {
      if (!reads_acc(item)) continue;
      for (const auto cell : source_cells(item)) readers[cell].push_back(item);
    }
    for (Item item = begin; item < end; ++item) {
      for (const auto cell : destination_cells(item)) {
        const auto found = readers.find(cell);
        if (found == readers.end()) continue;
        for (const Item reader : found->second) join(item, reader);
        found->second.resize(1);  // all in one gang now: later writers join any of them
      }
    }
  }

  // A forest whose roots are the lowest members; paths are halved on the way.
  void join(Item a, Item b) {
    const auto root = [&](Item item) {
      for (auto found = gang_.try_emplace(item, item).first; found->second != item;) {
        const auto above = gang_.find(found->second);
        found->second = above->second;
        item = above->first;
        found = above;
      }
      return item;
    };
    const auto [low, high] = std::minmax({root(a), root(b)});
    if (low == high) return;
    gang_[high] = low;
    pending_[low] += pending_[high];
  }

  void collect_gangs() {
    std::vector<Item> all;
    for (const auto& [item, above] : gang_) all.push_back(item);
    std::sort(all.begin(), all.end());
    for (const Item item : all) {
      const Item first = leader(item);
      gang_[item] = first;
      members_[first].push_back(item);
    }
  }

  // `item` waits until the counter that heads the list reaches the threshold.
  void add_wait(std::uint32_t& head, std::uint32_t& tail, std::uint32_t threshold, Item item) {
    if (threshold == 0) return;
    const auto wait = static_cast<std::uint32_t>(waits_.size());
    waits_.push_back({threshold, item, kNone});
    (head == kNone ? head : waits_[tail].next) = wait;
    tail = wait;
    ++pending_[leader(item)];
  }

  template <typename Release>
  void wake(std::uint32_t& head, std::uint32_t counter, Release&& release) {
    while (head != kNone && waits_[head].threshold <= counter) {
      const Item item = leader(waits_[head].item);
      head = waits_[head].next;
      if (--pending_[item] == 0) release(item);
    }
  }

  const Routes& routes_;
  const Order& order_;
  std::span<const Item> rows_;
  std::vector<Cell> cells_;
  std::vector<Wait> waits_;
  std::vector<std::uint32_t> pending_;      // unmet waits of each leader
  std::vector<std::size_t> touched_begin_;  // per item, into touched_
  std::vector<std::uint32_t> touched_;      // its source cells, then its destination cells
  std::unordered_map<Item, Item> gang_;
  std::unordered_map<Item, std::vector<Item>> members_;
  // While building only:
  std::vector<std::pair<std::uint32_t, std::uint32_t>> tails_;
  std::vector<std::uint32_t> writers_, readers_, last_reader_;
  std::vector<bool> has_copy_;
};

}  // namespace tacos::dependencies
