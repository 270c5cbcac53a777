// The packets between workers and aggregating switches: one UDP datagram each, little-endian.
//
// A contribution carries one worker's integers for one slot, a result carries their sums. Workers join a job with
// its token before they contribute; when all have joined, the switch begins a *generation*, a random number that
// every later packet carries. A packet of another generation is never added.
//
// A slot has two versions that are used alternately. The sequence number identifies the use of a slot that a packet belongs
// to: from one use of a version to the next it grows by 2 × pool for pool slots, and by 2 for the closing slot.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace tacos::aggregation {

static_assert(std::endian::native == std::endian::little, "the packets are little-endian");

enum class PacketKind : std::uint8_t {
  contribution = 1,
  result = 2,
  join = 3,
  welcome = 4,
  notice = 5,
  leave = 6,
  question = 7,
  answer = 8,
  // From a plane, never from the network: a contribution to another operation than the other workers'.
  mismatch = 9,
};

struct PacketHeader {
  std::uint16_t magic;
  std::uint8_t version;
  PacketKind kind;
  std::uint32_t job;         // the job's number on the switch that receives or sends the packet
  std::uint64_t generation;  // 0: none
  std::uint32_t sequence;
  std::uint32_t tag;   // hash of the operation's number, size and type
  std::uint16_t slot;  // the highest bit is the version
  std::uint16_t worker;
  std::uint16_t elements;
  std::int16_t exponent;
};
inline constexpr std::size_t kHeader = sizeof(PacketHeader);
static_assert(kHeader == 32);

inline constexpr std::uint16_t kMagic = 0x7AC0;
inline constexpr std::uint8_t kProtocol = 1;
inline constexpr std::uint16_t kVersionBit = 0x8000;
inline constexpr std::uint16_t kMostPool = 0x4000;
inline constexpr std::uint16_t kMostElements = 16000;  // a datagram has at most 65,507 bytes
inline constexpr std::uint16_t kMostWorkers = 64;      // the bits of a bitmap
inline constexpr std::int16_t kNonFinite = 0x4000;     // exponent of a block with inf or nan
inline constexpr std::int16_t kNoExponent = -0x4000;

using Token = std::array<std::uint8_t, 16>;
using JobName = std::array<char, 32>;

struct JoinBody {
  Token token;
  JobName job;
  std::uint64_t members;  // the workers that the sender represents, one bit each
  std::uint64_t incarnation;
  std::uint64_t operation;
  std::uint64_t elements;  // of the whole operation
  std::uint32_t attempt;
  std::uint16_t workers;  // of the whole job
  std::uint16_t pool;
  std::uint16_t packet_elements;
  std::uint8_t dtype;
  std::uint8_t complete;  // all workers at this operation have all of its results
  // Some workers have all results of the previous operation and wait for its end.
  std::uint8_t behind;
  std::array<std::uint8_t, 3> unused;
};
static_assert(sizeof(JoinBody) == 96);

struct WelcomeBody {
  std::uint64_t incarnation;  // copied from the join
  std::uint64_t operation;
  std::uint32_t attempt;
  std::uint16_t shards;   // consecutive ports, by ranges of slots
  std::uint8_t complete;  // the operation is complete on all workers
  std::uint8_t unused;
};
static_assert(sizeof(WelcomeBody) == 24);

enum class NoticeCode : std::uint8_t {
  waiting = 1,    // `members` lists the workers that have joined
  unknown = 2,    // the switch does not know the generation: join again
  dissolved = 3,  // a worker joined again: join again
  // The operation fails on all workers; the text gives the reason. `members` is the latest operation of any worker: all
  // earlier ones are complete.
  failed = 4,
  refused = 5,  // the join is refused; the text gives the reason
};

struct NoticeBody {
  std::uint64_t incarnation;
  std::uint64_t members;
  std::uint32_t attempt;
  NoticeCode code;
  std::array<std::uint8_t, 3> unused;
};
static_assert(sizeof(NoticeBody) == 24);

struct LeaveBody {
  std::uint64_t incarnation;
};

constexpr std::size_t packet_bytes(std::size_t elements) {
  return sizeof(PacketHeader) + 4 * elements;
}

template <typename Body>
bool read_body(std::span<const std::byte> packet, Body& body) {
  if (packet.size() < sizeof(PacketHeader) + sizeof(Body)) return false;
  std::memcpy(&body, packet.data() + sizeof(PacketHeader), sizeof(Body));
  return true;
}

// Whether the packet is of this protocol; fills the header if so.
inline bool read_header(std::span<const std::byte> packet, PacketHeader& header) {
  if (packet.size() < sizeof header) return false;
  std::memcpy(&header, packet.data(), sizeof header);
  return header.magic == kMagic && header.version == kProtocol;
}

inline PacketHeader make_header(PacketKind kind) {
  PacketHeader header{};
  header.magic = kMagic;
  header.version = kProtocol;
  header.kind = kind;
  return header;
}

// The step between the sequence numbers of a slot. The closing slot has the number `pool`.
inline std::uint32_t stride_of(std::uint16_t slot, std::uint16_t pool) {
  return slot == pool ? 2U : 2U * pool;
}
inline std::uint32_t first_sequence(std::uint16_t slot, bool version, std::uint16_t pool) {
  if (slot == pool) return version ? 1U : 0U;
  return slot + (version ? std::uint32_t{pool} : 0U);
}
inline std::uint16_t shard_of(std::uint16_t slot, std::uint16_t pool, std::uint16_t shards) {
  return static_cast<std::uint16_t>(std::uint32_t{slot} * shards / (pool + 1U));
}

// Operations that differ in number, size or type have different tags, except with probability 2^-32.
inline std::uint32_t tag_of(std::uint64_t operation, std::uint64_t elements, std::uint8_t dtype) {
  std::uint64_t mixed = operation * 0x9E3779B97F4A7C15U ^ elements * 0xC2B2AE3D27D4EB4FU ^
                        (dtype + 1U) * 0x165667B19E3779F9U;
  mixed ^= mixed >> 29;
  mixed *= 0xBF58476D1CE4E5B9U;
  return static_cast<std::uint32_t>(mixed >> 32);
}

inline JobName job_name(std::string_view text) {
  JobName name{};
  std::memcpy(name.data(), text.data(), std::min(text.size(), name.size()));
  return name;
}
inline std::string text_of(const JobName& name) {
  return {name.data(), strnlen(name.data(), name.size())};
}

}  // namespace tacos::aggregation
