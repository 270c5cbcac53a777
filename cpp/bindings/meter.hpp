// The callback of bound functions that report progress, and the counter of their work.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "support/progress.hpp"

namespace tacos::bindings {

namespace nb = nanobind;

// The Python class Meter: a counter with a limit and a report. Parts of one share its counter, and keep it alive.
struct Meter {
  Progress progress;
  std::shared_ptr<Caller> caller;
  nb::object owned;  // of a whole: the report, or None; of a part: the whole
};

// Reports to `callback`: None, any callable, or a Meter, whose counter then counts the work. Reports are passed on at most
// every 50 ms, and check for Ctrl-C: the KeyboardInterrupt, like any exception of the callback, propagates through the core.
// `callback` must outlive the result.
Progress progress_to(const nb::object& callback);

}  // namespace tacos::bindings
