// Messages that share links fairly, and when the last byte of each has been sent.
//
// A place is a fixed list of links that carries one message at a time. Messages in flight have
// max-min fair rates: a message has the same rate on all its links, and no rate can grow without
// shrinking one that is not larger. Progressive filling finds them: the link that can give its
// messages the least, capacity over messages, fixes their rates; they leave the problem together
// with what they use of other links; and so on with the rest. Rates depend only on which places are
// in use, so a place that ends one message and begins the next at the same moment changes nothing.
//
// When another place begins or ends, rates are repaired. Of a link that fixes the rates of messages,
// the key is that rate. A link's key follows from its capacity and the keys of the other links of its
// messages: a message whose other links have a smaller key takes that much; the rest is divided. Only
// smaller keys matter, so there is one solution, and repairing links in the order of min(key so far,
// key it should have) never has to take a repaired link back. Mostly few keys change. A repair that
// takes longer than filling is given up, and the places that are connected through shared links are
// filled anew.
//
// Arithmetic. All numbers are integers, so results are the same on every machine and do not depend
// on the order of summation. The unit of work is 2^-shift / 10^12 bytes: a link of B bytes per second
// does B·2^shift units per picosecond, and a message has bytes·10^12·2^shift units. A fair share is
// mostly not a whole number of units, so every rate is bracketed: `low` and `high` enclose the exact
// rate, and are equal where the divisions come out even. What a message leaves of a link is computed
// from both ends. Messages progress at `high`: rounding never makes a message end a picosecond late
// that would exactly end at a whole picosecond. `shift` leaves 2 bits above the fastest link: rates
// are exact to a relative error of about 10^-16 of the fastest link, times the number of messages.
// Ends are rounded up to whole picoseconds. A message alone on its links takes exactly
// transmission_time() of the slowest one.
//
// Three kinds of places, which agree exactly on what both can do:
//   alone   its links belong to no other place: the rate is known beforehand;
//   single  one link, which belongs only to places of one link: all messages of the link have one
//           rate, so a virtual time orders their ends, and an event costs O(log n) of n messages;
//   mixed   everything else: progressive filling over the connected places.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "model/topology.hpp"
#include "simulate/speeds.hpp"
#include "support/index.hpp"

namespace tacos::simulation {

// The earliest of many times that keep changing: a tree of minima, brought up to date in bulk.
class Earliest {
 public:
  explicit Earliest(std::size_t count);

  void set(std::uint32_t i, Time time) {
    if (levels_[0][i] == time) return;
    levels_[0][i] = time;
    mark(1, i / kWidth);
  }
  Time first();
  // Appends all entries whose time is first(), in order of their numbers.
  void collect(std::vector<std::uint32_t>& out);

 private:
  static constexpr std::uint32_t kWidth = 16;

  void mark(std::size_t level, std::uint32_t node) {
    if (stale_[level][node] != 0) return;
    stale_[level][node] = 1;
    queue_[level].push_back(node);
  }

  std::vector<std::vector<Time>> levels_;  // padded with kNever to whole groups; the last has one
  std::vector<std::vector<std::uint8_t>> stale_;
  std::vector<std::vector<std::uint32_t>> queue_;
};

class FairShare {
 public:
  using Place = std::uint32_t;

  // Place p uses links[begin[p]] to links[begin[p + 1] - 1], none twice. `changes` are the links
  // that are slow at times.
  FairShare(const Topology& topology, std::vector<std::uint32_t> begin, std::vector<LinkId> links,
            const std::unordered_map<LinkId, std::vector<Change>>& changes);

  // Begins a message of at least one byte over a place that carries none.
  void start(Place place, std::int64_t bytes, Time now);
  // Gives everything in flight its rate. To be called when all that happens at `now` has happened.
  void settle(Time now);
  // The next time at which a message ends or a link in use may change its speed, or kNever.
  Time next();
  // Appends the places whose messages end at `now`, which is at most next(), in order.
  void take(Time now, std::vector<Place>& ended);
  // A place that carries a message.
  Place some_in_flight() const;

 private:
  using Work = __int128;
  enum class Kind : std::uint8_t { alone, single, mixed };
  enum class State : std::uint8_t { idle, starting, running, ending };
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
  static constexpr std::uint64_t kOpen = std::numeric_limits<std::uint64_t>::max();

