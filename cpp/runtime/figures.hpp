// What a rank notices about its peers while data move: how fast each link is, and who keeps others waiting.
//
// No clock and no I/O: an endpoint tells what happened and when. A link is slow when every message of some time took more
// than twice as long as usual; the usual speed is learned, for each algorithm its own, since algorithms share links differently.
// A rank is slow when it spends more time away from calls than the others do; a rank that only waits for a slow link does not.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tacos {

// A number that one thread writes and others may read.
template <typename T>
class Seen {
 public:
  Seen(T value = T{})
      : value_(value) {}  // NOLINT(google-explicit-constructor): it stands for its value
  operator T() const {
    return value_.load(std::memory_order_relaxed);
  }  // NOLINT(google-explicit-constructor)
  T operator=(T value) {
    value_.store(value, std::memory_order_relaxed);
    return value;
  }
  void operator+=(T more) { *this = *this + more; }

 private:
  std::atomic<T> value_;
};

constexpr double kSlower = 2.0;  // times the usual: that is worth a report

enum class LinkState : std::uint8_t { usual, slow, fast };

// The speed of one link, message by message.
class LinkWatch {
 public:
  // What to expect, in bytes per second. `known`: that is what the link was found to have, and more is news; else it is
  // the least that it should have, and the usual speed is learned. Starts anew.
  void expect(double rate, bool known);
  // Bytes of a message of this algorithm came within some seconds, until now; returns whether the state has changed.
  bool add(std::int32_t algorithm, double bytes, double seconds, double now);

  // A message was there before anybody looked, so that the link may be well: a trend must begin anew.
  void doubt() { count_ = 0; }

  LinkState state() const { return state_; }
  double rate() const { return rate_; }     // of the latest messages
  double usual() const { return wanted_; }  // what they are compared with; 0: not known yet

 private:
  struct Learned {
    std::vector<double> first;  // the first few, of which the median counts
    double usual = 0;
  };
  double learned(std::int32_t algorithm, double rate);

  double expected_ = 0;
  bool known_ = false;
  std::vector<Learned> learned_;  // by algorithm
  Seen<LinkState> state_ = LinkState::usual;
  LinkState trend_ = LinkState::usual;
  Seen<double> rate_, wanted_;
  double since_ = 0;  // when the first message of the trend began
  int count_ = 0;     // messages of the trend
};

// Time that ranks are away from calls, compared over some calls and some time.
class RankWatch {
 public:
  // Notes how many seconds this rank was away before the call that starts now.
  void start(double away, double now);
  // A peer says the same of itself; at most once in a call.
  void hear(std::int32_t peer, double away);
  // At the end of a call: whether some peer has become slow or is slow no more.
  bool judge(double now);

  struct Peer {
    double away = 0;   // in all
    double share = 0;  // of the last period: time that others waited for it
    double period = 0;
    int calls = 0;
    bool slow = false, known = false;
  };
  std::span<const Peer> peers() const {
    return peers_;
  }  // by number; those never heard of are not `known`
  double away() const { return total_; }

 private:
  std::vector<Peer> peers_;
  double total_ = 0, period_ = 0, begin_ = -1;
  int calls_ = 0;
};

}  // namespace tacos
