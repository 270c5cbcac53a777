// The rates of messages of the mixed kind (fair_share.hpp).
#include <algorithm>
#include <bit>
#include <functional>
#include <tuple>

#include "simulate/fair_share.hpp"

namespace tacos::simulation {

namespace {

constexpr std::size_t kScanned = 8;  // cells of a table that cost as much as a message of a link
constexpr std::size_t kMostToRepair = 64;  // links that change at once; chosen
// A repair is given up after this many links looked at, per link of a message in flight: resuming to fill costs
// about as much (measured).
constexpr std::size_t kRepairWorth = 1, kLeastRepair = 64;
constexpr std::uint32_t kMostPauses = 63;  // events without an attempt to repair; chosen
constexpr int kMostPasses = 4;             // over links whose messages do not keep theirs; chosen
// Fillings of all links above a level before it is looked again whether most of them are connected; chosen.
constexpr std::uint32_t kTakenAsConnected = 15;
// Added to what a link has to spare while it fixes rates.
constexpr std::int64_t kEnough = std::int64_t{1} << 61;

}  // namespace

void FairShare::find_rates(Time now) {
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
  if (!repaired && !(few && connected_ > 0 && keep(now))) fill(0, now);
}

FairShare::Key FairShare::pour(LinkId id) {
  auto high = capacity_[at(id)], low = high;
  auto count = others_.size();
  std::uint64_t share = kOpen, open = 0;
  for (const auto& other : others_) open += other.weight;
  while (count > 0) {
    share = (high + open - 1) / open;
    if (share == 0 && capacity_[at(id)] > 0) share = 1;
    const auto before = count;
    looked_at_ += count;
    for (std::size_t i = 0; i < count;) {
      const auto& other = others_[i];
      if (std::tie(other.key.high, other.link) > std::tie(share, id)) {
        ++i;
        continue;
      }
      high -= std::min(high, other.weight * other.key.low);
      low -= std::min(low, other.weight * other.key.high);
      open -= other.weight;
      std::swap(others_[i], others_[--count]);
    }
    if (count == before) break;
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
    least.weight = weight(use.index);
    others_.push_back(least);
    spent_ += way.size();
    looked_at_ += way.size();
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
      looked_at_ += links.size();
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
      spend(use.runner, more);
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
      others_.push_back({{}, std::numeric_limits<LinkId>::max(), weight(use.index)});
    } else {
      others_.push_back({keys_[at(runner.by)], runner.by, weight(use.index)});
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
    auto index = runner.begin;
    for (const LinkId on : way_of(r)) {
      Room& room = rooms_[at(on)];
      const auto mine = weight(index++);
      room.high -= mine * key.low;
      room.low -= mine * key.high;
      room.open -= mine;
      room.spare -= static_cast<std::int64_t>(mine) * more;
      least |= room.spare;  // below zero if any is
    }
    if (least < 0) crowded_.push_back(r);
  }
}

// Messages are chosen without branches, which no processor could predict.
std::span<const std::uint32_t> FairShare::open(LinkId id, std::uint64_t level) {
  const auto& users = users_[at(id)];
  looked_at_ += users.size();
  if (chosen_.size() < users.size()) chosen_.resize(users.size());
  auto high = capacity_[at(id)], low = high, open = std::uint64_t{0};
  std::size_t count = 0;
  for (const auto& use : users) {
    Runner& runner = runners_[use.runner];
    const bool has = runner.by >= 0;
    const Key& key = keys_[at(has ? runner.by : 0)];
    const bool falls = has & (key.high >= level);
    const auto stays = static_cast<std::uint64_t>(has & !falls);
    const auto mine = weight(use.index);
    high -= (0 - stays) & (mine * key.low);
    low -= (0 - stays) & (mine * key.high);
    open += (stays - 1) & mine;
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
  looked_at_ += users.size();
  std::size_t count = 0;
  for (const auto& use : users) {
    chosen_[count] = use.runner;
    count += static_cast<std::size_t>(runners_[use.runner].by < 0);
  }
  return std::span(chosen_).first(count);
}

std::int64_t FairShare::spend(std::uint32_t id, std::int64_t more) {
  std::int64_t least = 0;
  auto index = runners_[id].begin;
  for (const LinkId on : way_of(id)) {
    least |= rooms_[at(on)].spare -= static_cast<std::int64_t>(weight(index++)) * more;
  }
  return least;
}

bool FairShare::overloaded(LinkId id) const {
  if (rooms_[at(id)].spare >= 0) return false;
  Work sum = 0;
  looked_at_ += users_[at(id)].size();
  for (const auto& use : users_[at(id)]) {
    sum += static_cast<Work>(keys_[at(runners_[use.runner].by)].low) *
           static_cast<Work>(weight(use.index));
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

// Takes away the rates of at least the level of all messages that may get another one.
void FairShare::find_component(std::size_t first, std::uint64_t level) {
  ++fill_round_;
  component_.clear();
  const auto find = [&](LinkId id) {
    Link& link = state_[at(id)];
    if (link.found == fill_round_) return;
    link.found = fill_round_;
    component_.push_back(id);
  };
  if (connected_ > 0) {
    --connected_;
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
  looked_at_ += fixing_.size() / kScanned;
  const auto above = std::count_if(fixing_.begin(), fixing_.end(),
                                   [&](LinkId id) { return keys_[at(id)].high >= level; });
  if (component_.size() * 2 >= static_cast<std::size_t>(above)) connected_ = kTakenAsConnected;
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
    looked_at_ += (blocks_.size() + (std::size_t{1} << bits)) / kScanned + 1;
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
  ++look_round_;
  for (const auto r : crowded_) {
    for (const LinkId id : way_of(r)) {
      if (keys_[at(id)].high != kOpen || repaired_[at(id)].looked == look_round_) continue;
      repaired_[at(id)].looked = look_round_;
      if (overloaded(id)) touch(id);
    }
  }
}

void FairShare::purge_fixing() {
  std::erase_if(fixing_, [&](LinkId id) {
    state_[at(id)].listed = state_[at(id)].fixes;
    return !state_[at(id)].fixes;
  });
}

void FairShare::sort_fixing() {  // they mostly are in order
  for (std::size_t i = 1; i < fixing_.size(); ++i) {
    const LinkId id = fixing_[i];
    auto j = i;
    for (; j > 0 && before(id, fixing_[j - 1]); --j) fixing_[j] = fixing_[j - 1];
    fixing_[j] = id;
  }
}

FairShare::Key FairShare::kept_key(LinkId id) {
  // The share grows with every message that comes, so those with the highest keys come first.
  for (;;) {
    looked_at_ += users_[at(id)].size();
    auto high = static_cast<Work>(capacity_[at(id)]), low = high;
    std::uint64_t own = 0, most = 0;
    for (const auto& use : users_[at(id)]) {
      const LinkId by = guess_[use.runner];
      const Key& key = keys_[at(by)];
      const auto mine = static_cast<std::uint64_t>(by == id);
      const auto units = weight(use.index);
      own += mine * units;
      high -= static_cast<Work>(key.low & (mine - 1)) * static_cast<Work>(units);
      low -= static_cast<Work>(key.high & (mine - 1)) * static_cast<Work>(units);
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
  looked_at_ += fixing_.size();
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
  const auto spend_more = [&](std::uint32_t r, std::int64_t more) {
    if (spend(r, more) < 0) crowded_.push_back(r);
  };
  for (const auto r : moved_) {
    if (seen_[r] == repair_round_) continue;
    seen_[r] = repair_round_;
    auto more = coarsely(keys_[at(guess_[r])].low);
    if (const LinkId last = runners_[r].by; last != kNoLink) {
      more -= coarsely(paces_[at(last)].before.low);
      runners_[r].mark -= paces_[at(last)].work;
    }
    spend_more(r, more);
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
    for (std::size_t i = 0; i < count; ++i) spend_more(chosen_[i], more);
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

}  // namespace tacos::simulation
