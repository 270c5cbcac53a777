// Links that serve legs in the order of a list: the service rule of service.hpp if legs are ready in that order.
//
// Legs are passed one by one, in the order of the list, each with the time at which it is ready. By the rule, the leg that is
// ready first is served first and, of legs that are ready at the same time, the one listed first. So a leg starts when its links
// have served the legs listed before it, unless it would overtake one of them. It overtakes none if, on each of its links,
//   - earlier legs over the same links at the same offsets were ready no later than it, and
//   - all other earlier legs had started when it became ready. When they became ready does not matter, since they may have
//     waited for another link while this one was free.
// Starts on a link only grow, so it is enough to compare with the last leg of each link. If a leg fails the test, the list needs
// service.hpp.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "model/routes.hpp"
#include "support/index.hpp"

namespace tacos {

// A Tick is an unsigned type for times in some unit.
template <typename Tick>
class ListedLinks {
 public:
  // Equal for legs that have the same links at the same offsets, such as all legs of a single link.
  using Sharing = std::uint32_t;
  static constexpr Sharing kOneLink = 0;
  static constexpr Sharing kAlone = std::numeric_limits<Sharing>::max();  // differs from every leg

  explicit ListedLinks(std::int32_t links, Tick quantum = 1)
      : quantum_(quantum), links_(at(links)) {}

  // Returns when a leg of one link, which it keeps busy for `busy`, starts; nullopt if it would overtake.
  std::optional<Tick> serve(LinkId link, Tick busy, Tick ready) {
    Link& last = links_[at(link)];
    if (ready < (last.sharing == kOneLink ? last.ready : last.start)) return std::nullopt;
    const Tick start = round_up(std::max(ready, last.free));
    last = {start + busy, ready, start, kOneLink};
    return start;
  }

  // The same for a leg of several links, with its windows in ticks.
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

 private:
  struct Link {
    Tick free = 0;              // when it becomes free
    Tick ready = 0, start = 0;  // of its last leg
    Sharing sharing = kOneLink;
  };
  Tick round_up(Tick time) const {
    return quantum_ == 1 ? time : (time + quantum_ - 1) / quantum_ * quantum_;
  }

  const Tick quantum_;
  std::vector<Link> links_;
};

}  // namespace tacos
