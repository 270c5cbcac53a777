#include "simulate/astra_network.hpp"

#include <algorithm>

#include "support/error.hpp"
#include "support/index.hpp"
#include "support/pairs.hpp"

namespace tacos::astra {

namespace {

constexpr Nanoseconds kLongest = kLongestSchedule / 1000;

Nanoseconds floor(double time) {
  if (!(time < static_cast<double>(kLongest))) invalid("a message takes over 26 days");
  return static_cast<Nanoseconds>(time);
}

}  // namespace

std::size_t Network::KeyHash::operator()(const Key& key) const {
  auto hash =
      static_cast<std::uint64_t>(key.bytes) * 0x9e3779b97f4a7c15 + pair_key(key.src, key.dst);
  hash = (hash ^ (hash >> 32)) * 0xd6e8feb86659fd93 + static_cast<std::uint64_t>(key.tag);
  hash = (hash ^ (hash >> 29)) * 0xbf58476d1ce4e5b9;
  return static_cast<std::size_t>(hash ^ (hash >> 32));
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
  routes_ = std::make_unique<Routes>(shortest_routes(topology_, src, dst, progress));
  route_of_.reserve(pairs.size());
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    route_of_[pair_key(src[i], dst[i])] = static_cast<RouteId>(i);
  }
  for (LinkId link = 0; link < topology_->links(); ++link) {
    links_.push_back({static_cast<double>(topology_->bandwidth(link)) / 1e9,
                      static_cast<double>(topology_->latency(link)) / 1e3});
  }
}

std::int32_t Network::match(const Key& key, bool sending) {
  auto& waiting = unmatched_[key];
  if (waiting.first >= 0 && (messages_[at(waiting.first)].sent < 0) == sending) {
    const auto found = waiting.first;
    waiting.first = messages_[at(found)].next_match;
    return found;
  }
  const auto added = static_cast<std::int32_t>(messages_.size());
  messages_.push_back({key.src, key.dst, key.tag, key.bytes});
  if (waiting.first < 0) {
    waiting.first = added;
  } else {
    messages_[at(waiting.last)].next_match = added;
  }
  waiting.last = added;
  return added;
}

void Network::send(std::int32_t src, std::int32_t dst, std::int64_t bytes, std::int32_t tag,
                   const Handler& handler) {
  const auto number = match({tag, src, dst, bytes}, true);
  Message& message = messages_[at(number)];
  message.sent = now_;
  message.on_send = handler;
  if (aware_) {
    const auto route = route_of_.at(pair_key(src, dst));
    message.hop = routes_->link_begin()[at(route)];
    message.last_hop = routes_->link_begin()[at(route) + 1];
    enter_link(number);
  } else {
    schedule(unaware_delay(message), EventKind::arrival, number);
  }
}

void Network::receive(std::int32_t dst, std::int32_t src, std::int64_t bytes, std::int32_t tag,
                      const Handler& handler) {
  const auto number = match({tag, src, dst, bytes}, false);
  Message& message = messages_[at(number)];
  message.posted = true;
  message.on_recv = handler;
  if (message.arrived >= 0) schedule(0, EventKind::posted, number);
}

void Network::later(std::int32_t rank, Nanoseconds delay, const Handler& handler) {
  auto& together = calls_[{rank, now_ + delay}];
  together.push_back(handler);
  if (together.size() == 1) schedule(delay, EventKind::calls, rank);
}

void Network::schedule(Nanoseconds delay, EventKind kind, std::int32_t what) {
  if (delay > kLongest - now_) invalid("the simulated run takes over 26 days");
  events_.push_back({now_ + delay, scheduled_++, what, kind});
  std::push_heap(events_.begin(), events_.end());
}

Network::Event Network::pop() {
  std::pop_heap(events_.begin(), events_.end());
  const Event event = events_.back();
  events_.pop_back();
  return event;
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
  const Message message = messages_[at(number)];  // a copy: handlers add messages
  messages_[at(number)].arrived = now_;
  if (message.on_send.kind != Handler::Kind::none) listener.handle(message.src, message.on_send);
  if (message.posted) listener.handle(message.dst, message.on_recv);
}

void Network::call(std::int32_t rank, Listener& listener) {
  const auto here = calls_.find({rank, now_});
  for (std::size_t i = 0; i < here->second.size(); ++i) {
    const Handler handler = here->second[i];  // a copy: handlers may add to the list
    listener.handle(rank, handler);
  }
  calls_.erase(here);
}

}  // namespace tacos::astra
