#include <algorithm>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "support/parallel.hpp"
#include "verify/rules.hpp"
#include "verify/values.hpp"

namespace tacos::verification {

namespace {

class ChunkRules {
 public:
  ChunkRules(const Examined& examined, const VerifyOptions& options,
             std::span<const std::uint8_t> left, std::int64_t Orbits::Sizes::* size)
      : topology_(examined.schedule.topology()),
        collective_(examined.schedule.collective()),
        stored_(examined.schedule.stored()),
        lanes_(examined.lanes),
        orbits_(examined.orbits),
        options_(options),
        left_(left),
        size_(size),
        progress_(examined.progress),
        findings_(examined.findings),
        threads_(examined.threads) {
    for (const Walk& route : lanes_.walks()) {
      any_legs_ = any_legs_ || route.legs > 1;
      Hop hop{route.sources[0], route.destinations[0], 0, kFastest, false};
      hop.simple = route.kind == RouteKind::path && route.legs == 1;
      for (const auto& step : route.crossings) {
        hop.latency += topology_.latency(step.link);
        hop.slowest = std::min(hop.slowest, topology_.bandwidth(step.link));
      }
      hops_.push_back(hop);
    }
  }

  void run() {
    const auto chunks = orbits_.checked_chunks();
    if (!left_.empty() && std::none_of(left_.begin(), left_.end(), [](auto one) { return one; })) {
      return;
    }
    // Every thread needs arrays over all nodes.
    threads_ = static_cast<std::int32_t>(std::min(at(threads_), chunks));
    cut_into_slices(chunks);
    std::vector<Scratch> scratch(at(threads_));
    for (auto& s : scratch) {
      const auto nodes = at(topology_.nodes());
      s.available.assign(nodes, kNever);
      s.acc.assign(nodes, {});
      s.sum.assign(nodes, {});
      s.holds.assign(nodes, 0);
      s.wanted.assign(nodes, 0);
      s.input.assign(nodes, 0);
    }
    // The transfers of a block take at most 0.3 times as much memory as the schedule, if that is large.
    auto most = options_.block_transfers;
    if (most == 0) {
      const auto all = static_cast<std::int64_t>(stored_.chunk.size());
      most = std::max(std::int64_t{1} << 25, all / 20 * 3);
    }
    for (std::size_t first = 0; first < chunks;) {
      std::vector<std::size_t> begin{0};
      auto last = first;
      while (last < chunks && (last == first || static_cast<std::int64_t>(
                                                    begin.back() + transfers_of(last)) <= most)) {
        begin.push_back(begin.back() + transfers_of(last++));
      }
      check_block(first, last, begin, scratch);
      first = last;
    }
  }

 private:
  struct Carried {
    std::int64_t transfer;
    std::uint32_t lane;
    std::uint32_t start;  // of leg 0, kept here since the column is read out of order otherwise
  };

  // The image of a node by the element that moves a transfer to the chunk that is checked.
  NodeId image(NodeId node, const Carried& carried) const {
    return orbits_.image(node, orbits_.checked_image(at(carried.transfer)).moved);
  }

  // What one thread needs to follow one chunk.
  struct Scratch {
    std::vector<Time> available;  // copied chunks: when each node has it
    std::vector<Value> acc;
    std::vector<Expression> sum;  // of `acc`, if several NPUs end with it
    std::vector<std::uint8_t> holds, wanted, input;
    std::vector<NodeId> touched;
    RouteTimes times;
    struct Event {
      Time time;
      std::uint8_t order;  // at one moment: copies land, then sums, then transfers start
      std::uint32_t entry;
      std::uint32_t destination;
      bool idle = false;  // an arrival that left the value as it was

      bool starts() const { return order == 2; }
      bool operator<(const Event& other) const {
        return std::tie(time, order, entry, destination) <
               std::tie(other.time, other.order, other.entry, other.destination);
      }
    };
    std::vector<Event> events;
    std::vector<Value> carried;
    std::vector<Expression> brought;  // the expression of what is carried
    std::vector<std::uint8_t> useful;
  };

