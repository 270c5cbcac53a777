// The verifier's view of a schedule: routes walked link by link, and starts by lane, transfer and leg.
#pragma once

#include <cstdint>
#include <vector>

#include "model/schedule.hpp"
#include "support/index.hpp"
#include "verify/route_walk.hpp"

namespace tacos::verification {

class Lanes {
 public:
  explicit Lanes(const Schedule& schedule)
      : topology_(schedule.topology()), stored_(schedule.stored()) {
    walks_.reserve(at(schedule.routes().count()));
    for (RouteId r = 0; r < schedule.routes().count(); ++r) {
      walks_.push_back(walk(topology_, schedule.routes(), r));
    }
    starts_begin_.push_back(0);
    for (std::size_t lane = 0; lane < count(); ++lane) {
      const auto rows = stored_.lane_begin[lane + 1] - stored_.lane_begin[lane];
      starts_begin_.push_back(starts_begin_.back() + rows * walk_of(lane).legs);
    }
  }

  std::size_t count() const { return stored_.lane_route.size(); }
  const std::vector<Walk>& walks() const { return walks_; }  // per route
  const Walk& walk_of(std::size_t lane) const { return walks_[at(stored_.lane_route[lane])]; }

  // The position of a transfer's first leg in the column of starts.
  std::size_t row(std::size_t lane, std::int64_t transfer) const {
    return at(starts_begin_[lane] + transfer - stored_.lane_begin[lane]);
  }
  Time start(std::size_t lane, std::int64_t transfer, std::int32_t leg) const {
    const auto rows = stored_.lane_begin[lane + 1] - stored_.lane_begin[lane];
    const auto i = row(lane, transfer) + at(leg * rows);
    return static_cast<Time>(stored_.start[i]) * stored_.quantum;
  }

  bool adds(std::size_t lane) const {
    return stored_.lane_op[lane] == static_cast<std::uint8_t>(Op::reduce);
  }
  bool reads_input(std::size_t lane) const {
    return stored_.lane_reads[lane] == static_cast<std::uint8_t>(Reads::input);
  }

  // The time that the destination takes to reduce.
  Time reduce_time(std::size_t lane, std::int64_t bytes) const {
    const auto rate = topology_.spec().reduce_bandwidth_Bps;
    return adds(lane) && rate > 0 ? transmission_time(bytes, rate) : 0;
  }

 private:
  const Topology& topology_;
  const Transfers& stored_;
  std::vector<Walk> walks_;
  std::vector<std::int64_t> starts_begin_;
};

}  // namespace tacos::verification
