#include "runtime/reduce.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <type_traits>

#include "runtime/half.hpp"
#include "support/error.hpp"
#include "support/vectorized.hpp"

namespace tacos {

namespace {

constexpr std::array<std::string_view, kDTypes> kDTypeNames = {
    "float16", "bfloat16", "float32", "float64", "int8",   "uint8", "int16",
    "uint16",  "int32",    "uint32",  "int64",   "uint64", "bool"};
constexpr std::array<std::size_t, kDTypes> kSizes = {2, 2, 4, 8, 1, 1, 2, 2, 4, 4, 8, 8, 1};
constexpr std::array<std::string_view, kReduceOps> kOpNames = {"sum", "product", "min", "max",
                                                               "avg", "band",    "bor", "bxor"};

template <typename Names>
std::string listed(const Names& names) {
  std::string text;
  for (const auto name : names) text += (text.empty() ? "" : ", ") + std::string(name);
  return text;
}

struct Truth {
  std::uint8_t value;
};

template <ReduceOp op, typename T>
inline T arithmetic(T a, T b) {
  // A NaN in either operand gives a NaN: the order of the ranks must not matter.
  // NOLINTBEGIN(misc-redundant-expression): NaN differs from itself
  if constexpr (op == ReduceOp::min) return b < a || b != b ? b : a;
  if constexpr (op == ReduceOp::max) return a < b || b != b ? b : a;
  // NOLINTEND(misc-redundant-expression)
  if constexpr (std::is_integral_v<T>) {
    using Wide = std::common_type_t<std::make_unsigned_t<T>, unsigned>;  // which wraps around
    const auto x = static_cast<Wide>(a), y = static_cast<Wide>(b);
    if constexpr (op == ReduceOp::sum) return static_cast<T>(x + y);
    if constexpr (op == ReduceOp::product) return static_cast<T>(x * y);
    if constexpr (op == ReduceOp::band) return static_cast<T>(x & y);
    if constexpr (op == ReduceOp::bor) return static_cast<T>(x | y);
    if constexpr (op == ReduceOp::bxor) return static_cast<T>(x ^ y);
  } else {
    if constexpr (op == ReduceOp::sum) return a + b;
    if constexpr (op == ReduceOp::product) return a * b;
  }
}

template <ReduceOp op, typename T>
inline T combined(T a, T b) {
  if constexpr (std::is_same_v<T, Half>) {
    return halved(arithmetic<op>(widened(a), widened(b)));
  } else if constexpr (std::is_same_v<T, Brain>) {
    return shortened(arithmetic<op>(widened(a), widened(b)));
  } else if constexpr (std::is_same_v<T, Truth>) {
    const auto x = static_cast<std::uint8_t>(a.value != 0),
               y = static_cast<std::uint8_t>(b.value != 0);
    constexpr bool both = op == ReduceOp::product || op == ReduceOp::min || op == ReduceOp::band;
    if constexpr (both) return {static_cast<std::uint8_t>(x & y)};
    if constexpr (op == ReduceOp::bxor) return {static_cast<std::uint8_t>(x ^ y)};
    return {static_cast<std::uint8_t>(x | y)};
  } else {
    return arithmetic<op>(a, b);
  }
}

template <typename T, ReduceOp op>
TACOS_VECTORIZED void combine(void* dst, const void* a, const void* b, std::size_t count) {
  auto* to = static_cast<T*>(dst);
  const auto *x = static_cast<const T*>(a), *y = static_cast<const T*>(b);
  for (std::size_t i = 0; i < count; ++i) to[i] = combined<op>(x[i], y[i]);
}

template <typename T>
Reduction reduction_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::avg:
      return combine<T, ReduceOp::sum>;
    case ReduceOp::product:
      return combine<T, ReduceOp::product>;
    case ReduceOp::min:
      return combine<T, ReduceOp::min>;
    case ReduceOp::max:
      return combine<T, ReduceOp::max>;
    default:
      break;
  }
  if constexpr (std::is_integral_v<T> || std::is_same_v<T, Truth>) {
    switch (op) {
      case ReduceOp::band:
        return combine<T, ReduceOp::band>;
      case ReduceOp::bor:
        return combine<T, ReduceOp::bor>;
      default:
        return combine<T, ReduceOp::bxor>;
    }
  }
  return nullptr;
}

