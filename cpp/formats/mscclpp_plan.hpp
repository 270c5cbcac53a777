// Execution plans of MSCCL++: the operations of the GPUs as columns, and their translation to a program.
//
// A GPU has channels to peers (memory, port) or through a switch, names for its peers' buffers, and
// threadblocks that run concurrently. A threadblock runs operations in order; a pipeline contains
// operations, which are stored after it. Numbers in an operation index the lists of its
// threadblock, which in turn index the lists of the GPU.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/program.hpp"

namespace tacos::mscclpp {

// Limits of the executor.
inline constexpr std::int32_t kMostOps = 64;  // per threadblock, with those in pipelines
// Per kind and threadblock; also of remote buffers.
inline constexpr std::int32_t kMostChannels = 16;
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

// Chunks that an operation reads or writes, in a buffer of its own GPU, of a peer, or behind a switch.
struct Piece {
  std::int32_t index = -1, size = -1;
  std::int32_t remote = -1, channel = -1;
  Buffer buffer = Buffer::none;
};

struct Op {
  OpName name = OpName::nop;
  Kind kind = Kind::none;
  Range channels, semaphores;  // in ExecutionPlan::numbers
  Range sources, targets;      // in ExecutionPlan::pieces
  std::int32_t barrier = -1, threadblocks = -1;
  std::int32_t part = 0,
               parts = 0;         // index in, and size of, a group of threadblocks; 0 parts: none
  std::int32_t round_chunks = 0;  // for pipelines
  std::int32_t outer = 0, inner = -1;
};

struct Numbers {  // channels or buffers of one kind
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

struct ExecutionPlan {
  std::vector<Gpu> gpus;
  std::vector<Op> ops;
  std::vector<Piece> pieces;
  std::vector<std::int32_t> numbers;
};

// "gpu 3, threadblock 1, op 4", without the parts that are unknown.
std::string place(std::int64_t gpu, std::int64_t block = -1, std::int64_t op = -1,
                  std::int64_t inner = -1);

// Reads a plan from the JSON text of its list of GPUs. Throws std::invalid_argument, which names the GPU,
// threadblock, operation and field.
ExecutionPlan decoded(std::string_view gpus);

// Translates a plan to a program. `most_slots` limits the memory. Throws std::invalid_argument for plans that the
// executor would refuse or could not carry out.
Program program_of(const ExecutionPlan& plan, CollectiveKind kind, bool in_place,
                   std::int64_t most_slots, std::string provenance);

}  // namespace tacos::mscclpp
