// MSCCL++'s execution plans: what the GPUs of one do, as columns, and the program that this is.
//
// A GPU has channels to peers (memory, port) or through a switch, names for its peers' buffers, and
// threadblocks that run side by side. A threadblock runs operations in order; a pipeline has
// operations of its own, which here follow it. Numbers in an operation index the lists of its
// threadblock, and these the lists of the GPU.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/program.hpp"

namespace tacos::mscclpp {

// What the executor can hold.
inline constexpr std::int32_t kMostOps = 64;       // of a threadblock, with those of pipelines
inline constexpr std::int32_t kMostChannels = 16;  // and remote buffers, of a kind and threadblock
inline constexpr std::int32_t kMostChannelsPerOp = 8;
inline constexpr std::int32_t kMostSemaphoresPerOp = 16;
inline constexpr std::int32_t kMostBarriers = 16;

// clang-format off
enum class OpName : std::uint8_t {
  nop, barrier, put, pws, pwsf, get, copy, signal, wait, rlxsignal, rlxwait, flush, re, res, rre,
  rres, ppkt, rppkt, cpkt, upkt, repkt, respkt, recpkt, recspkt, glres, gstore, gstorepkt, pipeline,
  sem_acquire, sem_release,
};
inline constexpr std::array<std::string_view, 30> kOpNames{
  "nop", "barrier", "put", "pws", "pwsf", "get", "copy", "signal", "wait", "rlxsignal", "rlxwait",
  "flush", "re", "res", "rre", "rres", "ppkt", "rppkt", "cpkt", "upkt", "repkt", "respkt", "recpkt",
  "recspkt", "glres", "gstore", "gstorepkt", "pipeline", "sem_acquire", "sem_release",
};
// clang-format on

enum class Kind : std::uint8_t { memory, port, switched, none };
inline constexpr std::array<std::string_view, 4> kKindNames{"memory", "port", "switch", "none"};

struct Range {
  std::size_t begin = 0, end = 0;
  std::size_t size() const { return end - begin; }
};

// Chunks that an operation reads or writes: of a buffer of its own, a peer's, or a switch's.
struct Piece {
  std::int32_t index = -1, size = -1;
  std::int32_t remote = -1, channel = -1;
  Buffer buffer = Buffer::none;
};

struct Op {
  OpName name = OpName::nop;
  Kind kind = Kind::none;
  Range channels, semaphores;  // of Plan::numbers
  Range sources, targets;      // of Plan::pieces
  std::int32_t barrier = -1, threadblocks = -1;
  std::int32_t part = 0, parts = 0;  // which one of a group of threadblocks; 0 parts: no group
  std::int32_t round_chunks = 0;     // of a pipeline
  std::int32_t outer = 0, inner = -1;
};

struct Numbers {  // some of one kind
  Kind kind = Kind::none;
  Range numbers;
};

struct Block {
  Range ops;
  std::vector<Numbers> channels, remote;
};

struct Channel {  // to each of the peers or, through a switch, to each of the groups
  Kind kind = Kind::none;
  Buffer buffer = Buffer::none;
  Range peers;
  std::vector<Range> groups;
};

struct Remote {
  std::int32_t rank = 0;
  Buffer buffer = Buffer::none;
  std::array<bool, 2> access{};  // over memory channels, over port channels
};

struct Gpu {
  std::int32_t input = 0, output = 0, scratch = 0;  // chunks
  std::vector<Channel> channels;
  std::vector<Remote> remote;
  std::vector<std::int32_t> semaphores;  // their first values
  std::vector<Block> blocks;
};

struct Plan {
  std::vector<Gpu> gpus;
  std::vector<Op> ops;
  std::vector<Piece> pieces;
  std::vector<std::int32_t> numbers;
};

// "gpu 3, threadblock 1, op 4", as far as it is known.
std::string place(std::int64_t gpu, std::int64_t block = -1, std::int64_t op = -1,
                  std::int64_t inner = -1);

// The GPUs of a plan, from the JSON text of their list. Throws std::invalid_argument, which names GPU,
// threadblock, operation and field.
Plan decoded(std::string_view gpus);

// What the plan does. `most_slots` bounds the memory. Throws std::invalid_argument for what the
// executor would refuse, and for what cannot be carried out.
Program program_of(const Plan& plan, CollectiveKind kind, bool in_place, std::int64_t most_slots,
                   std::string provenance);

}  // namespace tacos::mscclpp
