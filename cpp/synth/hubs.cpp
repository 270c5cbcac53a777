#include "synth/hubs.hpp"

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
#include "synth/neighbours.hpp"
#include "synth/timeline.hpp"
#include "timing/compose.hpp"
#include "timing/retime.hpp"

namespace tacos {

namespace {

constexpr Time kNever = std::numeric_limits<Time>::max();
constexpr int kMostDelays = 60;    // of the time at which hubs begin to exchange
constexpr std::size_t kTried = 6;  // sets of hubs tried for one chunk
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
  Time end = kNever;
};

class Laying {
 public:
  Laying(const std::shared_ptr<const Topology>& topology,
         const std::shared_ptr<const Collective>& collective, std::span<const Hubs> choices,
         const HubOptions& options, const Progress& progress)
      : collective_(collective),
        sums_(collective->parts()[0].kind == CollectiveKind::all_reduce),
        hops_(std::make_shared<Routes>(
            neighbour_routes(topology, std::max<std::int64_t>(largest(*collective), 1), progress))),
        choices_(choices),
        options_(options),
        random_(options.seed),
        lines_(at(topology->links())),
        in_(at(topology->nodes())),
        out_(at(topology->nodes())),
        straight_in_(at(topology->nodes())),
        straight_out_(at(topology->nodes())),
        time_of_(at(topology->nodes()), kNever),
        members_(collective->parts()[0].group.begin(), collective->parts()[0].group.end()) {
    std::vector<std::uint8_t> takes_part(at(topology->nodes()));
    for (const NodeId npu : members_) takes_part[at(npu)] = 1;
    for (RouteId hop = 0; hop < hops_->count(); ++hop) {
      if (hops_->legs(hop) != 1 || !takes_part[at(source(hop))] || !takes_part[at(target(hop))])
        continue;
      out_[at(source(hop))].push_back(hop);
      in_[at(target(hop))].push_back(hop);
      if (hops_->links(hop).size() > 1) continue;
      straight_out_[at(source(hop))].push_back(hop);
      straight_in_[at(target(hop))].push_back(hop);
    }
  }

  void run(const Progress& progress) {
    for (ChunkId chunk = 0; chunk < collective_->chunks(); ++chunk) {
      if (progress) progress(0.0);
      if (collective_->bytes(chunk) == 0) continue;
      chunks_.push_back(chunk);
      laid_.emplace_back();
    }
    looked_at_ = 0;
    for (std::size_t i = 0; i < chunks_.size(); ++i) {
      if (progress) progress(0.0);
      lay_best(i, kTried, kNever);
      if (laid_[i].end == kNever)
        throw InfeasibleError("the members cannot reach the hubs from neighbour to neighbour");
    }
    looked_at_ = 0;
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
    auto found = at_starts(collective_, hops_, order, start, provenance);
    if (found) return std::move(*found);
    // What a hub has summed when it sends depends on the starts, which retiming would not keep.
    if (std::find(op.begin(), op.end(), static_cast<std::uint8_t>(Op::reduce)) != op.end()) {
      throw InfeasibleError(
          "the schedule takes too long for its times to be kept to the picosecond");
    }
    return retime(collective_, hops_, order, std::move(provenance), progress);
  }

 private:
  static std::int64_t largest(const Collective& collective) {
    std::int64_t bytes = 0;
    for (ChunkId chunk = 0; chunk < collective.chunks(); ++chunk)
      bytes = std::max(bytes, collective.bytes(chunk));
    return bytes;
  }

  NodeId source(RouteId hop) const { return hops_->sources(hop)[0]; }
  NodeId target(RouteId hop) const { return hops_->destinations(hop)[0]; }

  // --- times on links ---

  struct Windows {
    std::vector<Routes::Window> windows;
    std::vector<std::size_t> begin;  // of each hop
    std::vector<Time> flight;        // from start to arrival
  };

  const Windows& windows_of(std::int64_t bytes) {
    const auto [found, fresh] = windows_.try_emplace(bytes);
    auto& [windows, begin, flight] = found->second;
    if (fresh) {
      begin.push_back(0);
      for (RouteId hop = 0; hop < hops_->count(); ++hop) {
        if (hops_->legs(hop) == 1) hops_->windows(hop, 0, bytes, windows);
        begin.push_back(windows.size());
        flight.push_back(hops_->legs(hop) == 1 ? hops_->leg_time(hop, 0, bytes) : kNever);
      }
    }
    return found->second;
  }

