#include "synth/leaders.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <queue>
#include <random>
#include <utility>

#include "support/error.hpp"
#include "support/index.hpp"
#include "support/work.hpp"
#include "synth/relays.hpp"
#include "synth/timed_hops.hpp"
#include "timing/compose.hpp"
#include "timing/retime.hpp"

namespace tacos {

namespace {

constexpr Time kNever = std::numeric_limits<Time>::max();
constexpr int kMostDelays = 60;    // of the time at which leaders begin to exchange
constexpr std::size_t kTried = 6;  // sets of leaders tried for one chunk
constexpr std::size_t kTriedAgain = 2;
constexpr std::size_t kPatience = 30;   // moves per chunk that do not shorten the schedule
constexpr std::size_t kMostAtOnce = 6;  // chunks that are laid again together

struct Sent {
  RouteId hop;
  Time start, arrival;
  Op op;
};

struct Laid {
  std::vector<Sent> sent;
  Time collected = 0;  // when the last sum has arrived at a leader
  Time end = kNever;
};

class ChunkPlacer {
 public:
  ChunkPlacer(const std::shared_ptr<const Topology>& topology,
              const std::shared_ptr<const Collective>& collective, std::span<const Leaders> choices,
              const LeaderOptions& options, const Progress& progress)
      : collective_(collective),
        sums_(collective->parts()[0].kind == CollectiveKind::all_reduce),
        choices_(choices),
        first_(options.first > 0 ? options.first : choices.size()),
        options_(options),
        random_(options.seed),
        time_of_(at(topology->nodes()), kNever),
        members_(collective->parts()[0].group.begin(), collective->parts()[0].group.end()),
        hops_(topology, members_, std::max<std::int64_t>(largest(*collective), 1), progress),
        relays_(hops_, topology->nodes()) {}

  void run(const Progress& progress) {
    for (ChunkId chunk = 0; chunk < collective_->chunks(); ++chunk) {
      if (progress) progress(0.0);
      if (collective_->bytes(chunk) == 0) continue;
      chunks_.push_back(chunk);
      laid_.emplace_back();
    }
    hops_.looked_at = 0;
    std::int64_t spent = 0;
    for (std::size_t i = 0; i < chunks_.size(); ++i) {
      if (progress) progress(0.0);
      if (i == 0 && soonest_.empty()) measure(chunks_[i], progress, spent);
      lay_best(i, first_, kTried, kNever);
      if (laid_[i].end == kNever)
        throw InfeasibleError("the members cannot reach the leaders from neighbour to neighbour");
      if (options_.most > 0 && laid_[i].end > options_.most)
        throw InfeasibleError("these leaders take longer than allowed");
      spend(progress, spent);
    }
    hops_.looked_at = 0;
    improve(progress);
  }

  Schedule result(std::string provenance, const Progress& progress) const {
    std::vector<RouteId> route;
    std::vector<ChunkId> chunk;
    std::vector<std::uint8_t> op;
    std::vector<Time> start;
    for (std::size_t i = 0; i < chunks_.size(); ++i) {
      for (const auto& one : laid_[i].sent) {
        route.push_back(one.hop);
        chunk.push_back(chunks_[i]);
        op.push_back(static_cast<std::uint8_t>(one.op));
        start.push_back(one.start);
      }
    }
    const std::vector<std::uint8_t> reads(route.size(), static_cast<std::uint8_t>(Reads::acc));
    const auto step = dense_rank(start);
    const Order order{route, chunk, step, op, reads};
    auto found = at_starts(collective_, hops_.routes(), order, start, provenance);
    if (found) return std::move(*found);
    // What a leader has summed when it sends depends on the starts, which retiming would not keep.
    if (std::find(op.begin(), op.end(), static_cast<std::uint8_t>(Op::reduce)) != op.end()) {
      throw InfeasibleError(
          "the schedule takes too long for its times to be kept to the picosecond");
    }
    return retime(collective_, hops_.routes(), order, std::move(provenance), progress);
  }

 private:
  // Counts the hops that were looked at since `spent`.
  void spend(const Progress& progress, std::int64_t& spent) const {
    progress.spend(static_cast<double>(hops_.looked_at - std::exchange(spent, hops_.looked_at)) *
                   work::kGap);
  }

  static std::int64_t largest(const Collective& collective) {
    std::int64_t bytes = 0;
    for (ChunkId chunk = 0; chunk < collective.chunks(); ++chunk)
      bytes = std::max(bytes, collective.bytes(chunk));
    return bytes;
  }

  // --- one chunk ---

