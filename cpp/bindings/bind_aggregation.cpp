#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <map>

#include "aggregation/encoding.hpp"
#include "aggregation/udp.hpp"

namespace nb = nanobind;

namespace tacos::bindings {

using namespace nb::literals;
using namespace tacos::aggregation;

namespace {

using Counts = std::map<std::string, std::uint64_t>;

Token token_of(const nb::bytes& text) {
  Token token{};
  if (text.size() != token.size()) throw std::invalid_argument("a token's digest has 16 bytes");
  std::memcpy(token.data(), text.c_str(), token.size());
  return token;
}

std::vector<Token> tokens_of(const std::vector<nb::bytes>& texts) {
  std::vector<Token> tokens;
  for (const auto& text : texts) tokens.push_back(token_of(text));
  return tokens;
}

std::span<const std::byte> span_of(const nb::bytes& text) {
  return {reinterpret_cast<const std::byte*>(text.c_str()), text.size()};
}

nb::bytes bytes_of(const std::byte* data, std::size_t bytes) {
  return nb::bytes(reinterpret_cast<const char*>(data), bytes);
}

std::vector<nb::bytes> listed(const std::vector<WorkerPacket>& packets) {
  std::vector<nb::bytes> rows;
  for (const auto& packet : packets) rows.push_back(bytes_of(packet.data, packet.bytes));
  return rows;
}

WorkerSettings settings_of(const nb::bytes& token, const std::string& job, std::uint16_t worker,
                           std::uint16_t workers, std::uint16_t pool, std::uint16_t packet_elements,
                           std::uint64_t incarnation, double timer_s, double least_timer_s,
                           double silence_s, double timeout_s) {
  const auto us = [](double s) { return static_cast<std::uint64_t>(s * 1e6); };
  return {.token = token_of(token),
          .job = job,
          .worker = worker,
          .workers = workers,
          .pool = pool,
          .packet_elements = packet_elements,
          .incarnation = incarnation,
          .timer_us = us(timer_s),
          .least_timer_us = us(least_timer_s),
          .silence_us = us(silence_s),
          .timeout_us = us(timeout_s)};
}

Counts counters_of(const Worker& worker) {
  const auto& c = worker.counters();
  Counts row;
  row["sent"] = c.sent;
  row["retransmitted"] = c.retransmitted;
  row["results"] = c.results;
  row["repeated"] = c.repeated;
  row["foreign"] = c.foreign;
  row["closings"] = c.closings;
  row["joins"] = c.joins;
  row["repeats"] = c.repeats;
  return row;
}

Counts counters_of(const Switch& state) {
  const auto& c = state.counters();
  Counts row;
  row["packets"] = c.packets;
  row["contributions"] = c.contributions;
  row["duplicates"] = c.duplicates;
  row["resent"] = c.resent;
  row["old"] = c.old;
  row["early"] = c.early;
  row["stale"] = c.stale;
  row["out_of_range"] = c.out_of_range;
  row["mismatched"] = c.mismatched;
  row["malformed"] = c.malformed;
  row["control"] = c.control;
  row["results"] = c.results;
  row["forwarded"] = c.forwarded;
  row["refused"] = c.refused;
  row["generations"] = c.generations;
  row["sent"] = c.sent;
  return row;
}

std::string state_of(const Worker& worker) {
  switch (worker.state()) {
    case WorkerState::idle:
      return "idle";
    case WorkerState::joining:
      return "joining";
    case WorkerState::running:
      return "running";
    case WorkerState::closing:
      return "closing";
    default:
      return "failed";
  }
}

void check_signals() {
  const nb::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

}  // namespace

void bind_aggregation(nb::module_& m) {
  nb::class_<Switch>(m, "AggregationSwitch",
                     "A switch that sums the workers' packets: the state machine, without I/O.")
      .def(
          "__init__",
          [](Switch* self, const std::vector<nb::bytes>& tokens, std::uint64_t seed,
             std::uint32_t slots, std::uint16_t packet_elements, std::uint16_t jobs) {
            new (self) Switch({.slots = slots, .packet_elements = packet_elements, .jobs = jobs},
                              tokens_of(tokens), seed);
          },
          "tokens"_a, "seed"_a, "slots"_a = 8192, "packet_elements"_a = 2232, "jobs"_a = 64,
          "tokens: digests of 16 bytes. seed: for the random numbers of generations.")
      .def("set_parent", &Switch::set_parent, "parent"_a, "members"_a,
           "Make this the switch of a rack; members has one bit per worker.")
      .def(
          "receive",
          [](Switch& s, Address from, const nb::bytes& packet, std::uint64_t now_us) {
            std::vector<Outgoing> out;
            // The switch needs the integers of a packet to be aligned.
            std::vector<std::uint64_t> aligned((packet.size() + 7) / 8);
            if (packet.size() > 0) std::memcpy(aligned.data(), packet.c_str(), packet.size());
            s.receive(from, {reinterpret_cast<const std::byte*>(aligned.data()), packet.size()},
                      now_us, out);
            std::vector<std::pair<Address, nb::bytes>> rows;
            for (const auto& one : out) rows.emplace_back(one.to, bytes_of(one.data, one.bytes));
            s.flushed();
            return rows;
          },
          "source"_a, "packet"_a, "now_us"_a,
          "Handle a packet; return the packets to send, as pairs of address and packet.")
      .def("expire", &Switch::expire, "now_us"_a, "Forget jobs that have been idle for too long.")
      .def_prop_ro(
          "counters", [](const Switch& s) { return counters_of(s); }, "Counters of packets.")
      .def("generation", &Switch::generation_of, "job"_a, "The job's generation, or 0.");

  nb::class_<Worker>(m, "AggregationWorker",
                     "A worker of a switch: the state machine, without I/O.")
      .def(
          "__init__",
          [](Worker* self, const nb::bytes& token, const std::string& job, std::uint16_t worker,
             std::uint16_t workers, std::uint16_t pool, std::uint16_t packet_elements,
             std::uint64_t incarnation, double timer_s, double least_timer_s, double silence_s,
             double timeout_s) {
            new (self)
                Worker(settings_of(token, job, worker, workers, pool, packet_elements, incarnation,
                                   timer_s, least_timer_s, silence_s, timeout_s));
          },
          "token"_a, "job"_a, "worker"_a, "workers"_a, "pool"_a, "packet_elements"_a,
          "incarnation"_a, "timer_s"_a = 0.02, "least_timer_s"_a = 0.001, "silence_s"_a = 3.0,
          "timeout_s"_a = 60.0, "token: a digest of 16 bytes.")
      .def(
          "start",
          [](Worker& w, std::uintptr_t from, std::uintptr_t to, std::uint64_t elements,
             const std::string& dtype, bool average, std::uint64_t now_us) {
            std::vector<WorkerPacket> out;
            w.start(reinterpret_cast<const void*>(from), reinterpret_cast<void*>(to), elements,
                    dtype_named(dtype), average, now_us, out);
            return listed(out);
          },
          "source"_a, "target"_a, "elements"_a, "dtype"_a, "average"_a, "now_us"_a,
          "Begin an operation on the memory at these addresses, which must not overlap.")
      .def(
          "receive",
          [](Worker& w, const nb::bytes& packet, std::uint64_t now_us) {
            std::vector<WorkerPacket> out;
            w.receive(span_of(packet), now_us, out);
            return listed(out);
          },
          "packet"_a, "now_us"_a, "Handle a packet of the switch; return the packets to send.")
      .def(
          "poll",
          [](Worker& w, std::uint64_t now_us) {
            std::vector<WorkerPacket> out;
            w.poll(now_us, out);
            return listed(out);
          },
          "now_us"_a, "Return the packets to retransmit.")
      .def(
          "leave",
          [](Worker& w) {
            std::vector<WorkerPacket> out;
            w.leave(out);
            return listed(out);
          },
          "Leave the job; return the packets to send.")
      .def_prop_ro("deadline_us", &Worker::deadline_us, "When to poll next.")
      .def_prop_ro("state", &state_of, "idle, joining, running, closing or failed.")
      .def_prop_ro("failure", &Worker::failure, "Why it failed, or empty.")
      .def_prop_ro("lost", &Worker::lost, "Whether it failed because the switch is gone.")
      .def_prop_ro(
          "has_results", &Worker::has_results,
          "Whether all results of the last operation arrived, even if it failed afterwards.")
      .def_prop_ro("non_finite", &Worker::non_finite,
                   "Whether some block of the last operation was not finite.")
      .def_prop_ro("packets", &Worker::packets, "Packets of the last operation, each counted once.")
      .def_prop_rw("operation", &Worker::operation, &Worker::set_operation,
                   "Number of the next operation, or of the one that runs.")
      .def_prop_ro(
          "counters", [](const Worker& w) { return counters_of(w); },
          "Counters of packets sent and received.");

  nb::class_<UdpSwitch>(m, "UdpSwitch", "A switch over UDP, with a thread per core.")
      .def(
          "__init__",
          [](UdpSwitch* self, const std::string& host, std::uint16_t port, std::uint16_t cores,
             const std::vector<nb::bytes>& tokens, std::uint32_t slots,
             std::uint16_t packet_elements, std::uint16_t jobs, const std::string& parent_host,
             std::uint16_t parent_port, std::uint64_t members, double loss_in, double loss_out,
             std::uint64_t seed, bool echo) {
            new (self) UdpSwitch(
                {.host = host,
                 .port = port,
                 .shards = cores,
                 .limits = {.slots = slots, .packet_elements = packet_elements, .jobs = jobs},
                 .tokens = tokens_of(tokens),
                 .parent = parent_host.empty() ? 0 : address_of(parent_host, parent_port),
                 .members = members,
                 .loss_in = loss_in,
                 .loss_out = loss_out,
                 .seed = seed,
                 .echo = echo});
          },
          "host"_a, "port"_a, "cores"_a, "tokens"_a, "slots"_a, "packet_elements"_a, "jobs"_a,
          "parent_host"_a, "parent_port"_a, "members"_a, "loss_in"_a, "loss_out"_a, "seed"_a,
          "echo"_a, "Open the ports; parent_host is empty without a parent.")
      .def_prop_ro("port", &UdpSwitch::port, "The first port.")
      .def(
          "use_kernel",
          [](UdpSwitch& self, const std::string& interface, int jobs, int slots, int counters,
             int tallies, std::uint32_t most_jobs, std::uint32_t most_slots,
             std::uint32_t processors) {
            self.use_kernel(interface,
                            {jobs, slots, counters, tallies, most_jobs, most_slots, processors});
          },
          "interface"_a, "jobs"_a, "slots"_a, "counters"_a, "tallies"_a, "most_jobs"_a,
          "most_slots"_a, "processors"_a,
          "Leave aggregation to the kernel programs at an interface; call before start.")
      .def("start", &UdpSwitch::start, "Start the threads.")
      .def("stop", &UdpSwitch::stop, nb::call_guard<nb::gil_scoped_release>(), "End the threads.")
      .def_prop_ro("failure", &UdpSwitch::failure, "Why a thread ended early, or empty.")
      .def("stats", &UdpSwitch::stats, nb::call_guard<nb::gil_scoped_release>(),
           "Counters and jobs as JSON.")
      .def_prop_ro("busy_s", &UdpSwitch::busy_s, "Processor time of the threads, in seconds.");

  nb::class_<UdpWorker>(m, "UdpWorker", "A worker of a switch over UDP.")
      .def(
          "__init__",
          [](UdpWorker* self, const std::string& host, std::uint16_t port, const std::string& bind,
             const nb::bytes& token, const std::string& job, std::uint16_t worker,
             std::uint16_t workers, std::uint16_t pool, std::uint16_t packet_elements,
             std::uint64_t incarnation, double timer_s, double least_timer_s, double silence_s,
             double timeout_s) {
            new (self)
                UdpWorker(address_of(host, port), bind,
                          settings_of(token, job, worker, workers, pool, packet_elements,
                                      incarnation, timer_s, least_timer_s, silence_s, timeout_s));
          },
          "host"_a, "port"_a, "bind"_a, "token"_a, "job"_a, "worker"_a, "workers"_a, "pool"_a,
          "packet_elements"_a, "incarnation"_a, "timer_s"_a, "least_timer_s"_a, "silence_s"_a,
          "timeout_s"_a, "bind: the address to send from, or empty.")
      .def(
          "all_reduce",
          [](UdpWorker& w, std::uintptr_t from, std::uintptr_t to, std::uint64_t elements,
             const std::string& dtype, bool average) {
            const auto type = dtype_named(dtype);
            const nb::gil_scoped_release release;
            w.all_reduce(reinterpret_cast<const void*>(from), reinterpret_cast<void*>(to), elements,
                         type, average, check_signals);
          },
          "source"_a, "target"_a, "elements"_a, "dtype"_a, "average"_a,
          "Sum the elements of all workers.")
      .def("restore", &UdpWorker::restore,
           "Restore the inputs of the last operation, if it ran in place.")
      .def("leave", &UdpWorker::leave, "Leave the job.")
      .def_prop_ro(
          "lost", [](UdpWorker& w) { return w.worker().lost(); },
          "Whether it failed because the switch is gone.")
      .def_prop_ro(
          "failure", [](UdpWorker& w) { return w.worker().failure(); }, "Why it failed, or empty.")
      .def_prop_ro(
          "has_results", [](UdpWorker& w) { return w.worker().has_results(); },
          "Whether all results of the last operation arrived, even if it failed afterwards.")
      .def_prop_ro(
          "non_finite", [](UdpWorker& w) { return w.worker().non_finite(); },
          "Whether some block of the last operation was not finite.")
      .def_prop_rw(
          "operation", [](UdpWorker& w) { return w.worker().operation(); },
          [](UdpWorker& w, std::uint64_t number) { w.worker().set_operation(number); },
          "Number of the next operation.")
      .def_prop_ro(
          "packets", [](UdpWorker& w) { return w.worker().packets(); },
          "Packets of the last operation, each counted once.")
      .def_prop_ro(
          "counters", [](UdpWorker& w) { return counters_of(w.worker()); },
          "Counters of packets sent and received.");

  m.def(
      "aggregation_pump",
      [](int socket, const std::string& host, std::uint16_t port, std::uint32_t job,
         std::uint64_t generation, std::uint16_t workers, std::uint16_t pool,
         std::uint16_t elements, std::uint64_t uses) {
        const Address to = address_of(host, port);
        const nb::gil_scoped_release release;
        return pump(socket, to, job, generation, workers, pool, elements, uses);
      },
      "socket"_a, "host"_a, "port"_a, "job"_a, "generation"_a, "workers"_a, "pool"_a, "elements"_a,
      "uses"_a, "Seconds that a switch or an echo takes for this many uses of slots.");
  m.def(
      "aggregation_encodes", [](const std::string& dtype) { return encodes(dtype_named(dtype)); },
      "dtype"_a, "Whether a switch can add elements of this type.");
}

}  // namespace tacos::bindings
