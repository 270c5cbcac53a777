// Columns to and from NumPy, and the progress callback; shared by the bind_*.cpp files.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <vector>

#include "column.hpp"

namespace tacos::bindings {

namespace nb = nanobind;

template <typename T>
using Array = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <typename T>
using ReadOnly = nb::ndarray<nb::numpy, const T, nb::ndim<1>>;

// A read-only view; `column` shares ownership, so the view may outlive the object it came from.
template <typename T>
ReadOnly<T> view(const Column<T>& column) {
  auto keep = std::make_unique<Column<T>>(column);
  nb::capsule owner(keep.get(), [](void* p) noexcept { delete static_cast<Column<T>*>(p); });
  const T* data = keep.release()->data();
  return ReadOnly<T>(data, {column.size()}, owner);
}

// A column from an array the caller keeps: its values are copied.
template <typename T>
Column<T> copy(const Array<T>& array) {
  return std::vector<T>(array.data(), array.data() + array.shape(0));
}

// A column over an array the caller gives away: nothing is copied, the array is kept alive.
template <typename T>
Column<T> adopt(const Array<T>& array) {
  auto owner = std::shared_ptr<const void>(array.data(), [array](const void*) mutable {
    nb::gil_scoped_acquire gil;  // the last reference may be dropped by a thread without the GIL
    array = Array<T>();
  });
  return Column<T>({array.data(), array.shape(0)}, std::move(owner));
}

}  // namespace tacos::bindings
