#include "formats/perfetto.hpp"

#include <algorithm>
#include <bit>
#include <numeric>

#include "formats/protobuf.hpp"
#include "support/error.hpp"
#include "support/index.hpp"

namespace tacos::perfetto {

namespace {

using protobuf::put_bytes;
using protobuf::put_fixed64;
using protobuf::put_number;

// Field numbers of perfetto/trace/*.proto.
namespace packet {
constexpr std::uint32_t kTimestamp = 8, kSequence = 10, kTrackEvent = 11, kInterned = 12,
                        kFlags = 13, kTrack = 60;
}
namespace event {
constexpr std::uint32_t kAnnotation = 4, kType = 9, kNameIid = 10, kTrackUuid = 11, kName = 23,
                        kDouble = 44, kFlow = 47, kLastOfFlow = 48;
}
namespace track {
constexpr std::uint32_t kUuid = 1, kName = 2, kParent = 5, kCounter = 8, kChildOrder = 11,
                        kRank = 12;
}
constexpr std::uint32_t kUnitName = 6;                          // field of a counter
constexpr std::uint32_t kEventNames = 2, kAnnotationNames = 3;  // fields of interned data
constexpr std::uint32_t kIid = 1, kText = 2;                    // fields of an interned name
constexpr std::uint32_t kAnnotationIid = 1, kInteger = 4, kString = 6, kAnnotationName = 10;
enum Type : std::uint8_t { kBegin = 1, kEnd = 2, kInstant = 3, kCount = 4 };
constexpr std::uint64_t kExplicit = 3;  // order of child tracks: by their ranks
constexpr std::uint64_t kStateCleared = 1, kNeedsState = 2;
constexpr std::uint64_t kTransferIid = 1, kBytesIid = 2;

constexpr Time kPicosecondsPerNanosecond = 1000;
constexpr std::size_t kBlock = std::size_t{1} << 20;
constexpr std::size_t kReportEvery = 1 << 14;

class Writer {
 public:
  Writer(const Topology& topology, const Trace& trace, const Sink& sink, const Progress& progress)
      : topology_(topology), trace_(trace), sink_(sink), progress_(progress) {
    transfers_ = std::max(trace.cause.size(), trace.chunk.size());
    for (const auto transfer : trace.transfer) transfers_ = std::max(transfers_, at(transfer) + 1);
    for (const auto transfer : trace.arrival_transfer) {
      transfers_ = std::max(transfers_, at(transfer) + 1);
    }
  }

  void write() {
    tracks();
    group_flows();
    intervals();
    arrivals();
    counters();
    flush(0);
  }

 private:
  // Tracks: two groups, then their links and NPUs, then counters.
  std::uint64_t link_track(LinkId link) const { return 16 + at(link); }
  std::uint64_t npu_track(NodeId npu) const { return 16 + at(topology_.links()) + at(npu); }
  std::uint64_t counter_track(std::size_t k) const { return 3 + k; }
  static constexpr std::uint64_t kLinks = 1, kNpus = 2;

  void tracks() {
    std::string names;
    for (const auto& [iid, name] : {std::pair{kTransferIid, "transfer"}, {kBytesIid, "bytes"}}) {
      inner_.clear();
      put_number(inner_, kIid, iid);
      put_bytes(inner_, kText, name);
      put_bytes(names, kAnnotationNames, inner_);
    }
    packet_.clear();
    put_number(packet_, packet::kFlags, kStateCleared);
    put_bytes(packet_, packet::kInterned, names);
    close();
    group(kLinks, "links");
    group(kNpus, "NPUs");
    for (std::size_t k = 0; k < trace_.counters.size(); ++k) {
      std::string counter;
      put_bytes(counter, kUnitName, trace_.counters[k].unit);
      descriptor(counter_track(k), kLinks, trace_.counters[k].name, k, &counter);
    }
    for (LinkId link = 0; link < topology_.links(); ++link) {
      const auto name = "link " + std::to_string(link) + ": " +
                        topology_.name(topology_.src(link)) + " -> " +
                        topology_.name(topology_.dst(link));
      descriptor(link_track(link), kLinks, name, 16 + at(link), nullptr);
    }
    for (NodeId npu = 0; npu < topology_.npus(); ++npu) {
      descriptor(npu_track(npu), kNpus, topology_.name(npu), at(npu), nullptr);
    }
    start_event(kInstant, 0, kLinks);
    put_bytes(event_, event::kName, "tacos");
    inner_.clear();
    put_bytes(inner_, kAnnotationName, "provenance");
    put_bytes(inner_, kString, trace_.about);
    put_bytes(event_, event::kAnnotation, inner_);
    close_event({});
  }

