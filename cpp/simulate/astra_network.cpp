#include "simulate/astra_network.hpp"

#include <algorithm>

#include "support/error.hpp"
#include "support/index.hpp"
#include "support/pairs.hpp"

namespace tacos::astra {

namespace {

constexpr Nanoseconds kLongest = kLongestSchedule / 1000;
constexpr std::size_t kDenseNpus = 1024;  // up to this size, a table has all pairs

Nanoseconds floor(double time) {
  if (!(time < static_cast<double>(kLongest))) invalid("a message takes over 26 days");
  return static_cast<Nanoseconds>(time);
}

}  // namespace

Network::Network(std::shared_ptr<const Topology> topology, std::vector<Dimension> dims, bool aware,
                 bool record)
    : topology_(std::move(topology)),
      dims_(std::move(dims)),
      aware_(aware),
      record_(record),
      calls_(at(topology_->npus())) {}

std::size_t Network::Unmatched::home(const Entry& key) const {
  auto hash =
      static_cast<std::uint64_t>(key.bytes) * 0x9e3779b97f4a7c15 + pair_key(key.src, key.dst);
  hash = (hash ^ (hash >> 32)) * 0xd6e8feb86659fd93 + static_cast<std::uint64_t>(key.tag);
  hash = (hash ^ (hash >> 29)) * 0xbf58476d1ce4e5b9;
  return static_cast<std::size_t>(hash ^ (hash >> 32)) & (entries_.size() - 1);
}

Network::Unmatched::Entry& Network::Unmatched::at(const Entry& key) {
  if (2 * (used_ + 1) > entries_.size()) {
    std::vector<Entry> old(2 * entries_.size());
    old.swap(entries_);
    for (const auto& entry : old) {
      if (entry.first < 0) continue;
      auto place = home(entry);
      while (entries_[place].first >= 0) place = (place + 1) & (entries_.size() - 1);
      entries_[place] = entry;
    }
  }
  auto place = home(key);
  while (entries_[place].first >= 0) {
    if (entries_[place].same(key)) return entries_[place];
    place = (place + 1) & (entries_.size() - 1);
  }
  ++used_;
  entries_[place] = key;
  return entries_[place];
}

// Closes the gap, so that later entries of the same probe sequence are still found.
void Network::Unmatched::erase(Entry& entry) {
  const auto mask = entries_.size() - 1;
  auto gap = static_cast<std::size_t>(&entry - entries_.data());
  for (auto place = (gap + 1) & mask; entries_[place].first >= 0; place = (place + 1) & mask) {
    if (((place - home(entries_[place])) & mask) >= ((place - gap) & mask)) {
      entries_[gap] = entries_[place];
      gap = place;
    }
  }
  entries_[gap].first = -1;
  --used_;
}

void Network::prepare(std::vector<std::pair<std::int32_t, std::int32_t>> pairs,
                      const Progress& progress) {
  if (!aware_) return;
  std::sort(pairs.begin(), pairs.end());
  pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
  std::vector<NodeId> src, dst;
  for (const auto& [from, to] : pairs) {
    src.push_back(from);
    dst.push_back(to);
  }
  // ASTRA-sim sends a message over one path. Where messages divide, its destination chooses.
  auto network = topology_;
  if (network->spec().routing == Routing::spread) {
    auto spec = network->spec();
    spec.routing = Routing::destination;
    network = std::make_shared<const Topology>(std::move(spec));
  }
  routes_ = std::make_unique<Routes>(shortest_routes(std::move(network), src, dst, progress));
  const auto npus = at(topology_->npus());
  if (npus <= kDenseNpus) {
    route_table_.assign(npus * npus, -1);
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      route_table_[at(src[i]) * npus + at(dst[i])] = static_cast<RouteId>(i);
    }
  } else {
    route_of_.reserve(pairs.size());
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      route_of_[pair_key(src[i], dst[i])] = static_cast<RouteId>(i);
    }
  }
  for (LinkId link = 0; link < topology_->links(); ++link) {
    links_.push_back({static_cast<double>(topology_->bandwidth(link)) / 1e9,
                      static_cast<double>(topology_->latency(link)) / 1e3});
  }
}

RouteId Network::route(std::int32_t src, std::int32_t dst) const {
  if (route_table_.empty()) return route_of_.at(pair_key(src, dst));
  return route_table_[at(src) * at(topology_->npus()) + at(dst)];
}

std::int32_t Network::match(const Unmatched::Entry& key, bool sending) {
  auto& waiting = unmatched_.at(key);
  if (waiting.first >= 0 && (messages_[at(waiting.first)].sent < 0) == sending) {
    const auto found = waiting.first;
    waiting.first = messages_[at(found)].next_match;
    if (waiting.first < 0) {
      waiting.first = found;  // marks the entry as used
      unmatched_.erase(waiting);
    }
    return found;
  }
  std::int32_t added = 0;
  if (over_.empty()) {
    added = static_cast<std::int32_t>(messages_.size());
    messages_.emplace_back();
  } else {
    added = over_.back();
    over_.pop_back();
  }
  messages_[at(added)] = {key.src, key.dst, key.tag, key.bytes};
  if (waiting.first < 0) {
    waiting.first = added;
  } else {
    messages_[at(waiting.last)].next_match = added;
  }
  waiting.last = added;
  return added;
}

