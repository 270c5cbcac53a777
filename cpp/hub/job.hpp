// A job of the optimizer service: its parameters cut into chunks, the chunks' cores, and their memory.
//
// A parameter ("key") is cut into chunks of 32 KB; the last chunk has the rest. Chunks are assigned to cores by LPT
// (longest processing time first): in order of size, each goes to the core with the least load so far. That is within 4/3 of
// the optimum in general; with hundreds of equal chunks per core the imbalance is below one percent.
// The service and its workers compute the same assignment from the sizes of the keys and the number of cores.
//
// All arrays of a job have the same layout: chunk after chunk, each padded to a multiple of 64 bytes and followed by 64
// more, which begin with the number of contributions to a sum. Between racks, this count is summed with the data.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "hub/kernels.hpp"

namespace tacos::hub {

struct Chunk {
  std::int32_t key = 0, core = 0;
  std::int32_t first = 0;   // its first element within the key
  std::int32_t count = 0;   // elements
  std::int64_t offset = 0;  // elements from the start of the job's arrays
  std::int32_t place = 0;   // index among the chunks of its core
};

struct Cut {
  std::vector<Chunk> chunks;              // in the order of the keys
  std::vector<std::int32_t> first_chunk;  // of each key; then the number of chunks
  std::vector<std::int64_t> load;         // elements of each core
  std::int64_t elements = 0;              // of each array of the job, with padding
};
// Throws std::invalid_argument if a size is not positive.
Cut cut(const std::vector<std::int64_t>& sizes, std::int32_t cores);
constexpr std::int64_t kPad = 16;  // elements: 64 bytes
constexpr std::int64_t room(std::int64_t count) { return (count + kPad - 1) / kPad * kPad + kPad; }
// Where the number of contributions to a chunk's sum is kept.
constexpr std::int64_t tally(const Chunk& chunk) { return chunk.offset + room(chunk.count) - kPad; }

// Memory from the kernel: initially zero, and on the NUMA node of the thread that touches it first.
class Region {
 public:
  Region() = default;
  explicit Region(std::size_t bytes);  // throws std::bad_alloc
  Region(Region&& other) noexcept { swap(other); }
  Region& operator=(Region&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Region();
  void* data() const { return data_; }
  float* floats() const { return static_cast<float*>(data_); }
  std::size_t bytes() const { return bytes_; }
  // Memory behind a descriptor, such as a memfd; throws std::system_error.
  static Region mapped(int descriptor, std::size_t bytes);

 private:
  void swap(Region& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

enum class Mode : std::uint8_t { sync, stale, async };
Mode mode_named(std::string_view name);  // throws std::invalid_argument

struct JobSpec {
  std::string name;
  std::uint64_t tenant = 0;
  OptimizerKind optimizer = OptimizerKind::sgd;
  Mode mode = Mode::sync;
  bool deterministic = false;  // buffer contributions and sum them in the order of ranks
  bool average = true;         // divide sums by the number of contributions
  bool elastic = false;        // continue without lost members
  bool relay = false;          // exchange sums with other hubs before the optimizer runs
  std::uint64_t staleness = 0;
  double timeout_s = 60.0;  // how long a chunk waits for its last contribution
  double rate_Bps = 0.0;    // limit of what the tenant sends; 0: none
  std::vector<ParameterGroup> groups;
  std::vector<std::int64_t> sizes;      // elements of each key
  std::vector<std::int32_t> groups_of;  // each key's group
};

// The values of all chunks at one version, filled in by the cores while training continues.
constexpr std::uint64_t kUntaken = ~std::uint64_t{0};
struct Snapshot {
  std::uint64_t version = 0;
  bool any = false;  // take each chunk at its own version: asynchronous modes have no common one
  std::vector<Region> arrays;  // weights, then states
  std::vector<std::uint64_t> updates, versions;
  std::atomic<std::int64_t> left{0};
  std::atomic<bool> missed{false};  // a chunk had already passed that version
};

struct Job {
  Job(std::uint64_t number, JobSpec given, std::int32_t cores);  // throws std::invalid_argument

  std::uint64_t id;
  JobSpec spec;
  Cut parts;
  std::size_t states = 0;
  Region weights, sums, narrowed;
  std::array<Region, kMostStates> state;
  std::array<Region, kMostMembers> contributions;  // for deterministic sums, by member
  std::vector<std::uint64_t> updates, versions;    // initial values of a resumed job
  std::int64_t bytes() const;                      // size of all arrays except contributions

  // For relays: ranges of chunks whose sums are exchanged together, and how many chunks of each are summed.
  struct Bucket {
    std::int32_t first = 0, last = 0;
    std::atomic<std::int32_t> summed{0};
  };
  std::vector<std::unique_ptr<Bucket>> buckets;
  std::mutex relay_mutex;
  std::condition_variable relay_changed;
};

}  // namespace tacos::hub
