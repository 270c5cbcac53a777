// The kernel's part of a switch, as user space sees it: tables that it shares with src/tacos/runtime/aggregation/switch.bpf.c.
//
// The kernel programs aggregate the packets of all jobs in the tables. This side adds a job when its generation begins,
// removes it when the generation ends, and reads counters. Jobs that do not fit are aggregated in user space.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "aggregation/switch.hpp"

namespace tacos::aggregation {

struct KernelTables {
  int jobs = -1, slots = -1, counters = -1, tallies = -1;  // descriptors, owned by the caller
  std::uint32_t most_jobs = 0, most_slots = 0, processors = 1;
};

class Kernel final : public Plane {
 public:
  Kernel(std::string interface, KernelTables tables);

  bool take(const PlaneJob& job) override;
  void release(std::uint32_t job) override;
  PlaneTally tally(std::uint32_t job) const override;
  const std::string& where() const override { return interface_; }
  PlaneCounters counters() const override;

 private:
  bool write(int table, std::uint32_t key, const void* value, std::uint64_t flags) const;

  std::string interface_;
  KernelTables tables_;
  struct Range {
    std::uint32_t first, count;
  };
  std::map<std::uint32_t, Range> taken_;  // slots by job
};

}  // namespace tacos::aggregation