  void take(RouteId hop, Time start, bool taken) {
    for (auto w = size_->begin[at(hop)]; w < size_->begin[at(hop) + 1]; ++w) {
      const auto& window = size_->windows[w];
      const Time begin = start + window.offset, end = begin + window.busy;
      if (begin == end) continue;
      auto& line = lines_[at(window.link)];
      taken ? line.take(begin, end) : line.give_back(begin, end);
    }
  }

  // The first start from `moment` on at which all links of a hop are free when it reaches them; backwards, the last such
  // start up to `moment`.
  Time free_start(RouteId hop, Time moment, bool backwards) {
    ++looked_at_;
    const auto first = size_->begin[at(hop)], end = size_->begin[at(hop) + 1];
    for (auto w = first, settled = first; settled < end;) {
      const auto& window = size_->windows[w];
      const Time wanted = moment + window.offset;
      const auto& line = lines_[at(window.link)];
      const Time possible =
          backwards ? line.last_free(wanted, window.busy) : line.next_free(wanted, window.busy);
      settled = possible != wanted ? first + 1 : settled + 1;
      moment += possible - wanted;
      w = w + 1 == end ? first : w + 1;
    }
    return moment;
  }

  void send(RouteId hop, Time start, Op op, Laid& laid) {
    take(hop, start, true);
    laid.sent.push_back({hop, start, start + size_->flight[at(hop)], op});
  }

  // --- one chunk ---

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

