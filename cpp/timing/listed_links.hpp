// Links that serve legs in the order of a list: the rule of service.hpp where that order is the one of being ready.
//
// Legs are given one by one, in the order of the list, each with the moment at which it is ready. By the rule, what is ready
// first is served first and, of what is ready at one moment, what stands first in the list. So a leg starts when its links have
// served those listed before it, provided that none of these would have had to let it pass:
//   - those over the same links, reached at the same offsets, were ready no later than it;
//   - the others had started when it became ready. One of them may have waited for another link while this one was free, so
//     that its being ready says nothing.
// It is enough to compare with the one that took a link last: a link's starts only grow. If a leg fails, the list is for
// service.hpp.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "model/routes.hpp"
#include "support/fetch_ahead.hpp"
#include "support/index.hpp"

namespace tacos {

// A Tick is an unsigned number that holds times in some unit.
template <typename Tick>
class ListedLinks {
 public:
  // Of legs that have the same links, at the same offsets. All legs of one link alone do.
  using Sharing = std::uint32_t;
  static constexpr Sharing kOneLink = 0;
  static constexpr Sharing kAlone = std::numeric_limits<Sharing>::max();  // not even with its like

  explicit ListedLinks(std::int32_t links, Tick quantum = 1)
      : quantum_(quantum), links_(at(links)) {}

  // When a leg of one link starts that keeps it for `busy`; nothing if it would overtake another.
  std::optional<Tick> serve(LinkId link, Tick busy, Tick ready) {
    Link& last = links_[at(link)];
    if (ready < (last.sharing == kOneLink ? last.ready : last.start)) return std::nullopt;
    const Tick start = round_up(std::max(ready, last.free));
    last = {start + busy, ready, start, kOneLink};
    return start;
  }

  // The same for a leg of several links, whose windows count in ticks.
  std::optional<Tick> serve(std::span<const Routes::Window> windows, Sharing sharing, Tick ready) {
    if (windows.size() == 1)
      return serve(windows[0].link, static_cast<Tick>(windows[0].busy), ready);
    Tick start = ready;
    for (const auto& window : windows) {
      const Link& last = links_[at(window.link)];
      const bool alike = last.sharing == sharing && sharing != kAlone;
      if (ready < (alike ? last.ready : last.start)) return std::nullopt;
      const auto offset = static_cast<Tick>(window.offset);
      if (last.free > offset) start = std::max<Tick>(start, last.free - offset);
    }
    start = round_up(start);
    for (const auto& window : windows) {
      const Tick free = start + static_cast<Tick>(window.offset + window.busy);
      links_[at(window.link)] = {free, ready, start, sharing};
    }
    return start;
  }

  void prefetch(LinkId link) const { fetch_ahead(&links_[at(link)]); }

 private:
  struct Link {
    Tick free = 0;              // from when on
    Tick ready = 0, start = 0;  // of the leg that took it last
    Sharing sharing = kOneLink;
  };
  Tick round_up(Tick time) const {
    return quantum_ == 1 ? time : (time + quantum_ - 1) / quantum_ * quantum_;
  }

  const Tick quantum_;
  std::vector<Link> links_;
};

}  // namespace tacos
