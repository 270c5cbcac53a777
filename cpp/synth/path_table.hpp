// Numbers of paths and trees, for engines that choose their own routes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "model/routes.hpp"

namespace tacos {

// Numbers paths; equal paths get the same number.
class PathTable {
 public:
  RouteId number(std::span<const LinkId> path, RouteKind kind = RouteKind::path) {
    const auto next = static_cast<RouteId>(begin_.size() - 1);
    const auto [found, added] =
        known_.try_emplace(std::vector<LinkId>(path.begin(), path.end()), next);
    if (added) {
      kinds_.push_back(static_cast<std::uint8_t>(kind));
      links_.insert(links_.end(), path.begin(), path.end());
      begin_.push_back(static_cast<std::int64_t>(links_.size()));
    }
    return found->second;
  }
  std::shared_ptr<const Routes> routes(std::shared_ptr<const Topology> topology) && {
    return std::make_shared<const Routes>(std::move(topology), std::move(kinds_), std::move(begin_),
                                          std::move(links_));
  }

 private:
  std::map<std::vector<LinkId>, RouteId> known_;
  std::vector<std::uint8_t> kinds_;
  std::vector<std::int64_t> begin_{0};
  std::vector<LinkId> links_;
};

}  // namespace tacos
