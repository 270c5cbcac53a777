// Functions of the package that bound classes call. The package connects them once, so that this module imports nothing from it.
#pragma once

#include <nanobind/nanobind.h>

namespace tacos::bindings {

namespace nb = nanobind;

struct Hooks {
  nb::object find_npu, find_link;  // (topology, number or name) -> number
  nb::object find_network;         // (spec or path) -> topology
  nb::object executed_ps;          // (schedule) -> time when its target executes it; None: unknown
  nb::object to_pandas;            // (object) -> data frame
  nb::object to_arrow;             // (columns by name) -> table
  nb::object to_html;              // (object) -> HTML for notebooks
  nb::object from_json, to_json;   // (text) -> value, (value) -> text
};

const Hooks& hooks();

}  // namespace tacos::bindings
