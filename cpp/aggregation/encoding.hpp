// Conversion of values to the 32-bit integers that a switch adds, and back.
//
// - Integers of up to 32 bits are sent as they are; sums wrap around as they do in memory.
// - 64-bit integers are three limbs of 22 bits, whose sums over at most 64 workers fit; exact modulo 2^64.
// - float32, float16 and bfloat16 are scaled block by block. A block's exponent e is the least with 2^e > max|x| on
//   this worker; workers use the greatest e of all. With n workers the scale is f = (2^31 − 1) / (n 2^e), a worker sends
//   round(x f), and the result is the sum divided by f. Each of n roundings is off by at most 1/2, so the error of a sum
//   is at most n / (2 f) = n² 2^(e−1) / (2^31 − 1), plus the rounding of the result to its type.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/reduce.hpp"

namespace tacos::aggregation {

bool encodes(DType dtype);          // false for float64 and bool
bool scaled(DType dtype);           // whether blocks have exponents
std::size_t words_of(DType dtype);  // 32-bit words per element

// The exponent of a block, or kNonFinite if it holds inf or nan.
std::int16_t block_exponent(const void* data, std::size_t count, DType dtype);

// Writes count × words_of(dtype) integers. A block whose exponent is kNonFinite becomes zeros.
void encode(const void* data, std::size_t count, DType dtype, std::int16_t exponent,
            std::uint32_t workers, std::int32_t* words);

// Converts the integers back and divides by `divisor`. A block whose exponent is kNonFinite becomes nan.
void decode(const std::int32_t* words, std::size_t count, DType dtype, std::int16_t exponent,
            std::uint32_t workers, std::uint32_t divisor, void* data);

}  // namespace tacos::aggregation
