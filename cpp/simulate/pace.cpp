#include "simulate/pace.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "lower.hpp"
#include "simulate/run_program.hpp"

namespace tacos {

namespace {

constexpr std::int32_t kWindows[] = {1, 0, 2, 3, 8};
constexpr double kNoLoss = 0.002;
// Transfers up to which all windows are tried (about a second), and those up to which the first two are.
constexpr std::int64_t kMostForAll = 30'000, kMostForTwo = 300'000;

template <typename Int>
std::size_t at(Int i) {
  return static_cast<std::size_t>(i);
}

// Whether messages of several connections cross one link.
bool shares_links(const Schedule& schedule, const Departures& departures) {
  const auto& routes = schedule.routes();
  std::vector<RouteId> user(at(schedule.topology().links()), -1);
  std::vector<std::uint8_t> seen(at(routes.count()), 0);
  for (const RouteId route : departures.route) {
    if (std::exchange(seen[at(route)], 1)) continue;
    for (const LinkId link : routes.links(route)) {
      if (user[at(link)] >= 0 && user[at(link)] != route) return true;
      user[at(link)] = route;
    }
  }
  return false;
}

// Runs programs of a schedule over the network's default routes: a program names ranks, not links, so that is where
// its messages go. Ties are broken by the schedule's order.
class Judge {
 public:
  Judge(const Schedule& schedule, const Departures& departures)
      : schedule_(schedule), departures_(departures) {
    for (std::size_t i = 0; i < departures.src.size(); ++i) {
      of_[{departures.src[i], departures.dst[i], departures.channel[i]}].push_back(i);
    }
    for (ChunkId chunk = 0; chunk < schedule.collective().chunks(); ++chunk) {
      bytes_.push_back(schedule.collective().bytes(chunk));
    }
  }

  // The times of the two runs.
  std::pair<Time, Time> times(const Program& program, const Progress& progress) const {
    simulation::ProgramOptions options;
    options.record = false;
    options.position.assign(at(program.steps()), 0);
    const auto& s = program.spec();
    for (ThreadId t = 0; t < program.threads(); ++t) {
      if (s.thread_send_peer[at(t)] < 0) continue;
      const auto& sent =
          of_.at({s.thread_rank[at(t)], s.thread_send_peer[at(t)], s.thread_channel[at(t)]});
      std::size_t k = 0;
      for (auto step = s.thread_begin[at(t)]; step < s.thread_begin[at(t) + 1]; ++step) {
        if (!sends(program.op(static_cast<StepId>(step)))) continue;
        options.position[at(step)] = departures_.start[sent[k++]];
      }
    }
    const auto run = [&](simulation::Timing timing) {
      options.timing = timing;
      const auto result =
          simulation::run_program(program, bytes_, schedule_.shared_topology(), options, progress);
      return *std::max_element(result.finish.begin(), result.finish.end());
    };
    const Time dependencies = run(simulation::Timing::dependencies);
    return {dependencies, run(simulation::Timing::shared)};
  }

 private:
  const Schedule& schedule_;
  const Departures& departures_;
  std::map<std::tuple<NodeId, NodeId, std::int32_t>, std::vector<std::size_t>> of_;
  std::vector<std::int64_t> bytes_;
};

}  // namespace

Paced lower_paced(const Schedule& schedule, bool in_place, const Progress& progress) {
  const std::optional<Schedule> expanded =
      schedule.symmetry() ? std::optional(schedule.expand()) : std::nullopt;
  const Schedule& whole = expanded ? *expanded : schedule;
  const auto lowered = [&](std::int32_t window) {
    return lower(whole, in_place, std::nullopt, window, progress);
  };
  if (whole.transfers() > kMostForTwo) return {lowered(0)};
  const auto sent = departures(whole);
  if (!shares_links(whole, sent)) return {lowered(0)};
  const Judge judge(whole, sent);
  const auto enough = static_cast<Time>((1 + kNoLoss) * static_cast<double>(whole.time()));
  std::optional<Paced> best;
  Time fastest = std::numeric_limits<Time>::max();
  const auto tried = whole.transfers() > kMostForAll ? std::size_t{2} : std::size(kWindows);
  for (std::size_t i = 0; i < tried && fastest > enough; ++i) {
    Program program = lowered(kWindows[i]);
    const auto [dependencies, shared] = judge.times(program, progress);
    if (std::max(dependencies, shared) >= fastest) continue;
    fastest = std::max(dependencies, shared);
    best.emplace(Paced{std::move(program), kWindows[i], dependencies, shared});
  }
  return std::move(*best);
}

}  // namespace tacos
