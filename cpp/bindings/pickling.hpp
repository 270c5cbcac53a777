// Pickling: an object is taken apart into the arguments of its constructor, and made again by it. So what is unpickled
// passes the same validation as everything else.
#pragma once

#include <nanobind/nanobind.h>

namespace tacos::bindings {

namespace nb = nanobind;

// The arguments of the constructor that make the object again, by name.
nb::dict fields(nb::handle item);

// What __reduce__ returns.
nb::tuple reduced(nb::handle item);

}  // namespace tacos::bindings
