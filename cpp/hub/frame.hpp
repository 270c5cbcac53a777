// Messages between workers and the optimizer service: a frame of 32 bytes, then its payload.
//
// A worker has one connection to each core of the service. It begins with `hello`, which names a job, a member
// and the member's key; the core answers `welcome`. After that, `push` brings a gradient, `pull` asks for values
// and `put` sets them. The answers are `values`, `done`, or `error` with a text. Payloads are padded to
// multiples of 8 bytes, so that frames in a buffer are aligned. Numbers are little-endian.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace tacos::hub {

constexpr std::uint8_t kMagic = 0xb5;
constexpr std::int64_t kChunkElements = 8192;      // 32 KB of float32, PHub's chunk
constexpr std::size_t kLargestPayload = 32 << 10;  // bytes: a chunk in float32
constexpr std::size_t kMostMembers = 256;  // of a job: bits of a chunk's set of contributors

enum class Kind : std::uint8_t { hello = 1, welcome, push, pull, put, values, done, error };
constexpr auto kLastKind = static_cast<std::uint8_t>(Kind::error);

enum class Wire : std::uint8_t { float32, bfloat16, float16 };
constexpr std::size_t size_of(Wire wire) { return wire == Wire::float32 ? 4 : 2; }

// Flags. The upper four bits are the slot of a pull or put: 0 is the weights, 1 and above the optimizer state.
constexpr std::uint8_t kQuiet = 1;  // push: answer `done`, without the new weights
constexpr std::uint8_t kEmpty = 2;  // push: this member has no gradient for the chunk
// The payload is in the memory that the worker shares with the service.
constexpr std::uint8_t kShared = 4;
constexpr std::uint8_t kFatal = 8;  // error: the job has failed, not only this request
constexpr int kSlotShift = 4;

struct Frame {
  std::uint8_t magic = kMagic;
  Kind kind = Kind::error;
  std::uint8_t flags = 0;
  Wire wire = Wire::float32;
  std::uint32_t bytes = 0;  // size of the payload without padding
  std::uint32_t chunk = 0;
  std::uint32_t tag = 0;  // chosen by the worker, repeated in the answer
  std::uint64_t step = 0;
  double rate = 0.0;  // push: the learning rate of this step; put: the number of updates so far
};
static_assert(sizeof(Frame) == 32);

struct Hello {
  std::uint64_t job = 0;
  std::uint32_t member = 0;
  std::uint32_t core = 0;
  std::array<std::uint8_t, 16> key{};
};
static_assert(sizeof(Hello) == 32);

constexpr std::size_t padded(std::size_t bytes) { return (bytes + 7) & ~std::size_t{7}; }

}  // namespace tacos::hub
