// Element-wise arithmetic of reductions, for every element type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tacos {

enum class DType : std::uint8_t {
  float16,
  bfloat16,
  float32,
  float64,
  int8,
  uint8,
  int16,
  uint16,
  int32,
  uint32,
  int64,
  uint64,
  boolean,
};
inline constexpr std::uint8_t kDTypes = 13;

enum class ReduceOp : std::uint8_t { sum, product, min, max, avg, band, bor, bxor };
inline constexpr std::uint8_t kReduceOps = 8;

std::string_view name_of(DType dtype);
std::string_view name_of(ReduceOp op);
DType dtype_named(std::string_view name);         // throws std::invalid_argument
ReduceOp reduce_op_named(std::string_view name);  // throws std::invalid_argument
std::size_t size_of(DType dtype);

// dst[i] = a[i] op b[i] for `count` elements; dst may be a or b. 16-bit floating-point types are computed in float and
// rounded to nearest even, integers wrap around, and sums of booleans are "or". Averages are summed here and divided later.
using Reduction = void (*)(void* dst, const void* a, const void* b, std::size_t count);
Reduction reduction(DType dtype, ReduceOp op);  // throws std::invalid_argument: bits of floats

// data[i] = data[i] / divisor, which turns a sum into an average.
void divide(void* data, std::size_t count, DType dtype, std::int64_t divisor);

}  // namespace tacos
