#include "simulate/fair_share.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <tuple>

namespace tacos::simulation {

namespace {

constexpr std::size_t kMostToRepair = 64;  // links that change at once; chosen
// A repair is given up after this many links looked at, per link of a message in flight: resuming to fill costs
// about as much (measured).
constexpr std::size_t kRepairWorth = 1, kLeastRepair = 64;
// Added to what a link has to spare while it fixes rates.
constexpr std::int64_t kEnough = std::int64_t{1} << 61;
constexpr std::uint32_t kLeastExplored = 15;
constexpr int kMostPasses = 4;
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
      users_(at(topology.links())),
      slot_(links_.size()) {
  std::int64_t fastest = 1;
  for (const LinkId link : links_) fastest = std::max(fastest, topology.bandwidth(link));
  // Rates stay below 2^62, and the work of 2^50 bytes below 2^120.
  shift_ = std::min(30, 62 - static_cast<int>(std::bit_width(static_cast<std::uint64_t>(fastest))));
  const auto units = [&](LinkId link) {
    return static_cast<std::uint64_t>(topology.bandwidth(link)) << shift_;
  };
  // Rates of all places together stay below 2^61 coarse units.
  coarse_ = static_cast<int>(std::bit_width(flows_.size())) + 1;
  std::vector<std::uint32_t> places(at(topology.links()), 0);
  std::vector<std::uint8_t> through(at(topology.links()), 0);  // places with more links use it
  for (Place place = 0; place < flows_.size(); ++place) {
    for (const LinkId link : links_of(place)) {
      capacity_[at(link)] = units(link);
      rooms_[at(link)].spare = static_cast<std::int64_t>(units(link) >> coarse_);
      ++places[at(link)];
      if (links_of(place).size() > 1) through[at(link)] = 1;
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
    flow.rate = std::numeric_limits<std::uint64_t>::max();
    for (const LinkId link : links_of(place)) {
      flow.rate = std::min(flow.rate, capacity_[at(link)]);
    }
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

void FairShare::fix(LinkId id) {
  const Key key = keys_[at(id)];
  const auto stays = without_rate(id);
  const auto usual = coarsely(key.low) - coarsely(paces_[at(id)].before.low);
  for (const auto r : opened(id)) {
    Runner& runner = runners_[r];
    auto more = usual;
    if (runner.by == stays) {
      runner.by = id;
    } else {
      more = coarsely(key.low);
      if (runner.by != kNoLink) {
        const Pace& last = paces_[at(without_rate(runner.by))];
        more -= coarsely(last.before.low);
        runner.mark -= last.work;
      }
      join(r, id);
    }
    std::int64_t least = 0;
    for (const LinkId on : way_of(r)) {
      Room& room = rooms_[at(on)];
      room.high -= key.low;
      room.low -= key.high;
      --room.open;
      room.spare -= more;
      least |= room.spare;  // below zero if any is
    }
    if (least < 0) crowded_.push_back(r);
  }
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
    rooms_[at(links_[i])].spare += less;
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
  if (touched_.empty()) {
    renew_ends();
    return;
  }
  // Where repairs fail they are tried more and more rarely.
  bool repaired = false;
  const bool few = touched_.size() <= kMostToRepair;
  if (pause_ > 0) {
    --pause_;
  } else if (few) {
    repaired = repair(now);
    pauses_ = repaired ? pauses_ / 2 : std::min(2 * pauses_ + 1, kMostPauses);
    pause_ = pauses_;
  }
  if (!repaired && !(few && explored_ > 0 && keep(now))) fill(0, now);
  touched_.clear();
  newcomers_.clear();
  ++touch_round_;
  renew_ends();
}

FairShare::Key FairShare::pour(LinkId id) {
  auto high = capacity_[at(id)], low = high;
  auto open = others_.size();
  std::uint64_t share = kOpen;
  while (open > 0) {
    share = (high + open - 1) / open;
    if (share == 0 && capacity_[at(id)] > 0) share = 1;
    const auto before = open;
    for (std::size_t i = 0; i < open;) {
      const auto& other = others_[i];
      if (std::tie(other.key.high, other.link) > std::tie(share, id)) {
        ++i;
        continue;
      }
      high -= std::min(high, other.key.low);
      low -= std::min(low, other.key.high);
      std::swap(others_[i], others_[--open]);
    }
    if (open == before) break;
  }
  return open == 0 ? Key{} : Key{share, low / open};
}

// What the link's key should be, given the keys of the other links of its messages.
void FairShare::find_goal(LinkId id) {
  others_.clear();
  for (const auto& use : users_[at(id)]) {
    Other least{{}, std::numeric_limits<LinkId>::max()};
    const auto way = way_of(use.runner);
    for (const LinkId link : way) {
      if (link == id) continue;
      const Key& key = keys_[at(link)];
      if (std::tie(key.high, link) < std::tie(least.key.high, least.link)) least = {key, link};
    }
    others_.push_back(least);
    spent_ += way.size();
  }
  repaired_[at(id)].goal = pour(id);
}

bool FairShare::repair(Time now) {
  ++repair_round_;
  heap_.clear();
  kept_.clear();
  spent_ = 0;
  const auto right = [&](LinkId id) { return repaired_[at(id)].goal == keys_[at(id)]; };
  const auto look_at = [&](LinkId id) {
    find_goal(id);
    if (right(id)) return;
    heap_.emplace_back(std::min(keys_[at(id)].high, repaired_[at(id)].goal.high), id);
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  };
  for (const LinkId link : touched_) look_at(link);
  while (!heap_.empty()) {
    if (spent_ > kRepairWorth * listed_ + kLeastRepair) {
      for (const auto& [id, key] : kept_) keys_[at(id)] = key;
      return false;
    }
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const auto [key, id] = heap_.back();
    heap_.pop_back();
    Key& mine = keys_[at(id)];
    auto& repaired = repaired_[at(id)];
    if (right(id)) continue;
    if (key != std::min(mine.high, repaired.goal.high)) continue;  // it has been looked at since
    if (repaired.changed != repair_round_) {
      repaired.changed = repair_round_;
      kept_.emplace_back(id, mine);
    }
    // A key that grows is taken away first: what it should be depends on keys not repaired yet.
    const bool grows = repaired.goal.high > mine.high;
    mine = grows ? Key{} : repaired.goal;
    if (grows) look_at(id);
    neighbours_.clear();
    ++look_round_;
    for (const auto& use : users_[at(id)]) {
      const auto links = way_of(use.runner);
      spent_ += links.size();
      // Messages that a link with a smaller key has fixed notice nothing.
      if (std::any_of(links.begin(), links.end(),
                      [&](LinkId other) { return keys_[at(other)].high < key; })) {
        continue;
      }
      for (const LinkId other : links) {
        auto& there = repaired_[at(other)];
        if (other == id || there.looked == look_round_) continue;
        there.looked = look_round_;
        if (std::max(keys_[at(other)].high, there.goal.high) >= key) neighbours_.push_back(other);
      }
    }
    for (const LinkId other : neighbours_) look_at(other);
  }
  const auto set_rates = [&](LinkId id) {
    for (const auto& use : users_[at(id)]) {
      if (seen_[use.runner] == repair_round_) continue;
      seen_[use.runner] = repair_round_;
      LinkId by = id;
      for (const LinkId link : way_of(use.runner)) {
        if (std::tie(keys_[at(link)].high, link) < std::tie(keys_[at(by)].high, by)) by = link;
      }
      Runner& runner = runners_[use.runner];
      const auto last = runner.by;
      auto more = coarsely(keys_[at(by)].low);
      if (last != kNoLink) {
        const bool changed = repaired_[at(last)].changed == repair_round_;
        more -= coarsely(changed ? paces_[at(last)].before.low : keys_[at(last)].low);
      }
      for (const LinkId link : way_of(use.runner)) rooms_[at(link)].spare -= more;
      if (by == last) continue;
      if (last != kNoLink) {
        advance(last, now);
        runner.mark -= paces_[at(last)].work;
        renew_end(last);
      }
      advance(by, now);
      join(use.runner, by);
    }
  };
  for (const auto& [id, key] : kept_) {
    advance(paces_[at(id)], key, now);
    paces_[at(id)].before = key;
    renew_end(id);
  }
  for (const auto& [id, key] : kept_) {
    set_fixes(id, keys_[at(id)].high != kOpen);
    set_rates(id);
  }
  for (const LinkId link : touched_) set_rates(link);
  return true;
}

// The share at which filling comes to the link, if rates below it stay.
std::uint64_t FairShare::share_of(LinkId id) {
  others_.clear();
  for (const auto& use : users_[at(id)]) {
    const Runner& runner = runners_[use.runner];
    if (runner.by == kNoLink || runner.by == id) {
      others_.push_back({{}, std::numeric_limits<LinkId>::max()});
    } else {
      others_.push_back({keys_[at(runner.by)], runner.by});
    }
  }
  return pour(id).high;
}

void FairShare::fill(std::size_t first, Time now) {
  for (; first < touched_.size();) {
    std::uint64_t level = touched_.size() > kMostToRepair ? 0 : kOpen;
    for (auto i = first; i < touched_.size() && level > 0; ++i) {
      level = std::min({level, keys_[at(touched_[i])].high, share_of(touched_[i])});
    }
    const auto from = first;
    first = touched_.size();
    resume(from, level, now);
  }
}

// Messages are chosen without branches, which no processor could predict.
std::span<const std::uint32_t> FairShare::open(LinkId id, std::uint64_t level) {
  const auto& users = users_[at(id)];
  if (chosen_.size() < users.size()) chosen_.resize(users.size());
  auto high = capacity_[at(id)], low = high, open = std::uint64_t{users.size()};
  std::size_t count = 0;
  for (const auto& use : users) {
    Runner& runner = runners_[use.runner];
    const bool has = runner.by >= 0;
    const Key& key = keys_[at(has ? runner.by : 0)];
    const bool falls = has & (key.high >= level);
    const auto stays = static_cast<std::uint64_t>(has & !falls);
    high -= (0 - stays) & key.low;
    low -= (0 - stays) & key.high;
    open -= stays;
    chosen_[count] = use.runner;
    count += static_cast<std::size_t>(falls);
    runner.by = falls ? without_rate(runner.by) : runner.by;
  }
  Room& room = rooms_[at(id)];
  room.high = high;
  room.low = low;
  room.open = open;
  return std::span(chosen_).first(count);
}

std::span<const std::uint32_t> FairShare::opened(LinkId id) {
  const auto& users = users_[at(id)];
  std::size_t count = 0;
  for (const auto& use : users) {
    chosen_[count] = use.runner;
    count += static_cast<std::size_t>(runners_[use.runner].by < 0);
  }
  return std::span(chosen_).first(count);
}

bool FairShare::overloaded(LinkId id) const {
  if (rooms_[at(id)].spare >= 0) return false;
  Work sum = 0;
  for (const auto& use : users_[at(id)]) {
    sum += static_cast<Work>(keys_[at(runners_[use.runner].by)].low);
  }
  return sum > static_cast<Work>(capacity_[at(id)]);
}

void FairShare::set_fixes(LinkId id, bool fixes) {
  Link& link = state_[at(id)];
  if (link.fixes == fixes) return;
  link.fixes = fixes;
  rooms_[at(id)].spare += fixes ? kEnough : -kEnough;
  if (!fixes || link.listed) return;
  link.listed = true;
  fixing_.push_back(id);
}

void FairShare::find_component(std::size_t first, std::uint64_t level) {
  ++fill_round_;
  component_.clear();
  const auto find = [&](LinkId id) {
    Link& link = state_[at(id)];
    if (link.found == fill_round_) return;
    link.found = fill_round_;
    component_.push_back(id);
  };
  if (explored_ > 0) {
    --explored_;
    for (const LinkId id : touched_) find(id);
    purge_fixing();
    for (const LinkId id : fixing_) {
      if (keys_[at(id)].high >= level) find(id);
    }
    for (const LinkId id : component_) open(id, level);
    return;
  }
  for (auto i = first; i < touched_.size(); ++i) find(touched_[i]);
  for (std::size_t i = 0; i < component_.size(); ++i) {
    for (const auto r : open(component_[i], level)) {
      for (const LinkId other : way_of(r)) {
        const Link& link = state_[at(other)];
        if (link.fixes || link.touched == touch_round_) find(other);
      }
    }
  }
  const auto above = std::count_if(fixing_.begin(), fixing_.end(),
                                   [&](LinkId id) { return keys_[at(id)].high >= level; });
  if (component_.size() * 2 >= static_cast<std::size_t>(above)) explored_ = kLeastExplored;
}

void FairShare::resume(std::size_t first, std::uint64_t level, Time now) {
  find_component(first, level);
  const auto share_now = [&](LinkId id) {
    const Room& room = rooms_[at(id)];
    const auto high = room.high >> 63 == 0 ? room.high : 0;
    const auto share = (high + room.open - 1) / room.open;
    return share == 0 && capacity_[at(id)] > 0 ? 1 : share;
  };
  waiting_.clear();
  for (const LinkId id : component_) {
    if (keys_[at(id)].high < level) continue;
    Pace& pace = paces_[at(id)];
    advance(pace, keys_[at(id)], now);
    pace.before = keys_[at(id)];
    renew_end(id);
    keys_[at(id)] = repaired_[at(id)].goal = {};
    set_fixes(id, true);
    if (rooms_[at(id)].open > 0) waiting_.push_back(id);
  }
  std::sort(waiting_.begin(), waiting_.end());
  const auto count = waiting_.size();
  shares_.resize(count);
  for (std::size_t i = 0; i < count; ++i) shares_[i] = share_now(waiting_[i]);
  const auto bits = std::max(4, static_cast<int>(std::bit_width(count)) / 2);
  const auto renew = [&](std::size_t block) {
    const auto from = block << bits, to = std::min(count, (block + 1) << bits);
    auto least = kOpen, which = std::uint64_t{from};
    for (auto i = from; i < to; ++i) {
      const bool less = shares_[i] < least;
      least = less ? shares_[i] : least;
      which = less ? i : which;
    }
    blocks_[block] = {least, which};
  };
  blocks_.resize((count >> bits) + 1);
  for (std::size_t block = 0; block < blocks_.size(); ++block) renew(block);
  crowded_.clear();
  // Shares only grow while other links are filled, so one may be brought up to date when it is the least.
  for (;;) {
    std::size_t block = 0;
    for (std::size_t i = 1; i < blocks_.size(); ++i)
      block = blocks_[i].share < blocks_[block].share ? i : block;
    const auto [share, i] = blocks_[block];
    if (share == kOpen) break;
    const LinkId id = waiting_[i];
    const Room& room = rooms_[at(id)];
    shares_[i] = room.open == 0 ? kOpen : share_now(id);
    if (shares_[i] == share) {
      const auto low = room.low >> 63 == 0 ? room.low : 0;
      keys_[at(id)] = repaired_[at(id)].goal = {share, low / room.open};
      fix(id);
      shares_[i] = kOpen;
    }
    renew(block);
  }
  for (const LinkId id : component_) set_fixes(id, keys_[at(id)].high != kOpen);
  touch_overloaded();
}

void FairShare::touch_overloaded() {
  for (const auto r : crowded_) {
    for (const LinkId id : way_of(r)) {
      if (keys_[at(id)].high == kOpen && overloaded(id)) touch(id);
    }
  }
}

void FairShare::purge_fixing() {
  std::erase_if(fixing_, [&](LinkId id) {
    state_[at(id)].listed = state_[at(id)].fixes;
    return !state_[at(id)].fixes;
  });
}

void FairShare::sort_fixing() {
  for (std::size_t i = 1; i < fixing_.size(); ++i) {
    const LinkId id = fixing_[i];
    auto j = i;
    for (; j > 0 && before(id, fixing_[j - 1]); --j) fixing_[j] = fixing_[j - 1];
    fixing_[j] = id;
  }
}

FairShare::Key FairShare::kept_key(LinkId id) {
  for (;;) {
    auto high = static_cast<Work>(capacity_[at(id)]), low = high;
    std::uint64_t own = 0, most = 0;
    for (const auto& use : users_[at(id)]) {
      const LinkId by = guess_[use.runner];
      const Key& key = keys_[at(by)];
      const auto mine = static_cast<std::uint64_t>(by == id);
      own += mine;
      high -= static_cast<Work>(key.low & (mine - 1));
      low -= static_cast<Work>(key.high & (mine - 1));
      most = std::max(most, key.high & (mine - 1));
    }
    if (own == 0) return high >= 0 ? Key{} : Key{0, 0};
    auto share = (static_cast<std::uint64_t>(std::max<Work>(high, 0)) + own - 1) / own;
    if (share == 0 && capacity_[at(id)] > 0) share = 1;
    bool kept = most < share;
    if (!kept) {
      kept = true;
      for (const auto& use : users_[at(id)]) {
        const LinkId by = guess_[use.runner];
        if (by == id || keys_[at(by)].high < most || std::tie(most, by) < std::tie(share, id))
          continue;
        kept = false;
        guess_[use.runner] = id;
        moved_.push_back(use.runner);
        repaired_[at(by)].looked = look_round_;
      }
    }
    if (kept) return {share, static_cast<std::uint64_t>(std::max<Work>(low, 0)) / own};
  }
}

bool FairShare::keep(Time now) {
  ++repair_round_;
  kept_.clear();
  moved_.clear();
  purge_fixing();
  sort_fixing();
  bool possible = true;
  for (const auto r : newcomers_) {
    const auto way = way_of(r);
    guess_[r] =
        *std::min_element(way.begin(), way.end(), [&](LinkId a, LinkId b) { return before(a, b); });
    moved_.push_back(r);
    possible = possible && keys_[at(guess_[r])].high != kOpen;
  }
  std::size_t from = 0;
  while (from < fixing_.size() && state_[at(fixing_[from])].touched != touch_round_) ++from;
  for (int passes = 0; possible; ++passes) {
    ++look_round_;
    const auto moved = moved_.size();
    for (auto i = from; i < fixing_.size() && possible; ++i) {
      const LinkId id = fixing_[i];
      if (repaired_[at(id)].changed != repair_round_) {
        repaired_[at(id)].changed = repair_round_;
        kept_.emplace_back(id, keys_[at(id)]);
      }
      keys_[at(id)] = kept_key(id);
      possible = keys_[at(id)].high > 0;
    }
    if (moved_.size() == moved) break;
    possible = possible && passes < kMostPasses;
    sort_fixing();
    from = 0;
    while (from < fixing_.size() && repaired_[at(fixing_[from])].looked != look_round_) ++from;
  }
  if (!possible) {
    for (const auto& [id, key] : kept_) keys_[at(id)] = key;
    for (const auto r : moved_) guess_[r] = runners_[r].by;
    return false;
  }
  for (const auto& [id, last] : kept_) {
    advance(paces_[at(id)], last, now);
    paces_[at(id)].before = last;
    repaired_[at(id)].goal = keys_[at(id)];
    set_fixes(id, keys_[at(id)].high != kOpen);
    renew_end(id);
  }
  crowded_.clear();
  const auto spend = [&](std::uint32_t r, std::int64_t more) {
    std::int64_t least = 0;
    for (const LinkId on : way_of(r)) least |= rooms_[at(on)].spare -= more;
    if (least < 0) crowded_.push_back(r);
  };
  for (const auto r : moved_) {
    if (seen_[r] == repair_round_) continue;
    seen_[r] = repair_round_;
    auto more = coarsely(keys_[at(guess_[r])].low);
    if (const LinkId last = runners_[r].by; last != kNoLink) {
      more -= coarsely(paces_[at(last)].before.low);
      runners_[r].mark -= paces_[at(last)].work;
    }
    spend(r, more);
    join(r, guess_[r]);
  }
  for (const auto& [id, last] : kept_) {
    const Key key = keys_[at(id)];
    if (key.high == kOpen || key.low == last.low) continue;
    const auto more = coarsely(key.low) - coarsely(last.low);
    const auto& users = users_[at(id)];
    if (chosen_.size() < users.size()) chosen_.resize(users.size());
    std::size_t count = 0;
    for (const auto& use : users) {
      chosen_[count] = use.runner;
      count += static_cast<std::size_t>((guess_[use.runner] == id) &
                                        (seen_[use.runner] != repair_round_));
    }
    for (std::size_t i = 0; i < count; ++i) spend(chosen_[i], more);
  }
  // Links that do not take part may have been given too much, those with new messages or another capacity included.
  const auto first = touched_.size();
  ++touch_round_;
  for (std::size_t i = 0; i < first; ++i) {
    if (keys_[at(touched_[i])].high == kOpen && overloaded(touched_[i])) touch(touched_[i]);
  }
  touch_overloaded();
  if (touched_.size() > first) fill(first, now);
  return true;
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
      auto rate = std::numeric_limits<std::uint64_t>::max();
      for (const LinkId other : links_of(place)) {
        rate = std::min(rate, capacity_[at(other)]);
      }
      set_rate(place, rate, now);
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