  void group(std::uint64_t uuid, std::string_view name) {
    inner_.clear();
    put_number(inner_, track::kUuid, uuid);
    put_bytes(inner_, track::kName, name);
    put_number(inner_, track::kChildOrder, kExplicit);
    packet_.clear();
    put_bytes(packet_, packet::kTrack, inner_);
    close();
  }

  void descriptor(std::uint64_t uuid, std::uint64_t parent, std::string_view name,
                  std::uint64_t rank, const std::string* counter) {
    inner_.clear();
    put_number(inner_, track::kUuid, uuid);
    put_number(inner_, track::kParent, parent);
    put_bytes(inner_, track::kName, name);
    put_number(inner_, track::kRank, rank);
    if (counter) put_bytes(inner_, track::kCounter, *counter);
    packet_.clear();
    put_bytes(packet_, packet::kTrack, inner_);
    close();
  }

  // Groups transfers by the one that they waited for, from whose first slice their flows start.
  void group_flows() {
    if (trace_.cause.empty()) return;
    flow_begin_.assign(transfers_ + 1, 0);
    for (const auto cause : trace_.cause) {
      if (cause >= 0) ++flow_begin_[at(cause) + 1];
    }
    std::partial_sum(flow_begin_.begin(), flow_begin_.end(), flow_begin_.begin());
    flows_.resize(flow_begin_.back());
    auto next = flow_begin_;
    for (std::size_t t = 0; t < trace_.cause.size(); ++t) {
      if (trace_.cause[t] >= 0) flows_[next[at(trace_.cause[t])]++] = t;
    }
  }

  void intervals() {
    std::vector<bool> seen(transfers_);
    for (std::size_t i = 0; i < trace_.link.size(); ++i) {
      const auto transfer = at(trace_.transfer[i]);
      const auto uuid = link_track(trace_.link[i]);
      start_event(kBegin, trace_.begin[i], uuid);
      const auto name = name_of(transfer);
      annotate(kTransferIid, trace_.transfer[i]);
      if (!seen[transfer] && !flow_begin_.empty()) {
        // A flow's number is that of the waiting transfer, plus one.
        for (auto f = flow_begin_[transfer]; f < flow_begin_[transfer + 1]; ++f) {
          put_fixed64(event_, event::kFlow, flows_[f] + 1);
        }
        if (transfer < trace_.cause.size() && trace_.cause[transfer] >= 0) {
          put_fixed64(event_, event::kLastOfFlow, transfer + 1);
        }
      }
      seen[transfer] = true;
      close_event(name);
      start_event(kEnd, trace_.end[i], uuid);
      close_event({});
      if (i % kReportEvery == 0) report(0.0, 0.7, i, trace_.link.size());
    }
  }

  void arrivals() {
    for (std::size_t i = 0; i < trace_.arrival_npu.size(); ++i) {
      start_event(kInstant, trace_.arrival_time[i], npu_track(trace_.arrival_npu[i]));
      const auto name = name_of(at(trace_.arrival_transfer[i]));
      annotate(kTransferIid, trace_.arrival_transfer[i]);
      annotate(kBytesIid, trace_.arrival_bytes[i]);
      close_event(name);
      if (i % kReportEvery == 0) report(0.7, 1.0, i, trace_.arrival_npu.size());
    }
  }

  void counters() {
    for (std::size_t k = 0; k < trace_.counters.size(); ++k) {
      const auto& counter = trace_.counters[k];
      for (std::size_t i = 0; i < counter.time.size(); ++i) {
        start_event(kCount, counter.time[i], counter_track(k));
        put_fixed64(event_, event::kDouble, std::bit_cast<std::uint64_t>(counter.value[i]));
        close_event({});
      }
    }
  }