  struct Flow {
    Work left = 0;
    Time since = 0;  // when `left` was right
    std::uint64_t rate = 0;
    Kind kind = Kind::mixed;
    State state = State::idle;
  };
  struct Link {
    std::uint64_t capacity = 0;
    std::uint32_t changed = 0;  // the repair that changed its key
    std::uint64_t looked = 0;   // the change of a neighbour's key that it was told of
    // The rate that the link fixes, from below and from above; kOpen if it fixes none.
    std::uint64_t key = kOpen, key_low = kOpen;
    std::uint64_t goal = kOpen, goal_low = kOpen;  // while repairing: what they should be
    std::uint32_t touched = 0;
    std::uint32_t alone = kNone;   // the place that has the link alone
    std::uint32_t shared = kNone;  // index into shared_, if it is of the single kind
  };
  // A link while filling: what is left of its capacity, and messages without a rate.
  struct Filling {
    std::uint64_t low = 0, high = 0;
    std::uint32_t open = 0;
    std::uint32_t found = 0;  // by which filling
  };
  // A link with places of the single kind only. `work` is what each message in flight for all the
  // time has done since the beginning; a message ends when it reaches the message's own mark.
  struct Shared {
    LinkId link;
    std::uint32_t entry;  // in ends_
    std::uint64_t rate = 0;
    Work work = 0;
    Time since = 0;
    bool stale = false;
    std::vector<std::pair<Work, Place>> marks;  // a heap
  };

  std::span<const LinkId> links_of(Place place) const {
    return std::span(links_).subspan(begin_[place], begin_[place + 1] - begin_[place]);
  }
  Work work_of(std::int64_t bytes) const;
  // When `work` units at `rate` are done, rounded up.
  static Time end_of(Time now, Work work, std::uint64_t rate);
  void set_rate(Place place, std::uint64_t rate, Time now);
  void settle_shared(Shared& shared, Time now);
  void list(Place place);
  void unlist(Place place);
  void touch(LinkId link);
  void fill(Time now);
  // Returns false, with keys half repaired, if it takes too long.
  bool repair(Time now);
  void find_goal(LinkId id);
  void apply_changes(Time now);

  std::vector<std::uint32_t> begin_;
  std::vector<LinkId> links_;
  int shift_ = 0;
  std::vector<Flow> flows_;
  std::vector<std::uint32_t> found_,
      fixed_;                     // per place: the filling that found it, that fixed its rate
  std::vector<Link> state_;       // per link
  std::vector<Filling> filling_;  // per link
  std::vector<Shared> shared_;
  Earliest ends_;  // per place; of a single kind the first place of the link speaks
  std::size_t in_flight_ = 0;
  std::vector<std::uint32_t> ended_;      // scratch
  std::vector<Place> changed_;            // mixed places that began or ended since the last settle
  std::vector<std::uint32_t> unsettled_;  // of shared_
  // The mixed places in use, per link, and where each stands in the lists of its links.
  struct Use {
    Place place;
    std::uint32_t index;  // into links_
  };
  std::vector<std::vector<Use>> users_;
  std::vector<std::uint32_t> slot_;
  std::uint32_t touch_round_ = 1, fill_round_ = 0, repair_round_ = 0;
  std::size_t listed_ = 0;  // links of the mixed places in use
  std::size_t spent_ = 0;   // by the repair, in links looked at
  std::uint32_t pause_ = 0,
                pauses_ = 0;  // fillings still to come without a repair, and at the next failure
  struct Other {
    std::uint64_t key, low;
    LinkId link;
  };
  std::vector<Other> others_;
  std::vector<LinkId> changed_links_, neighbours_;
  std::uint64_t look_round_ = 0;
  std::vector<LinkId> touched_, component_;
  std::vector<std::pair<std::uint64_t, LinkId>> heap_;
  // Changes of speed still to come, by time.
  struct Shift {
    Time time;
    LinkId link;
    std::uint64_t capacity;
  };
  std::vector<Shift> shifts_;
  std::size_t next_shift_ = 0;
};

}  // namespace tacos::simulation
