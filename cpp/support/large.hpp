// Vectors of many megabytes that are accessed at random: on large pages, if the system provides them, an
// access costs one cache miss instead of two.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "support/column.hpp"

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace tacos {

template <typename T>
struct LargePages {
  using value_type = T;
  LargePages() = default;
  template <typename Other>
  LargePages(const LargePages<Other>&) {}  // NOLINT: an allocator converts

  T* allocate(std::size_t count) {
    const auto bytes = count * sizeof(T);
    if (bytes < kWorthIt) return static_cast<T*>(::operator new(bytes));
    void* memory = std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage);
    if (memory == nullptr) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
    madvise(memory, bytes, MADV_HUGEPAGE);  // a hint: if ignored, accesses are only slower
#endif
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, std::size_t count) {
    if (count * sizeof(T) < kWorthIt) {
      ::operator delete(memory);
    } else {
      std::free(memory);
    }
  }
  bool operator==(const LargePages&) const { return true; }

 private:
  static constexpr std::size_t kPage = std::size_t{1} << 21, kWorthIt = 2 * kPage;
};

template <typename T>
using LargeVector = std::vector<T, LargePages<T>>;

// An array of which every entry is written before it is read. A vector would fill it with zeros first, on one thread; here each
// page is first touched by the thread that writes to it.
template <typename T>
class Unfilled {
 public:
  void resize(std::size_t count) {
    count_ = count;
    data_ = {LargePages<T>().allocate(count),
             [count](T* memory) { LargePages<T>().deallocate(memory, count); }};
  }
  T& operator[](std::size_t i) { return data_.get()[i]; }
  const T& operator[](std::size_t i) const { return data_.get()[i]; }
  T* begin() { return data_.get(); }
  Column<T> column() && { return {std::span<const T>(data_.get(), count_), std::move(data_)}; }

 private:
  std::shared_ptr<T> data_;
  std::size_t count_ = 0;
};

}  // namespace tacos
