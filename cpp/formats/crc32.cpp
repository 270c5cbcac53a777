#include "formats/crc32.hpp"

#include <array>

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace tacos {

namespace {

constexpr std::uint32_t kPolynomial = 0xedb88320;  // bits in reverse

// Table k moves the checksum of a byte ahead by k more bytes.
constexpr std::array<std::array<std::uint32_t, 256>, 8> kTables = [] {
  std::array<std::array<std::uint32_t, 256>, 8> tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    auto crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (std::size_t k = 1; k < tables.size(); ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const auto crc = tables[k - 1][byte];
      tables[k][byte] = crc >> 8 ^ tables[0][crc & 0xff];
    }
  }
  return tables;
}();

// The functions below take and return the complement of a checksum.
std::uint32_t by_tables(std::span<const std::uint8_t> data, std::uint32_t crc) {
  for (; data.size() >= 8; data = data.subspan(8)) {
    std::uint32_t sum = 0;
    for (std::size_t i = 0; i < 8; ++i) {
      const auto byte = i < 4 ? data[i] ^ (crc >> 8 * i & 0xff) : data[i];
      sum ^= kTables[7 - i][byte];
    }
    crc = sum;
  }
  for (const auto byte : data) crc = crc >> 8 ^ kTables[0][(crc ^ byte) & 0xff];
  return crc;
}

#ifdef __x86_64__

#define TACOS_FOLDING __attribute__((target("pclmul,sse4.1")))

TACOS_FOLDING __m128i at_byte(const std::uint8_t* data) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(data));
}
// Moves 128 bits ahead by the distance that the constants encode, and adds the data there.
TACOS_FOLDING __m128i fold(__m128i bits, __m128i constants, __m128i there) {
  const auto low = _mm_clmulepi64_si128(bits, constants, 0x00);
  const auto high = _mm_clmulepi64_si128(bits, constants, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), there);
}

// `data` are at least 64 bytes, and a multiple of 16. The constants are powers of x modulo the polynomial, from the paper.
TACOS_FOLDING std::uint32_t by_folding(std::span<const std::uint8_t> data, std::uint32_t crc) {
  const auto by_512 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
  const auto by_128 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
  const auto by_64 = _mm_set_epi64x(0, 0x0163cd6124);
  const auto reduction = _mm_set_epi64x(0x01f7011641, 0x01db710641);
  const auto low_words = _mm_setr_epi32(-1, 0, -1, 0);
  const std::uint8_t* next = data.data();
  const std::uint8_t* const end = next + data.size();
  auto a = _mm_xor_si128(at_byte(next), _mm_cvtsi32_si128(static_cast<int>(crc)));
  auto b = at_byte(next + 16), c = at_byte(next + 32), d = at_byte(next + 48);
  for (next += 64; end - next >= 64; next += 64) {
    a = fold(a, by_512, at_byte(next));
    b = fold(b, by_512, at_byte(next + 16));
    c = fold(c, by_512, at_byte(next + 32));
    d = fold(d, by_512, at_byte(next + 48));
  }
  a = fold(fold(fold(a, by_128, b), by_128, c), by_128, d);
  for (; next < end; next += 16) a = fold(a, by_128, at_byte(next));
  // 128 bits to 64, and these to 32 by Barrett's reduction.
  a = _mm_xor_si128(_mm_srli_si128(a, 8), _mm_clmulepi64_si128(a, by_128, 0x10));
  a = _mm_xor_si128(_mm_srli_si128(a, 4),
                    _mm_clmulepi64_si128(_mm_and_si128(a, low_words), by_64, 0x00));
  auto rest = _mm_clmulepi64_si128(_mm_and_si128(a, low_words), reduction, 0x10);
  rest = _mm_clmulepi64_si128(_mm_and_si128(rest, low_words), reduction, 0x00);
  return static_cast<std::uint32_t>(_mm_extract_epi32(_mm_xor_si128(a, rest), 1));
}

#endif

}  // namespace

std::uint32_t crc32(std::span<const std::uint8_t> data, std::uint32_t before) {
  auto crc = ~before;
#ifdef __x86_64__
  static const bool folds = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
  if (folds && data.size() >= 64) {
    const auto whole = data.size() / 16 * 16;
    crc = by_folding(data.first(whole), crc);
    data = data.subspan(whole);
  }
#endif
  return ~by_tables(data, crc);
}

}  // namespace tacos
