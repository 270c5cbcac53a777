// The busy times of all links, for planners that reserve a hop's links ahead of time.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "model/routes.hpp"
#include "support/index.hpp"
#include "synth/busy_times.hpp"

namespace tacos {

class Reservations {
 public:
  explicit Reservations(std::int32_t links) : lines_(at(links)) {}

  // Takes the windows of a hop that starts at `start`, or gives them back.
  void mark(std::span<const Routes::Window> windows, Time start, bool taken) {
    for (const auto& [link, offset, busy] : windows) {
      const Time begin = start + offset, end = begin + busy;
      if (begin == end) continue;
      auto& line = lines_[at(link)];
      taken ? line.take(begin, end) : line.give_back(begin, end);
    }
  }

  // The first start from `moment` on at which all links of a hop are free when it reaches them; backwards, the last such
  // start up to `moment`.
  Time free_start(std::span<const Routes::Window> windows, Time moment, bool backwards) const {
    const auto possible = [&](const Routes::Window& window, Time wanted) {
      const auto& line = lines_[at(window.link)];
      return backwards ? line.last_free(wanted, window.busy) : line.next_free(wanted, window.busy);
    };
    if (windows.size() == 1) {
      return possible(windows[0], moment + windows[0].offset) - windows[0].offset;
    }
    // A window that moves the start unsettles all windows but itself.
    for (std::size_t w = 0, settled = 0; settled < windows.size();) {
      const Time wanted = moment + windows[w].offset;
      const Time found = possible(windows[w], wanted);
      settled = found != wanted ? 1 : settled + 1;
      moment += found - wanted;
      w = w + 1 == windows.size() ? 0 : w + 1;
    }
    return moment;
  }

 private:
  std::vector<BusyTimes> lines_;
};

}  // namespace tacos
