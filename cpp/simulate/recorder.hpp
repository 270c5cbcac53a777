// The record of a run whose starts are found in another order than that of the event loop.
//
// The event loop of service.hpp handles the arrivals of a moment in the order in which they were sent, and then its starts, by
// (ready time, position in the schedule). Transfers over single links therefore start in the order (start, ready time, position),
// and arrive in the order (arrival, start, ready time, position). A transfer that finds its link free was made ready by the last
// arrival of its chunk at its source, which is known once arrivals and starts are merged by time.
//
// Transfers are kept until all that start before them are known. Besides those and the record, this takes 4 bytes per chunk and node.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "model/schedule.hpp"
#include "simulate/link_causes.hpp"
#include "simulate/simulate.hpp"
#include "support/fetch_ahead.hpp"
#include "support/index.hpp"
#include "support/large.hpp"
#include "support/radix.hpp"

namespace tacos::simulation {

class Recorder {
 public:
  using Cell = std::uint32_t;                 // a chunk at a node
  static constexpr Cell kInput = 0xffffffff;  // no cell that a transfer waits for
  static constexpr std::int32_t kData =
      LinkCauses::kNothing;  // a cause: the last arrival of the data

  struct Started {
    Time start, ready;
    Time end;  // when its link is free again
    Time arrival;
    std::uint32_t transfer, lane;
    Cell from, to;  // kInput if the transfer waits for no data, or none waits for its data
    std::int32_t cause;
    std::uint32_t position = 0;  // start in the schedule; with `positions` only
  };

  // Transfers with the same start and ready time are recorded in the order in which they are added or, with `positions`, in that of
  // position and number. Routes are paths of one link, one for each lane.
  Recorder(const Schedule& schedule, const Routes& routes, std::size_t cells, bool positions)
      : schedule_(schedule),
        uniform_bytes_(schedule.collective().uniform_bytes()),
        positions_(positions),
        written_(cells, -1) {
    const auto transfers = at(schedule.stored_transfers());
    result_.link.reserve(transfers);
    result_.begin.reserve(transfers);
    result_.end.reserve(transfers);
    result_.transfer.reserve(transfers);
    result_.arrival_npu.reserve(transfers);
    result_.arrival_time.reserve(transfers);
    result_.arrival_bytes.reserve(transfers);
    result_.arrival_transfer.reserve(transfers);
    result_.cause.assign(transfers, -1);
    for (std::int32_t lane = 0; lane < schedule.lanes(); ++lane) {
      const NodeId node = routes.destinations(lane)[0];
      lanes_.push_back({routes.links(lane)[0], routes.topology().is_npu(node) ? node : -1});
    }
  }

  std::size_t size() const { return waiting_.size(); }
  void add(const Started& transfer) { waiting_.push_back(transfer); }

  // Records what happens before `until`; all transfers that are added later start then or later.
  void record(Time until) {
    if (waiting_.size() < 2 * left_) return;
    sort_starts(until);
    sort_arrivals(until);
    tell_starts();
    tell_arrivals();
    std::erase_if(waiting_, [until](const Started& row) { return row.start < until; });
    left_ = waiting_.size();
  }
  // Moves the record of a whole run to `result`.
  void finish(Result& result) {
    left_ = 0;
    record(kNever);
    result.link = std::move(result_.link);
    result.begin = std::move(result_.begin);
    result.end = std::move(result_.end);
    result.transfer = std::move(result_.transfer);
    result.arrival_npu = std::move(result_.arrival_npu);
    result.arrival_time = std::move(result_.arrival_time);
    result.arrival_bytes = std::move(result_.arrival_bytes);
    result.arrival_transfer = std::move(result_.arrival_transfer);
    result.cause = std::move(result_.cause);
  }

 private:
  static constexpr std::size_t kAhead = 16;
  struct Lane {
    LinkId link;
    NodeId npu;  // its destination, or -1 if that is a switch
  };
  struct Arrival {
    Time time;
    std::uint32_t transfer, lane;
    Cell to;
  };

  // Lists the transfers that start before `until` in order_.
  void sort_starts(Time until) {
    order_.clear();
    bool sorted = true;
    std::size_t last = 0;
    Time least = kNever, least_ready = kNever, most = 0;
    for (std::size_t i = 0; i < waiting_.size(); ++i) {
      const Started& row = waiting_[i];
      if (row.start >= until) continue;
      const Started& before = waiting_[last];
      sorted = sorted && std::pair(before.start, before.ready) <= std::pair(row.start, row.ready);
      last = i;
      least = std::min(least, row.start);
      least_ready = std::min(least_ready, row.ready);
      most = std::max(most, row.start);
      order_.push_back(i);
    }
    if (sorted && !positions_) return;
    const auto bits = std::bit_width(waiting_.size());
    if (std::bit_width(static_cast<std::uint64_t>(most - least_ready)) + bits > 64 || bits > 32) {
      std::ranges::stable_sort(order_, {}, [this](std::size_t i) {
        const Started& row = waiting_[i];
        return std::tuple(row.start, row.ready, row.position, positions_ ? row.transfer : 0);
      });
      return;
    }
    // Numbers that hold a time and a row are sorted with less traffic than rows.
    const auto sort = [&](auto&& time) {
      for (auto& i : order_) i |= static_cast<std::uint64_t>(time(waiting_[i])) << bits;
      radix_sort(order_, spare_order_, [bits](std::uint64_t i) { return i >> bits; });
      for (auto& i : order_) i &= (std::uint64_t{1} << bits) - 1;
    };
    if (positions_) {
      sort([](const Started& row) { return row.transfer; });
      sort([](const Started& row) { return row.position; });
    }
    sort([least_ready](const Started& row) { return row.ready - least_ready; });
    sort([least](const Started& row) { return row.start - least; });
  }