  // Adds the name of a transfer to the event; returns the data to intern for it, if any.
  std::string_view name_of(std::size_t transfer) {
    const bool known = transfer < trace_.chunk.size();
    const std::size_t number = known ? trace_.chunk[transfer] : transfer;
    put_number(event_, event::kNameIid, number + 1);
    if (named_.size() <= number) named_.resize(std::max(number + 1, 2 * named_.size()));
    if (named_[number]) return {};
    named_[number] = true;
    inner_.clear();
    put_number(inner_, kIid, number + 1);
    put_bytes(inner_, kText, (known ? "chunk " : "transfer ") + std::to_string(number));
    interned_.clear();
    put_bytes(interned_, kEventNames, inner_);
    return interned_;
  }

  void annotate(std::uint64_t name, std::int64_t value) {
    inner_.clear();
    put_number(inner_, kAnnotationIid, name);
    put_number(inner_, kInteger, static_cast<std::uint64_t>(value));
    put_bytes(event_, event::kAnnotation, inner_);
  }

  void start_event(Type type, Time time, std::uint64_t uuid) {
    packet_.clear();
    put_number(packet_, packet::kTimestamp,
               static_cast<std::uint64_t>(time / kPicosecondsPerNanosecond));
    put_number(packet_, packet::kFlags, kNeedsState);
    event_.clear();
    put_number(event_, event::kType, type);
    put_number(event_, event::kTrackUuid, uuid);
  }

  void close_event(std::string_view interned) {
    put_bytes(packet_, packet::kTrackEvent, event_);
    if (!interned.empty()) put_bytes(packet_, packet::kInterned, interned);
    close();
  }

  void close() {
    put_number(packet_, packet::kSequence, 1);
    put_bytes(out_, 1, packet_);
    flush(kBlock);
  }

  void flush(std::size_t least) {
    if (out_.empty() || out_.size() < least) return;
    sink_(out_);
    out_.clear();
  }

  void report(double from, double to, std::size_t done, std::size_t all) const {
    if (progress_)
      progress_(from + (to - from) * static_cast<double>(done) / static_cast<double>(all));
  }

  const Topology& topology_;
  const Trace& trace_;
  const Sink& sink_;
  const Progress& progress_;
  std::size_t transfers_ = 0;
  std::vector<std::size_t> flow_begin_, flows_;
  std::vector<bool> named_;
  std::string out_, packet_, event_, inner_, interned_;
};

void check(const Topology& topology, const Trace& trace) {
  const auto alike = [](std::size_t rows, std::initializer_list<std::size_t> others) {
    return std::all_of(others.begin(), others.end(), [&](std::size_t n) { return n == rows; });
  };
  if (!alike(trace.link.size(), {trace.begin.size(), trace.end.size(), trace.transfer.size()}) ||
      !alike(trace.arrival_npu.size(), {trace.arrival_time.size(), trace.arrival_bytes.size(),
                                        trace.arrival_transfer.size()})) {
    invalid("columns of the trace differ in length");
  }
  const auto within = [](auto values, std::int64_t count) {
    return std::all_of(values.begin(), values.end(),
                       [&](std::int64_t v) { return v >= 0 && v < count; });
  };
  const auto most = std::int64_t{1} << 31;
  if (!within(trace.link, topology.links()) || !within(trace.arrival_npu, topology.npus()) ||
      !within(trace.transfer, most) || !within(trace.arrival_transfer, most)) {
    invalid("a column of the trace names a link, an NPU or a transfer that is not there");
  }
  if (trace.counters.size() > 12) invalid("a trace has at most 12 counters");
  for (const auto& counter : trace.counters) {
    if (counter.time.size() != counter.value.size())
      invalid("a counter's columns differ in length");
  }
  for (const auto cause : trace.cause) {
    if (cause >= static_cast<std::int64_t>(trace.cause.size())) {
      invalid("cause names transfer " + std::to_string(cause) + ", which is not there");
    }
  }
}

}  // namespace

void write(const Topology& topology, const Trace& trace, const Sink& sink,
           const Progress& progress) {
  check(topology, trace);
  Writer(topology, trace, sink, progress).write();
}

}  // namespace tacos::perfetto
