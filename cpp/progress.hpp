// Progress reports from long work. The report may throw (on Ctrl-C), which ends the work.
#pragma once

#include <functional>

namespace tacos {

using Progress = std::function<void(double fraction)>;  // empty: nobody listens

}  // namespace tacos
