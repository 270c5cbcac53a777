#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "support/parallel.hpp"
#include "verify/rules.hpp"

namespace tacos::verification {

namespace {

void report_overlap(const Examined& examined, LinkId link, std::int64_t transfer,
                    std::int64_t other, Time from, Time until) {
  examined.findings.add({"capacity", transfer, from, examined.schedule.stored().chunk[at(transfer)],
                         link,
                         "transfer " + std::to_string(transfer) + " enters " +
                             examined.schedule.topology().describe(link) + " at " +
                             microseconds(from) + ", while transfer " + std::to_string(other) +
                             " keeps it busy until " + microseconds(until)});
}

}  // namespace

void check_capacity(const Examined& examined) {
  const auto& [schedule, lanes, orbits, findings, progress, threads] = examined;
  const auto& topology = schedule.topology();
  const auto& collective = schedule.collective();
  const auto& stored = schedule.stored();
  const auto link_class = orbits.link_class();
  struct Use {
    std::size_t lane;
    std::size_t step;
  };
  std::vector<std::size_t> begin(link_class.size() + 1, 0);
  const auto each_use = [&](auto&& visit) {
    for (std::size_t lane = 0; lane < lanes.count(); ++lane) {
      if (stored.lane_begin[lane] == stored.lane_begin[lane + 1]) continue;
      const auto& steps = lanes.walk_of(lane).crossings;
      for (std::size_t step = 0; step < steps.size(); ++step) {
        visit(at(link_class[at(steps[step].link)]), Use{lane, step});
      }
    }
  };
  each_use([&](std::size_t link, const Use&) { ++begin[link + 1]; });
  std::partial_sum(begin.begin(), begin.end(), begin.begin());
  std::vector<Use> uses(begin.back());
  auto next = begin;
  each_use([&](std::size_t link, const Use& use) { uses[next[link]++] = use; });

  // Whether a link that only one lane uses has time for each transfer. The starts of a lane are in order and, if all chunks have
  // one size, all transfers enter the link equally long after their starts.
  const auto alike = collective.uniform_bytes();
  const auto spaced = [&](const Use& use) {
    if (alike == 0 || schedule.symmetry()) return false;
    const auto& route = lanes.walk_of(use.lane);
    RouteTimes times;
    times.compute_step(topology, route, use.step, alike);
    const auto least = (times.busy[use.step] + stored.quantum - 1) / stored.quantum;
    const auto rows = at(stored.lane_begin[use.lane + 1] - stored.lane_begin[use.lane]);
    const auto first =
        lanes.row(use.lane, stored.lane_begin[use.lane]) + at(route.crossings[use.step].leg) * rows;
    const auto starts = stored.start.slice(first, first + rows);
    for (std::size_t i = 1; i < rows; ++i) {
      if (starts[i] - starts[i - 1] < least) return false;
    }
    return true;
  };

  struct Taken {
    Time from, to;
    std::int64_t transfer;
  };
  std::vector<std::vector<Taken>> buffers(at(threads));
  std::vector<RouteTimes> all_times(at(threads));
  parallel(
      link_class.size(), 16, threads, progress, 0.0, 0.2,
      [&](std::size_t link, std::int32_t thread) {
        if (begin[link + 1] == begin[link] + 1 && spaced(uses[begin[link]])) return;
        auto& taken = buffers[at(thread)];
        taken.clear();
        for (auto u = begin[link]; u < begin[link + 1]; ++u) {
          const auto& [lane, step] = uses[u];
          const auto& route = lanes.walk_of(lane);
          auto& times = all_times[at(thread)];
          times.bytes = -1;
          for (auto i = stored.lane_begin[lane]; i < stored.lane_begin[lane + 1]; ++i) {
            const Time start = lanes.start(lane, i, route.crossings[step].leg);
            const auto [least, most] = orbits.sizes(stored.chunk[at(i)]);
            times.compute_step(topology, route, step, least);
            const Time from = start + times.enter[step];
            times.compute_step(topology, route, step, most);
            taken.push_back({from, start + times.enter[step] + times.busy[step], i});
          }
        }
        const auto earlier = [](const Taken& a, const Taken& b) {
          return std::pair(a.from, a.transfer) < std::pair(b.from, b.transfer);
        };
        if (!std::is_sorted(taken.begin(), taken.end(), earlier)) {
          std::sort(taken.begin(), taken.end(), earlier);
        }
        for (std::size_t i = 0; i < taken.size(); ++i) {
          if (i > 0 && taken[i].from < taken[i - 1].to) {
            report_overlap(examined, static_cast<LinkId>(link), taken[i].transfer,
                           taken[i - 1].transfer, taken[i].from, taken[i - 1].to);
            // From here on, the longer of the two represents both.
            if (taken[i - 1].to > taken[i].to) taken[i].to = taken[i - 1].to;
          }
        }
        if (schedule.symmetry() && !taken.empty() && !orbits.moves(link)) {
          findings.add({"capacity", taken[0].transfer, taken[0].from, -1, static_cast<LinkId>(link),
                        "the symmetry fixes " + topology.describe(static_cast<LinkId>(link)) +
                            ", so images of one transfer use it at the same time"});
        }
      });
}

}  // namespace tacos::verification