  std::int64_t bytes(ChunkId chunk) const { return orbits_.sizes(chunk).*size_; }
  bool is_left(std::size_t chunk) const { return left_.empty() || left_[chunk]; }

  // Cuts the lanes into slices of about equally many transfers, and counts the transfers of each chunk in the slices before each
  // slice. So threads sort the transfers in an order that does not depend on the number of threads, and read and write separate
  // places.
  void cut_into_slices(std::size_t chunks) {
    const auto all = stored_.chunk.size();
    const auto affordable = all / (8 * chunks + 1) + 1;  // the counts are small beside the schedule
    const auto slices = std::min(at(threads_), affordable);
    first_lane_.assign(1, 0);
    for (std::size_t slice = 1; slice < slices; ++slice) {
      const auto begin = static_cast<std::int64_t>(all / slices * slice);
      const auto lane =
          std::lower_bound(stored_.lane_begin.begin(), stored_.lane_begin.end(), begin);
      first_lane_.push_back(std::min(lanes_.count(), at(lane - stored_.lane_begin.begin())));
    }
    first_lane_.push_back(lanes_.count());
    before_.assign(slices + 1, std::vector<std::uint32_t>(chunks, 0));
    each_slice([&](std::size_t slice) {
      auto& count = before_[slice + 1];
      for (auto i = stored_.lane_begin[first_lane_[slice]];
           i < stored_.lane_begin[first_lane_[slice + 1]]; ++i) {
        const auto chunk = orbits_.checked_image(at(i)).chunk;
        if (is_left(chunk)) ++count[chunk];
      }
    });
    for (std::size_t slice = 0; slice < slices; ++slice) {
      for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
        before_[slice + 1][chunk] += before_[slice][chunk];
      }
    }
  }

  template <typename Work>
  void each_slice(const Work& work) const {
    parallel(first_lane_.size() - 1, 1, threads_, {}, 0, 0,
             [&](std::size_t slice, std::int32_t) { work(slice); });
  }

  std::size_t transfers_of(std::size_t chunk) const { return before_.back()[chunk]; }

  void check_block(std::size_t first, std::size_t last, std::span<const std::size_t> begin,
                   std::vector<Scratch>& scratch) {
    std::vector<Carried> carried(begin.back());
    each_slice([&](std::size_t slice) {
      auto& next = before_[slice];
      for (auto lane = first_lane_[slice]; lane < first_lane_[slice + 1]; ++lane) {
        for (auto i = stored_.lane_begin[lane]; i < stored_.lane_begin[lane + 1]; ++i) {
          const auto chunk = orbits_.checked_image(at(i)).chunk;
          if (chunk < first || chunk >= last || !is_left(chunk)) continue;
          carried[begin[chunk - first] + next[chunk]++] = {i, static_cast<std::uint32_t>(lane),
                                                           stored_.start[lanes_.row(lane, i)]};
        }
      }
    });
    const double scale = 0.4 / static_cast<double>(orbits_.checked_chunks());
    parallel(last - first, 8, threads_, progress_, 0.6 + scale * static_cast<double>(first),
             0.6 + scale * static_cast<double>(last), [&](std::size_t i, std::int32_t thread) {
               if (!is_left(first + i)) return;
               const auto chunk = orbits_.checked_chunk(first + i);
               const auto mine = std::span(carried).subspan(begin[i], begin[i + 1] - begin[i]);
               auto& s = scratch[at(thread)];
               if (any_legs_) check_legs(mine, s);
               const bool copied = !collective_.reduces(chunk) &&
                                   std::none_of(mine.begin(), mine.end(), [&](const Carried& c) {
                                     return lanes_.adds(c.lane);
                                   });
               const bool simple = copied && wants_all(chunk) && check_copied(chunk, mine, s);
               if (!simple) check_summed(chunk, mine, s);
             });
  }

  bool wants_all(ChunkId chunk) const {
    return static_cast<std::int32_t>(collective_.outputs(chunk).size()) == topology_.npus();
  }

