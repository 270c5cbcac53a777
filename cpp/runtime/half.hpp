// The 16-bit floating-point types and their conversions, rounded to nearest even.
#pragma once

#include <bit>
#include <cstdint>

namespace tacos {

// Values are stored as bits. The conversions have no branches, so that the compiler vectorizes loops over them.
struct Half {
  std::uint16_t bits;
};
struct Brain {
  std::uint16_t bits;
};

inline float widened(Half half) {
  // After the shift the exponent is too small by 112. A multiplication corrects it, also for
  // subnormal numbers. Infinities and NaNs get the largest exponent.
  const std::uint32_t magnitude = (half.bits & 0x7fffU) << 13;
  const float scaled = std::bit_cast<float>(magnitude) * 0x1p112F;
  const std::uint32_t special = magnitude >= (0x7c00U << 13) ? 0x7f800000U : 0U;
  const std::uint32_t sign = static_cast<std::uint32_t>(half.bits & 0x8000U) << 16;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled) | special | sign);
}

inline Half halved(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U, magnitude = bits & 0x7fffffffU;
  // Normal results: round the last 13 bits to even and lower the exponent by 112.
  const std::uint32_t normal = (magnitude - (112U << 23) + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
  // Subnormal results: adding 1/2 rounds them and leaves their bits in the last places.
  const std::uint32_t tiny =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3f000000U;
  std::uint32_t result = magnitude < (113U << 23) ? tiny : normal;
  result = magnitude >= 0x477ff000U ? 0x7c00U : result;                           // 65520 and above
  result = magnitude > 0x7f800000U ? 0x7e00U | ((bits >> 13) & 0x1ffU) : result;  // not a number
  return {static_cast<std::uint16_t>(sign | result)};
}

inline float widened(Brain brain) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(brain.bits) << 16);
}

inline Brain shortened(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const std::uint32_t quiet = (bits >> 16) | 0x40U;
  return {static_cast<std::uint16_t>((bits & 0x7fffffffU) > 0x7f800000U ? quiet : rounded)};
}

}  // namespace tacos
