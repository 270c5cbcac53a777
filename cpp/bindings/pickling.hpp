// Pickling: an object is stored as the arguments of its constructor. So unpickled objects are validated like all
// others.
#pragma once

#include <nanobind/nanobind.h>

namespace tacos::bindings {

namespace nb = nanobind;

// The constructor arguments that recreate the object, by name.
nb::dict fields(nb::handle item);

// The result of __reduce__.
nb::tuple reduced(nb::handle item);

}  // namespace tacos::bindings