  // Joins all members to `hubs`, whose times are in time_of_. Next joins the member that a hop reaches first or, backwards
  // in time, the member that can leave last. Returns the time of the last one, negative if it would have to leave before
  // 0, or kNever if some member cannot join.
  Time join(const Hubs& hubs, bool backwards, Laid& laid) {
    const auto& hops_at =
        backwards ? (hubs.straight ? straight_in_ : in_) : (hubs.straight ? straight_out_ : out_);
    Offers offers;
    const auto offer = [&](RouteId hop) {
      const Time flight = size_->flight[at(hop)];
      if (backwards) {
        const Time start = free_start(hop, time_of_[at(target(hop))] - flight, true);
        offers.push({-start, random_(), start, hop});
      } else {
        const Time start = free_start(hop, time_of_[at(source(hop))], false);
        offers.push({start + flight, random_(), start, hop});
      }
    };
    const auto joining = [&](RouteId hop) { return backwards ? source(hop) : target(hop); };
    const auto reach = [&](NodeId npu) {
      for (const RouteId hop : hops_at[at(npu)]) {
        if (time_of_[at(joining(hop))] == kNever) offer(hop);
      }
    };
    auto missing = members_.size() - hubs.npus.size();
    Time last = 0;
    for (const NodeId npu : hubs.npus) reach(npu);
    while (missing > 0 && !offers.empty()) {
      const Offer best = offers.top();
      offers.pop();
      const NodeId npu = joining(best.hop);
      if (time_of_[at(npu)] != kNever) continue;
      if (free_start(best.hop, best.start, backwards) != best.start) {  // taken since
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
    for (const auto& one : laid.sent) take(one.hop, one.start, false);
    laid.sent.clear();
    laid.end = kNever;
  }

  std::optional<RouteId> hop_between(NodeId from, NodeId to, Time moment) {
    std::optional<RouteId> best;
    Time first = kNever;
    for (const RouteId hop : out_[at(from)]) {
      if (target(hop) != to) continue;
      const Time arrival = free_start(hop, moment, false) + size_->flight[at(hop)];
      if (arrival < first) first = arrival, best = hop;
    }
    return best;
  }

  // Sends over the hop that arrives first from `moment` on; false if there is none.
  bool send_between(NodeId from, NodeId to, Time moment, Op op, Laid& laid) {
    const auto hop = hop_between(from, to, moment);
    if (hop) send(*hop, free_start(*hop, moment, false), op, laid);
    return hop.has_value();
  }

  // The first hub adds up and sends the sum to the others. Sets time_of_ to when each hub has it.
  bool meet_at_first(const Hubs& hubs, Time begin, Laid& laid) {
    Time complete = begin;
    for (std::size_t i = 1; i < hubs.npus.size(); ++i) {
      if (!send_between(hubs.npus[i], hubs.npus[0], begin, Op::reduce, laid)) return false;
      complete = std::max(complete, laid.sent.back().arrival);
    }
    forget();
    time_of_[at(hubs.npus[0])] = complete;
    for (std::size_t i = 1; i < hubs.npus.size(); ++i) {
      if (!send_between(hubs.npus[0], hubs.npus[i], complete, Op::copy, laid)) return false;
      time_of_[at(hubs.npus[i])] = laid.sent.back().arrival;
    }
    return true;
  }

  // All stages of the hubs' exchange from `begin` on. Sets time_of_ to when each hub has the full sum. Returns false if a
  // sum would arrive before its receiver has sent its own.
  bool meet(const Hubs& hubs, Time begin, Laid& laid) {
    if (hubs.digits.empty()) return meet_at_first(hubs, begin, laid);
    const auto count = hubs.npus.size();
    std::vector<Time> ready(count, begin), left(count), came(count), first_came(count);
    std::size_t stride = 1;
    for (const auto digit : hubs.digits) {
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
          const auto hop = hop_between(hubs.npus[i], hubs.npus[j], together);
          if (!hop) return false;
          messages.push_back({size_->flight[at(*hop)], i, j, together});
        }
      }
      // Fast messages go last, and arrive after their receiver has sent all of its own.
      std::stable_sort(messages.begin(), messages.end(),
                       [](const auto& a, const auto& b) { return a.flight > b.flight; });
      for (const auto& [flight, i, j, together] : messages) {
        const Time moment = std::max(together, left[j] + 1 - flight);
        if (!send_between(hubs.npus[i], hubs.npus[j], moment, Op::reduce, laid)) return false;
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
    for (std::size_t i = 0; i < count; ++i) time_of_[at(hubs.npus[i])] = ready[i];
    return true;
  }

  // Lays a chunk with one set of hubs; its end is kNever if that fails, or if it cannot end before `limit`.
  Laid lay(ChunkId chunk, std::size_t choice, Time limit) {
    size_ = &windows_of(collective_->bytes(chunk));
    shortest_ = kNever;
    for (const auto& window : size_->windows)
      shortest_ = std::min(shortest_, std::max<Time>(window.busy, 1));
    Hubs hubs = choices_[choice];
    if (!sums_) hubs.npus.assign(1, collective_->inputs(chunk)[0]);
    Laid laid;
    Time begin = soonest_[choice];
    const Time rest = choice < alone_.size() ? alone_[choice] - begin : 0;
    for (int delay = 0; delay < kMostDelays && begin < limit - rest; ++delay) {
      forget();
      for (const NodeId npu : hubs.npus) time_of_[at(npu)] = begin;
      const Time last = sums_ ? join(hubs, true, laid) : 0;
      if (last == kNever) break;
      if (last >= 0) {
        if (sums_ && !meet(hubs, begin, laid)) break;
        if (join(hubs, false, laid) == kNever) break;
        laid.end = 0;
        for (const auto& one : laid.sent) laid.end = std::max(laid.end, one.arrival);
        forget();
        return laid;
      }
      undo(laid);
      // Delays grow, since an early gap on one link does not help if other links are busy for long.
      begin += std::max(-last, shortest_ << std::min(delay / 2, 20));
    }
    undo(laid);
    forget();
    return laid;
  }

  // Lays chunk i with the best of at most `most` sets of hubs, if it can end before `limit`.
  void lay_best(std::size_t i, std::size_t most, Time limit) {
    if (soonest_.empty()) measure(chunks_[i]);
    Laid best;
    std::vector<std::size_t> order(choices_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), random_);
    // Half of the sets are those that would be fastest if the chunk were alone.
    const auto quick = static_cast<std::ptrdiff_t>(std::min(most / 2, order.size()));
    std::partial_sort(order.begin(), order.begin() + quick, order.end(),
                      [&](auto a, auto b) { return alone_[a] < alone_[b]; });
    for (std::size_t k = 0; k < std::min(most, order.size()); ++k) {
      if (alone_[order[k]] >= best.end) continue;
      Laid laid = lay(chunks_[i], order[k], std::min(best.end, limit));
      for (const auto& one : laid.sent) take(one.hop, one.start, false);
      if (laid.end < best.end) best = std::move(laid);
    }
    for (const auto& one : best.sent) take(one.hop, one.start, true);
    laid_[i] = std::move(best);
  }

  // Finds how soon each set of hubs can begin to exchange, and how long a chunk takes with it, in an empty network.
  void measure(ChunkId chunk) {
    soonest_.assign(choices_.size(), 0);
    if (!sums_) {  // every chunk has a hub of its own
      alone_.assign(choices_.size(), 0);
      return;
    }
    for (std::size_t choice = 0; choice < choices_.size(); ++choice) {
      Laid laid = lay(chunk, choice, kNever);
      alone_.push_back(laid.end);
      for (const auto& one : laid.sent) take(one.hop, one.start, false);
      const auto& hubs = choices_[choice].npus;
      const auto is_hub = [&](NodeId npu) {
        return std::find(hubs.begin(), hubs.end(), npu) != hubs.end();
      };
      for (const auto& one : laid.sent) {
        if (one.op == Op::reduce && is_hub(target(one.hop)) && !is_hub(source(one.hop)))
          soonest_[choice] = std::max(soonest_[choice], one.arrival);
      }
    }
  }

  // --- all chunks ---

  void improve(const Progress& progress) {
    std::vector<std::size_t> chosen;
    std::vector<Laid> before;
    Time least = kNever;
    std::size_t in_vain = 0;
    const auto patience = kPatience * (laid_.size() + 1);
    while (looked_at_ < options_.hops && in_vain < patience) {
      if (progress) progress(static_cast<double>(looked_at_) / static_cast<double>(options_.hops));
      const Time last = choose(chosen);
      if (last <= options_.goal) return;
      in_vain = last < least ? 0 : in_vain + 1;
      least = std::min(least, last);
      before.clear();
      Time sum = 0, new_sum = 0, new_last = 0;
      for (const auto i : chosen) {
        sum += laid_[i].end;
        size_ = &windows_of(collective_->bytes(chunks_[i]));
        for (const auto& one : laid_[i].sent) take(one.hop, one.start, false);
        before.push_back(std::move(laid_[i]));
        laid_[i] = {};
      }
      bool all = true;
      for (const auto i : chosen) {
        lay_best(i, kTriedAgain, last + 1);
        if (laid_[i].end == kNever || laid_[i].end > last) {
          all = false;
          break;
        }
        new_sum += laid_[i].end;
        new_last = std::max(new_last, laid_[i].end);
      }
      if (all && std::pair(new_last, new_sum) <= std::pair(last, sum)) continue;
      for (const auto i : chosen) {
        size_ = &windows_of(collective_->bytes(chunks_[i]));
        for (const auto& one : laid_[i].sent) take(one.hop, one.start, false);
      }
      for (std::size_t k = 0; k < chosen.size(); ++k) {
        laid_[chosen[k]] = std::move(before[k]);
        size_ = &windows_of(collective_->bytes(chunks_[chosen[k]]));
        for (const auto& one : laid_[chosen[k]].sent) take(one.hop, one.start, true);
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
  std::shared_ptr<const Routes> hops_;
  std::span<const Hubs> choices_;
  HubOptions options_;
  std::mt19937_64 random_;
  std::map<std::int64_t, Windows> windows_;  // per distinct size of chunks
  const Windows* size_ = nullptr;            // of the current chunk
  Time shortest_ = 1;                        // its shortest time on a link
  std::vector<Timeline> lines_;
  std::vector<std::vector<RouteId>> in_, out_;                    // hops of each member
  std::vector<std::vector<RouteId>> straight_in_, straight_out_;  // those over one link
  std::vector<Time> time_of_;  // when a member leaves or has arrived; kNever if it has not joined
  std::vector<NodeId> members_;
  std::vector<Time> soonest_, alone_;  // of each set of hubs
  std::vector<ChunkId> chunks_;        // with bytes
  std::vector<Laid> laid_;
  std::int64_t looked_at_ = 0;
};

}  // namespace

Schedule meet_at_hubs(const std::shared_ptr<const Topology>& topology,
                      const std::shared_ptr<const Collective>& collective,
                      std::span<const Hubs> choices, const HubOptions& options,
                      std::string provenance, const Progress& progress) {
  if (!collective->resolved() || collective->parts().size() != 1 ||
      (collective->parts()[0].kind != CollectiveKind::all_reduce &&
       collective->parts()[0].kind != CollectiveKind::all_gather)) {
    invalid("hubs need one all-reduce or all-gather with a number of chunks");
  }
  if (choices.empty()) invalid("no hubs to choose from");
  Laying laying(topology, collective, choices, options, progress);
  laying.run(progress);
  return laying.result(std::move(provenance), progress);
}

}  // namespace tacos
