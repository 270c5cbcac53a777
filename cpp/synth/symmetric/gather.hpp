// The parcels of an all-gather, as symmetric.hpp describes them; a Clock runs them.
#pragma once

#include <algorithm>
#include <deque>
#include <optional>
#include <queue>
#include <span>
#include <utility>
#include <vector>

#include "synth/symmetric/outlets.hpp"

namespace tacos::symmetric {

class Gather {
 public:
  // Piece k is at its source from released[k] on.
  Gather(const AbelianGroup& group, Clock& clock, std::vector<Time> released)
      : clock_(clock),
        outlets_(clock.outlets),
        released_(std::move(released)),
        pieces_(static_cast<std::int32_t>(released_.size())),
        unreleased_(pieces_),
        items_(std::int64_t{group.order() - 1} * pieces_),
        open_(items_),
        state_(at(group.order()) * released_.size(), State::open),
        first_(outlets_.size()),
        cursor_(outlets_.size()),
        visited_(outlets_.size(), 0),
        deferred_(outlets_.size()) {
    log_.reserve(state_.size());
    for (std::size_t m = 0; m < outlets_.size(); ++m) {
      if (outlets_[m].port()) first_[m].assign(state_.size(), -1);
    }
    set_levels(group);
    for (std::int32_t k = 0; k < pieces_; ++k) promise({0, k}, released_[at(k)]);
  }

  bool done() const { return open_ == 0; }
  double share() const { return 1.0 - static_cast<double>(open_) / static_cast<double>(items_); }

  // Releases the pieces that are due; returns when the next one is.
  Time release(Time now) {
    Time next = kNever;
    for (std::int32_t k = 0; unreleased_ > 0 && k < pieces_; ++k) {
      if (released_[at(k)] > now) {
        next = std::min(next, released_[at(k)]);
      } else if (state({0, k}) == State::promised) {
        reach({0, k});
        --unreleased_;
      }
    }
    return next;
  }

  void arrive(const Sent& sent) { reach({sent.to, sent.piece}); }

  void begin(Time now) {
    now_ = now;
    started_.clear();
  }

  bool start(std::size_t m) {
    ++visit_;
    const auto item = pick(m);
    if (!item) return false;
    clock_.sent[m].push_back({source(m, *item), item->v, item->piece, now_});
    started_.push_back(m);
    return true;
  }

  std::size_t looked_at = 0;  // items; the clock counts them as work

 private:
  enum class State : std::uint8_t { open, promised, reached };
  struct Item {
    NodeId v;
    std::int32_t piece;
  };
  struct Cursor {
    std::size_t entry = 0, offset = 0;  // positions in the log, and among a port's offsets
  };
  // One piece in a region: the NPUs that reach each other over faster outlets alone.
  struct Region {
    std::int32_t open;
    Time arrival;  // the earliest that was promised
  };
  // A class of equally slow outlets, with the regions that all faster outlets connect.
  struct Level {
    Time time;
    std::vector<NodeId> lowest;     // NPU of each NPU's region
    std::vector<Region> regions;    // indexed by their lowest NPU and the piece
    std::int64_t entered_open = 0;  // open items in all regions that have been entered
  };
  static constexpr std::size_t kLookBack = 64;

  std::size_t index(const Item& item) const { return at(item.v) * at(pieces_) + at(item.piece); }
  State& state(const Item& item) { return state_[index(item)]; }
  const State& state(const Item& item) const { return state_[index(item)]; }
  const NodeId& first(std::size_t m, const Item& item) const {
    return first_[m][index({outlets_[m].line[at(item.v)], item.piece})];
  }
  std::size_t region(const Level& level, const Item& item) const {
    return index({level.lowest[at(item.v)], item.piece});
  }

  void set_levels(const AbelianGroup& group) {
    std::vector<Time> times;
    for (const auto& outlet : outlets_) times.push_back(outlet.time);
    std::sort(times.begin(), times.end());
    times.erase(std::unique(times.begin(), times.end()), times.end());
    for (const auto& outlet : outlets_) {
      const auto found = std::lower_bound(times.begin(), times.end(), outlet.time);
      level_of_.push_back(static_cast<std::size_t>(found - times.begin()));
    }
    // No outlet is faster than those of the first level.
    for (std::size_t i = 1; i < times.size(); ++i) {
      Level level{times[i], regions_below(group, times[i]), {}};
      level.regions.assign(state_.size(), {0, kNever});
      for (const NodeId lowest : level.lowest) {
        for (std::int32_t k = 0; k < pieces_; ++k) ++level.regions[index({lowest, k})].open;
      }
      levels_.push_back(std::move(level));
    }
  }

  std::vector<NodeId> regions_below(const AbelianGroup& group, Time time) const {
    std::vector<NodeId> lowest(at(group.order()), -1), found;
    for (NodeId v = 0; v < group.order(); ++v) {
      if (lowest[at(v)] >= 0) continue;
      lowest[at(v)] = v;
      found.assign(1, v);
      while (!found.empty()) {
        const NodeId u = found.back();
        found.pop_back();
        for (const auto& outlet : outlets_) {
          if (outlet.time >= time) continue;
          for (const auto& forth : outlet.forth) {
            if (lowest[at(forth(u))] >= 0) continue;
            lowest[at(forth(u))] = v;
            found.push_back(forth(u));
          }
        }
      }
    }
    return lowest;
  }

