// Column<T>: an immutable array that shares ownership of its storage.
//
// The model's data are columns. A column is made from a vector (the core's own results) or adopts
// foreign memory together with whatever keeps it alive (a NumPy array), so that loading a large
// schedule does not copy it. Copying a column copies a pointer.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace tacos {

template <typename T>
class Column {
 public:
  Column() = default;

  template <typename Allocator>
  Column(std::vector<T, Allocator> values)  // NOLINT: implicit on purpose, a vector is a column
  {
    auto owner = std::make_shared<const std::vector<T, Allocator>>(std::move(values));
    data_ = {owner->data(), owner->size()};
    owner_ = std::move(owner);
  }

  Column(std::span<const T> data, std::shared_ptr<const void> owner)
      : data_(data), owner_(std::move(owner)) {}

  const T& operator[](std::size_t i) const { return data_[i]; }
  std::size_t size() const { return data_.size(); }
  bool empty() const { return data_.empty(); }
  const T* data() const { return data_.data(); }
  auto begin() const { return data_.begin(); }
  auto end() const { return data_.end(); }
  std::span<const T> span() const { return data_; }
  std::span<const T> slice(std::size_t from, std::size_t to) const {
    return data_.subspan(from, to - from);
  }

  bool operator==(const Column& other) const {
    return std::equal(begin(), end(), other.begin(), other.end());
  }

 private:
  std::span<const T> data_;
  std::shared_ptr<const void> owner_;
};

}  // namespace tacos
