// Ids are signed, sizes of containers are not: `at` converts an id to an index.
#pragma once

#include <cstddef>

namespace tacos {

template <typename Int>
constexpr std::size_t at(Int i) {
  return static_cast<std::size_t>(i);
}

}  // namespace tacos