  void check_legs(std::span<const Carried> mine, Scratch& s) {
    for (const Carried& one : mine) {
      const auto& [transfer, lane, begin] = one;
      const auto& route = lanes_.walk_of(lane);
      if (route.legs == 1) continue;
      s.times.bytes = -1;
      s.times.compute(topology_, route, bytes(stored_.chunk[at(transfer)]));
      for (std::int32_t leg = 1; leg < route.legs; ++leg) {
        const Time there = lanes_.start(lane, transfer, leg - 1) + s.times.leg_end[at(leg - 1)];
        const Time leaves = lanes_.start(lane, transfer, leg);
        if (leaves >= there) continue;
        findings_.add({"causality", transfer, leaves, stored_.chunk[at(transfer)], -1,
                       "transfer " + std::to_string(transfer) + " starts leg " +
                           std::to_string(leg) + " at " + microseconds(leaves) +
                           ", before the leg before it arrives at " + microseconds(there)});
      }
    }
  }

  void missing(std::int64_t transfer, ChunkId chunk, NodeId source, Time now, Time there) {
    findings_.add(
        {"causality", transfer, now, chunk, -1,
         "transfer " + std::to_string(transfer) + " sends chunk " + std::to_string(chunk) +
             " from " + topology_.name(source) + " at " + microseconds(now) + ", where it " +
             (there == kNever ? "never arrives" : "arrives only at " + microseconds(there))});
  }

  void unneeded(std::int64_t transfer, ChunkId chunk, Time now, const std::string& why) {
    findings_.add({"unneeded", transfer, now, chunk, -1,
                   "transfer " + std::to_string(transfer) + " of chunk " + std::to_string(chunk) +
                       " " + why});
  }

  void postcondition(ChunkId chunk, NodeId npu) {
    findings_.add({"postcondition", -1, -1, chunk, -1,
                   topology_.name(npu) + " never receives chunk " + std::to_string(chunk)});
  }

  // A chunk that is only copied, and that all NPUs want: all values are equal, so the earliest
  // arrival at each node decides. Returns false, without a report, if some node receives it more than
  // once or does not want it; then check_summed finds the transfer that is not needed.
  [[nodiscard]] bool check_copied(ChunkId chunk, std::span<const Carried> mine, Scratch& s) {
    const auto touch = [&](NodeId node, Time time) {
      if (s.available[at(node)] == kNever) s.touched.push_back(node);
      s.available[at(node)] = std::min(s.available[at(node)], time);
    };
    for (const NodeId npu : collective_.inputs(chunk)) {
      touch(npu, 0);
      s.input[at(npu)] = 1;
    }
    const auto bytes = this->bytes(chunk);
    auto deliveries = s.touched.size();
    bool only_npus = true;
    std::uint32_t lane_before = 0;
    s.times.bytes = -1;
    std::int64_t rate = 0;  // of the last hop; mostly all are equal
    Time sending = 0;
    for (const Carried& one : mine) {
      const auto& [transfer, lane, begin] = one;
      if (const Hop& hop = hops_[at(stored_.lane_route[lane])]; hop.simple) {
        if (hop.slowest != rate) {
          rate = hop.slowest;
          sending = transmission_time(bytes, rate);
        }
        const Time now = static_cast<Time>(begin) * stored_.quantum;
        touch(image(hop.to, one), now + hop.latency + sending);
        only_npus = only_npus && topology_.is_npu(hop.to);
        ++deliveries;
        continue;
      }
      const auto& route = lanes_.walk_of(lane);
      if (lane != lane_before) s.times.bytes = -1;
      lane_before = lane;
      s.times.compute(topology_, route, bytes);
      for (std::size_t end = 0; end < route.destinations.size(); ++end) {
        touch(image(route.destinations[end], one),
              lanes_.start(lane, transfer, route.legs - 1) + s.times.arrive[end]);
        only_npus = only_npus && topology_.is_npu(route.destinations[end]);
        ++deliveries;
      }
    }
    const bool once = only_npus && deliveries == s.touched.size();
    if (once) {
      const auto check_source = [&](const Carried& c, NodeId from) {
        const NodeId source = image(from, c);
        const Time now = static_cast<Time>(c.start) * stored_.quantum;
        const Time there = lanes_.reads_input(c.lane) ? (s.input[at(source)] ? 0 : kNever)
                                                      : s.available[at(source)];
        if (there > now) missing(c.transfer, chunk, source, now, there);
      };
      for (const Carried& c : mine) {
        if (const Hop& hop = hops_[at(stored_.lane_route[c.lane])]; hop.simple) {
          check_source(c, hop.from);
        } else {
          for (const NodeId from : lanes_.walk_of(c.lane).sources) check_source(c, from);
        }
      }
      for (const NodeId npu : collective_.outputs(chunk)) {
        if (s.available[at(npu)] == kNever) postcondition(chunk, npu);
      }
    }
    for (const NodeId npu : collective_.inputs(chunk)) s.input[at(npu)] = 0;
    for (const NodeId node : s.touched) s.available[at(node)] = kNever;
    s.touched.clear();
    return once;
  }