  void send(RouteId hop, Time start, Op op, Laid& laid) {
    hops_.take(hop, start);
    laid.sent.push_back({hop, start, start + hops_.flight(hop), op});
    relays_.read(hops_.source(hop), start);
  }

  struct Offer {
    Time key;  // the least comes first
    std::uint64_t tie;
    Time start;
    RouteId hop;
    bool operator>(const Offer& other) const {
      return std::pair(key, tie) > std::pair(other.key, other.tie);
    }
  };
  using Offers = std::priority_queue<Offer, std::vector<Offer>, std::greater<>>;

  // Joins all members to `roots`, whose times are in time_of_. Next joins the member that a hop reaches first or, backwards
  // in time, the member that can leave last. Returns the time of the last one, negative if it would have to leave before
  // 0, or kNever if some member cannot join.
  Time join(std::span<const NodeId> roots, bool straight, bool backwards, Laid& laid) {
    Offers offers;
    const auto offer = [&](RouteId hop) {
      const Time flight = hops_.flight(hop);
      if (backwards) {
        const Time start = hops_.free_start(hop, time_of_[at(hops_.target(hop))] - flight, true);
        offers.push({-start, random_(), start, hop});
      } else {
        const Time start = relays_.free_arrival(hop, time_of_[at(hops_.source(hop))]);
        offers.push({start + flight, random_(), start, hop});
      }
    };
    const auto joining = [&](RouteId hop) {
      return backwards ? hops_.source(hop) : hops_.target(hop);
    };
    const auto reach = [&](NodeId npu) {
      for (const RouteId hop : backwards ? hops_.in(npu, straight) : hops_.out(npu, straight)) {
        if (time_of_[at(joining(hop))] == kNever) offer(hop);
      }
    };
    auto missing = members_.size() - roots.size();
    Time last = 0;
    for (const NodeId npu : roots) reach(npu);
    while (missing > 0 && !offers.empty()) {
      const Offer best = offers.top();
      offers.pop();
      const NodeId npu = joining(best.hop);
      if (time_of_[at(npu)] != kNever) continue;
      if (hops_.free_start(best.hop, best.start, backwards) != best.start) {  // taken since
        offer(best.hop);
        continue;
      }
      if (backwards && best.start < 0) return best.start;
      send(best.hop, best.start, backwards ? Op::reduce : Op::copy, laid);
      time_of_[at(npu)] = backwards ? best.start : laid.sent.back().arrival;
      last = time_of_[at(npu)];
      --missing;
      reach(npu);
    }
    return missing == 0 ? last : kNever;
  }

  void forget() {
    for (const NodeId npu : members_) time_of_[at(npu)] = kNever;
  }

  void undo(Laid& laid) {
    for (const auto& one : laid.sent) hops_.give_back(one.hop, one.start);
    laid.sent.clear();
    laid.end = kNever;
  }

  std::optional<RouteId> hop_between(NodeId from, NodeId to, Time moment) {
    std::optional<RouteId> best;
    Time first = kNever;
    for (const RouteId hop : hops_.out(from, false)) {
      if (hops_.target(hop) != to) continue;
      const Time arrival = hops_.free_start(hop, moment, false) + hops_.flight(hop);
      if (arrival < first) first = arrival, best = hop;
    }
    return best;
  }

  // Sends over the hop that arrives first from `moment` on; false if there is none.
  bool send_between(NodeId from, NodeId to, Time moment, Op op, Laid& laid) {
    const auto hop = hop_between(from, to, moment);
    if (hop) send(*hop, hops_.free_start(*hop, moment, false), op, laid);
    return hop.has_value();
  }

  // The first leader adds up and sends the sum to the others. Sets time_of_ to when each leader has it.
  bool meet_at_first(const Leaders& leaders, Time begin, Laid& laid) {
    Time complete = begin;
    for (std::size_t i = 1; i < leaders.npus.size(); ++i) {
      if (!send_between(leaders.npus[i], leaders.npus[0], begin, Op::reduce, laid)) return false;
      complete = std::max(complete, laid.sent.back().arrival);
    }
    forget();
    time_of_[at(leaders.npus[0])] = complete;
    for (std::size_t i = 1; i < leaders.npus.size(); ++i) {
      if (!send_between(leaders.npus[0], leaders.npus[i], complete, Op::copy, laid)) return false;
      time_of_[at(leaders.npus[i])] = laid.sent.back().arrival;
    }
    return true;
  }

