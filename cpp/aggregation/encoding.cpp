#include "aggregation/encoding.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "aggregation/packet.hpp"
#include "runtime/half.hpp"
#include "support/vectorized.hpp"

namespace tacos::aggregation {

namespace {

constexpr std::uint32_t kInfinite = 0x7f800000U;
constexpr int kLimbBits = 22;
constexpr std::uint64_t kLimb = (1U << kLimbBits) - 1;

double scale(std::int16_t exponent, std::uint32_t workers) {
  return std::ldexp(2147483647.0 / workers, -exponent);
}

// Adding 1.5 × 2^52 leaves a double's integer part, rounded to even, in its last bits.
inline std::int32_t rounded(double value) {
  return static_cast<std::int32_t>(
      static_cast<std::uint32_t>(std::bit_cast<std::uint64_t>(value + 0x1.8p52)));
}

inline float as_float(float value) { return value; }
inline float as_float(Half value) { return widened(value); }
inline float as_float(Brain value) { return widened(value); }
inline void store(float value, float& to) { to = value; }
inline void store(float value, Half& to) { to = halved(value); }
inline void store(float value, Brain& to) { to = shortened(value); }

template <typename T>
inline std::uint32_t greatest_bits(const T* data, std::size_t count) {
  std::uint32_t most = 0;
  for (std::size_t i = 0; i < count; ++i) {
    most = std::max(most, std::bit_cast<std::uint32_t>(as_float(data[i])) & 0x7fffffffU);
  }
  return most;
}

template <typename T>
inline void scale_block(const T* data, std::size_t count, double factor, std::int32_t* words) {
  for (std::size_t i = 0; i < count; ++i) {
    words[i] = rounded(static_cast<double>(as_float(data[i])) * factor);
  }
}

template <typename T>
inline void unscale_block(const std::int32_t* words, std::size_t count, double divisor, T* data) {
  for (std::size_t i = 0; i < count; ++i) store(static_cast<float>(words[i] / divisor), data[i]);
}

TACOS_VECTORIZED std::uint32_t greatest(const void* data, std::size_t count, DType dtype) {
  if (dtype == DType::float32) return greatest_bits(static_cast<const float*>(data), count);
  if (dtype == DType::float16) return greatest_bits(static_cast<const Half*>(data), count);
  return greatest_bits(static_cast<const Brain*>(data), count);
}

TACOS_VECTORIZED void scale_all(const void* data, std::size_t count, DType dtype, double factor,
                                std::int32_t* words) {
  if (dtype == DType::float32) {
    scale_block(static_cast<const float*>(data), count, factor, words);
  } else if (dtype == DType::float16) {
    scale_block(static_cast<const Half*>(data), count, factor, words);
  } else {
    scale_block(static_cast<const Brain*>(data), count, factor, words);
  }
}

TACOS_VECTORIZED void unscale_all(const std::int32_t* words, std::size_t count, DType dtype,
                                  double divisor, void* data) {
  if (dtype == DType::float32) {
    unscale_block(words, count, divisor, static_cast<float*>(data));
  } else if (dtype == DType::float16) {
    unscale_block(words, count, divisor, static_cast<Half*>(data));
  } else {
    unscale_block(words, count, divisor, static_cast<Brain*>(data));
  }
}

template <typename T>
void widen_all(const void* data, std::size_t count, std::int32_t* words) {
  const auto* from = static_cast<const T*>(data);
  for (std::size_t i = 0; i < count; ++i) words[i] = static_cast<std::int32_t>(from[i]);
}

template <typename T>
void narrow_all(const std::int32_t* words, std::size_t count, void* data) {
  auto* to = static_cast<T*>(data);
  for (std::size_t i = 0; i < count; ++i) to[i] = static_cast<T>(words[i]);
}

}  // namespace

bool encodes(DType dtype) { return dtype != DType::float64 && dtype != DType::boolean; }

bool scaled(DType dtype) {
  return dtype == DType::float32 || dtype == DType::float16 || dtype == DType::bfloat16;
}

std::size_t words_of(DType dtype) {
  return dtype == DType::int64 || dtype == DType::uint64 ? 3 : 1;
}

std::int16_t block_exponent(const void* data, std::size_t count, DType dtype) {
  const std::uint32_t most = greatest(data, count, dtype);
  if (most >= kInfinite) return kNonFinite;
  // Subnormal numbers have the exponent field 0; they are below 2^-126.
  return static_cast<std::int16_t>(static_cast<int>(most >> 23) - 126);
}

void encode(const void* data, std::size_t count, DType dtype, std::int16_t exponent,
            std::uint32_t workers, std::int32_t* words) {
  if (scaled(dtype)) {
    if (exponent == kNonFinite) {
      std::fill_n(words, count, 0);
    } else {
      scale_all(data, count, dtype, scale(exponent, workers), words);
    }
    return;
  }
  switch (size_of(dtype)) {
    case 1:
      return widen_all<std::int8_t>(data, count, words);
    case 2:
      return widen_all<std::int16_t>(data, count, words);
    case 4:
      std::memcpy(words, data, count * 4);
      return;
    default:
      break;
  }
  const auto* from = static_cast<const std::uint64_t*>(data);
  for (std::size_t i = 0; i < count; ++i) {
    for (int limb = 0; limb < 3; ++limb) {
      *words++ = static_cast<std::int32_t>((from[i] >> (limb * kLimbBits)) & kLimb);
    }
  }
}

void decode(const std::int32_t* words, std::size_t count, DType dtype, std::int16_t exponent,
            std::uint32_t workers, std::uint32_t divisor, void* data) {
  if (scaled(dtype)) {
    if (exponent == kNonFinite) {
      unscale_all(words, count, dtype, std::numeric_limits<double>::quiet_NaN(), data);
    } else {
      unscale_all(words, count, dtype, scale(exponent, workers) * divisor, data);
    }
    return;
  }
  switch (size_of(dtype)) {
    case 1:
      return narrow_all<std::int8_t>(words, count, data);
    case 2:
      return narrow_all<std::int16_t>(words, count, data);
    case 4:
      std::memcpy(data, words, count * 4);
      return;
    default:
      break;
  }
  auto* to = static_cast<std::uint64_t*>(data);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t sum = 0;
    for (int limb = 0; limb < 3; ++limb) {
      sum += static_cast<std::uint64_t>(static_cast<std::uint32_t>(*words++)) << (limb * kLimbBits);
    }
    to[i] = sum;
  }
}

}  // namespace tacos::aggregation
