// Which transfer a link made another one wait for, if links serve transfers in the order in which they are passed here.
//
// The event loop of service.hpp lets the transfers of a lane stand in line. The first in line waits for the transfer that had the
// link when it became ready, every other one for the one before it in the lane. Routes are paths of one link.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "model/schedule.hpp"
#include "support/fetch_ahead.hpp"
#include "support/index.hpp"

namespace tacos::simulation {

class LinkCauses {
 public:
  static constexpr std::int32_t kNothing = -2;  // the link was free

  // Only with `queues`, first_come() may be called.
  LinkCauses(const Schedule& schedule, const Routes& routes, bool queues)
      : queues_(queues), lanes_(at(schedule.lanes())), links_(at(routes.topology().links())) {
    const auto& begin = schedule.stored().lane_begin;
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
      lanes_[lane].link = routes.links(static_cast<RouteId>(lane))[0];
      Link& link = links_[at(lanes_[lane].link)];
      link.left += begin[lane + 1] - begin[lane];
      if (begin[lane + 1] > begin[lane]) ++link.lanes;
    }
  }

  // Fetch what the next two functions touch, in two steps.
  void prefetch(std::uint32_t lane) const {
    fetch_ahead(&lanes_[lane]);
    fetch_ahead(&links_[at(lanes_[lane].link)]);
  }
  void prefetch_queue(LinkId link) const {
    fetch_ahead(links_[at(link)].queued.data() + links_[at(link)].first);
  }

  // If the transfer that is ready first goes first.
  std::int32_t first_come(std::uint32_t number, Time ready, Time start) {
    if (start == ready) return kNothing;
    const Lane& lane = lanes_[number];
    if (lane.last.start >= ready) return lane.last.transfer;
    Link& link = links_[at(lane.link)];
    if (link.lanes == 1) return link.last.transfer;
    link.forget(ready);
    return link.queued[link.first].transfer;
  }
  // If a transfer is not ready before the one ahead of it has started. The data were there at `data`.
  std::int32_t in_order(std::uint32_t number, Time data, Time ready, Time start) const {
    const Served& last = links_[at(lanes_[number].link)].last;
    return start == ready && data > last.start ? kNothing : last.transfer;
  }

  void serve(std::uint32_t number, std::uint32_t transfer, Time ready, Time start) {
    Lane& lane = lanes_[number];
    Link& link = links_[at(lane.link)];
    --link.left;
    link.last = lane.last = {start, static_cast<std::int32_t>(transfer)};
    if (link.lanes == 1 || !queues_) return;
    link.forget(ready);
    link.queued.push_back(link.last);
  }

  // No transfer that is still to come starts earlier.
  Time earliest() const {
    Time earliest = kNever;
    for (const Link& link : links_) {
      if (link.left > 0) earliest = std::min(earliest, link.last.start);
    }
    return earliest;
  }

 private:
  struct Served {
    Time start = -1;
    std::int32_t transfer = kNothing;
  };
  struct Lane {
    LinkId link = 0;
    Served last;
  };
  struct Link {
    std::int64_t left = 0;  // transfers to come
    std::int32_t lanes = 0;
    Served last;
    // With several lanes: from `first` on, the transfer that has the link when the next one becomes ready, and those after it.
    std::vector<Served> queued{};
    std::size_t first = 0;

    // Ready times only grow on a link, so what started before the one that has the link at `ready` is not needed again.
    void forget(Time ready) {
      while (first + 1 < queued.size() && queued[first + 1].start <= ready) ++first;
      if (first < 8 || 2 * first < queued.size()) return;
      queued.erase(queued.begin(), queued.begin() + static_cast<std::ptrdiff_t>(first));
      first = 0;
    }
  };

  const bool queues_;
  std::vector<Lane> lanes_;
  std::vector<Link> links_;
};

}  // namespace tacos::simulation
