// The core stores provenance as JSON text; the Python package reads and writes it.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "hooks.hpp"

namespace tacos::bindings {

inline nb::object from_json(const std::string& text) { return hooks().from_json(text); }

inline std::string to_json(nb::handle value) {
  return nb::cast<std::string>(hooks().to_json(value));
}

}  // namespace tacos::bindings