  // Every leader sends its sum to all receivers, from `begin` on. A receiver that is not a leader has sent its sum to one, so the
  // first message overwrites it. Sets time_of_ to when each receiver has the full sum. Returns false if a sum would arrive
  // before its receiver has sent its own.
  bool meet_at_receivers(const Leaders& leaders, Time begin, Laid& laid) {
    const auto& ends = leaders.receivers;
    if (leaders.npus.size() == 1 &&
        std::find(ends.begin(), ends.end(), leaders.npus[0]) == ends.end())
      return false;  // the only leader would get back what it has sent
    relays_.meet(leaders.npus, leaders.receivers);
    struct Message {
      Time flight;
      NodeId from, to;
    };
    std::vector<Message> messages;
    const auto count = leaders.receivers.size();
    for (std::size_t ahead = 0; ahead < count; ++ahead) {
      for (std::size_t i = 0; i < leaders.npus.size(); ++i) {
        const NodeId from = leaders.npus[i], to = leaders.receivers[(i + ahead) % count];
        if (from != to) messages.push_back({relays_.nearness(from, to), from, to});
      }
    }
    // Fast messages go last, and arrive after their receiver has sent all of its own.
    std::stable_sort(messages.begin(), messages.end(),
                     [](const auto& a, const auto& b) { return a.flight > b.flight; });
    struct Came {
      Time last = 0, first = kNever;
      std::size_t place = 0;  // of the first one's last hop
    };
    std::map<NodeId, Came> came;
    std::vector<std::pair<RouteId, Time>> way;
    // The leaders' fast messages, which are laid last, leave within the time in which one link would send all of them.
    const Time slow = messages.empty() ? 0 : messages.front().flight;
    std::map<NodeId, Time> fast;
    for (const auto& [flight, from, to] : messages) {
      if (flight < slow) fast[from] += hops_.longest();
    }
    bool fast_ones = false;
    for (const auto& [flight, from, to] : messages) {
      if (flight < slow && !fast_ones) {
        fast_ones = true;
        for (const auto& [npu, time] : fast) relays_.read(npu, begin + time);
      }
      auto& [last, first, place] = came[to];
      if (!relays_.find_way(from, to, begin, way)) return false;
      if (way.back().second + hops_.flight(way.back().first) == first) {
        // Two first messages would leave open which of them overwrites.
        relays_.read(to, first);
        relays_.find_way(from, to, begin, way);
      }
      for (const auto& [hop, start] : way) {
        send(hop, start, hops_.target(hop) == to ? Op::reduce : Op::copy, laid);
        if (hops_.target(hop) != to)
          relays_.pass_on(hops_.target(hop), from, laid.sent.back().arrival);
      }
      const Time arrival = laid.sent.back().arrival;
      last = std::max(last, arrival);
      if (arrival < first) first = arrival, place = laid.sent.size() - 1;
    }
    forget();
    for (const NodeId npu : leaders.receivers) {
      const auto found = came.find(npu);
      if (found == came.end()) {
        time_of_[at(npu)] = begin;  // no other leader sends to it
        continue;
      }
      const auto& [last, first, place] = found->second;
      if (relays_.is_leader(npu)) {
        if (relays_.last_read(npu) >= first) return false;
      } else {
        laid.sent[place].op = Op::copy;
      }
      time_of_[at(npu)] = std::max(last, begin);
    }
    return true;
  }

  // All stages of the leaders' exchange from `begin` on. Sets time_of_ to when each leader has the full sum. Returns false if a
  // sum would arrive before its receiver has sent its own.
  bool meet(const Leaders& leaders, Time begin, Laid& laid) {
    if (!leaders.receivers.empty()) return meet_at_receivers(leaders, begin, laid);
    if (leaders.digits.empty()) return meet_at_first(leaders, begin, laid);
    const auto count = leaders.npus.size();
    std::vector<Time> ready(count, begin), left(count), came(count), first_came(count);
    std::size_t stride = 1;
    for (const auto digit : leaders.digits) {
      const auto size = at(digit);
      std::fill(left.begin(), left.end(), 0);
      std::fill(came.begin(), came.end(), 0);
      std::fill(first_came.begin(), first_came.end(), kNever);
      struct Message {
        Time flight;
        std::size_t from, to;
        Time together;
      };
      std::vector<Message> messages;
      for (std::size_t ahead = 1; ahead < size; ++ahead) {
        for (std::size_t i = 0; i < count; ++i) {
          const auto own = i / stride % size, zero = i - own * stride;
          const auto j = zero + (own + ahead) % size * stride;
          Time together = 0;
          for (std::size_t k = 0; k < size; ++k)
            together = std::max(together, ready[zero + k * stride]);
          const auto hop = hop_between(leaders.npus[i], leaders.npus[j], together);
          if (!hop) return false;
          messages.push_back({hops_.flight(*hop), i, j, together});
        }
      }
      // Fast messages go last, and arrive after their receiver has sent all of its own.
      std::stable_sort(messages.begin(), messages.end(),
                       [](const auto& a, const auto& b) { return a.flight > b.flight; });
      for (const auto& [flight, i, j, together] : messages) {
        const Time moment = std::max(together, left[j] + 1 - flight);
        if (!send_between(leaders.npus[i], leaders.npus[j], moment, Op::reduce, laid)) return false;
        const auto& sent = laid.sent.back();
        left[i] = std::max(left[i], sent.start);
        came[j] = std::max(came[j], sent.arrival);
        first_came[j] = std::min(first_came[j], sent.arrival);
      }
      for (std::size_t i = 0; i < count; ++i) {
        if (left[i] >= first_came[i]) return false;
        ready[i] = std::max(ready[i], came[i]);
      }
      stride *= size;
    }
    forget();
    for (std::size_t i = 0; i < count; ++i) time_of_[at(leaders.npus[i])] = ready[i];
    return true;
  }

