#include "simulate/fair_share.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>
#include <tuple>

namespace tacos::simulation {

namespace {

constexpr std::uint64_t kMostUnits = 1 << 20;  // of a link that places share unevenly (chosen)
constexpr auto kFastest = std::uint64_t{1}
                          << 61;  // of units per second, so that capacities fit 64 bits

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
                     std::vector<LinkId> links, std::vector<Routes::Share> shares,
                     const std::unordered_map<LinkId, std::vector<Change>>& changes)
    : begin_(std::move(begin)),
      links_(std::move(links)),
      flows_(begin_.size() - 1),
      capacity_(at(topology.links()), 0),
      alone_(at(topology.links()), kNone),
      one_(at(topology.links()), kNone),
      rooms_(at(topology.links())),
      state_(at(topology.links())),
      keys_(at(topology.links())),
      repaired_(at(topology.links())),
      ends_(begin_.size() - 1),
      shared_ends_(0),
      run_ends_(at(topology.links())),
      paces_(at(topology.links())),
      users_(at(topology.links())) {
  if (!shares.empty()) weigh(topology, std::move(shares), changes);
  slot_.resize(links_.size());
  const auto whole = [&](LinkId link) { return units_.empty() ? 1 : units_[at(link)]; };
  std::uint64_t fastest = 1;
  for (const LinkId link : links_) {
    fastest = std::max(fastest, static_cast<std::uint64_t>(topology.bandwidth(link)) * whole(link));
  }
  // Rates stay below 2^62, and the work of 2^50 bytes below 2^120.
  shift_ = std::min(30, 62 - static_cast<int>(std::bit_width(fastest)));
  const auto units = [&](LinkId link) {
    return (static_cast<std::uint64_t>(topology.bandwidth(link)) * whole(link)) << shift_;
  };
  // Rates of all places together stay below 2^61 coarse units.
  const auto heaviest = weights_.empty() ? 1U : *std::max_element(weights_.begin(), weights_.end());
  coarse_ = static_cast<int>(std::bit_width(flows_.size()) + std::bit_width(heaviest));
  std::vector<std::uint32_t> places(at(topology.links()), 0);
  std::vector<std::uint8_t> through(at(topology.links()), 0);  // places with more links use it
  for (Place place = 0; place < flows_.size(); ++place) {
    for (auto i = begin_[place]; i < begin_[place + 1]; ++i) {
      const LinkId link = links_[i];
      capacity_[at(link)] = units(link);
      rooms_[at(link)].spare = static_cast<std::int64_t>(units(link) >> coarse_);
      ++places[at(link)];
      if (links_of(place).size() > 1 || weight(i) > 1) through[at(link)] = 1;
    }
  }
  for (Place place = 0; place < flows_.size(); ++place) {
    const auto mine = links_of(place);
    if (std::all_of(mine.begin(), mine.end(), [&](LinkId l) { return places[at(l)] == 1; })) {
      flows_[place].kind = Kind::alone;
      for (const LinkId link : mine) alone_[at(link)] = place;
    } else if (mine.size() == 1 && through[at(mine[0])] == 0) {
      flows_[place].kind = Kind::single;
      auto& shared = one_[at(mine[0])];
      if (shared != kNone) continue;
      shared = static_cast<std::uint32_t>(shared_.size());
      shared_.push_back({.link = mine[0], .marks = {}});
    }
  }
  shared_ends_ = Earliest(shared_.size());
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

void FairShare::weigh(const Topology& topology, std::vector<Routes::Share> shares,
                      const std::unordered_map<LinkId, std::vector<Change>>& changes) {
  struct Entry {
    Place place;
    std::int32_t parts, of;
    auto operator<=>(const Entry&) const = default;
  };
  std::vector<std::vector<Entry>> entries(at(topology.links()));
  for (Place place = 0; place < flows_.size(); ++place) {
    for (auto i = begin_[place]; i < begin_[place + 1]; ++i) {
      const auto divisor = std::gcd(shares[i].parts, shares[i].of);
      shares[i] = {shares[i].parts / divisor, shares[i].of / divisor};
      entries[at(links_[i])].push_back({place, shares[i].parts, shares[i].of});
    }
  }
  // Of links with the same entries, the slowest.
  std::vector<LinkId> used;
  for (LinkId link = 0; link < topology.links(); ++link) {
    if (!entries[at(link)].empty() && !changes.contains(link)) used.push_back(link);
  }
  std::sort(used.begin(), used.end(), [&](LinkId a, LinkId b) {
    const auto& mine = entries[at(a)];
    const auto& other = entries[at(b)];
    if (mine != other) return mine < other;
    return std::pair(topology.bandwidth(a), a) < std::pair(topology.bandwidth(b), b);
  });
  std::vector<std::uint8_t> left_out(entries.size(), 0);
  for (std::size_t i = 1; i < used.size(); ++i) {
    left_out[at(used[i])] = entries[at(used[i])] == entries[at(used[i - 1])] ? 1 : 0;
  }
  units_.assign(entries.size(), 1);
  for (LinkId link = 0; link < topology.links(); ++link) {
    // Shares without a small common unit are rounded to a fine one.
    const auto most =
        std::min(kMostUnits, kFastest / static_cast<std::uint64_t>(topology.bandwidth(link)));
    auto& units = units_[at(link)];
    for (const auto& entry : entries[at(link)]) {
      units = std::lcm(units, static_cast<std::uint64_t>(entry.of));
      if (units <= most) continue;
      units = most;
      break;
    }
  }
  std::vector<std::uint32_t> begin{0};
  std::size_t kept = 0;
  for (Place place = 0; place < flows_.size(); ++place) {
    for (auto i = begin_[place]; i < begin_[place + 1]; ++i) {
      const LinkId link = links_[i];
      if (left_out[at(link)] != 0) continue;
      const auto units = units_[at(link)] * static_cast<std::uint64_t>(shares[i].parts);
      const auto of = static_cast<std::uint64_t>(shares[i].of);
      links_[kept++] = link;
      weights_.push_back(
          static_cast<std::uint32_t>(std::max<std::uint64_t>(1, (units + of / 2) / of)));
    }
    begin.push_back(static_cast<std::uint32_t>(kept));
  }
  links_.resize(kept);
  begin_ = std::move(begin);
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

std::uint64_t FairShare::rate_alone(Place place) const {
  auto rate = std::numeric_limits<std::uint64_t>::max();
  for (auto i = begin_[place]; i < begin_[place + 1]; ++i) {
    rate = std::min(rate, (capacity_[at(links_[i])] + weight(i) - 1) / weight(i));
  }
  return rate;
}

void FairShare::start(Place place, std::int64_t bytes, Time now) {
  Flow& flow = flows_[place];
  ++in_flight_;
  if (flow.kind == Kind::single) {
    const auto id = one_[at(links_[begin_[place]])];
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
  if (flow.kind == Kind::alone) {
    flow.left = work_of(bytes);
    flow.since = now;
    flow.rate = rate_alone(place);
    flow.state = State::running;
    ends_.set(place, end_of(now, flow.left, flow.rate));
    return;
  }
  if (flow.state == State::ending) {  // its successor on the same place: rates stay
    flow.state = State::running;
    Runner& runner = runners_[flow.runner];
    runner.mark = work_of(bytes);
    advance(runner.by, now);
    join(flow.runner, runner.by);
    return;
  }
  if (free_runners_.empty()) {
    free_runners_.push_back(static_cast<std::uint32_t>(runners_.size()));
    runners_.emplace_back();
    seen_.push_back(0);
    guess_.push_back(kNoLink);
    ways_.emplace_back();
  }
  flow.runner = free_runners_.back();
  free_runners_.pop_back();
  const auto way = links_of(place);
  runners_[flow.runner] = {work_of(bytes), kNoLink, place, begin_[place],
                           static_cast<std::uint32_t>(way.size())};
  if (way.size() <= kShort) std::copy(way.begin(), way.end(), ways_[flow.runner].begin());
  flow.state = State::starting;
  changed_.push_back(place);
}

void FairShare::advance(Pace& pace, const Key& key, Time now) {
  if (key.high != kOpen) pace.work += static_cast<Work>(key.high) * (now - pace.since);
  pace.since = now;
}

void FairShare::join(std::uint32_t id, LinkId by) {
  Runner& runner = runners_[id];
  auto& [work, since, before, stale, marks] = paces_[at(by)];
  runner.mark += work;
  runner.by = guess_[id] = by;
  marks.emplace_back(runner.mark, id);
  if (marks.size() > 2 * users_[at(by)].size() + 32) {
    std::erase_if(marks, [&](const auto& mark) { return has_left(by, mark); });
    std::make_heap(marks.begin(), marks.end(), std::greater<>());
  } else {
    std::push_heap(marks.begin(), marks.end(), std::greater<>());
  }
  renew_end(by);
}

void FairShare::renew_end(LinkId id) {
  if (paces_[at(id)].stale) return;
  paces_[at(id)].stale = true;
  to_renew_.push_back(id);
}

void FairShare::renew_ends() {
  for (const LinkId id : to_renew_) {
    auto& [work, since, before, stale, marks] = paces_[at(id)];
    stale = false;
    while (!marks.empty() && has_left(id, marks.front())) {
      std::pop_heap(marks.begin(), marks.end(), std::greater<>());
      marks.pop_back();
    }
    run_ends_.set(
        id, marks.empty() ? kNever : end_of(since, marks.front().first - work, keys_[at(id)].high));
  }
  to_renew_.clear();
}

void FairShare::set_rate(Place place, std::uint64_t rate, Time now) {
  Flow& flow = flows_[place];
  if (flow.rate == rate && flow.rate > 0) return;
  flow.left -= static_cast<Work>(flow.rate) * (now - flow.since);
  flow.since = now;
  flow.rate = rate;
  ends_.set(place, end_of(now, flow.left, rate));
}

void FairShare::settle_shared(std::uint32_t id, Time now) {
  Shared& shared = shared_[id];
  shared.work += static_cast<Work>(shared.rate) * (now - shared.since);
  shared.since = now;
  shared.stale = false;
  const auto count = shared.marks.size();
  if (count == 0) {
    shared.rate = 0;
    shared_ends_.set(id, kNever);
    return;
  }
  const auto capacity = capacity_[at(shared.link)];
  shared.rate = (capacity + count - 1) / count;
  shared_ends_.set(id, end_of(now, shared.marks.front().first - shared.work, shared.rate));
}

void FairShare::touch(LinkId link) {
  if (state_[at(link)].touched == touch_round_) return;
  state_[at(link)].touched = touch_round_;
  touched_.push_back(link);
}

void FairShare::list(Place place) {
  const auto id = flows_[place].runner;
  for (auto i = begin_[place]; i < begin_[place + 1]; ++i) {
    auto& users = users_[at(links_[i])];
    slot_[i] = static_cast<std::uint32_t>(users.size());
    users.push_back({id, i});
    touch(links_[i]);
  }
  listed_ += links_of(place).size();
}

void FairShare::unlist(Place place) {
  const auto id = flows_[place].runner;
  const auto less = coarsely(keys_[at(runners_[id].by)].low);
  runners_[id].by = kNoLink;
  free_runners_.push_back(id);
  for (auto i = begin_[place]; i < begin_[place + 1]; ++i) {
    auto& users = users_[at(links_[i])];
    users[slot_[i]] = users.back();
    slot_[users.back().index] = slot_[i];
    users.pop_back();
    rooms_[at(links_[i])].spare += static_cast<std::int64_t>(weight(i)) * less;
    if (state_[at(links_[i])].fixes)
      touch(links_[i]);  // another link has capacity to spare, now even more
  }
  listed_ -= links_of(place).size();
}

void FairShare::settle(Time now) {
  for (const auto id : unsettled_) settle_shared(id, now);
  unsettled_.clear();
  for (const Place place : changed_) {
    Flow& flow = flows_[place];
    if (flow.state == State::starting) {
      flow.state = State::running;
      list(place);
      newcomers_.push_back(flow.runner);
    } else if (flow.state == State::ending) {
      flow.state = State::idle;
      unlist(place);
    }
  }
  changed_.clear();
  if (!touched_.empty()) {
    find_rates(now);
    touched_.clear();
    newcomers_.clear();
    ++touch_round_;
  }
  renew_ends();
}

void FairShare::apply_changes(Time now) {
  for (; next_shift_ < shifts_.size() && shifts_[next_shift_].time <= now; ++next_shift_) {
    const auto& shift = shifts_[next_shift_];
    const auto more = static_cast<std::int64_t>(shift.capacity >> coarse_) -
                      static_cast<std::int64_t>(capacity_[at(shift.link)] >> coarse_);
    capacity_[at(shift.link)] = shift.capacity;
    rooms_[at(shift.link)].spare += more;
    if (const auto id = one_[at(shift.link)]; id != kNone) {
      Shared& shared = shared_[id];
      if (!shared.stale) unsettled_.push_back(id);
      shared.stale = true;
    } else if (const Place place = alone_[at(shift.link)]; place != kNone) {
      if (flows_[place].state != State::running) continue;
      set_rate(place, rate_alone(place), now);
    } else {
      touch(shift.link);
    }
  }
}

Time FairShare::next() {
  if (in_flight_ == 0) return kNever;
  const Time end = std::min({ends_.first(), shared_ends_.first(), run_ends_.first()});
  if (next_shift_ == shifts_.size()) return end;
  return std::min(end, shifts_[next_shift_].time);
}

void FairShare::take(Time now, std::vector<Place>& ended) {
  const auto first = ended.size();
  if (run_ends_.first() <= now) {
    ended_.clear();
    run_ends_.collect(ended_);
    for (const auto link : ended_) {
      const auto id = static_cast<LinkId>(link);
      advance(id, now);
      auto& [work, since, before, stale, marks] = paces_[link];
      while (!marks.empty() && (marks.front().first <= work || has_left(id, marks.front()))) {
        const auto mark = marks.front();
        std::pop_heap(marks.begin(), marks.end(), std::greater<>());
        marks.pop_back();
        const Place place = runners_[mark.second].place;
        if (has_left(id, mark) || flows_[place].state != State::running) continue;
        flows_[place].state = State::ending;
        changed_.push_back(place);
        ended.push_back(place);
      }
      run_ends_.set(link, kNever);
      renew_end(id);
    }
  }
  if (ends_.first() <= now) {
    ended_.clear();
    ends_.collect(ended_);
    for (const auto place : ended_) {
      flows_[place].state = State::idle;
      ends_.set(place, kNever);
      ended.push_back(place);
    }
  }
  if (shared_ends_.first() <= now) {
    ended_.clear();
    shared_ends_.collect(ended_);
    for (const auto id : ended_) {
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
  }
  in_flight_ -= ended.size() - first;
  std::sort(ended.begin() + static_cast<std::ptrdiff_t>(first), ended.end());
  apply_changes(now);
}

FairShare::Place FairShare::some_in_flight() const {
  for (Place place = 0; place < flows_.size(); ++place) {
    if (flows_[place].state == State::running) return place;
  }
  return kNone;
}

}  // namespace tacos::simulation
