// The group by whose elements the symmetric engine moves the NPUs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "model/topology.hpp"
#include "support/index.hpp"

namespace tacos::symmetric {

// Z_n1 × … × Z_nk, its elements numbered like the NPUs.
class AbelianGroup {
 public:
  struct Axis {
    std::int32_t size, stride;
  };

  explicit AbelianGroup(const Topology& topology) : order_(topology.npus()) {
    std::int64_t stride = 1;
    for (const auto& [kind, size] : topology.spec().dims) {
      if (size > 1) axes_.push_back({size, static_cast<std::int32_t>(stride)});
      stride *= std::max(size, 1);
      if (stride > order_) break;
    }
    if (!topology.spec().symmetric || stride != order_) {
      invalid("the symmetric engine needs a topology that is the same from every NPU");
    }
  }

  std::int32_t order() const { return order_; }
  const std::vector<Axis>& axes() const { return axes_; }
  static std::int32_t digit(NodeId v, const Axis& axis) { return v / axis.stride % axis.size; }

  NodeId minus(NodeId u, NodeId v) const {
    NodeId result = 0;
    for (const auto& axis : axes_) {
      const auto d = digit(u, axis) - digit(v, axis);
      result += (d < 0 ? d + axis.size : d) * axis.stride;
    }
    return result;
  }
  NodeId plus(NodeId u, NodeId v) const { return minus(u, minus(0, v)); }

 private:
  std::int32_t order_;
  std::vector<Axis> axes_;
};

// Adding one fixed element.
class Shift {
 public:
  Shift(const AbelianGroup& group, NodeId by) {
    for (const auto& axis : group.axes()) {
      const auto d = AbelianGroup::digit(by, axis);
      if (d != 0) digits_.push_back({axis, d});
    }
  }
  NodeId operator()(NodeId v) const {
    for (const auto& [axis, by] : digits_) {
      const bool wraps = AbelianGroup::digit(v, axis) + by >= axis.size;
      v += (wraps ? by - axis.size : by) * axis.stride;
    }
    return v;
  }

 private:
  struct Digit {
    AbelianGroup::Axis axis;
    std::int32_t by;
  };
  std::vector<Digit> digits_;
};

}  // namespace tacos::symmetric
