#include "aggregation/kernel.hpp"

#include <arpa/inet.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace tacos::aggregation {

namespace {

constexpr int kLookup = 1, kUpdate = 2;   // commands of bpf(2)
constexpr std::uint64_t kUnderLock = 4;   // BPF_F_LOCK: replace a value while holding its lock
constexpr std::uint16_t kElements = 360;  // most elements of a packet
constexpr std::size_t kCounters = 15;

// The same layout as in switch.bpf.c.
struct Child {
  std::uint32_t address;
  std::uint16_t port;
  std::array<std::uint8_t, 6> hardware;
};
struct JobEntry {
  std::uint64_t generation, children;
  std::uint32_t first, pool, packet_elements, unused;
  std::array<Child, kMostWorkers> child;
};
struct SlotEntry {
  std::uint32_t lock, sequence;
  std::uint64_t generation, seen;
  std::uint32_t tag;
  std::uint16_t elements;
  std::int16_t exponent;
  std::uint32_t done, unused;
  std::array<std::uint32_t, kElements> sums;
};
static_assert(sizeof(JobEntry) == 32 + 12 * kMostWorkers &&
              sizeof(SlotEntry) == 40 + 4 * kElements);

long bpf(int command, int table, std::uint32_t key, const void* value, std::uint64_t flags) {
  struct {
    std::uint32_t table, unused;
    std::uint64_t key, value, flags;
  } attributes{static_cast<std::uint32_t>(table), 0, reinterpret_cast<std::uintptr_t>(&key),
               reinterpret_cast<std::uintptr_t>(value), flags};
  return syscall(SYS_bpf, command, &attributes, sizeof attributes);
}

}  // namespace

Kernel::Kernel(std::string interface, KernelTables tables)
    : interface_(std::move(interface)), tables_(tables) {}

bool Kernel::write(int table, std::uint32_t key, const void* value, std::uint64_t flags) const {
  return bpf(kUpdate, table, key, value, flags) == 0;
}

bool Kernel::take(const PlaneJob& job) {
  release(job.number);
  if (job.number >= tables_.most_jobs || job.packet_elements > kElements) return false;
  const std::uint32_t count = job.pool + 1U;
  std::vector<Range> used;
  for (const auto& [number, range] : taken_) used.push_back(range);
  std::sort(used.begin(), used.end(),
            [](const Range& a, const Range& b) { return a.first < b.first; });
  std::uint32_t first = 0;
  for (const auto& range : used) {
    if (range.first - first >= count) break;
    first = range.first + range.count;
  }
  if (tables_.most_slots - first < count) return false;
  SlotEntry slot{};
  slot.generation = job.generation;
  slot.done = 1;
  for (std::uint16_t i = 0; i <= job.pool; ++i) {
    for (const bool version : {false, true}) {
      slot.sequence = first_sequence(i, version, job.pool) - stride_of(i, job.pool);
      const std::uint32_t place = 2 * (first + i) + (version ? 1 : 0);
      if (!write(tables_.slots, place, &slot, kUnderLock)) return false;
    }
  }
  JobEntry entry{};
  entry.children = job.children;
  entry.first = first;
  entry.pool = job.pool;
  entry.packet_elements = job.packet_elements;
  for (std::size_t i = 0; i < kMostWorkers; ++i) {
    entry.child[i].address = htonl(static_cast<std::uint32_t>(job.addresses[i] >> 16));
    entry.child[i].port = htons(static_cast<std::uint16_t>(job.addresses[i] & 0xffffU));
  }
  const PlaneTally none;
  // The generation is written last, so a packet never sees a job half entered.
  if (!write(tables_.tallies, job.number, &none, 0)) return false;
  if (!write(tables_.jobs, job.number, &entry, 0)) return false;
  entry.generation = job.generation;
  if (!write(tables_.jobs, job.number, &entry, 0)) return false;
  taken_[job.number] = {first, count};
  return true;
}

void Kernel::release(std::uint32_t job) {
  if (taken_.erase(job) == 0) return;
  const JobEntry none{};
  write(tables_.jobs, job, &none, 0);
}

PlaneTally Kernel::tally(std::uint32_t job) const {
  PlaneTally result;
  if (taken_.contains(job)) bpf(kLookup, tables_.tallies, job, &result, 0);
  return result;
}

PlaneCounters Kernel::counters() const {
  std::vector<std::array<std::uint64_t, kCounters>> all(tables_.processors);
  PlaneCounters sum;
  if (bpf(kLookup, tables_.counters, 0, all.data(), 0) != 0) return sum;
  const std::array<std::uint64_t*, kCounters> fields = {
      &sum.of.packets,   &sum.of.contributions, &sum.of.duplicates,   &sum.of.resent,
      &sum.of.old,       &sum.of.early,         &sum.of.out_of_range, &sum.of.mismatched,
      &sum.of.malformed, &sum.of.results,       &sum.of.sent,         &sum.lost_in,
      &sum.lost_out,     &sum.bytes_in,         &sum.bytes_out};
  for (const auto& one : all) {
    for (std::size_t i = 0; i < kCounters; ++i) *fields[i] += one[i];
  }
  return sum;
}

}  // namespace tacos::aggregation
