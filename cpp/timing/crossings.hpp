// How long a chunk takes over each leg of each route, computed once per run of equal sizes: most
// collectives have chunks of one or two sizes, and a division costs more than the rest of an event.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "model/routes.hpp"

namespace tacos {

class Crossings {
 public:
  // The table is kept only if enough transfers use the routes to make it worth its memory. Times are counted
  // in `unit`, which divides them.
  Crossings(const Routes& routes, std::size_t transfers, Time unit = 1)
      : routes_(routes), unit_(unit) {
    const auto count = static_cast<std::size_t>(routes.count());
    first_leg_.reserve(count);
    std::uint32_t legs = 0;
    for (RouteId r = 0; r < routes.count(); ++r) {
      first_leg_.push_back(legs);
      legs += static_cast<std::uint32_t>(routes.legs(r));
    }
    legs_ = legs;
    if (transfers < 4 * count) return;
    table_.resize(legs);
    std::uint32_t times = 0, windows = 0;
    for (RouteId r = 0; r < routes.count(); ++r) {
      for (std::int32_t leg = 0; leg < routes.legs(r); ++leg) {
        auto& entry = table_[leg_id(r, static_cast<std::uint32_t>(leg))];
        routes.windows(r, leg, 1, scratch_);
        entry.windows = static_cast<std::uint32_t>(scratch_.size());
        entry.times = ends(r, static_cast<std::uint32_t>(leg));
        scratch_.clear();
        if (entry.is_single()) continue;
        entry.first_window = windows;
        entry.first_time = times;
        windows += entry.windows;
        times += entry.times;
      }
    }
    windows_.resize(windows);
    times_.resize(times);
  }

  struct Crossing {
    std::span<const Routes::Window> windows;
    std::span<const Time> times;  // from the start to each end of the leg
  };
  // The crossing of the leg with this id by a chunk of `bytes`. `which()` returns the leg's route and number, and
  // is called only if the times must be computed. The result is valid until the next call or, if lasting(),
  // until the next call for the same leg.
  template <typename Which>
  Crossing of(std::uint32_t id, std::int64_t bytes, Which&& which) {
    if (table_.empty()) {
      const auto [route, leg] = which();
      scratch_.clear();
      scratch_times_.resize(ends(route, leg));
      fill(route, leg, bytes, scratch_times_);
      return {scratch_, scratch_times_};
    }
    auto& entry = table_[id];
    const bool single = entry.is_single();
    const std::span windows(single ? &entry.window : &windows_[entry.first_window], entry.windows);
    const std::span times(single ? &entry.time : &times_[entry.first_time], entry.times);
    if (entry.bytes != bytes) {
      const auto [route, leg] = which();
      entry.bytes = bytes;
      scratch_.clear();
      fill(route, leg, bytes, times);
      std::copy(scratch_.begin(), scratch_.end(), windows.begin());
    }
    return {windows, times};
  }

  std::uint32_t leg_id(RouteId route, std::uint32_t leg) const {
    return first_leg_[static_cast<std::size_t>(route)] + leg;
  }
  std::size_t legs() const { return legs_; }
  bool lasting() const {
    return !table_.empty();
  }  // whether what `of` returns outlives the next call

 private:
  struct Entry {
    std::int64_t bytes = -1;
    std::uint32_t windows = 0, times = 0;
    // Most legs have one link and one end, stored here; otherwise positions in windows_ and times_.
    Routes::Window window{};
    Time time = 0;
    std::uint32_t first_window = 0, first_time = 0;
    bool is_single() const { return windows == 1 && times == 1; }
  };

  std::uint32_t ends(RouteId route, std::uint32_t leg) const {
    const bool last = leg + 1 == static_cast<std::uint32_t>(routes_.legs(route));
    return last ? static_cast<std::uint32_t>(routes_.destinations(route).size()) : 1;
  }

  // Appends the windows to scratch_.
  void fill(RouteId route, std::uint32_t leg, std::int64_t bytes, std::span<Time> times) {
    const auto number = static_cast<std::int32_t>(leg);
    routes_.windows(route, number, bytes, scratch_);
    for (std::size_t end = 0; end < times.size(); ++end) {
      times[end] = routes_.leg_time(route, number, bytes, end);
    }
    if (unit_ == 1) return;
    for (auto& time : times) time /= unit_;
    for (auto& window : scratch_) {
      window.offset /= unit_;
      window.busy /= unit_;
    }
  }

  const Routes& routes_;
  const Time unit_;
  std::vector<std::uint32_t> first_leg_;  // per route
  std::size_t legs_ = 0;
  std::vector<Entry> table_;  // per leg
  std::vector<Routes::Window> windows_;
  std::vector<Time> times_;
  std::vector<Routes::Window> scratch_;
  std::vector<Time> scratch_times_;
};

}  // namespace tacos
