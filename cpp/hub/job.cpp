#include "hub/job.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <new>
#include <numeric>
#include <queue>
#include <system_error>

#include "support/error.hpp"

namespace tacos::hub {

namespace {
constexpr std::int64_t kBucketElements = 1 << 16;  // 256 KB: the unit that hubs exchange
}

Cut cut(const std::vector<std::int64_t>& sizes, std::int32_t cores) {
  if (cores < 1) invalid("cores must be at least 1; got " + std::to_string(cores));
  Cut result;
  result.load.assign(static_cast<std::size_t>(cores), 0);
  for (std::size_t key = 0; key < sizes.size(); ++key) {
    const auto size = sizes[key];
    if (size < 1 || size > std::numeric_limits<std::int32_t>::max()) {
      invalid("the size of parameter " + std::to_string(key) +
              " must be 1 to 2147483647 elements; got " + std::to_string(size));
    }
    result.first_chunk.push_back(static_cast<std::int32_t>(result.chunks.size()));
    for (std::int64_t first = 0; first < size; first += kChunkElements) {
      Chunk chunk;
      chunk.key = static_cast<std::int32_t>(key);
      chunk.first = static_cast<std::int32_t>(first);
      chunk.count = static_cast<std::int32_t>(std::min(kChunkElements, size - first));
      chunk.offset = result.elements;
      result.elements += room(chunk.count);
      result.chunks.push_back(chunk);
    }
  }
  result.first_chunk.push_back(static_cast<std::int32_t>(result.chunks.size()));
  std::vector<std::size_t> order(result.chunks.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return result.chunks[a].count > result.chunks[b].count;
  });
  using Load = std::pair<std::int64_t, std::int32_t>;
  std::priority_queue<Load, std::vector<Load>, std::greater<>> lightest;
  for (std::int32_t core = 0; core < cores; ++core) lightest.emplace(0, core);
  for (const auto i : order) {
    const auto [load, core] = lightest.top();
    lightest.pop();
    result.chunks[i].core = core;
    lightest.emplace(load + result.chunks[i].count, core);
  }
  std::vector<std::int32_t> places(static_cast<std::size_t>(cores), 0);
  for (auto& chunk : result.chunks) {
    const auto core = static_cast<std::size_t>(chunk.core);
    chunk.place = places[core]++;
    result.load[core] += chunk.count;
  }
  return result;
}

Region::Region(std::size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  void* const found = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) throw std::bad_alloc();
  data_ = found;
}

Region::~Region() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

Region Region::mapped(int descriptor, std::size_t bytes) {
  void* const found = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (found == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
  Region region;
  region.data_ = found;
  region.bytes_ = bytes;
  return region;
}

Mode mode_named(std::string_view name) {
  if (name == "sync") return Mode::sync;
  if (name == "stale") return Mode::stale;
  if (name == "async") return Mode::async;
  invalid("mode must be one of sync, stale, async; got '" + std::string(name) + "'");
}

Job::Job(std::uint64_t number, JobSpec given, std::int32_t cores)
    : id(number), spec(std::move(given)), parts(cut(spec.sizes, cores)) {
  if (spec.sizes.empty()) invalid("the job has no parameters");
  if (spec.groups.empty()) invalid("the job has no parameter group");
  if (spec.groups_of.size() != spec.sizes.size()) invalid("each parameter needs a group");
  for (const auto group : spec.groups_of) {
    if (group < 0 || static_cast<std::size_t>(group) >= spec.groups.size()) {
      invalid("group " + std::to_string(group) + " does not exist; there are " +
              std::to_string(spec.groups.size()));
    }
  }
  if (spec.mode != Mode::sync && (spec.deterministic || spec.relay)) {
    invalid("deterministic sums and relays need mode sync");
  }
  for (const auto& group : spec.groups) states = std::max(states, states_of(spec.optimizer, group));
  const auto elements = static_cast<std::size_t>(parts.elements);
  weights = Region(elements * sizeof(float));
  sums = Region(elements * sizeof(float));
  narrowed = Region(elements * sizeof(std::uint16_t));
  for (std::size_t i = 0; i < states; ++i) state[i] = Region(elements * sizeof(float));
  if (!spec.relay) return;
  std::int32_t first = 0;
  std::int64_t gathered = 0;
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(parts.chunks.size()); ++i) {
    gathered += parts.chunks[static_cast<std::size_t>(i)].count;
    const bool end = i + 1 == static_cast<std::int32_t>(parts.chunks.size());
    if (gathered < kBucketElements && !end) continue;
    auto bucket = std::make_unique<Bucket>();
    bucket->first = first;
    bucket->last = i + 1;
    buckets.push_back(std::move(bucket));
    first = i + 1;
    gathered = 0;
  }
}

std::int64_t Job::bytes() const {
  const auto floats = static_cast<std::int64_t>(2 + states);
  return parts.elements * (floats * 4 + 2);
}

}  // namespace tacos::hub
