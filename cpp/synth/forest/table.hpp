// Paths as routes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "routes.hpp"

namespace tacos::forest {

// Numbers paths, equal ones alike.
class Table {
 public:
  RouteId number(const std::vector<LinkId>& path) {
    const auto [found, added] = known_.try_emplace(path, static_cast<RouteId>(begin_.size() - 1));
    if (added) {
      links_.insert(links_.end(), path.begin(), path.end());
      begin_.push_back(static_cast<std::int64_t>(links_.size()));
    }
    return found->second;
  }
  std::shared_ptr<const Routes> routes(std::shared_ptr<const Topology> topology) && {
    std::vector<std::uint8_t> kinds(begin_.size() - 1, static_cast<std::uint8_t>(RouteKind::path));
    return std::make_shared<const Routes>(std::move(topology), std::move(kinds), std::move(begin_),
                                          std::move(links_));
  }

 private:
  std::map<std::vector<LinkId>, RouteId> known_;
  std::vector<std::int64_t> begin_{0};
  std::vector<LinkId> links_;
};

}  // namespace tacos::forest
