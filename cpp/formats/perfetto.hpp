// Traces as Perfetto's protobuf: one track per link and per NPU, counters, and flows.
//
// A slice on a link's track is a transfer that keeps the link busy; an instant on an NPU's track is an
// arrival; a flow leads from a slice to the slice that waited for it. Names are interned:
// each is written once. Perfetto counts nanoseconds, so times are rounded down to them.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/topology.hpp"
#include "support/progress.hpp"

namespace tacos::perfetto {

struct Counter {
  std::string name, unit;
  std::vector<Time> time;
  std::vector<double> value;
};

// Columns of a trace; busy intervals and arrivals are each ordered by time.
struct Trace {
  std::span<const LinkId> link;
  std::span<const Time> begin, end;
  std::span<const std::int32_t> transfer;
  std::span<const NodeId> arrival_npu;
  std::span<const Time> arrival_time;
  std::span<const std::int64_t> arrival_bytes;
  std::span<const std::int32_t> arrival_transfer;
  std::span<const std::int32_t> cause;  // per transfer: the one that it waited for, or -1; or empty
  std::span<const std::uint32_t> chunk;  // per transfer; empty if unknown
  std::vector<Counter> counters;
  std::string about;  // how the trace was made
};

// Receives the file piece by piece.
using Sink = std::function<void(std::string_view)>;

// Throws std::invalid_argument if columns do not match.
void write(const Topology& topology, const Trace& trace, const Sink& sink,
           const Progress& progress);

}  // namespace tacos::perfetto