  // Any chunk: values are followed through all starts and arrivals in order of time.
  void check_summed(ChunkId chunk, std::span<const Carried> mine, Scratch& s) {
    const auto bytes = this->bytes(chunk);
    const bool sums = collective_.reduces(chunk);
    const bool ordered = sums && collective_.outputs(chunk).size() > 1;
    const Value replica = {1, 1};
    Value expected = sums ? Value{} : replica;
    for (const NodeId npu : collective_.inputs(chunk)) {
      const Value own = sums ? contribution(npu) : replica;
      if (sums) expected += own;
      hold(s, npu, own);
      if (ordered) s.sum[at(npu)].assign(Expression::input(npu));
      s.input[at(npu)] = 1;
    }
    make_events(mine, bytes, s);
    s.carried.assign(mine.size(), {});
    if (ordered) s.brought.assign(mine.size(), {});
    s.useful.assign(mine.size(), 0);
    for (auto& event : s.events) {
      const Carried& one = mine[event.entry];
      const auto& [transfer, lane, begin] = one;
      const auto& route = lanes_.walk_of(lane);
      Value& value = s.carried[event.entry];
      if (event.starts()) {
        for (const NodeId from : route.sources) {
          const NodeId source = image(from, one);
          const bool there = lanes_.reads_input(lane) ? s.input[at(source)] : s.holds[at(source)];
          if (!there) {
            const Time later = lanes_.reads_input(lane) ? kNever : first_arrival(source, mine, s);
            missing(transfer, chunk, source, event.time, later);
          }
          if (lanes_.reads_input(lane)) {
            value += sums ? contribution(source) : replica;
          } else {
            value += s.acc[at(source)];
          }
          if (ordered) {
            s.brought[event.entry].add(lanes_.reads_input(lane) ? Expression::input(source)
                                                                : s.sum[at(source)].read());
          }
        }
        if (ordered) {
          auto& brought = s.brought[event.entry];
          brought.assign(brought.read_in_network(event.entry));
        }
        continue;
      }
      const NodeId node = image(route.destinations[event.destination], one);
      if (ordered) {
        const auto print = s.brought[event.entry].read();
        lanes_.adds(lane) ? s.sum[at(node)].add(print) : s.sum[at(node)].assign(print);
      }
      event.idle = !lanes_.adds(lane) && s.holds[at(node)] && s.acc[at(node)] == value;
      Value result = value;
      if (lanes_.adds(lane)) result += s.acc[at(node)];
      hold(s, node, result);
    }
    bool wrong = false;
    for (const NodeId npu : collective_.outputs(chunk)) {
      if (!s.holds[at(npu)]) {
        postcondition(chunk, npu);
      } else if (s.acc[at(npu)] != expected) {
        wrong = true;
      }
    }
    if (wrong) explain(chunk, mine, s);
    if (ordered) check_order_of_sums(chunk, s);
    if (!options_.allow_unneeded) check_needed(chunk, mine, s);
    for (const NodeId npu : collective_.inputs(chunk)) s.input[at(npu)] = 0;
    for (const NodeId node : s.touched) {
      s.holds[at(node)] = 0;
      s.acc[at(node)] = {};
      s.sum[at(node)] = {};
    }
    s.touched.clear();
  }