// Frees the place of a finished message, unless all messages are recorded.
void Network::recycle(std::int32_t number) {
  if (!record_) over_.push_back(number);
}

void Network::send(std::int32_t src, std::int32_t dst, std::int64_t bytes, std::int32_t tag,
                   const Handler& handler) {
  const auto number = match({bytes, tag, src, dst}, true);
  Message& message = messages_[at(number)];
  message.sent = now_;
  message.on_send = handler;
  if (aware_) {
    const auto taken = at(route(src, dst));
    message.hop = routes_->link_begin()[taken];
    message.last_hop = routes_->link_begin()[taken + 1];
    enter_link(number);
  } else {
    schedule(unaware_delay(message), EventKind::arrival, number);
  }
}

void Network::receive(std::int32_t dst, std::int32_t src, std::int64_t bytes, std::int32_t tag,
                      const Handler& handler) {
  const auto number = match({bytes, tag, src, dst}, false);
  Message& message = messages_[at(number)];
  message.posted = true;
  message.on_recv = handler;
  if (message.arrived >= 0) schedule(0, EventKind::posted, number);
}

void Network::later(std::int32_t rank, Nanoseconds delay, const Handler& handler) {
  auto number = free_call_;
  if (number < 0) {
    number = static_cast<std::int32_t>(call_pool_.size());
    call_pool_.push_back({handler, -1});
  } else {
    free_call_ = call_pool_[at(number)].next;
    call_pool_[at(number)] = {handler, -1};
  }
  const auto time = now_ + delay;
  for (auto& together : calls_[at(rank)]) {
    if (together.time != time) continue;
    call_pool_[at(together.last)].next = number;
    together.last = number;
    return;
  }
  schedule(delay, EventKind::calls, rank);
  calls_[at(rank)].push_back({time, number, number});
}

void Network::schedule(Nanoseconds delay, EventKind kind, std::int32_t what) {
  if (delay > kLongest - now_) invalid("the simulated run takes over 26 days");
  events_.add(now_ + delay, {what, kind});
}

Nanoseconds Network::unaware_delay(const Message& message) const {
  auto src = message.src, dst = message.dst;
  for (const auto& dim : dims_) {
    const auto from = src % dim.size, to = dst % dim.size;
    if (from != to) {
      const auto ahead = (to - from + dim.size) % dim.size;
      const auto hops = dim.block == Block::ring       ? std::min(ahead, dim.size - ahead)
                        : dim.block == Block::switched ? 2
                                                       : 1;
      return floor(hops * dim.latency_ns + static_cast<double>(message.bytes) / dim.bytes_per_ns);
    }
    src /= dim.size;
    dst /= dim.size;
  }
  return 0;
}

void Network::enter_link(std::int32_t number) {
  Message& message = messages_[at(number)];
  const auto link = routes_->all_links()[at(message.hop)];
  Link& entered = links_[at(link)];
  if (!entered.busy) return transmit(link, number);
  message.next_on_link = -1;
  if (entered.first < 0) {
    entered.first = number;
  } else {
    messages_[at(entered.last)].next_on_link = number;
  }
  entered.last = number;
}

void Network::transmit(std::int32_t link, std::int32_t number) {
  Link& used = links_[at(link)];
  const double time = static_cast<double>(messages_[at(number)].bytes) / used.bytes_per_ns;
  const auto busy = floor(time);
  used.busy = true;
  schedule(floor(used.latency_ns + time), EventKind::arrival, number);
  schedule(busy, EventKind::link_free, link);
  if (!record_) return;
  hops_.link.push_back(link);
  hops_.message.push_back(number);
  hops_.begin.push_back(now_);
  hops_.end.push_back(now_ + busy);
}

void Network::release(std::int32_t link) {
  Link& freed = links_[at(link)];
  freed.busy = false;
  if (freed.first < 0) return;
  const auto next = freed.first;
  freed.first = messages_[at(next)].next_on_link;
  transmit(link, next);
}

void Network::deliver(std::int32_t number, Listener& listener) {
  Message& arrived = messages_[at(number)];
  arrived.arrived = now_;
  const auto src = arrived.src, dst = arrived.dst;
  const bool posted = arrived.posted;
  // Copies, because handlers may add messages.
  const Handler on_send = arrived.on_send, on_recv = arrived.on_recv;
  if (posted) recycle(number);
  if (on_send.kind != Handler::Kind::none) listener.handle(src, on_send);
  if (posted) listener.handle(dst, on_recv);
}

void Network::call(std::int32_t rank, Listener& listener) {
  const auto here = [&]() -> Calls& {
    auto& mine = calls_[at(rank)];
    std::size_t i = 0;
    while (mine[i].time != now_) ++i;
    return mine[i];
  };
  for (auto number = here().first; number >= 0;) {
    // A copy, because handlers may add to the list.
    const Handler handler = call_pool_[at(number)].handler;
    listener.handle(rank, handler);
    const auto next = call_pool_[at(number)].next;
    call_pool_[at(number)].next = free_call_;
    free_call_ = number;
    number = next;
  }
  auto& mine = calls_[at(rank)];
  here() = mine.back();
  mine.pop_back();
}

}  // namespace tacos::astra
