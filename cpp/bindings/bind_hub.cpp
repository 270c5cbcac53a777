#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "columns.hpp"
#include "hub/aggregate.hpp"
#include "hub/client.hpp"
#include "hub/socket_hub.hpp"

namespace tacos::bindings {

using namespace nb::literals;
using namespace tacos::hub;

namespace {

constexpr double kSlice = 0.1;  // seconds between checks for Ctrl-C

nb::ndarray<nb::numpy, float, nb::ndim<1>> floats(std::span<float> values, nb::handle owner) {
  return nb::ndarray<nb::numpy, float, nb::ndim<1>>(values.data(), {values.size()}, owner);
}

std::array<std::uint8_t, 16> key_of(const nb::bytes& key) {
  std::array<std::uint8_t, 16> result{};
  if (key.size() != result.size()) throw std::invalid_argument("a member's key has 16 bytes");
  std::memcpy(result.data(), key.data(), result.size());
  return result;
}

auto cut_columns(const std::vector<std::int64_t>& sizes, std::int32_t cores) {
  const Cut parts = cut(sizes, cores);
  std::vector<std::int32_t> key, core, first, count;
  std::vector<std::int64_t> offset;
  for (const auto& chunk : parts.chunks) {
    key.push_back(chunk.key);
    core.push_back(chunk.core);
    first.push_back(chunk.first);
    count.push_back(chunk.count);
    offset.push_back(chunk.offset);
  }
  return std::tuple(give(std::move(key)), give(std::move(core)), give(std::move(first)),
                    give(std::move(count)), give(std::move(offset)), parts.load);
}

std::shared_ptr<Snapshot> make_snapshot(std::uint64_t version,
                                        const std::vector<Array<float>>& arrays,
                                        const Array<std::uint64_t>& updates,
                                        const Array<std::uint64_t>& versions) {
  auto made = std::make_shared<Snapshot>();
  made->version = version;
  for (const auto& array : arrays) {
    made->arrays.emplace_back(array.shape(0) * sizeof(float));
    std::memcpy(made->arrays.back().data(), array.data(), array.shape(0) * sizeof(float));
  }
  made->updates.assign(updates.data(), updates.data() + updates.shape(0));
  made->versions.assign(versions.data(), versions.data() + versions.shape(0));
  return made;
}

// Waits in slices, so that Ctrl-C ends it.
template <typename Wait>
bool patiently(double patience_s, const Wait& wait) {
  for (double left = patience_s; left > 0; left -= kSlice) {
    {
      const nb::gil_scoped_release release;
      if (wait(std::min(left, kSlice))) return true;
    }
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
  return false;
}

template <typename Class>
void bind_machine(Class& machine) {
  machine.def(nb::init<std::int32_t>(), "cores"_a)
      .def("open", &ManualHub::open, "core"_a, "Open a connection to a core and return its number.")
      .def(
          "feed",
          [](ManualHub& m, std::int32_t core, int connection, const nb::bytes& bytes) {
            return m.feed(core, connection,
                          {static_cast<const std::byte*>(bytes.data()), bytes.size()});
          },
          "core"_a, "connection"_a, "bytes"_a,
          "Pass bytes to a connection; return False if the core has ended it.")
      .def(
          "take",
          [](ManualHub& m, std::int32_t core, int connection, std::size_t most) {
            const auto bytes = m.take(core, connection, most);
            return nb::bytes(bytes.data(), bytes.size());
          },
          "core"_a, "connection"_a, "most"_a = std::size_t{1} << 40,
          "Bytes that a connection sends.")
      .def("ended", &ManualHub::ended, "core"_a, "connection"_a,
           "Whether the core has ended a connection.")
      .def("close", &ManualHub::close, "core"_a, "connection"_a, "why"_a,
           "Report that a connection is closed.")
      .def("tick", &ManualHub::tick, "now_ms"_a, "Set the time.");
}

}  // namespace

void bind_hub(nb::module_& m) {
  using Release = nb::call_guard<nb::gil_scoped_release>;

  m.def(
      "hub_cut", &cut_columns, "sizes"_a, "cores"_a,
      "Chunks of parameters (key, core, first element, elements, offset) and the elements of each "
      "core.");
  m.def("hub_aggregate", &aggregate, "tall"_a, "threads"_a, "workers"_a, "sizes"_a, "rounds"_a,
        Release(), "Seconds per round of sums and updates, chunk-owned or key at a time.");

  nb::class_<ParameterGroup>(m, "HubGroup",
                             "Hyperparameters of a parameter group, with torch's names.")
      .def(
          "__init__",
          [](ParameterGroup* self, double lr, double momentum, double dampening,
             double weight_decay, double beta1, double beta2, double eps, bool nesterov,
             bool maximize, bool amsgrad) {
            new (self) ParameterGroup{lr,    momentum, dampening, weight_decay, beta1,
                                      beta2, eps,      nesterov,  maximize,     amsgrad};
          },
          nb::kw_only(), "lr"_a, "momentum"_a = 0.0, "dampening"_a = 0.0, "weight_decay"_a = 0.0,
          "beta1"_a = 0.9, "beta2"_a = 0.999, "eps"_a = 1e-8, "nesterov"_a = false,
          "maximize"_a = false, "amsgrad"_a = false);

  nb::class_<Snapshot>(m, "HubSnapshot", "All values of a job at one version.")
      .def_static("of", &make_snapshot, "version"_a, "arrays"_a, "updates"_a, "versions"_a,
                  "A snapshot from arrays, which are copied.")
      .def_ro("version", &Snapshot::version, "Steps that were complete.")
      .def_prop_ro(
          "arrays",
          [](nb::handle self) {
            nb::list rows;
            for (const auto& region : nb::cast<const Snapshot&>(self).arrays) {
              rows.append(nb::cast(floats({region.floats(), region.bytes() / sizeof(float)}, self),
                                   nb::rv_policy::reference));
            }
            return rows;
          },
          nb::sig("def arrays(self) -> list[numpy.typing.NDArray[numpy.float32]]"),
          "Weights, then optimizer state, in the order of the chunks.")
      .def_prop_ro(
          "updates", [](const Snapshot& s) { return give(std::vector(s.updates)); },
          nb::rv_policy::reference, "Updates of each chunk.")
      .def_prop_ro(
          "versions", [](const Snapshot& s) { return give(std::vector(s.versions)); },
          nb::rv_policy::reference, "Version of each chunk.");

  nb::class_<Admission>(m, "HubAdmission", "The data that a worker needs to connect.")
      .def_ro("slot", &Admission::slot)
      .def_ro("serial", &Admission::serial)
      .def_prop_ro("key", [](const Admission& a) { return nb::bytes(a.key.data(), a.key.size()); })
      .def_ro("first_step", &Admission::first_step)
      .def_ro("memory", &Admission::memory)
      .def_ro("memory_bytes", &Admission::memory_bytes);

  nb::class_<Hub>(m, "Hub", "Jobs and members of an optimizer service.")
      .def_prop_ro("cores", &Hub::cores, "Number of cores.")
      .def(
          "create",
          [](Hub& hub, const std::string& name, std::uint64_t tenant, const std::string& optimizer,
             const std::string& mode, bool deterministic, bool average, bool elastic, bool relay,
             std::uint64_t staleness, double timeout_s, double rate_Bps,
             const std::vector<ParameterGroup>& groups, const std::vector<std::int64_t>& sizes,
             const std::vector<std::int32_t>& groups_of, const std::shared_ptr<Snapshot>& resumed) {
            const nb::gil_scoped_release release;
            JobSpec spec;
            spec.name = name;
            spec.tenant = tenant;
            spec.optimizer = optimizer_named(optimizer);
            spec.mode = mode_named(mode);
            spec.deterministic = deterministic;
            spec.average = average;
            spec.elastic = elastic;
            spec.relay = relay;
            spec.staleness = staleness;
            spec.timeout_s = timeout_s;
            spec.rate_Bps = rate_Bps;
            spec.groups = groups;
            spec.sizes = sizes;
            spec.groups_of = groups_of;
            return hub.create(spec, resumed.get());
          },
          nb::kw_only(), "name"_a, "tenant"_a = 0, "optimizer"_a, "mode"_a = "sync",
          "deterministic"_a = false, "average"_a = true, "elastic"_a = false, "relay"_a = false,
          "staleness"_a = 0, "timeout_s"_a = 60.0, "rate_Bps"_a = 0.0, "groups"_a, "sizes"_a,
          "groups_of"_a, "resumed"_a = nb::none(), "Add a job and return its number.")
      .def("drop", &Hub::drop, "job"_a, "why"_a, Release(),
           "Remove a job; its workers receive the reason.")
      .def("failure", &Hub::failure, "job"_a, Release(),
           "Why a job has failed, or an empty string.")
      .def(
          "bytes", [](const Hub& hub, std::uint64_t job) { return hub.job(job)->bytes(); }, "job"_a,
          "Memory of a job's arrays.")
      .def("join", &Hub::join, "job"_a, "name"_a, "rank"_a, "share"_a = false, Release(),
           "Admit a worker from the next step that no chunk has begun.")
      .def("leave", &Hub::leave, "job"_a, "slot"_a, "serial"_a, Release(),
           "Remove a worker that leaves between steps.")
      .def(
          "lose",
          [](Hub& hub, std::uint64_t job, std::uint32_t slot, std::uint64_t serial,
             const std::string& why) { hub.lose({job, slot, serial, why}); },
          "job"_a, "slot"_a, "serial"_a, "why"_a, Release(), "Remove a worker that is lost.")
      .def("next_step", &Hub::next_step, "job"_a, Release(),
           "The first step that no chunk has begun.")
      .def("snapshot", &Hub::snapshot, "job"_a, "version"_a.none(), "patience_s"_a, Release(),
           "All values at one version, or None if the job does not reach it in time.")
      .def(
          "buckets", [](const Hub& hub, std::uint64_t job) { return hub.job(job)->buckets.size(); },
          "job"_a, "Parts whose sums a relay exchanges together.")
      .def(
          "wait_for_sums",
          [](Hub& hub, std::uint64_t job, std::size_t bucket, double patience_s) {
            return patiently(patience_s,
                             [&](double slice) { return hub.wait_for_sums(job, bucket, slice); });
          },
          "job"_a, "bucket"_a, "patience_s"_a, "Wait for the sums of a bucket.")
      .def(
          "sums",
          [](nb::handle self, std::uint64_t job, std::size_t bucket) {
            return floats(nb::cast<Hub&>(self).sums(job, bucket), self);
          },
          "job"_a, "bucket"_a, nb::rv_policy::reference,
          "The sums of a bucket, without a copy; do not use them after the job is dropped.")
      .def("deliver", &Hub::deliver, "job"_a, "bucket"_a, Release(),
           "Report that the sums of a bucket are complete: run the optimizer and answer.")
      .def(
          "take_losses",
          [](Hub& hub) {
            std::vector<std::tuple<std::uint64_t, std::uint32_t, std::uint64_t, std::string>> rows;
            for (const auto& loss : hub.take_losses()) {
              rows.emplace_back(loss.job, loss.slot, loss.serial, loss.why);
            }
            return rows;
          },
          "Workers that were lost since the last call: job, slot, serial, why.")
      .def(
          "counters",
          [](Hub& hub) {
            Counters sum;
            {
              const nb::gil_scoped_release release;
              sum = hub.counters();
            }
            nb::dict rows;
            rows["frames"] = sum.frames;
            rows["bytes_in"] = sum.bytes_in;
            rows["bytes_out"] = sum.bytes_out;
            rows["updates"] = sum.updates;
            rows["errors"] = sum.errors;
            rows["refused"] = sum.refused;
            return rows;
          },
          nb::sig("def counters(self) -> dict[str, int]"), "Totals since the start.");

  nb::class_<ManualHub, Hub> machine(m, "ManualHub",
                                     "A hub for tests, which moves bytes only when it is told to.");
  bind_machine(machine);

  nb::class_<SocketHub, Hub>(m, "SocketHub", "A hub on sockets, with a thread for each core.")
      .def(nb::init<std::vector<int>, bool>(), "listening"_a, "pin"_a = false,
           "Take ownership of listening sockets, one per core.")
      .def("stop", &SocketHub::stop, Release(), "End all threads and close all sockets.");

  nb::class_<Client>(m, "HubClient", "A worker's connections to a hub.")
      .def(
          "__init__",
          [](Client* self, const std::vector<std::int64_t>& sizes, const std::vector<int>& sockets,
             std::uint64_t job, std::uint32_t slot, const nb::bytes& key, const std::string& wire,
             int memory) {
            new (self) Client(sizes, sockets, job, slot, key_of(key), wire_named(wire), memory);
          },
          "sizes"_a, "sockets"_a, "job"_a, "slot"_a, "key"_a, "wire"_a = "float32", "memory"_a = -1,
          "Take ownership of connected sockets, one per core, and of a descriptor of shared "
          "memory.")
      .def(
          "push",
          [](Client& c, std::int32_t key, std::uintptr_t source, std::uintptr_t target,
             std::uint64_t step, double rate) {
            Request request;
            request.key = key;
            request.source = reinterpret_cast<const float*>(source);
            request.target = reinterpret_cast<float*>(target);
            request.step = step;
            request.rate = rate;
            return c.submit(request);
          },
          "key"_a, "source"_a, "target"_a, "step"_a, "rate"_a, Release(),
          "Push the gradient at an address (0: none); the new weights go to the target (0: "
          "none). "
          "Return a timestamp.")
      .def(
          "pull",
          [](Client& c, std::int32_t key, std::uintptr_t target, std::uint64_t step,
             std::uint8_t slot) {
            Request request;
            request.kind = Kind::pull;
            request.key = key;
            request.target = reinterpret_cast<float*>(target);
            request.step = step;
            request.slot = slot;
            return c.submit(request);
          },
          "key"_a, "target"_a, "step"_a = 0, "slot"_a = 0, Release(),
          "Pull values of at least that version; slot 0: weights. Return a timestamp.")
      .def(
          "put",
          [](Client& c, std::int32_t key, std::uintptr_t source, double updates,
             std::uint8_t slot) {
            Request request;
            request.kind = Kind::put;
            request.key = key;
            request.source = reinterpret_cast<const float*>(source);
            request.rate = updates;
            request.slot = slot;
            return c.submit(request);
          },
          "key"_a, "source"_a, "updates"_a = -1.0, "slot"_a = 0, Release(),
          "Set values, and the number of updates unless it is negative. Return a timestamp.")
      .def(
          "wait",
          [](Client& c, std::uint64_t timestamp, double patience_s) {
            return patiently(patience_s, [&](double slice) { return c.wait(timestamp, slice); });
          },
          "timestamp"_a, "patience_s"_a, "Wait for a request; return whether it is complete.")
      .def_prop_ro("version", &Client::version, "The version of the values received last.")
      .def_prop_ro("sent", &Client::sent, "Bytes sent to the hub's cores, with frames.")
      .def_prop_ro("received", &Client::received, "Bytes received from them, with frames.")
      .def_prop_ro("updates", &Client::updates,
                   "The number of updates that the last pull returned.")
      .def_prop_ro("failure", &Client::failure,
                   "Why the connection cannot be used, or an empty string.")
      .def_prop_ro("shares", &Client::shares, "Whether gradients go through shared memory.")
      .def("close", &Client::close, Release(), "Close the connections.");
}

}  // namespace tacos::bindings