  // Floating-point sums have the same bits only if they were added up in the same order.
  void check_order_of_sums(ChunkId chunk, Scratch& s) {
    NodeId first = -1;
    for (const NodeId npu : collective_.outputs(chunk)) {
      if (!s.holds[at(npu)]) continue;
      if (first < 0) first = npu;
      if (s.sum[at(npu)].read() == s.sum[at(first)].read()) continue;
      findings_.differ(chunk, topology_.name(first) + " and " + topology_.name(npu) +
                                  " add up chunk " + std::to_string(chunk) +
                                  " in different orders");
      return;
    }
  }

  Time first_arrival(NodeId node, std::span<const Carried> mine, const Scratch& s) const {
    for (const auto& event : s.events) {
      if (event.starts()) continue;
      const Carried& one = mine[event.entry];
      const auto& [transfer, lane, begin] = one;
      if (image(lanes_.walk_of(lane).destinations[event.destination], one) == node)
        return event.time;
    }
    return kNever;
  }

  static void hold(Scratch& s, NodeId node, Value value) {
    if (!s.holds[at(node)]) s.touched.push_back(node);
    s.holds[at(node)] = 1;
    s.acc[at(node)] = value;
  }

  void make_events(std::span<const Carried> mine, std::int64_t bytes, Scratch& s) {
    s.events.clear();
    for (std::uint32_t entry = 0; entry < mine.size(); ++entry) {
      const Carried& one = mine[entry];
      const auto& [transfer, lane, begin] = one;
      const auto& route = lanes_.walk_of(lane);
      s.times.bytes = -1;
      s.times.compute(topology_, route, bytes);
      s.events.push_back({lanes_.start(lane, transfer, 0), 2, entry, 0});
      const Time last_leg =
          lanes_.start(lane, transfer, route.legs - 1) + lanes_.reduce_time(lane, bytes);
      for (std::uint32_t end = 0; end < route.destinations.size(); ++end) {
        const auto order = static_cast<std::uint8_t>(lanes_.adds(lane) ? 1 : 0);
        s.events.push_back({last_leg + s.times.arrive[end], order, entry, end});
      }
    }
    std::sort(s.events.begin(), s.events.end());
  }

  using Bag = std::map<NodeId, std::int64_t>;  // how often each contribution is in a value

  // Follows the chunk once more with multisets of contributions, to say what is wrong.
  void explain(ChunkId chunk, std::span<const Carried> mine, const Scratch& s) {
    const bool sums = collective_.reduces(chunk);
    std::map<NodeId, Bag> acc;
    for (const NodeId npu : collective_.inputs(chunk)) acc[npu] = {{sums ? npu : NodeId{0}, 1}};
    std::vector<Bag> carried(mine.size());
    const auto add = [](Bag& into, const Bag& from) {
      for (const auto& [who, times] : from) {
        into[who] = std::min(into[who] + times, std::int64_t{1} << 61);
      }
    };
    for (const auto& event : s.events) {
      const Carried& one = mine[event.entry];
      const auto& [transfer, lane, begin] = one;
      const auto& route = lanes_.walk_of(lane);
      if (event.starts()) {
        for (const NodeId from : route.sources) {
          const NodeId source = image(from, one);
          if (lanes_.reads_input(lane)) {
            add(carried[event.entry], {{sums ? source : NodeId{0}, 1}});
          } else {
            add(carried[event.entry], acc[source]);
          }
        }
        continue;
      }
      Bag& into = acc[image(route.destinations[event.destination], one)];
      if (!lanes_.adds(lane)) into.clear();
      add(into, carried[event.entry]);
    }
    for (const NodeId npu : collective_.outputs(chunk)) {
      if (const auto wrong = what_is_wrong(chunk, acc[npu]); !wrong.empty()) {
        findings_.add(
            {"contribution", -1, -1, chunk, -1,
             topology_.name(npu) + " ends with chunk " + std::to_string(chunk) + " " + wrong});
      }
    }
  }