  // Lays a chunk with one set of leaders; its end is kNever if that fails, or if it cannot end before `limit`.
  Laid lay(ChunkId chunk, std::size_t choice, Time limit) {
    hops_.set_size(collective_->bytes(chunk));
    Leaders leaders = choices_[choice];
    if (!sums_) leaders.npus.assign(1, collective_->inputs(chunk)[0]);
    Laid laid;
    Time begin = soonest_[choice];
    const Time rest = choice < alone_.size() ? alone_[choice] - begin : 0;
    for (int delay = 0; delay < kMostDelays && begin < limit - rest; ++delay) {
      forget();
      for (const NodeId npu : leaders.npus) time_of_[at(npu)] = begin;
      relays_.begin(members_);
      const Time last = sums_ ? join(leaders.npus, leaders.straight, true, laid) : 0;
      if (last == kNever) break;
      if (last >= 0) {
        for (const auto& one : laid.sent) laid.collected = std::max(laid.collected, one.arrival);
        if (sums_ && !meet(leaders, begin, laid)) break;
        const auto& ends = leaders.receivers.empty() ? leaders.npus : leaders.receivers;
        if (join(ends, leaders.straight, false, laid) == kNever) break;
        laid.end = 0;
        for (const auto& one : laid.sent) laid.end = std::max(laid.end, one.arrival);
        forget();
        return laid;
      }
      undo(laid);
      // Delays grow, since an early gap on one link does not help if other links are busy for long.
      begin += std::max(-last, hops_.shortest() << std::min(delay / 2, 20));
      if (delay + 2 == kMostDelays) begin = std::max(begin, soonest_[choice] + all_laid());
    }
    undo(laid);
    forget();
    return laid;
  }

  // When all links are free: after the chunks laid so far.
  Time all_laid() const {
    Time end = 0;
    for (const auto& one : laid_) end = one.end == kNever ? end : std::max(end, one.end);
    return end;
  }

  // Lays chunk i with the best of at most `most` of the first `choices` sets of leaders, if it can end before `limit`.
  void lay_best(std::size_t i, std::size_t choices, std::size_t most, Time limit) {
    Laid best;
    std::vector<std::size_t> order(choices);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), random_);
    // Half of the sets are those that would be fastest if the chunk were alone.
    const auto quick = static_cast<std::ptrdiff_t>(std::min(most / 2, order.size()));
    std::partial_sort(order.begin(), order.begin() + quick, order.end(),
                      [&](auto a, auto b) { return alone_[a] < alone_[b]; });
    for (std::size_t k = 0; k < std::min(most, order.size()); ++k) {
      if (alone_[order[k]] >= best.end) continue;
      Laid laid = lay(chunks_[i], order[k], std::min(best.end, limit));
      for (const auto& one : laid.sent) hops_.give_back(one.hop, one.start);
      if (laid.end < best.end) best = std::move(laid);
    }
    for (const auto& one : best.sent) hops_.take(one.hop, one.start);
    laid_[i] = std::move(best);
  }

  // Finds how soon each set of leaders can begin to exchange, and how long a chunk takes with it, in an empty network.
  void measure(ChunkId chunk, const Progress& progress, std::int64_t& spent) {
    soonest_.assign(choices_.size(), 0);
    if (!sums_) {  // every chunk has a leader of its own
      alone_.assign(choices_.size(), 0);
      return;
    }
    for (std::size_t choice = 0; choice < choices_.size(); ++choice) {
      Laid laid = lay(chunk, choice, kNever);
      alone_.push_back(laid.end);
      for (const auto& one : laid.sent) hops_.give_back(one.hop, one.start);
      soonest_[choice] = laid.collected;
      spend(progress, spent);
    }
  }

