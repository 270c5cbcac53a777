// Progress reports from long work. The report may throw (on Ctrl-C), which ends the work.
#pragma once

#include <functional>

namespace tacos {

using Progress = std::function<void(double fraction)>;  // empty: no reports

// Reports of a part of the work, from `begin` to `end` of the whole. Must not outlive `whole`.
inline Progress part_of(const Progress& whole, double begin, double end) {
  if (!whole) return {};
  return [&whole, begin, end](double share) { whole(begin + (end - begin) * share); };
}

}  // namespace tacos
