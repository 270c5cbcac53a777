#include "simulate/fair_share.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <tuple>

namespace tacos::simulation {

Earliest::Earliest(std::size_t count) {
  do {
    const auto padded = (std::max<std::size_t>(count, 1) + kWidth - 1) / kWidth * kWidth;
    levels_.emplace_back(padded, kNever);
    stale_.emplace_back(padded, 0);
    queue_.emplace_back();
    count = padded / kWidth;
  } while (count > 1);
  levels_.emplace_back(1, kNever);
  stale_.emplace_back(1, 0);
  queue_.emplace_back();
}

Time Earliest::first() {
  for (std::size_t level = 1; level < levels_.size(); ++level) {
    for (const auto node : queue_[level]) {
      stale_[level][node] = 0;
      const auto* group = levels_[level - 1].data() + std::size_t{node} * kWidth;
      Time least = group[0];
      for (std::uint32_t i = 1; i < kWidth; ++i) least = std::min(least, group[i]);
      if (levels_[level][node] == least) continue;
      levels_[level][node] = least;
      if (level + 1 < levels_.size()) mark(level + 1, node / kWidth);
    }
    queue_[level].clear();
  }
  return levels_.back()[0];
}

void Earliest::collect(std::vector<std::uint32_t>& out) {
  const Time time = first();
  if (time == kNever) return;
  const auto visit = [&](const auto& self, std::size_t level, std::uint32_t node) -> void {
    for (auto child = node * kWidth; child < (node + 1) * kWidth; ++child) {
      if (levels_[level - 1][child] != time) continue;
      if (level == 1) {
        out.push_back(child);
      } else {
        self(self, level - 1, child);
      }
    }
  };
  visit(visit, levels_.size() - 1, 0);
}

FairShare::FairShare(const Topology& topology, std::vector<std::uint32_t> begin,
                     std::vector<LinkId> links,
                     const std::unordered_map<LinkId, std::vector<Change>>& changes)
    : begin_(std::move(begin)),
      links_(std::move(links)),
      flows_(begin_.size() - 1),
      state_(at(topology.links())),
      ends_(begin_.size() - 1),
      users_(at(topology.links())),
      slot_(links_.size()) {
  std::int64_t fastest = 1;
  for (const LinkId link : links_) fastest = std::max(fastest, topology.bandwidth(link));
  // Rates stay below 2^62, and the work of 2^50 bytes below 2^120.
  shift_ = std::min(30, 62 - static_cast<int>(std::bit_width(static_cast<std::uint64_t>(fastest))));
  const auto units = [&](LinkId link) {
    return static_cast<std::uint64_t>(topology.bandwidth(link)) << shift_;
  };
  std::vector<std::uint32_t> places(at(topology.links()), 0);
  std::vector<std::uint8_t> through(at(topology.links()), 0);  // places with more links use it
  for (Place place = 0; place < flows_.size(); ++place) {
    for (const LinkId link : links_of(place)) {
      state_[at(link)].capacity = units(link);
      ++places[at(link)];
      if (links_of(place).size() > 1) through[at(link)] = 1;
    }
  }
  for (Place place = 0; place < flows_.size(); ++place) {
    const auto mine = links_of(place);
    if (std::all_of(mine.begin(), mine.end(), [&](LinkId l) { return places[at(l)] == 1; })) {
      flows_[place].kind = Kind::alone;
      for (const LinkId link : mine) state_[at(link)].alone = place;
    } else if (mine.size() == 1 && through[at(mine[0])] == 0) {
      flows_[place].kind = Kind::single;
      auto& link = state_[at(mine[0])];
      if (link.shared != kNone) continue;
      link.shared = static_cast<std::uint32_t>(shared_.size());
      shared_.push_back({.link = mine[0], .entry = place, .marks = {}});
    }
  }
  for (const auto& [link, list] : changes) {
    if (places[at(link)] == 0) continue;
    for (const auto& change : list) {
      const auto slowed = static_cast<unsigned __int128>(units(link)) * kNormal;
      const auto capacity =
          change.slowdown == 0 ? 0 : slowed / static_cast<std::uint64_t>(change.slowdown);
      shifts_.push_back({change.time, link, static_cast<std::uint64_t>(capacity)});
    }
  }
  std::sort(shifts_.begin(), shifts_.end(), [](const Shift& a, const Shift& b) {
    return std::tie(a.time, a.link) < std::tie(b.time, b.link);
  });
  apply_changes(0);
}

FairShare::Work FairShare::work_of(std::int64_t bytes) const {
  return static_cast<Work>(bytes) * kPicosecondsPerSecond << shift_;
}

Time FairShare::end_of(Time now, Work work, std::uint64_t rate) {
  if (rate == 0) return kNever;
  const auto whole = static_cast<unsigned __int128>(work);
  const auto takes = whole >> 64 == 0 && static_cast<std::uint64_t>(whole) <= ~rate
                         ? (static_cast<std::uint64_t>(whole) + rate - 1) / rate
                         : (whole + rate - 1) / rate;
  if (takes > static_cast<unsigned __int128>(kLongestSchedule)) return kNever;
  return now + static_cast<Time>(takes);
}

void FairShare::start(Place place, std::int64_t bytes, Time now) {
  Flow& flow = flows_[place];
  ++in_flight_;
  if (flow.kind == Kind::single) {
    const auto id = state_[at(links_[begin_[place]])].shared;
    Shared& shared = shared_[id];
    shared.work += static_cast<Work>(shared.rate) * (now - shared.since);
    shared.since = now;
    shared.marks.emplace_back(shared.work + work_of(bytes), place);
    std::push_heap(shared.marks.begin(), shared.marks.end(), std::greater<>());
    if (!shared.stale) unsettled_.push_back(id);
    shared.stale = true;
    flow.state = State::running;
    return;
  }
  flow.left = work_of(bytes);
  flow.since = now;
  if (flow.kind == Kind::alone) {
    flow.rate = std::numeric_limits<std::uint64_t>::max();
    for (const LinkId link : links_of(place)) {
      flow.rate = std::min(flow.rate, state_[at(link)].capacity);
    }
    flow.state = State::running;
    ends_.set(place, end_of(now, flow.left, flow.rate));
  } else if (flow.state == State::ending) {  // its successor on the same place: rates stay
    flow.state = State::running;
    ends_.set(place, end_of(now, flow.left, flow.rate));
  } else {
    flow.rate = 0;
    flow.state = State::starting;
    changed_.push_back(place);
  }
}

void FairShare::set_rate(Place place, std::uint64_t rate, Time now) {
  Flow& flow = flows_[place];
  if (flow.rate == rate && flow.rate > 0) return;
  flow.left -= static_cast<Work>(flow.rate) * (now - flow.since);
  flow.since = now;
  flow.rate = rate;
  ends_.set(place, end_of(now, flow.left, rate));
}

void FairShare::settle_shared(Shared& shared, Time now) {
  shared.work += static_cast<Work>(shared.rate) * (now - shared.since);
  shared.since = now;
  shared.stale = false;
  const auto count = shared.marks.size();
  if (count == 0) {
    shared.rate = 0;
    ends_.set(shared.entry, kNever);
    return;
  }
  const auto capacity = state_[at(shared.link)].capacity;
  shared.rate = (capacity + count - 1) / count;
  ends_.set(shared.entry, end_of(now, shared.marks.front().first - shared.work, shared.rate));
}

void FairShare::touch(LinkId link) {
  if (state_[at(link)].touched == touch_round_) return;
  state_[at(link)].touched = touch_round_;
  touched_.push_back(link);
}

void FairShare::list(Place place) {
  for (auto i = begin_[place]; i < begin_[place + 1]; ++i) {
    auto& users = users_[at(links_[i])];
    slot_[i] = static_cast<std::uint32_t>(users.size());
    users.push_back({place, i});
    touch(links_[i]);
  }
}

void FairShare::unlist(Place place) {
  for (auto i = begin_[place]; i < begin_[place + 1]; ++i) {
    auto& users = users_[at(links_[i])];
    users[slot_[i]] = users.back();
    slot_[users.back().index] = slot_[i];
    users.pop_back();
    touch(links_[i]);
  }
}

void FairShare::settle(Time now) {
  for (const auto id : unsettled_) settle_shared(shared_[id], now);
  unsettled_.clear();
  for (const Place place : changed_) {
    Flow& flow = flows_[place];
    if (flow.state == State::starting) {
      flow.state = State::running;
      list(place);
    } else if (flow.state == State::ending) {
      flow.state = State::idle;
      unlist(place);
    }
  }
  changed_.clear();
  if (!touched_.empty()) fill(now);
}

void FairShare::fill(Time now) {
  ++fill_round_;
  component_.clear();
  const auto add = [&](LinkId id) {
    Link& link = state_[at(id)];
    if (link.seen == fill_round_) return;
    link.seen = fill_round_;
    component_.push_back(id);
  };
  for (const LinkId link : touched_) add(link);
  touched_.clear();
  ++touch_round_;
  std::size_t open = 0;
  heap_.clear();
  for (std::size_t i = 0; i < component_.size(); ++i) {
    Link& link = state_[at(component_[i])];
    const auto& users = users_[at(component_[i])];
    link.low = link.high = link.capacity;
    link.open = static_cast<std::uint32_t>(users.size());
    if (users.empty()) continue;
    heap_.emplace_back((link.capacity + link.open - 1) / link.open, component_[i]);
    for (const auto& use : users) {
      if (flows_[use.place].seen == fill_round_) continue;
      flows_[use.place].seen = fill_round_;
      ++open;
      for (const LinkId other : links_of(use.place)) add(other);
    }
  }
  // Shares only grow while other links are filled, so an entry may be brought up to date when it
  // comes to the top.
  std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
  while (open > 0) {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const auto [share, id] = heap_.back();
    heap_.pop_back();
    Link& link = state_[at(id)];
    if (link.open == 0) continue;
    auto high = (link.high + link.open - 1) / link.open;
    if (high == 0 && link.capacity > 0) high = 1;
    if (high != share) {
      heap_.emplace_back(high, id);
      std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
      continue;
    }
    const auto low = link.low / link.open;
    for (const auto& use : users_[at(id)]) {
      Flow& flow = flows_[use.place];
      if (flow.fixed == fill_round_) continue;
      flow.fixed = fill_round_;
      --open;
      for (const LinkId other : links_of(use.place)) {
        Link& its = state_[at(other)];
        --its.open;
        its.high -= std::min(its.high, low);
        its.low -= std::min(its.low, high);
      }
      set_rate(use.place, high, now);
    }
  }
}

void FairShare::apply_changes(Time now) {
  for (; next_shift_ < shifts_.size() && shifts_[next_shift_].time <= now; ++next_shift_) {
    const auto& shift = shifts_[next_shift_];
    Link& link = state_[at(shift.link)];
    link.capacity = shift.capacity;
    if (link.shared != kNone) {
      Shared& shared = shared_[link.shared];
      if (!shared.stale) unsettled_.push_back(link.shared);
      shared.stale = true;
    } else if (link.alone != kNone) {
      const Place place = link.alone;
      if (flows_[place].state != State::running) continue;
      auto rate = std::numeric_limits<std::uint64_t>::max();
      for (const LinkId other : links_of(place)) {
        rate = std::min(rate, state_[at(other)].capacity);
      }
      set_rate(place, rate, now);
    } else {
      touch(shift.link);
    }
  }
}

Time FairShare::next() {
  if (in_flight_ == 0) return kNever;
  const Time end = ends_.first();
  if (next_shift_ == shifts_.size()) return end;
  return std::min(end, shifts_[next_shift_].time);
}

void FairShare::take(Time now, std::vector<Place>& ended) {
  if (ends_.first() <= now) {
    ended_.clear();
    ends_.collect(ended_);
    const auto first = ended.size();
    for (const auto place : ended_) {
      Flow& flow = flows_[place];
      if (flow.kind != Kind::single) {
        flow.state = flow.kind == Kind::alone ? State::idle : State::ending;
        if (flow.kind == Kind::mixed) changed_.push_back(place);
        ends_.set(place, kNever);
        ended.push_back(place);
        continue;
      }
      const auto id = state_[at(links_[begin_[place]])].shared;
      Shared& shared = shared_[id];
      shared.work += static_cast<Work>(shared.rate) * (now - shared.since);
      shared.since = now;
      while (!shared.marks.empty() && shared.marks.front().first <= shared.work) {
        const Place done = shared.marks.front().second;
        std::pop_heap(shared.marks.begin(), shared.marks.end(), std::greater<>());
        shared.marks.pop_back();
        flows_[done].state = State::idle;
        ended.push_back(done);
      }
      if (!shared.stale) unsettled_.push_back(id);
      shared.stale = true;
    }
    in_flight_ -= ended.size() - first;
    std::sort(ended.begin() + static_cast<std::ptrdiff_t>(first), ended.end());
  }
  apply_changes(now);
}

FairShare::Place FairShare::some_in_flight() const {
  for (Place place = 0; place < flows_.size(); ++place) {
    if (flows_[place].state == State::running) return place;
  }
  return kNone;
}

}  // namespace tacos::simulation
