#include <nanobind/stl/optional.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <stdexcept>
#include <string>

#include "meter.hpp"
#include "support/work.hpp"

namespace tacos::bindings {

using namespace nb::literals;

namespace {

// Does not own `callback`, so that Python sees all references to it.
Caller::Report throttled(nb::handle callback) {
  using Clock = std::chrono::steady_clock;
  return [callback, last = Clock::now()](double share) mutable {
    const auto now = Clock::now();
    if (now - last < std::chrono::milliseconds(50)) return;
    last = now;
    const nb::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (callback.is_valid()) callback(share);
  };
}

std::shared_ptr<Caller> caller_of(const nb::object& report, std::int64_t limit) {
  return std::make_shared<Caller>(throttled(report.is_none() ? nb::handle() : nb::handle(report)),
                                  limit);
}

Meter make_meter(std::optional<std::int64_t> limit, const nb::object& report) {
  if (limit && *limit < 0) {
    throw std::invalid_argument("limit must be at least 0; got " + std::to_string(*limit));
  }
  const auto caller = caller_of(report, limit.value_or(Caller::kNoLimit));
  return {Progress(caller), caller, report};
}

int visit_meter(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  Py_VISIT(nb::inst_ptr<Meter>(self)->owned.ptr());
  return 0;
}

int clear_meter(PyObject* self) {
  auto& meter = *nb::inst_ptr<Meter>(self);
  meter.progress = {};  // its report must not be called any more
  meter.caller = std::make_shared<Caller>(Caller::Report(), Caller::kNoLimit);
  meter.owned.reset();
  return 0;
}

PyType_Slot kSlots[] = {{Py_tp_traverse, reinterpret_cast<void*>(visit_meter)},
                        {Py_tp_clear, reinterpret_cast<void*>(clear_meter)},
                        {0, nullptr}};

}  // namespace

Progress progress_to(const nb::object& callback) {
  if (nb::isinstance<Meter>(callback)) return nb::inst_ptr<Meter>(callback)->progress;
  return Progress(caller_of(callback, Caller::kNoLimit));
}

void bind_meter(nb::module_& m) {
  auto meter =
      nb::class_<Meter>(m, "Meter", nb::type_slots(kSlots),
                        "A counter of work, and a report of progress: what functions of the core "
                        "take as ``progress``.\n\n"
                        "A unit of work is about a nanosecond of one core. The count is a function "
                        "of the problem alone: the same on any\n"
                        "machine and for any number of threads. Call a meter with the share of the "
                        "work that is done.\n\n"
                        "Args:\n"
                        "    limit: Units after which :class:`tacos.errors.WorkIsUp` is raised; "
                        "None for no limit.\n"
                        "    report: Called with the share done, at most every 50 ms; an exception "
                        "that it raises ends the work.\n\n"
                        ">>> from tacos._core import Meter\n"
                        ">>> meter = Meter(limit=100)\n"
                        ">>> meter.spend(60)\n"
                        ">>> meter.used, meter.left\n"
                        "(60, 40)\n"
                        ">>> meter.part(0.5, 1.0).spend(60)\n"
                        "Traceback (most recent call last):\n"
                        "tacos._core.WorkIsUp: the allowance of work is used up\n")
          .def(nb::new_([](std::optional<std::int64_t> limit, const nb::object& report) {
                 return make_meter(limit, report);
               }),
               nb::kw_only(), "limit"_a = nb::none(), "report"_a = nb::none())
          .def_static(
              "of",
              [](const nb::object& progress) -> nb::object {
                if (nb::isinstance<Meter>(progress)) return progress;
                return nb::cast(make_meter(std::nullopt, progress));
              },
              "progress"_a.none(),
              nb::sig(
                  "def of(progress: collections.abc.Callable[[float], object] | None) -> Meter"),
              "A meter as it is; of a callback, or None, a meter without a limit that reports to "
              "it.")
          .def(
              "__call__", [](const Meter& meter, double share) { meter.progress(share); },
              "share"_a, "Report the share of the work that is done.")
          .def(
              "spend", [](const Meter& meter, double units) { meter.progress.spend(units); },
              "units"_a, "Count work; raise WorkIsUp if the counter is then beyond the limit.")
          .def(
              "reserve", [](const Meter& meter, double units) { meter.progress.reserve(units); },
              "units"_a,
              "Count work that is still to be done; raise WorkIsUp, and count nothing, if it would "
              "pass the limit.")
          .def(
              "part",
              [](nb::handle_t<Meter> self, double begin, double end) {
                const auto& whole = nb::cast<const Meter&>(self);
                return Meter{whole.progress.part(begin, end), whole.caller, nb::borrow(self)};
              },
              "begin"_a, "end"_a, "A meter with the same counter that reports a part of the work.")
          .def_prop_ro(
              "used", [](const Meter& meter) { return meter.caller->used(); },
              "Units counted so far.")
          .def_prop_ro(
              "wanted", [](const Meter& meter) { return meter.caller->wanted(); },
              "Units that the work is known to need at least: more than the limit if it was "
              "stopped.")
          .def_prop_ro(
              "limit",
              [](const Meter& meter) -> std::optional<std::int64_t> {
                if (meter.caller->limit() == Caller::kNoLimit) return std::nullopt;
                return meter.caller->limit();
              },
              "Units after which the work ends, or None.")
          .def_prop_ro(
              "left",
              [](const Meter& meter) -> std::optional<std::int64_t> {
                if (meter.caller->limit() == Caller::kNoLimit) return std::nullopt;
                return std::max<std::int64_t>(0, meter.caller->limit() - meter.caller->used());
              },
              "Units until the work ends, or None without a limit.");
  // Rates for what engines in Python count.
  meter.attr("TRANSFER") = work::kTransfer;
  meter.attr("CELL") = work::kCell;
  meter.attr("STEP") = work::kPython;
}

}  // namespace tacos::bindings
