#include "lowering/pace.hpp"

#include <algorithm>
#include <limits>
#include <memory>
#include <span>
#include <utility>

#include "lowering/by_orbit.hpp"
#include "lowering/lower.hpp"
#include "simulate/run_program.hpp"
#include "support/index.hpp"

namespace tacos {

namespace {

constexpr std::int32_t kWindows[] = {1, 0, 2, 3, 8}, kShared[] = {0};
constexpr double kNoLoss = 0.002;
// Windows after the first kTelling gain less than the factor kHope (measured).
constexpr std::size_t kTelling = 2;
constexpr double kHope = 1.1;
constexpr std::int64_t kMostForAll =
    30'000;  // transfers up to which all windows are tried: about a second

// Whether messages of several connections cross one link.
bool shares_links(const Schedule& schedule) {
  const auto& routes = schedule.routes();
  std::vector<std::pair<NodeId, NodeId>> user(at(schedule.topology().links()), {-1, -1});
  for (const RouteId route : schedule.stored().lane_route) {
    const std::pair ends(routes.sources(route)[0], routes.destinations(route)[0]);
    for (const LinkId link : routes.links(route)) {
      auto& known = user[at(link)];
      if (known.first >= 0 && known != ends) return true;
      known = ends;
    }
  }
  return false;
}

std::vector<std::int64_t> chunk_bytes(const Collective& collective) {
  std::vector<std::int64_t> bytes;
  for (ChunkId chunk = 0; chunk < collective.chunks(); ++chunk) {
    bytes.push_back(collective.bytes(chunk));
  }
  return bytes;
}

// How long programs take first come, first served, and with shared links.
class Runs {
 public:
  explicit Runs(const Progress& progress) : progress_(progress) {}

  // Returns both times; nullopt if one of them is not below `limit`, which missed() then returns. The rule that was slower
  // for the last program is run first.
  std::optional<std::pair<Time, Time>> below(Time limit, const simulation::ProgramRuns& runs) {
    const Time first = run(runs, shared_first_);
    missed_ = first;
    if (first >= limit) return std::nullopt;
    const Time second = run(runs, !shared_first_);
    missed_ = second;
    std::pair times(first, second);
    if (shared_first_) std::swap(times.first, times.second);
    shared_first_ = times.second > times.first;
    if (second >= limit) return std::nullopt;
    return times;
  }
  Time missed() const { return missed_; }
  std::int32_t count() const { return count_; }

 private:
  Time run(const simulation::ProgramRuns& runs, bool shared) {
    ++count_;
    const auto rule = shared ? simulation::Timing::shared : simulation::Timing::first_come;
    const auto result = runs.run(rule, false, 0, progress_);
    return *std::max_element(result.finish.begin(), result.finish.end());
  }

  const Progress& progress_;
  bool shared_first_ = false;
  Time missed_ = 0;
  std::int32_t count_ = 0;
};

// Finds the window. `lowered` makes the program of a window, and `on_network` what its runs have in common.
template <typename Lowered, typename OnNetwork>
Paced pace(const Schedule& schedule, bool shares, Time limit, const Progress& progress,
           const Lowered& lowered, const OnNetwork& on_network) {
  const auto enough = static_cast<Time>((1 + kNoLoss) * static_cast<double>(schedule.time()));
  Runs runs(progress);
  const auto hopeless = static_cast<double>(limit) * kHope;
  std::optional<Paced> best, last;
  Time fastest = limit, least = std::numeric_limits<Time>::max();
  std::span<const std::int32_t> windows(kWindows);
  if (schedule.transfers() > kMostForAll) windows = windows.first(kTelling);
  if (!shares) windows = kShared;
  for (std::size_t i = 0; i < windows.size() && (!best || fastest > enough); ++i) {
    if (i >= kTelling && !best && static_cast<double>(least) > hopeless) break;
    Program program = lowered(windows[i]);
    if (const auto times = runs.below(fastest, *on_network(program))) {
      fastest = std::max(times->first, times->second);
      best.emplace(Paced{std::move(program), windows[i], times->first, times->second});
    } else if (runs.missed() < least) {
      least = runs.missed();
      last.emplace(Paced{std::move(program), windows[i], least, least});
    }
  }
  Paced& found = best ? *best : *last;
  found.runs = runs.count();
  return std::move(found);
}

}  // namespace

Paced lower_paced(const Schedule& schedule, bool in_place, bool timed, const Progress& progress,
                  Time limit) {
  const std::optional<Schedule> expanded =
      schedule.symmetry() ? std::optional(schedule.expand()) : std::nullopt;
  const Schedule& whole = expanded ? *expanded : schedule;
  const auto lowered = [&](std::int32_t window) {
    return lower(whole, {.in_place = in_place, .window = window}, progress);
  };
  const bool shares = shares_links(whole);
  if (!shares && !timed) return {lowered(0)};
  // A program names ranks, not links, so its messages take the network's default routes; ties are broken as for a program
  // that was read from a file.
  const auto bytes = chunk_bytes(whole.collective());
  return pace(whole, shares, limit, progress, lowered, [&](const Program& program) {
    return std::make_unique<const simulation::ProgramRuns>(program, bytes, whole.shared_topology(),
                                                           simulation::ProgramOptions{}, progress);
  });
}

std::optional<Paced> paced_by_orbit(const Schedule& schedule, const Progress& progress,
                                    Time limit) {
  const auto orbits = ByOrbit::of(schedule);
  if (!orbits) return std::nullopt;
  const auto lowered = [&](std::int32_t window) { return orbits->lower(window, progress); };
  // All programs have the same threads.
  const auto bytes = chunk_bytes(schedule.collective());
  if (!orbits->messages(lowered(0), progress)) return std::nullopt;
  return pace(schedule, orbits->shares_links(), limit, progress, lowered,
              [&](const Program& program) {
                return std::make_unique<const simulation::ProgramRuns>(
                    program, bytes, *orbits->messages(program, progress));
              });
}

}  // namespace tacos
