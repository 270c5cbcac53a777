// The transfers of a schedule, ordered by start and then by number, a few thousand at a time. Sorting
// all of them at once would take more memory than the schedule itself.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "model/schedule.hpp"
#include "support/fetch_ahead.hpp"
#include "support/index.hpp"
#include "support/radix.hpp"

namespace tacos::simulation {

class ByStart {
 public:
  struct Row {
    std::uint32_t lane, transfer, start;  // the start in quanta
    ChunkId chunk;
  };

  // The schedule must be packed, and its routes must have one leg.
  ByStart(const Schedule& schedule, std::size_t at_a_time)
      : stored_(schedule.stored()),
        cursor_(stored_.lane_begin.begin(), stored_.lane_begin.end() - 1) {
    const auto& starts = stored_.start;
    const auto latest = starts.empty() ? 0 : *std::max_element(starts.begin(), starts.end());
    if (starts.size() <= at_a_time) {  // counting would take longer than sorting
      limits_.push_back(std::uint64_t{latest} + 1);
      return;
    }
    int shift = 0;
    while (latest >> shift > 0xffff) ++shift;
    std::vector<std::size_t> count((latest >> shift) + 1, 0);
    for (const auto start : starts) ++count[start >> shift];
    std::size_t rows = 0;
    for (std::size_t bin = 0; bin < count.size(); ++bin) {
      rows += count[bin];
      if (rows < at_a_time && bin + 1 < count.size()) continue;
      limits_.push_back((std::uint64_t{bin} + 1) << shift);
      rows = 0;
    }
  }

  // The next rows, valid until the next call; empty at the end.
  std::span<const Row> next() {
    rows_.clear();
    while (rows_.empty() && window_ < limits_.size()) {
      gather(limits_[window_++]);
      // Rows with equal starts stay ordered by number.
      radix_sort(rows_, other_, [](const Row& row) { return row.start; });
    }
    return rows_;
  }

 private:
  void gather(std::uint64_t limit) {
    constexpr std::size_t kAhead = 8;
    for (std::size_t lane = 0; lane < cursor_.size(); ++lane) {
      if (lane + kAhead < cursor_.size()) {
        fetch_ahead(stored_.start.data() + cursor_[lane + kAhead]);
        fetch_ahead(stored_.chunk.data() + cursor_[lane + kAhead]);
      }
      auto i = at(cursor_[lane]);
      const auto end = at(stored_.lane_begin[lane + 1]);
      for (; i < end && stored_.start[i] < limit; ++i) {
        rows_.push_back({static_cast<std::uint32_t>(lane), static_cast<std::uint32_t>(i),
                         stored_.start[i], stored_.chunk[i]});
      }
      cursor_[lane] = static_cast<std::int64_t>(i);
    }
  }

  const Transfers& stored_;
  std::vector<std::int64_t> cursor_;   // per lane
  std::vector<std::uint64_t> limits_;  // exclusive ends of the windows
  std::size_t window_ = 0;
  std::vector<Row> rows_, other_;
};

}  // namespace tacos::simulation