// Calls visit with a null pointer to the type of the elements.
template <typename Visit>
auto typed(DType dtype, const Visit& visit) {
  switch (dtype) {
    case DType::float16:
      return visit(static_cast<Half*>(nullptr));
    case DType::bfloat16:
      return visit(static_cast<Brain*>(nullptr));
    case DType::float32:
      return visit(static_cast<float*>(nullptr));
    case DType::float64:
      return visit(static_cast<double*>(nullptr));
    case DType::int8:
      return visit(static_cast<std::int8_t*>(nullptr));
    case DType::uint8:
      return visit(static_cast<std::uint8_t*>(nullptr));
    case DType::int16:
      return visit(static_cast<std::int16_t*>(nullptr));
    case DType::uint16:
      return visit(static_cast<std::uint16_t*>(nullptr));
    case DType::int32:
      return visit(static_cast<std::int32_t*>(nullptr));
    case DType::uint32:
      return visit(static_cast<std::uint32_t*>(nullptr));
    case DType::int64:
      return visit(static_cast<std::int64_t*>(nullptr));
    case DType::uint64:
      return visit(static_cast<std::uint64_t*>(nullptr));
    case DType::boolean:
      break;
  }
  return visit(static_cast<Truth*>(nullptr));
}

}  // namespace

std::string_view name_of(DType dtype) { return kDTypeNames[static_cast<std::size_t>(dtype)]; }
std::string_view name_of(ReduceOp op) { return kOpNames[static_cast<std::size_t>(op)]; }
std::size_t size_of(DType dtype) { return kSizes[static_cast<std::size_t>(dtype)]; }

DType dtype_named(std::string_view name) {
  const auto found = std::find(kDTypeNames.begin(), kDTypeNames.end(), name);
  if (found == kDTypeNames.end()) {
    invalid("dtype is \"" + std::string(name) + "\"; it must be one of " + listed(kDTypeNames));
  }
  return static_cast<DType>(found - kDTypeNames.begin());
}

ReduceOp reduce_op_named(std::string_view name) {
  const auto found = std::find(kOpNames.begin(), kOpNames.end(), name);
  if (found == kOpNames.end()) {
    invalid("op is \"" + std::string(name) + "\"; it must be one of " + listed(kOpNames));
  }
  return static_cast<ReduceOp>(found - kOpNames.begin());
}

Reduction reduction(DType dtype, ReduceOp op) {
  const Reduction found =
      typed(dtype, [op]<typename T>(T*) -> Reduction { return reduction_of<T>(op); });
  if (found == nullptr) {
    invalid("op is \"" + std::string(name_of(op)) + "\", which " + std::string(name_of(dtype)) +
            " does not have; use sum, product, min, max or avg");
  }
  return found;
}

void divide(void* data, std::size_t count, DType dtype, std::int64_t divisor) {
  typed(dtype, [&]<typename T>(T*) {
    auto* values = static_cast<T*>(data);
    if constexpr (std::is_same_v<T, Half>) {
      const float by = static_cast<float>(divisor);
      for (std::size_t i = 0; i < count; ++i) values[i] = halved(widened(values[i]) / by);
    } else if constexpr (std::is_same_v<T, Brain>) {
      const float by = static_cast<float>(divisor);
      for (std::size_t i = 0; i < count; ++i) values[i] = shortened(widened(values[i]) / by);
    } else if constexpr (std::is_floating_point_v<T>) {
      const T by = static_cast<T>(divisor);
      for (std::size_t i = 0; i < count; ++i) values[i] /= by;
    } else if constexpr (std::is_integral_v<T>) {
      for (std::size_t i = 0; i < count; ++i) {
        if constexpr (std::is_signed_v<T>) {
          values[i] = static_cast<T>(static_cast<std::int64_t>(values[i]) / divisor);
        } else {
          values[i] = static_cast<T>(static_cast<std::uint64_t>(values[i]) /
                                     static_cast<std::uint64_t>(divisor));
        }
      }
    }
    return 0;
  });
}

}  // namespace tacos
