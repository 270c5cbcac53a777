// Columns to and from NumPy; shared by the bind_*.cpp files.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <vector>

#include "meter.hpp"
#include "support/column.hpp"

namespace tacos::bindings {

namespace nb = nanobind;

template <typename T>
using Array = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <typename T>
using ReadOnly = nb::ndarray<nb::numpy, const T, nb::ndim<1>>;

// A read-only view; `column` shares ownership, so the view may outlive the object that it came from.
template <typename T>
ReadOnly<T> view(const Column<T>& column) {
  auto keep = std::make_unique<Column<T>>(column);
  nb::capsule owner(keep.get(), [](void* p) noexcept { delete static_cast<Column<T>*>(p); });
  const T* data = keep.release()->data();
  return ReadOnly<T>(data, {column.size()}, owner);
}

// A copy of an array's values, as a vector.
template <typename T>
std::vector<T> list(const Array<T>& array) {
  return {array.data(), array.data() + array.shape(0)};
}

// The same as a column.
template <typename T>
Column<T> copy(const Array<T>& array) {
  return list(array);
}

// A column over an array, without a copy; it keeps the array alive.
template <typename T>
Column<T> adopt(const Array<T>& array) {
  std::shared_ptr<const void> owner(new Array<T>(array), [](const Array<T>* kept) {
    const nb::gil_scoped_acquire
        gil;  // a thread that does not hold the GIL may drop the last reference
    delete kept;
  });
  return Column<T>({array.data(), array.shape(0)}, std::move(owner));
}

// A new array that owns the vector's values.
template <typename T, typename Allocator>
ReadOnly<T> give(std::vector<T, Allocator> values) {
  return view(Column<T>(std::move(values)));
}

}  // namespace tacos::bindings
