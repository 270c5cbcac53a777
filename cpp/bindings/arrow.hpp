// Columns for libraries that support Arrow.
#pragma once

#include <nanobind/nanobind.h>

namespace tacos::bindings {

namespace nb = nanobind;

// NumPy arrays by name as a stream of record batches, in the capsule of Arrow's PyCapsule interface.
nb::capsule arrow_stream(const nb::dict& columns);

}  // namespace tacos::bindings
