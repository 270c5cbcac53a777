#include "synth/forest/port_matching.hpp"

#include <utility>

#include "support/index.hpp"

namespace tacos::forest {

PortMatching::PortMatching(std::size_t resources, std::span<const std::size_t> begin,
                           std::span<const std::int32_t> used, std::span<const std::int32_t> port)
    : begin_(begin),
      used_(used),
      port_(port),
      owner_(resources, kNone),
      offers_(resources),
      seen_(port.size(), 0) {}

std::span<const std::int32_t> PortMatching::choose(std::span<const std::int32_t> offers,
                                                   bool rearranged) {
  for (const auto c : chosen_) take(c, kNone);
  chosen_.clear();
  ports_.clear();
  for (const auto c : offers) {
    auto& mine = offers_[at(port_[at(c)])];
    if (mine.empty()) ports_.push_back(port_[at(c)]);
    mine.push_back(c);
    if (blocker(c) == kNone) take(c, c);
  }
  for (const auto p : ports_) {
    if (!rearranged) break;
    ++search_;
    if (owner_[at(p)] == kNone) serve(p);
  }
  for (const auto p : ports_) {
    const auto c = owner_[at(p)];
    if (c != kNone && port_[at(c)] == p) chosen_.push_back(c);
    offers_[at(p)].clear();
  }
  return chosen_;
}

std::span<const std::int32_t> PortMatching::used(std::int32_t c) const {
  return used_.subspan(begin_[at(c)], begin_[at(c) + 1] - begin_[at(c)]);
}

std::int32_t PortMatching::blocker(std::int32_t c) const {
  std::int32_t found = kNone;
  for (const auto resource : used(c)) {
    const auto owner = owner_[at(resource)];
    if (owner == kNone || owner == found) continue;
    if (found != kNone) return kSeveral;
    found = owner;
  }
  return found;
}

void PortMatching::take(std::int32_t c, std::int32_t owner) {
  for (const auto resource : used(c)) owner_[at(resource)] = owner;
}

bool PortMatching::serve(std::int32_t port) {
  for (const auto c : offers_[at(port)]) {
    if (std::exchange(seen_[at(c)], search_) == search_) continue;
    const auto other = blocker(c);
    if (other == kSeveral || (other != kNone && port_[at(other)] == port)) continue;
    if (other != kNone) take(other, kNone);
    take(c, c);
    if (other == kNone || serve(port_[at(other)])) return true;
    take(c, kNone);
    take(other, other);
  }
  return false;
}

}  // namespace tacos::forest