  // Moves the transfers that arrive before `until` to arrived_, in order.
  void sort_arrivals(Time until) {
    arrived_.clear();
    std::size_t kept = 0;
    for (const Arrival& arrival : in_flight_) {
      if (arrival.time < until) {
        arrived_.push_back(arrival);
      } else {
        in_flight_[kept++] = arrival;
      }
    }
    in_flight_.resize(kept);
    for (std::size_t i = 0; i < order_.size(); ++i) {
      if (i + kAhead < order_.size()) fetch_ahead(&waiting_[order_[i + kAhead]]);
      const Started& row = waiting_[order_[i]];
      (row.arrival < until ? arrived_ : in_flight_)
          .push_back({row.arrival, row.transfer, row.lane, row.to});
    }
    radix_sort(arrived_, spare_arrivals_,
               [](const Arrival& arrival) { return static_cast<std::uint64_t>(arrival.time); });
  }

  // Writes the starts to the record. Arrivals and starts are merged by time, arrivals first, to find the causes.
  void tell_starts() {
    const auto first = result_.link.size(), count = first + order_.size();
    result_.link.resize(count);
    result_.begin.resize(count);
    result_.end.resize(count);
    result_.transfer.resize(count);
    LinkId* link = result_.link.data() + first;
    Time *begin = result_.begin.data() + first, *end = result_.end.data() + first;
    std::int32_t* transfer = result_.transfer.data() + first;
    std::size_t next = 0;
    for (std::size_t i = 0; i < order_.size(); ++i) {
      if (i + 2 * kAhead < order_.size()) fetch_ahead(&waiting_[order_[i + 2 * kAhead]]);
      if (i + kAhead < order_.size()) prefetch(waiting_[order_[i + kAhead]]);
      const Started& row = waiting_[order_[i]];
      for (; next < arrived_.size() && arrived_[next].time <= row.start; ++next) write(next);
      link[i] = lanes_[row.lane].link;
      begin[i] = row.start;
      end[i] = row.end;
      transfer[i] = static_cast<std::int32_t>(row.transfer);
      auto cause = row.cause;
      if (cause == kData) cause = row.from == kInput ? -1 : written_[row.from];
      result_.cause[row.transfer] = cause;
    }
    for (; next < arrived_.size(); ++next) write(next);
  }
  void write(std::size_t i) {
    if (i + kAhead < arrived_.size()) fetch_ahead(written_.data() + arrived_[i + kAhead].to);
    if (arrived_[i].to != kInput) {
      written_[arrived_[i].to] = static_cast<std::int32_t>(arrived_[i].transfer);
    }
  }
  void prefetch(const Started& row) const {
    if (row.from != kInput) fetch_ahead(&written_[row.from]);
    fetch_ahead(&result_.cause[row.transfer]);
  }

  void tell_arrivals() {
    const auto first = result_.arrival_npu.size(), count = first + arrived_.size();
    result_.arrival_npu.resize(count);
    result_.arrival_time.resize(count);
    result_.arrival_bytes.resize(count);
    result_.arrival_transfer.resize(count);
    auto i = first;
    for (const Arrival& arrival : arrived_) {
      const NodeId npu = lanes_[arrival.lane].npu;
      if (npu < 0) continue;
      result_.arrival_npu[i] = npu;
      result_.arrival_time[i] = arrival.time;
      result_.arrival_bytes[i] =
          uniform_bytes_ > 0
              ? uniform_bytes_
              : schedule_.collective().bytes(schedule_.stored().chunk[arrival.transfer]);
      result_.arrival_transfer[i] = static_cast<std::int32_t>(arrival.transfer);
      ++i;
    }
    result_.arrival_npu.resize(i);
    result_.arrival_time.resize(i);
    result_.arrival_bytes.resize(i);
    result_.arrival_transfer.resize(i);
  }

  const Schedule& schedule_;
  const std::int64_t uniform_bytes_;  // of every chunk, or 0
  std::vector<Lane> lanes_;
  const bool positions_;
  LargeVector<std::int32_t> written_;  // per cell: the last transfer that arrived, or -1
  std::vector<Started> waiting_;       // not in the record yet
  std::vector<Arrival> in_flight_;     // those of them whose starts are in the record
  std::size_t left_ = 0;               // how many waited after the last call of record()
  // Used by record() only:
  std::vector<std::uint64_t> order_, spare_order_;
  std::vector<Arrival> arrived_, spare_arrivals_;
  Result result_;
};

}  // namespace tacos::simulation
