#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <unordered_set>

#include "columns.hpp"
#include "simulate/astra.hpp"
#include "simulate/hash_order.hpp"

namespace tacos::bindings {

using namespace nb::literals;

namespace {

using Names = std::vector<std::string>;
// Which NPUs share a remote memory, its latency in ns, bytes per second, NPUs per node, nodes.
using RemoteMemory =
    std::tuple<std::string, std::int64_t, std::int64_t, std::int32_t, std::int32_t>;

astra::Policy policy(const std::string& name) {
  if (name == "lifo") return astra::Policy::lifo;
  if (name == "fifo") return astra::Policy::fifo;
  if (name == "explicit") return astra::Policy::by_priority;
  invalid("policy is \"" + name + "\"; it must be lifo, fifo or explicit");
}

astra::MemoryKind memory_kind(const std::string& name) {
  if (name == "none") return astra::MemoryKind::none;
  if (name == "npu") return astra::MemoryKind::per_npu;
  if (name == "node") return astra::MemoryKind::per_node;
  if (name == "pool") return astra::MemoryKind::pool;
  invalid("shared_by is \"" + name + "\"; it must be none, npu, node or pool");
}

// The columns of a result, by the names that tacos.simulate.astra gives them.
nb::typed<nb::dict, nb::str, nb::any> columns_of(astra::Result result) {
  std::vector<std::int32_t> src, dst, tag;
  std::vector<std::int64_t> bytes, sent, arrived, node;
  for (const auto& message : result.messages) {
    src.push_back(message.src);
    dst.push_back(message.dst);
    tag.push_back(message.tag);
    bytes.push_back(message.bytes);
    sent.push_back(message.sent);
    arrived.push_back(message.arrived);
    const bool of_node = message.on_send.kind == astra::Handler::Kind::node;
    node.push_back(of_node ? static_cast<std::int64_t>(message.on_send.row) : -1);
  }
  nb::typed<nb::dict, nb::str, nb::any> out;
  out["npu_finish_ns"] = give(std::move(result.finish));
  out["npu_compute_ns"] = give(std::move(result.compute));
  out["node_begin_ns"] = give(std::move(result.begin));
  out["node_end_ns"] = give(std::move(result.end));
  out["src"] = give(std::move(src));
  out["dst"] = give(std::move(dst));
  out["bytes"] = give(std::move(bytes));
  out["tag"] = give(std::move(tag));
  out["send_ns"] = give(std::move(sent));
  out["arrive_ns"] = give(std::move(arrived));
  out["send_node"] = give(std::move(node));
  out["hop_link"] = give(std::move(result.hops.link));
  out["hop_message"] = give(std::move(result.hops.message));
  out["hop_begin_ns"] = give(std::move(result.hops.begin));
  out["hop_end_ns"] = give(std::move(result.hops.end));
  return out;
}

}  // namespace

void bind_astra(nb::module_& m) {
  m.def(
      "astra_simulate",
      [](std::shared_ptr<Topology> topology,
         const std::vector<std::tuple<int, std::int32_t, std::int64_t, std::int64_t>>& dims,
         bool aware, std::shared_ptr<Workload> workload,
         std::vector<std::shared_ptr<const Workload>> algorithms,
         const Array<std::int32_t>& algorithm_of, std::int64_t endpoint_delay_ns,
         std::int64_t memory_Bps, std::int32_t splits, std::int32_t active_chunks,
         std::int32_t queues, const std::string& policy_name, bool local_bandwidth_aware,
         bool rendezvous, const std::vector<Names>& implementations, bool roofline,
         double peak_flops, bool replay_only, const RemoteMemory& remote, bool record,
         const nb::object& progress) {
        std::vector<astra::Dimension> dimensions;
        for (const auto& [block, size, bandwidth_Bps, latency_ps] : dims) {
          dimensions.push_back({static_cast<astra::Block>(block), size,
                                static_cast<double>(bandwidth_Bps) / 1e9,
                                static_cast<double>(latency_ps) / 1e3});
        }
        astra::System system{endpoint_delay_ns,
                             static_cast<double>(memory_Bps),
                             splits,
                             active_chunks,
                             queues,
                             policy(policy_name),
                             local_bandwidth_aware,
                             rendezvous,
                             roofline,
                             peak_flops,
                             replay_only,
                             {},
                             record,
                             {}};
        const auto& [shared_by, latency_ns, remote_Bps, npus_per_node, nodes] = remote;
        system.memory = {memory_kind(shared_by), latency_ns, static_cast<double>(remote_Bps) / 1e9,
                         npus_per_node, nodes};
        for (std::size_t i = 0; i < system.implementations.size(); ++i) {
          for (const auto& name : implementations.at(i)) {
            system.implementations[i].push_back(astra::Implementation::parse(name));
          }
        }
        const auto which = copy(algorithm_of);
        const auto report = progress_to(progress);
        astra::Result result;
        {
          const nb::gil_scoped_release release;
          result = astra::simulate(std::move(topology), std::move(dimensions), aware, *workload,
                                   algorithms, which, system, report);
        }
        return columns_of(std::move(result));
      },
      "topology"_a, "dims"_a, "aware"_a, "workload"_a, "algorithms"_a, "algorithm_of"_a,
      nb::kw_only(), "endpoint_delay_ns"_a, "memory_Bps"_a, "splits"_a, "active_chunks"_a,
      "queues"_a, "policy"_a, "local_bandwidth_aware"_a, "rendezvous"_a, "implementations"_a,
      "roofline"_a, "peak_flops"_a, "replay_only"_a, "remote"_a, "record"_a,
      "progress"_a = nb::none(), "ASTRA-sim's analytical simulation; see tacos.simulate.astra.");

  m.def(
      "hash_set_order",
      [](const Array<std::uint64_t>& keys, bool reference) {
        std::vector<std::uint64_t> order;
        if (reference) {
          std::unordered_set<std::uint64_t> set;
          for (std::size_t i = 0; i < keys.shape(0); ++i) set.insert(keys(i));
          order.assign(set.begin(), set.end());
        } else {
          HashOrder set;
          for (std::size_t i = 0; i < keys.shape(0); ++i) {
            set.insert(keys(i), static_cast<std::uint32_t>(i));
          }
          set.for_each([&](std::uint32_t i) { order.push_back(keys(i)); });
        }
        return give(std::move(order));
      },
      "keys"_a, "reference"_a = false,
      "Distinct keys in the order of libstdc++'s hash set: ours, or that of this build's library.");
}

}  // namespace tacos::bindings