  void reach(const Item& item) {
    state(item) = State::reached;
    log_.push_back(item);
    for (std::size_t m = 0; m < outlets_.size(); ++m) {
      if (!outlets_[m].port()) continue;
      auto& known = first_[m][index({outlets_[m].line[at(item.v)], item.piece})];
      if (known < 0) known = item.v;
    }
  }

  void promise(const Item& item, Time arrival) {
    state(item) = State::promised;
    if (item.v != 0) --open_;
    for (auto& level : levels_) {
      auto& entered = level.regions[region(level, item)];
      --entered.open;
      level.entered_open += entered.arrival == kNever ? entered.open : -1;
      entered.arrival = std::min(entered.arrival, arrival);
    }
  }

  // Whether an outlet could serve an item now, and from where.
  bool serves(std::size_t m, const Item& item) const {
    if (outlets_[m].port()) return first(m, item) >= 0;
    return state({outlets_[m].back(item.v), item.piece}) == State::reached;
  }
  NodeId source(std::size_t m, const Item& item) const {
    return outlets_[m].port() ? first(m, item) : outlets_[m].back(item.v);
  }

  // Chooses an item for the outlet and promises it. If all items that it could serve were promised to
  // other outlets at this moment, one of these may be able to take another item instead.
  std::optional<Item> pick(std::size_t m) {
    auto item = first_new(m);
    if (!item && level_of_[m] > 0) item = first_deferred(m);
    if (item) {
      promise(*item, now_ + outlets_[m].time + clock_.delay);
      return item;
    }
    visited_[m] = visit_;
    for (const std::size_t other : started_) {
      ++looked_at;
      if (visited_[other] == visit_ || level_of_[m] > level_of_[other]) continue;
      auto& sent = clock_.sent[other].back();
      const Item wanted{sent.to, sent.piece};
      if (!serves(m, wanted)) continue;
      if (const auto instead = pick(other)) {
        sent = {source(other, *instead), instead->v, instead->piece, now_};
        return wanted;
      }
    }
    return std::nullopt;
  }

  // The first open item; for a slower outlet, the first in a region that its piece has not entered.
  // Other open items are deferred.
  std::optional<Item> first_new(std::size_t m) {
    const auto& outlet = outlets_[m];
    auto& [entry, offset] = cursor_[m];
    while (entry < log_.size()) {
      const auto [u, piece] = log_[entry];
      ++looked_at;
      // All NPUs of a line are served from the first of them that has the piece.
      if (offset == outlet.forth.size() || (outlet.port() && first(m, log_[entry]) != u)) {
        ++entry;
        offset = 0;
        continue;
      }
      const Item item{outlet.forth[offset++](u), piece};
      if (state(item) != State::open) continue;
      if (level_of_[m] == 0) return item;
      const auto& level = levels_[level_of_[m] - 1];
      if (level.regions[region(level, item)].arrival == kNever) return item;
      deferred_[m].push_back(item);
    }
    return std::nullopt;
  }

  std::optional<Item> first_deferred(std::size_t m) {
    auto& items = deferred_[m];
    for (std::size_t i = 0; i < std::min(items.size(), kLookBack);) {
      looked_at += 1 + outlets_.size();
      const Item item = items[i];
      const bool is_open = state(item) == State::open;
      if (is_open && !worthwhile(m, item)) {
        ++i;
        continue;
      }
      items.erase(items.begin() + static_cast<std::ptrdiff_t>(i));
      if (is_open) return item;
    }
    return std::nullopt;
  }

  // Whether this outlet can deliver the item before the faster outlets have finished all that waits
  // for them.
  bool worthwhile(std::size_t m, const Item& item) const {
    const auto& level = levels_[level_of_[m] - 1];
    const Time entered = level.regions[region(level, item)].arrival;
    std::int64_t served = 0;
    for (std::size_t j = 0; j < outlets_.size(); ++j) {
      const auto& other = outlets_[j];
      if (other.time >= level.time) continue;
      const Time from = std::max({now_, clock_.free[j], entered});
      const Time slack = now_ + level.time - 1 - other.time - from;
      if (slack >= 0) served += slack / other.period + 1;
    }
    return served < level.entered_open;
  }

  Clock& clock_;
  const std::vector<Outlet>& outlets_;
  std::vector<Time> released_;
  std::int32_t pieces_, unreleased_;
  std::int64_t items_, open_;
  Time now_ = 0;
  std::vector<State> state_;
  std::vector<Item> log_;  // in the order in which they were reached
  std::vector<std::vector<NodeId>>
      first_;  // per port and line: the first that has the piece, or -1
  std::vector<Cursor> cursor_;
  std::vector<std::size_t> started_;  // outlets, at this moment
  std::vector<std::int64_t> visited_;
  std::int64_t visit_ = 0;
  std::vector<std::size_t> level_of_;  // per outlet: 0, or one more than its place in levels_
  std::vector<Level> levels_;
  std::vector<std::deque<Item>> deferred_;
};

}  // namespace tacos::symmetric