  // --- all chunks ---

  void improve(const Progress& progress) {
    std::vector<std::size_t> chosen;
    std::vector<Laid> before;
    Time least = kNever;
    std::size_t in_vain = 0;
    std::int64_t spent = hops_.looked_at;
    const auto patience = kPatience * (laid_.size() + 1);
    while (hops_.looked_at < options_.hops && in_vain < patience) {
      if (progress)
        progress(static_cast<double>(hops_.looked_at) / static_cast<double>(options_.hops));
      spend(progress, spent);
      const Time last = choose(chosen);
      if (last <= options_.goal) return;
      in_vain = last < least ? 0 : in_vain + 1;
      least = std::min(least, last);
      before.clear();
      Time sum = 0, new_sum = 0, new_last = 0;
      for (const auto i : chosen) {
        sum += laid_[i].end;
        hops_.set_size(collective_->bytes(chunks_[i]));
        for (const auto& one : laid_[i].sent) hops_.give_back(one.hop, one.start);
        before.push_back(std::move(laid_[i]));
        laid_[i] = {};
      }
      bool all = true;
      for (const auto i : chosen) {
        // Half of the time only the first sets, since there may be many more of the others.
        const bool more = first_ < choices_.size() && random_() % 2;
        lay_best(i, more ? choices_.size() : first_, kTriedAgain, last + 1);
        if (laid_[i].end == kNever || laid_[i].end > last) {
          all = false;
          break;
        }
        new_sum += laid_[i].end;
        new_last = std::max(new_last, laid_[i].end);
      }
      if (all && std::pair(new_last, new_sum) <= std::pair(last, sum)) continue;
      for (const auto i : chosen) {
        hops_.set_size(collective_->bytes(chunks_[i]));
        for (const auto& one : laid_[i].sent) hops_.give_back(one.hop, one.start);
      }
      for (std::size_t k = 0; k < chosen.size(); ++k) {
        laid_[chosen[k]] = std::move(before[k]);
        hops_.set_size(collective_->bytes(chunks_[chosen[k]]));
        for (const auto& one : laid_[chosen[k]].sent) hops_.take(one.hop, one.start);
      }
    }
  }

  // Chooses one of the latest chunks and some others, in random order; returns when the latest ends.
  Time choose(std::vector<std::size_t>& chosen) {
    Time last = 0;
    for (const auto& one : laid_) last = std::max(last, one.end);
    std::vector<std::size_t> late;
    for (std::size_t i = 0; i < laid_.size(); ++i) {
      if (laid_[i].end == last) late.push_back(i);
    }
    chosen.assign(1, late[random_() % late.size()]);
    const auto wanted = random_() % std::min(kMostAtOnce, laid_.size());
    for (std::uint64_t k = 0; k < wanted; ++k) {
      const auto i = random_() % laid_.size();
      if (std::find(chosen.begin(), chosen.end(), i) == chosen.end()) chosen.push_back(i);
    }
    std::shuffle(chosen.begin(), chosen.end(), random_);
    return last;
  }

  std::shared_ptr<const Collective> collective_;
  bool sums_;
  std::span<const Leaders> choices_;
  std::size_t first_;  // number of choices with which chunks are laid at first
  LeaderOptions options_;
  std::mt19937_64 random_;
  std::vector<Time> time_of_;  // when a member leaves or has arrived; kNever if it has not joined
  std::vector<NodeId> members_;
  TimedHops hops_;
  Relays relays_;
  std::vector<Time> soonest_, alone_;  // of each set of leaders
  std::vector<ChunkId> chunks_;        // with bytes
  std::vector<Laid> laid_;
};

}  // namespace

Schedule meet_at_leaders(const std::shared_ptr<const Topology>& topology,
                         const std::shared_ptr<const Collective>& collective,
                         std::span<const Leaders> choices, const LeaderOptions& options,
                         std::string provenance, const Progress& progress) {
  if (!collective->resolved() || collective->parts().size() != 1 ||
      (collective->parts()[0].kind != CollectiveKind::all_reduce &&
       collective->parts()[0].kind != CollectiveKind::all_gather)) {
    invalid("leaders need one all-reduce or all-gather with a number of chunks");
  }
  if (choices.empty()) invalid("no leaders to choose from");
  if (options.first > choices.size()) invalid("fewer sets of leaders than are to be laid first");
  ChunkPlacer laying(topology, collective, choices, options, progress);
  laying.run(progress);
  return laying.result(std::move(provenance), progress);
}

}  // namespace tacos
