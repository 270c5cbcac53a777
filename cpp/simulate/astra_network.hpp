// The network of ASTRA-sim's analytical backends: an event queue in whole nanoseconds, links, and the
// matching of sends with receives.
//
// Congestion-unaware: a message takes floor(hops·α + m/B) of the first dimension in which its ends
// differ, and no message waits. Congestion-aware: whole messages are stored and forwarded
// link by link. A link serves messages first come, first served, is free again after floor(m/B), and delivers
// after floor(α + m/B). Events of one moment run in the order in which they were scheduled; events that are
// added to the current moment run last. The arrival of a transmission is scheduled before the link's release.
//
// The k-th send and the k-th receive with the same (tag, source, destination, bytes) are one message.
// A send is complete on arrival; a receive is complete on arrival or when it is posted, whichever is later.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "model/routes.hpp"
#include "model/topology.hpp"
#include "simulate/astra_events.hpp"
#include "support/progress.hpp"

namespace tacos::astra {

using Nanoseconds = std::int64_t;

enum class Block : std::uint8_t { ring, fully_connected, switched };

struct Dimension {
  Block block;
  std::int32_t size;
  double bytes_per_ns, latency_ns;
};

// What to do when a message, a computation or a step of a collective is over. The kind determines the meaning of `who` and
// `row`, which the network passes back.
struct Handler {
  enum class Kind : std::uint8_t { none, node, stream, dataset, send_data, post_recv, memory };
  Kind kind = Kind::none;
  std::int32_t who = -1;
  std::uint32_t row = 0;
  std::int64_t bytes = 0;
};

struct Message {
  std::int32_t src = 0, dst = 0, tag = 0;
  std::int64_t bytes = 0;
  Nanoseconds sent = -1, arrived = -1;
  Handler on_send{}, on_recv{};
  bool posted = false;  // whether the receive is posted
  std::int32_t next_match = -1, next_on_link = -1;
  std::int64_t hop = 0, last_hop = 0;  // positions in the routes' links
};

// The intervals in which links were busy, ordered by begin.
struct HopLog {
  std::vector<std::int32_t> link, message;
  std::vector<Nanoseconds> begin, end;
};

class Listener {
 public:
  virtual ~Listener() = default;
  virtual void handle(std::int32_t rank, const Handler& handler) = 0;
};

class Network {
 public:
  // `record`: whether to keep all messages and hops, or only those in flight.
  Network(std::shared_ptr<const Topology> topology, std::vector<Dimension> dims, bool aware,
          bool record);

  // Announces the pairs that will communicate; the congestion-aware network finds their routes once.
  void prepare(std::vector<std::pair<std::int32_t, std::int32_t>> pairs, const Progress& progress);

  Nanoseconds now() const { return now_; }
  void send(std::int32_t src, std::int32_t dst, std::int64_t bytes, std::int32_t tag,
            const Handler& handler);
  void receive(std::int32_t dst, std::int32_t src, std::int64_t bytes, std::int32_t tag,
               const Handler& handler);
  // Calls a handler after a delay. All handlers of one rank at one moment run together, at the place of the first.
  void later(std::int32_t rank, Nanoseconds delay, const Handler& handler);

  // Runs until no events are left. Calls `report` from time to time.
  template <typename Report>
  void run(Listener& listener, Report&& report);

  // All messages; without a record, those without a receive and some finished ones.
  const std::vector<Message>& messages() const { return messages_; }
  HopLog& hops() { return hops_; }

 private:
  enum class EventKind : std::uint8_t { arrival, link_free, posted, calls };
  struct Event {
    std::int32_t what;  // a message, link or rank
    EventKind kind;
  };
  struct Link {
    double bytes_per_ns = 0, latency_ns = 0;
    bool busy = false;
    std::int32_t first = -1, last = -1;  // waiting messages
  };
  // Messages of which only the send or only the receive is posted, by key, in order. A hash table with open addressing.
  class Unmatched {
   public:
    struct Entry {
      std::int64_t bytes = 0;
      std::int32_t tag = 0, src = 0, dst = 0;
      std::int32_t first = -1, last = -1;  // messages; -1: the entry is free

      bool same(const Entry& other) const {
        return bytes == other.bytes && tag == other.tag && src == other.src && dst == other.dst;
      }
    };
    // The entry of a key; adds it if it is missing.
    Entry& at(const Entry& key);
    void erase(Entry& entry);

   private:
    std::size_t home(const Entry& key) const;
    std::vector<Entry> entries_ = std::vector<Entry>(64);
    std::size_t used_ = 0;
  };
  // The calls of one rank at one moment, in their order.
  struct Calls {
    Nanoseconds time;
    std::int32_t first, last;  // in handlers_
  };
  struct Call {
    Handler handler;
    std::int32_t next = -1;
  };

  // The first message with this key whose other side is posted, or a new message.
  std::int32_t match(const Unmatched::Entry& key, bool sending);
  void schedule(Nanoseconds delay, EventKind kind, std::int32_t what);
  Nanoseconds unaware_delay(const Message& message) const;
  void enter_link(std::int32_t number);
  void transmit(std::int32_t link, std::int32_t number);
  void release(std::int32_t link);
  void deliver(std::int32_t number, Listener& listener);
  void call(std::int32_t rank, Listener& listener);
  void recycle(std::int32_t number);
  RouteId route(std::int32_t src, std::int32_t dst) const;

  std::shared_ptr<const Topology> topology_;
  std::vector<Dimension> dims_;
  bool aware_, record_;
  Nanoseconds now_ = 0;
  EventQueue<Event> events_;
  std::vector<Link> links_;
  std::unique_ptr<Routes> routes_;
  std::vector<RouteId> route_table_;                     // by src · NPUs + dst, for small networks
  std::unordered_map<std::uint64_t, RouteId> route_of_;  // otherwise, by src · 2^32 + dst
  std::vector<Message> messages_;
  std::vector<std::int32_t> over_;  // finished messages, whose places are free
  Unmatched unmatched_;
  std::vector<std::vector<Calls>> calls_;  // by rank
  std::vector<Call> call_pool_;
  std::int32_t free_call_ = -1;
  HopLog hops_;
};

template <typename Report>
void Network::run(Listener& listener, Report&& report) {
  std::uint64_t count = 0;
  while (!events_.empty()) {
    now_ = events_.next_time();
    events_.run_next([&](const Event& event) {
      switch (event.kind) {
        case EventKind::arrival: {
          Message& message = messages_[static_cast<std::size_t>(event.what)];
          if (++message.hop < message.last_hop) {
            enter_link(event.what);
          } else {
            deliver(event.what, listener);
          }
          break;
        }
        case EventKind::link_free:
          release(event.what);
          break;
        case EventKind::posted: {
          const Message& message = messages_[static_cast<std::size_t>(event.what)];
          const Handler handler = message.on_recv;  // a copy, because messages_ may be reallocated
          const auto dst = message.dst;
          recycle(event.what);
          listener.handle(dst, handler);
          break;
        }
        case EventKind::calls:
          call(event.what, listener);
          break;
      }
      if ((++count & 0xffff) == 0) report();
    });
  }
}

}  // namespace tacos::astra