  // One sentence about a final value, however much is wrong with it; empty if nothing is.
  std::string what_is_wrong(ChunkId chunk, const Bag& bag) const {
    if (!collective_.reduces(chunk)) {
      const auto times = bag.empty() ? 0 : bag.begin()->second;
      return times == 1 ? "" : "added to itself, " + std::to_string(times) + " times its value";
    }
    const auto inputs = collective_.inputs(chunk);
    std::string first;
    std::int64_t others = -1;
    const auto note = [&](const std::string& what) {
      if (++others == 0) first = what;
    };
    for (const NodeId input : inputs) {
      const auto found = bag.find(input);
      const auto times = found == bag.end() ? 0 : found->second;
      if (times == 0) note("without the contribution of " + topology_.name(input));
      if (times > 1) {
        note("counting " + topology_.name(input) + " " + std::to_string(times) + " times");
      }
    }
    for (const auto& [who, times] : bag) {
      if (times > 0 && std::find(inputs.begin(), inputs.end(), who) == inputs.end()) {
        note("with something of " + topology_.name(who) + ", which contributes nothing");
      }
    }
    return others > 0 ? first + " (and " + std::to_string(others) + " more)" : first;
  }

  // Backwards in time: a transfer is needed if some value it changes is read later or wanted at the
  // end.
  void check_needed(ChunkId chunk, std::span<const Carried> mine, Scratch& s) {
    for (const NodeId npu : collective_.outputs(chunk)) s.wanted[at(npu)] = 1;
    std::vector<NodeId> marked;
    std::vector<NodeId> repeated(mine.size(), -1);  // where a transfer left the value as it was
    for (auto event = s.events.rbegin(); event != s.events.rend(); ++event) {
      const Carried& one = mine[event->entry];
      const auto& [transfer, lane, begin] = one;
      const auto& route = lanes_.walk_of(lane);
      if (!event->starts()) {
        const NodeId node = image(route.destinations[event->destination], one);
        if (event->idle) repeated[event->entry] = node;
        if (event->idle || !s.wanted[at(node)]) continue;
        s.useful[event->entry] = 1;
        if (!lanes_.adds(lane)) s.wanted[at(node)] = 0;
        marked.push_back(node);
      } else if (!s.useful[event->entry]) {
        const NodeId node = repeated[event->entry];
        unneeded(transfer, chunk, event->time,
                 node < 0 ? "delivers nothing that is read or wanted later"
                          : "reaches " + topology_.name(node) + ", which has that value already");
      } else if (!lanes_.reads_input(lane)) {
        for (const NodeId from : route.sources) {
          marked.push_back(image(from, one));
          s.wanted[at(marked.back())] = 1;
        }
      }
    }
    for (const NodeId npu : collective_.outputs(chunk)) s.wanted[at(npu)] = 0;
    for (const NodeId node : marked) s.wanted[at(node)] = 0;
  }

  const Topology& topology_;
  const Collective& collective_;
  const Transfers& stored_;
  const Lanes& lanes_;
  const Orbits& orbits_;
  const VerifyOptions& options_;
  const std::span<const std::uint8_t> left_;  // per checked chunk; empty: all of them
  std::int64_t Orbits::Sizes::* const size_;  // which of the sizes of images
  const Progress& progress_;
  Findings& findings_;
  std::int32_t threads_;
  // The essentials of a path of one leg, which most transfers take: large schedules are read out of
  // order, chunk by chunk, so these data must be small and adjacent.
  struct Hop {
    NodeId from, to;
    Time latency;
    std::int64_t slowest;  // bandwidth
    bool simple;
  };
  static constexpr std::int64_t kFastest = std::numeric_limits<std::int64_t>::max();
  std::vector<Hop> hops_;  // per route
  bool any_legs_ = false;
  std::vector<std::size_t> first_lane_;  // of each slice, then the number of lanes
  std::vector<std::vector<std::uint32_t>>
      before_;  // per slice and chunk: transfers in the slices before
};

}  // namespace

void check_chunks(const Examined& examined, const VerifyOptions& options,
                  std::span<const std::uint8_t> left) {
  using Sizes = Orbits::Sizes;
  ChunkRules(examined, options, left, &Sizes::most).run();
  if (examined.orbits.uneven() && examined.findings.none()) {
    ChunkRules(examined, options, left, &Sizes::least).run();
  }
}

}  // namespace tacos::verification
