#include "simulate/fair_share.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <tuple>

namespace tacos::simulation {

namespace {

constexpr std::size_t kMostToRepair = 64;  // links that change at once; chosen
// A repair is given up after this many links looked at: looking costs a fifth of filling (measured).
constexpr std::size_t kRepairWorth = 4, kLeastRepair = 64;
constexpr std::uint32_t kMostPauses = 63;  // fillings without an attempt to repair; chosen

}  // namespace

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
      found_(begin_.size() - 1, 0),
      fixed_(begin_.size() - 1, 0),
      state_(at(topology.links())),
      filling_(at(topology.links())),
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
  listed_ += links_of(place).size();
}

void FairShare::unlist(Place place) {
  for (auto i = begin_[place]; i < begin_[place + 1]; ++i) {
    auto& users = users_[at(links_[i])];
    users[slot_[i]] = users.back();
    slot_[users.back().index] = slot_[i];
    users.pop_back();
    touch(links_[i]);
  }
  listed_ -= links_of(place).size();
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
  if (touched_.empty()) return;
  // Where repairs fail they are tried more and more rarely.
  bool repaired = false;
  if (pause_ > 0) {
    --pause_;
  } else if (touched_.size() <= kMostToRepair) {
    repaired = repair(now);
    pauses_ = repaired ? 0 : std::min(2 * pauses_ + 1, kMostPauses);
    pause_ = pauses_;
  }
  if (!repaired) fill(now);
  touched_.clear();
  ++touch_round_;
}

// What the link's key should be, given the keys of the other links of its messages.
void FairShare::find_goal(LinkId id) {
  Link& link = state_[at(id)];
  const auto& users = users_[at(id)];
  others_.clear();
  for (const auto& use : users) {
    Other least{kOpen, kOpen, std::numeric_limits<LinkId>::max()};
    for (auto i = begin_[use.place]; i < begin_[use.place + 1]; ++i) {
      if (i == use.index) continue;
      const Link& other = state_[at(links_[i])];
      if (std::tie(other.key, links_[i]) < std::tie(least.key, least.link)) {
        least = {other.key, other.key_low, links_[i]};
      }
    }
    others_.push_back(least);
    spent_ += begin_[use.place + 1] - begin_[use.place];
  }
  auto high = link.capacity, low = link.capacity;
  auto open = others_.size();
  std::uint64_t share = kOpen;
  while (open > 0) {
    share = (high + open - 1) / open;
    if (share == 0 && link.capacity > 0) share = 1;
    const auto before = open;
    for (std::size_t i = 0; i < open;) {
      const auto& other = others_[i];
      if (std::tie(other.key, other.link) > std::tie(share, id)) {
        ++i;
        continue;
      }
      high -= std::min(high, other.low);
      low -= std::min(low, other.key);
      std::swap(others_[i], others_[--open]);
    }
    if (open == before) break;
  }
  link.goal = open == 0 ? kOpen : share;
  link.goal_low = open == 0 ? kOpen : low / open;
}

bool FairShare::repair(Time now) {
  ++repair_round_;
  heap_.clear();
  changed_links_.clear();
  spent_ = 0;
  const auto look_at = [&](LinkId id) {
    find_goal(id);
    const Link& link = state_[at(id)];
    if (link.goal == link.key && link.goal_low == link.key_low) return;
    heap_.emplace_back(std::min(link.key, link.goal), id);
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  };
  for (const LinkId link : touched_) look_at(link);
  while (!heap_.empty()) {
    if (spent_ > kRepairWorth * listed_ + kLeastRepair) return false;
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const auto [key, id] = heap_.back();
    heap_.pop_back();
    Link& link = state_[at(id)];
    if (link.goal == link.key && link.goal_low == link.key_low) continue;
    if (key != std::min(link.key, link.goal)) continue;  // it has been looked at since
    if (link.changed != repair_round_) {
      link.changed = repair_round_;
      changed_links_.push_back(id);
    }
    // A key that grows is taken away first: what it should be depends on keys not repaired yet.
    const bool grows = link.goal > link.key;
    link.key = grows ? kOpen : link.goal;
    link.key_low = grows ? kOpen : link.goal_low;
    if (grows) look_at(id);
    neighbours_.clear();
    ++look_round_;
    for (const auto& use : users_[at(id)]) {
      const auto mine = links_of(use.place);
      spent_ += mine.size();
      // Messages that a link with a smaller key has fixed notice nothing.
      if (std::any_of(mine.begin(), mine.end(),
                      [&](LinkId other) { return state_[at(other)].key < key; })) {
        continue;
      }
      for (const LinkId other : mine) {
        Link& there = state_[at(other)];
        if (other == id || there.looked == look_round_) continue;
        there.looked = look_round_;
        if (std::max(there.key, there.goal) >= key) neighbours_.push_back(other);
      }
    }
    for (const LinkId other : neighbours_) look_at(other);
  }
  const auto set_rates = [&](LinkId id) {
    for (const auto& use : users_[at(id)]) {
      auto rate = kOpen;
      for (const LinkId link : links_of(use.place)) rate = std::min(rate, state_[at(link)].key);
      set_rate(use.place, rate, now);
    }
  };
  for (const LinkId link : changed_links_) set_rates(link);
  for (const LinkId link : touched_) set_rates(link);
  return true;
}

void FairShare::fill(Time now) {
  ++fill_round_;
  component_.clear();
  const auto add = [&](LinkId id) {
    auto& link = filling_[at(id)];
    if (link.found == fill_round_) return;
    link.found = fill_round_;
    component_.push_back(id);
  };
  for (const LinkId link : touched_) add(link);
  std::size_t open = 0;
  heap_.clear();
  for (std::size_t i = 0; i < component_.size(); ++i) {
    Link& link = state_[at(component_[i])];
    auto& left = filling_[at(component_[i])];
    const auto& users = users_[at(component_[i])];
    link.key = link.key_low = link.goal = link.goal_low = kOpen;
    left.low = left.high = link.capacity;
    left.open = static_cast<std::uint32_t>(users.size());
    if (users.empty()) continue;
    heap_.emplace_back((left.high + left.open - 1) / left.open, component_[i]);
    for (const auto& use : users) {
      if (found_[use.place] == fill_round_) continue;
      found_[use.place] = fill_round_;
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
    auto& left = filling_[at(id)];
    if (left.open == 0) continue;
    auto high = (left.high + left.open - 1) / left.open;
    if (high == 0 && link.capacity > 0) high = 1;
    if (high != share) {
      heap_.emplace_back(high, id);
      std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
      continue;
    }
    const auto low = left.low / left.open;
    link.key = link.goal = high;
    link.key_low = link.goal_low = low;
    for (const auto& use : users_[at(id)]) {
      if (fixed_[use.place] == fill_round_) continue;
      fixed_[use.place] = fill_round_;
      --open;
      for (const LinkId other : links_of(use.place)) {
        auto& its = filling_[at(other)];
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
