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
// key it should have) never has to take a repaired link back. Mostly few keys change.
//
// A repair that takes too long is given up, and filling resumes instead: what is filled before the first link
// whose key changes stays. Only links that fix rates, or that have new messages, take part: the rest of the
// links have capacity to spare. If one of them is given more than it has, it takes part as well, and filling
// resumes from its share.
//
// Most events change the rates of many messages, but of hardly any message the link that fixes its rate. Two things
// follow. A virtual time per link orders the ends of the messages whose rates it fixes. And before filling resumes,
// all keys above the first that changes are computed from the present assignment of messages to links, in order:
// a link whose key is not above that of one of its messages takes the message over, and the keys are computed again
// from where it came from. What needs no more passes obeys the rule above, and is the solution.
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
//
// A place may take only a share of a message's rate on a link, where messages divide over several paths. Each link counts in
// the smallest unit of which all its shares are multiples: its capacity is in these units, a place takes as many as its
// weight, and a key still is the rate of whole messages. Links with the same places and shares, such as the uplinks of a
// leaf, fix the same rates, so only the slowest of them takes part.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "model/routes.hpp"
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

  // Place p uses links[begin[p]] to links[begin[p + 1] - 1], none twice, and of each the share; no shares: all are
  // whole. `changes` are the links that are slow at times.
  FairShare(const Topology& topology, std::vector<std::uint32_t> begin, std::vector<LinkId> links,
            std::vector<Routes::Share> shares,
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

  // The number of messages and links looked at since the last call: the work of finding rates.
  std::size_t take_looked_at() { return std::exchange(looked_at_, 0); }

 private:
  using Work = __int128;
  enum class Kind : std::uint8_t { alone, single, mixed };
  enum class State : std::uint8_t { idle, starting, running, ending };
  static constexpr LinkId kNoLink = -1;
  static constexpr std::size_t kShort = 8;  // links of a message that are kept together; chosen
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
  static constexpr std::uint64_t kOpen = std::numeric_limits<std::uint64_t>::max();

  struct Flow {
    Work left = 0;
    Time since = 0;  // when `left` was right
    std::uint64_t rate = 0;
    std::uint32_t runner = kNone;  // index into runners_, if it is of the mixed kind and in flight
    Kind kind = Kind::mixed;
    State state = State::idle;
  };
  // A rate, from above and from below. A link's key is kOpen if it fixes no rate.
  struct Key {
    std::uint64_t high = kOpen, low = kOpen;
    bool operator==(const Key&) const = default;
  };
  // A message of the mixed kind. Those in flight are kept together, since filling goes over them again and again.
  struct alignas(32) Runner {
    // It ends when the work of its link reaches this. Before it has a link: all its work.
    Work mark = 0;
    LinkId by = kNoLink;  // the link that fixes its rate, or without_rate(link) while it is opened
    Place place = kNone;
    std::uint32_t begin = 0, count = 0;  // its links, in links_
  };
  // A message whose rate that link fixed last; also the way back.
  static LinkId without_rate(LinkId by) { return -2 - by; }
  // A link that fixes rates, as those whose rate it fixes see it: `work` is what each has done since the beginning.
  struct Pace {
    Work work = 0;
    Time since = 0;                                     // when `work` was right
    Key before{0, 0};                                   // the key before the event
    bool stale = false;                                 // in to_renew_
    std::vector<std::pair<Work, std::uint32_t>> marks;  // a heap, with some that have left
  };
  // What a link has to give while it is filled. The first three mean nothing, and may wrap around, in a link that
  // does not take part, so that no other code has to check for it.
  struct alignas(32) Room {
    std::uint64_t high = 0, low = 0;  // what the messages with a rate leave of the capacity
    std::uint64_t open = 0;           // messages without a rate
    // What all messages leave of the capacity, in coarse units (coarse_) and rounded down: below zero where links
    // that had some to spare are given too much, and perhaps where nothing is left. Links that fix rates have more.
    std::int64_t spare = 0;
  };
  struct Link {
    std::uint32_t touched = 0;  // the settling before which its messages or its capacity changed
    std::uint32_t found = 0;    // the filling that found it
    bool fixes = false;         // whether it has a key
    bool listed = false;        // in fixing_
  };
  // A link while repairing.
  struct Repaired {
    Key goal;                   // what the key should be
    std::uint64_t looked = 0;   // the change of a neighbour's key that it was told of
    std::uint32_t changed = 0;  // the repair that changed its key
  };
  // A link with places of the single kind only. `work` is what each message in flight for all the
  // time has done since the beginning; a message ends when it reaches the message's own mark.
  struct Shared {
    LinkId link;
    std::uint64_t rate = 0;
    Work work = 0;
    Time since = 0;
    bool stale = false;
    std::vector<std::pair<Work, Place>> marks;  // a heap
  };

  std::span<const LinkId> links_of(Place place) const {
    return std::span(links_).subspan(begin_[place], begin_[place + 1] - begin_[place]);
  }
  // The links of a message of the mixed kind.
  std::span<const LinkId> way_of(std::uint32_t id) const {
    const auto& [mark, by, place, begin, count] = runners_[id];
    return {count <= kShort ? ways_[id].data() : links_.data() + begin, count};
  }
  Work work_of(std::int64_t bytes) const;
  // When `work` units at `rate` are done, rounded up.
  static Time end_of(Time now, Work work, std::uint64_t rate);
  std::uint64_t rate_alone(Place place) const;
  void set_rate(Place place, std::uint64_t rate, Time now);
  // Brings a link's work up to date.
  void advance(LinkId id, Time now) { advance(paces_[at(id)], keys_[at(id)], now); }
  static void advance(Pace& pace, const Key& key, Time now);
  // Puts a message under the link that fixes its rate from now on; both links have been brought up to date.
  void join(std::uint32_t id, LinkId by);
  bool has_left(LinkId id, const std::pair<Work, std::uint32_t>& mark) const {
    const Runner& runner = runners_[mark.second];
    return (runner.by != id && runner.by != without_rate(id)) || runner.mark != mark.first;
  }
  // To be called when a link's key or messages have changed: finds out later which of them ends first.
  void renew_end(LinkId id);
  void renew_ends();
  void settle_shared(std::uint32_t id, Time now);
  // Leaves out links that cannot limit any place more than another link does, and finds the units of the rest.
  void weigh(const Topology& topology, std::vector<Routes::Share> shares,
             const std::unordered_map<LinkId, std::vector<Change>>& changes);
  // How many of its link's units the place at this index of links_ takes.
  std::uint64_t weight(std::uint32_t index) const { return weights_.empty() ? 1 : weights_[index]; }
  void list(Place place);
  void unlist(Place place);
  void touch(LinkId link);
  // The share of a link whose messages, `others_`, are fixed elsewhere at those rates, from above and from below.
  Key pour(LinkId id);
  // A rate in coarse units, rounded up.
  std::int64_t coarsely(std::uint64_t rate) const {
    return static_cast<std::int64_t>((rate + (std::uint64_t{1} << coarse_) - 1) >> coarse_);
  }
  // Gives all messages of a link that have no rate its key.
  void fix(LinkId id);
  // Take the rates of at least a level away from the messages of a link, and find the messages without one. Both
  // return a part of `chosen_`.
  std::span<const std::uint32_t> open(LinkId id, std::uint64_t level);
  std::span<const std::uint32_t> opened(LinkId id);
  // Takes this more, in coarse units, from what the links of a message have to spare; below zero if one has too little.
  std::int64_t spend(std::uint32_t id, std::int64_t more);
  // Whether the messages of a link have been given more than it has.
  bool overloaded(LinkId id) const;
  // Gives all messages of the mixed kind their rates after what has happened to the touched links.
  void find_rates(Time now);
  // Fills the touched links from `first` on.
  void fill(std::size_t first, Time now);
  // The same, and all that follows, anew from a level on.
  void resume(std::size_t first, std::uint64_t level, Time now);
  std::uint64_t share_of(LinkId id);
  void set_fixes(LinkId id, bool fixes);
  void find_component(std::size_t first, std::uint64_t level);
  // Returns false, with nothing changed, if it takes too long.
  bool repair(Time now);
  // Finds the keys, given that nearly every message keeps the link that fixes its rate. Returns false, with nothing
  // changed, if too many do not.
  bool keep(Time now);
  // The key of a link, given the links in guess_, of which it takes messages over. It is 0 if that does not do.
  Key kept_key(LinkId id);
  // Remove those from fixing_ that do not fix rates any more, and sort it by the keys.
  void purge_fixing();
  void sort_fixing();
  bool before(LinkId a, LinkId b) const {
    return std::tie(keys_[at(a)].high, a) < std::tie(keys_[at(b)].high, b);
  }
  // Touches the links among those of the messages in `crowded_` that have been given more than they have.
  void touch_overloaded();
  void find_goal(LinkId id);
  void apply_changes(Time now);

  std::vector<std::uint32_t> begin_;
  std::vector<LinkId> links_;
  std::vector<std::uint32_t> weights_;  // per entry of links_, if some are not 1
  std::vector<std::uint64_t> units_;  // per link: the units that make up a whole message; empty: 1
  int shift_ = 0;
  std::vector<Flow> flows_;
  std::vector<std::uint64_t> capacity_;  // per link
  std::vector<std::uint32_t> alone_;     // per link: the place that has it alone, or kNone
  std::vector<std::uint32_t> one_;  // per link of the single kind: its index in shared_, or kNone
  int coarse_ = 0;                  // a coarse unit of rates is 2^coarse_ of them
  std::vector<Room> rooms_;         // per link
  std::vector<Link> state_;         // per link
  std::vector<Key> keys_;           // per link
  std::vector<Repaired> repaired_;  // per link
  std::vector<Shared> shared_;
  Earliest ends_;         // per place that is alone
  Earliest shared_ends_;  // per link with places of the single kind only
  Earliest run_ends_;     // per link that fixes rates: the first of its messages
  std::size_t in_flight_ = 0;
  std::vector<std::uint32_t> ended_;      // scratch
  std::vector<Place> changed_;            // mixed places that began or ended since the last settle
  std::vector<std::uint32_t> unsettled_;  // of shared_
  // The mixed places in use, per link, and where each stands in the lists of its links.
  struct Use {
    std::uint32_t runner;
    std::uint32_t index;  // into links_
  };
  std::vector<Runner> runners_;
  std::vector<std::uint32_t> seen_;  // per runner: the last repair that gave it a rate
  std::vector<Pace> paces_;          // per link
  std::vector<LinkId> to_renew_;     // the links of which the first to end is not known
  std::vector<std::array<LinkId, kShort>> ways_;  // per runner: its links, if they are few
  std::vector<std::uint32_t> free_runners_, chosen_;
  std::vector<std::vector<Use>> users_;
  std::vector<std::uint32_t> slot_;
  std::uint32_t touch_round_ = 1, fill_round_ = 0, repair_round_ = 0;
  std::size_t listed_ = 0;             // links of the mixed places in use
  std::size_t spent_ = 0;              // by the repair, in links looked at
  mutable std::size_t looked_at_ = 0;  // messages of links, in all, since they were counted as work
  std::uint32_t pause_ = 0,
                pauses_ = 0;  // fillings still to come without a repair, and at the next failure
  struct Other {
    Key key;
    LinkId link = 0;
    std::uint64_t weight = 1;
  };
  std::vector<Other> others_;
  std::vector<std::pair<LinkId, Key>> kept_;  // the keys before the repair
  std::vector<LinkId> neighbours_;
  std::uint64_t look_round_ = 0;
  std::vector<LinkId> touched_, component_;
  std::vector<std::pair<std::uint64_t, LinkId>> heap_;
  std::vector<LinkId> waiting_;        // to be filled, in order of their numbers
  std::vector<std::uint64_t> shares_;  // theirs when last computed, or kOpen when done
  struct Block {
    std::uint64_t share, index;
  };
  std::vector<Block> blocks_;             // the least share in each block
  std::vector<std::uint32_t> crowded_;    // runners on a link that may have been given too much
  std::vector<std::uint32_t> newcomers_;  // runners without a rate
  std::vector<std::uint32_t> moved_;      // runners whose link in guess_ is another one
  std::vector<LinkId> guess_;             // per runner: `by`, or what it may become
  std::vector<LinkId> fixing_;            // all links that fix rates, and some that did
  std::uint32_t connected_ = 0;  // fillings for which links above a level are taken to be connected
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
