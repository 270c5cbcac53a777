// What a rank observes about its peers while data move: the speed of each link, and which ranks keep others waiting.
//
// There is no clock and no I/O here: an endpoint reports events with their times. A link is slow if, for some time, every
// message took more than twice as long as usual. The usual speed is learned separately for each algorithm, since algorithms
// share links differently. A rank is slow if it spends more time outside of calls than the others do; waiting for a slow link
// does not count.
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
      : value_(value) {}  // NOLINT(google-explicit-constructor): used like its value
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

constexpr double kSlower = 2.0;  // times the usual duration: reported as slow (chosen)

enum class LinkState : std::uint8_t { usual, slow, fast };

// The speed of one link, message by message.
class LinkWatch {
 public:
  // Sets the expected speed in bytes per second and resets the watch. `known`: this is the link's measured speed, so a higher
  // speed is reported too. Otherwise it is the least speed that the link should have, and the usual speed is learned.
  void expect(double rate, bool known);
  // Records that bytes of a message of this algorithm took some seconds, until now; returns whether the state has changed.
  bool add(std::int32_t algorithm, double bytes, double seconds, double now);

  // Restarts the trend: a message had arrived before the rank looked, so the link may be fine.
  void doubt() { count_ = 0; }

  LinkState state() const { return state_; }
  double rate() const { return rate_; }     // speed of the latest messages
  double usual() const { return wanted_; }  // the speed to compare with; 0: not known yet

 private:
  struct Learned {
    std::vector<double> first;  // the first few, whose median is used
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

// Compares the time that ranks spend outside of calls, over several calls and at least kPeriod.
class RankWatch {
 public:
  // Records how many seconds this rank was outside of calls before the call that starts now.
  void start(double away, double now);
  // Records the same for a peer, as it reported; at most once per call.
  void hear(std::int32_t peer, double away);
  // At the end of a call: returns whether a peer has become slow or has recovered.
  bool judge(double now);

  struct Peer {
    double away = 0;   // total seconds outside of calls
    double share = 0;  // share of the last period that others waited for it
    double period = 0;
    int calls = 0;
    bool slow = false, known = false;
  };
  std::span<const Peer> peers() const {
    return peers_;
  }  // by rank; peers that have reported nothing are not `known`
  double away() const { return total_; }

 private:
  std::vector<Peer> peers_;
  double total_ = 0, period_ = 0, begin_ = -1;
  int calls_ = 0;
};

}  // namespace tacos
