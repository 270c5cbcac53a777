// JSON by the standard library's json, the only module that this one imports.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

namespace tacos::bindings {

namespace nb = nanobind;

inline nb::object from_json(const std::string& text) {
  return nb::module_::import_("json").attr("loads")(text);
}

inline std::string to_json(nb::handle value) {
  return nb::cast<std::string>(nb::module_::import_("json").attr("dumps")(value));
}

}  // namespace tacos::bindings
