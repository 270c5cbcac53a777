#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "columns.hpp"
#include "runtime/tcp.hpp"

namespace tacos::bindings {

using namespace nb::literals;

namespace {

std::vector<std::pair<NodeId, std::int32_t>> pairs(const std::vector<Port>& ports) {
  std::vector<std::pair<NodeId, std::int32_t>> rows;
  for (const auto& port : ports) rows.emplace_back(port.peer, port.channel);
  return rows;
}

Call make_call(std::uintptr_t source, std::uintptr_t target, std::int64_t count,
               const std::string& dtype, const std::string& op) {
  return {reinterpret_cast<void*>(source), reinterpret_cast<void*>(target), count,
          dtype_named(dtype), reduce_op_named(op)};
}

std::vector<std::pair<std::uintptr_t, std::size_t>> addresses(const std::vector<iovec>& pieces) {
  std::vector<std::pair<std::uintptr_t, std::size_t>> rows;
  for (const auto& piece : pieces) {
    rows.emplace_back(reinterpret_cast<std::uintptr_t>(piece.iov_base), piece.iov_len);
  }
  return rows;
}

using Rows = nb::typed<nb::list, nb::typed<nb::dict, nb::str, nb::any>>;

const char* state_name(LinkState state) {
  switch (state) {
    case LinkState::slow:
      return "slow";
    case LinkState::fast:
      return "fast";
    default:
      return "usual";
  }
}

// The messages that a driver in Python must carry next, as columns.
auto ready(RankExecutor& executor) {
  std::vector<std::uint8_t> receives;
  std::vector<std::int32_t> step, peer, channel, tag;
  std::vector<std::int64_t> bytes;
  const auto add = [&](std::int32_t i, bool receive) {
    const auto& row = executor.program().steps[static_cast<std::size_t>(i)];
    const Port& port = receive ? row.from : row.to;
    receives.push_back(receive ? 1 : 0);
    step.push_back(i);
    peer.push_back(port.peer);
    channel.push_back(port.channel);
    tag.push_back(receive && row.message >= 0 ? row.message : row.id);
    bytes.push_back(static_cast<std::int64_t>(executor.message_bytes(i)));
  };
  for (const auto i : executor.to_send) add(i, false);
  for (const auto i : executor.to_receive) add(i, true);
  executor.to_send.clear();
  executor.to_receive.clear();
  return std::tuple(give(std::move(receives)), give(std::move(step)), give(std::move(peer)),
                    give(std::move(channel)), give(std::move(tag)), give(std::move(bytes)));
}

}  // namespace

void bind_runtime(nb::module_& m) {
  nb::class_<RankExecutor>(m, "RankExecutor",
                           R"(One rank's share of a program, and the state of the current call.

Endpoint.run drives it over TCP. Another driver calls start, carries out the sends and receives that
ready() lists, and reports them with sent() and received() until finished.)")
      .def(
          "__init__",
          [](RankExecutor* self, std::shared_ptr<Program> program, NodeId rank) {
            const nb::gil_scoped_release release;
            new (self) RankExecutor(
                std::make_shared<const RankProgram>(compile(std::move(program), rank)));
          },
          "program"_a, "rank"_a, "Compile the share of a rank.")
      .def_prop_ro(
          "rank", [](const RankExecutor& e) { return e.program().rank; }, "The rank.")
      .def_prop_ro(
          "program",
          [](const RankExecutor& e) {
            return std::const_pointer_cast<Program>(e.program().program);
          },
          "The program of all ranks.")
      .def_prop_ro(
          "sends_to", [](const RankExecutor& e) { return pairs(e.program().out); },
          "Peer and channel of every connection on which data leave.")
      .def_prop_ro(
          "receives_from", [](const RankExecutor& e) { return pairs(e.program().in); },
          "Peer and channel of every connection on which data arrive.")
      .def(
          "buffer_elements",
          [](RankExecutor& e, std::int64_t count) {
            const auto& layout = e.layout(count);
            return std::pair(layout.input_elements(), layout.output_elements());
          },
          "count"_a,
          "Elements of this rank's input and output buffers, for a collective of count elements.")
      .def(
          "start",
          [](RankExecutor& e, std::uintptr_t source, std::uintptr_t target, std::int64_t count,
             const std::string& dtype, const std::string& op) {
            const Call call = make_call(source, target, count, dtype, op);
            const nb::gil_scoped_release release;
            e.start(call);
          },
          "source"_a, "target"_a, "count"_a, "dtype"_a, "op"_a,
          "Begin a call on the memory at these addresses.")
      .def("ready", &ready, nb::rv_policy::reference,
           R"(The messages to carry that were not listed before, as columns:
receives (1) or sends (0), step, peer, channel, tag, bytes.)")
      .def(
          "outgoing",
          [](const RankExecutor& e, std::int32_t step) {
            std::vector<iovec> pieces;
            e.outgoing(step, pieces);
            return addresses(pieces);
          },
          "step"_a, "The memory ranges (address, bytes) that a step sends.")
      .def("reduces", &RankExecutor::reduces, "step"_a,
           "Whether data that arrive for a step are added up, and must be passed to take().")
      .def(
          "incoming",
          [](const RankExecutor& e, std::int32_t step) {
            std::vector<iovec> pieces;
            e.incoming(step, pieces);
            return addresses(pieces);
          },
          "step"_a,
          "The memory ranges (address, bytes) for the data of a step that does not "
          "reduce.")
      .def(
          "take",
          [](RankExecutor& e, std::int32_t step, std::uintptr_t data, std::size_t bytes) {
            const nb::gil_scoped_release release;
            e.take(step, reinterpret_cast<const std::byte*>(data), bytes);
          },
          "step"_a, "data"_a, "bytes"_a,
          "Store or add data that arrived for a step: whole elements, in order.")
      .def("sent", &RankExecutor::sent, "step"_a, nb::call_guard<nb::gil_scoped_release>(),
           "Report that all data of a step were sent.")
      .def("received", &RankExecutor::received, "step"_a, nb::call_guard<nb::gil_scoped_release>(),
           "Report that all data of a step were passed to take() or stored at incoming().")
      .def("stored", &RankExecutor::stored, "peer"_a, nb::call_guard<nb::gil_scoped_release>(),
           "Report that a peer has stored the data of a put.")
      .def(
          "waiting",
          [](const RankExecutor& e) {
            std::vector<std::pair<NodeId, std::string>> rows;
            for (const auto step : e.waiting()) {
              rows.emplace_back(e.awaited(step), e.describe(step));
            }
            return rows;
          },
          "The rank that each started step waits for, and the reason in words.")
      .def_prop_ro("finished", &RankExecutor::finished, "Whether all steps are complete.")
      .def("finish", &RankExecutor::finish, nb::call_guard<nb::gil_scoped_release>(),
           "End a call: divide averages, and copy results back to the caller's buffers.");

  nb::class_<LinkWatch>(m, "LinkWatch", "The speed of one link, message by message.")
      .def(nb::init<>())
      .def("expect", &LinkWatch::expect, "rate"_a, "known"_a,
           "Set the expected speed in bytes per second and reset the watch. known: report a higher "
           "speed "
           "too; otherwise it is the least speed.")
      .def("add", &LinkWatch::add, "algorithm"_a, "bytes"_a, "seconds"_a, "now"_a,
           "Record that bytes took some seconds, until now; return whether the state has "
           "changed.")
      .def("doubt", &LinkWatch::doubt,
           "Restart the trend: a message had arrived before the rank looked.")
      .def_prop_ro(
          "state", [](const LinkWatch& w) { return state_name(w.state()); }, "usual, slow or fast.")
      .def_prop_ro("rate", &LinkWatch::rate, "Speed of the latest messages, in bytes per second.")
      .def_prop_ro("usual", &LinkWatch::usual, "The speed to compare with; 0: not known yet.");

  nb::class_<RankWatch>(m, "RankWatch", "Time that ranks spend outside of calls.")
      .def(nb::init<>())
      .def(
          "start", &RankWatch::start, "away"_a, "now"_a,
          "Record how many seconds this rank was outside of calls before the call that starts now.")
      .def("hear", &RankWatch::hear, "peer"_a, "away"_a,
           "Record the same for a peer, as it reported.")
      .def("judge", &RankWatch::judge, "now"_a,
           "At the end of a call: return whether a peer has become slow or has recovered.")
      .def_prop_ro(
          "slow",
          [](const RankWatch& w) {
            std::vector<std::int32_t> slow;
            for (std::size_t i = 0; i < w.peers().size(); ++i) {
              if (w.peers()[i].slow) slow.push_back(static_cast<std::int32_t>(i));
            }
            return slow;
          },
          "The slow ranks, which others wait for.");

  nb::class_<Endpoint>(m, "Endpoint", "A rank's TCP connections, and the calls that run over them.")
      .def(
          "__init__",
          [](Endpoint* self, NodeId rank, NodeId size, double timeout_s, double report_s,
             std::optional<nb::typed<nb::callable, void(NodeId, std::string, double)>> waiting) {
            Endpoint::Waiting report;
            if (waiting) {
              report = [call = nb::callable(*waiting)](NodeId peer, const std::string& collective,
                                                       double seconds) {
                const nb::gil_scoped_acquire gil;
                call(peer, collective, seconds);
              };
            }
            new (self) Endpoint(rank, size, timeout_s, report_s, std::move(report));
          },
          "rank"_a, "size"_a, "timeout_s"_a, "report_s"_a = 30.0, "waiting"_a = nb::none(),
          "timeout_s: how long a call may make no progress. waiting: called with a rank that "
          "is not in the call, the collective and the seconds, first after report_s and then at "
          "growing intervals.")
      .def("describe", &Endpoint::describe, "algorithm"_a, "name"_a,
           "Set the name of an algorithm in messages.")
      .def("hide", &Endpoint::hide, "algorithm"_a,
           "Exclude calls of an algorithm from the job's collectives.")
      .def(
          "add",
          [](Endpoint& e, NodeId peer, std::int32_t channel, int socket) {
            e.add({peer, channel}, socket);
          },
          "peer"_a, "channel"_a, "socket"_a,
          "Take ownership of a connected socket, given by its descriptor.")
      .def(
          "has",
          [](const Endpoint& e, NodeId peer, std::int32_t channel) {
            return e.has({peer, channel});
          },
          "peer"_a, "channel"_a, "Whether there is such a connection.")
      .def(
          "run",
          [](Endpoint& e, RankExecutor& executor, std::int32_t algorithm, std::uintptr_t source,
             std::uintptr_t target, std::int64_t count, const std::string& dtype,
             const std::string& op, bool joint) {
            const Call call = make_call(source, target, count, dtype, op);
            const nb::gil_scoped_release release;
            return e.run(executor, algorithm, call, joint, [] {
              const nb::gil_scoped_acquire gil;
              if (PyErr_CheckSignals() != 0) throw nb::python_error();
            });
          },
          "executor"_a, "algorithm"_a, "source"_a, "target"_a, "count"_a, "dtype"_a, "op"_a,
          "joint"_a = false,
          "Run one call on the memory at these addresses. joint: each rank's result depends on the "
          "data of every rank. "
          "Return 1 if this rank observed something new, plus 2 if the ranks are to meet.")
      .def("heal", &Endpoint::heal,
           "From now on, a dead link ends a call, so that it can be repeated; a slow link calls a "
           "meeting.")
      .def("watch_links", &Endpoint::watch_links, "whether"_a,
           "Whether to observe links and ranks; on by default, off to measure its cost.")
      .def("call_meeting", &Endpoint::call_meeting,
           "All ranks are to meet after the next joint call; from any thread.")
      .def_prop_ro("broken", &Endpoint::broken,
                   "The dead link that ended a call, from one rank to another; -1: none.")
      .def(
          "expect",
          [](Endpoint& e, NodeId peer, std::int32_t channel, bool outgoing, double rate,
             bool known) { e.expect({peer, channel}, outgoing, rate, known); },
          "peer"_a, "channel"_a, "outgoing"_a, "rate"_a, "known"_a,
          "Set the expected speed of the link from or to a peer, in bytes per second; known: "
          "report a "
          "higher speed too.")
      .def(
          "links",
          [](const Endpoint& e) {
            Rows rows;
            for (const auto& link : e.links()) {
              nb::dict row;
              row["peer"] = link.port.peer;
              row["channel"] = link.port.channel;
              row["outgoing"] = link.outgoing;
              row["local"] = link.local;
              row["messages"] = link.messages;
              row["bytes"] = link.bytes;
              row["waited_s"] = link.waited_s;
              row["rate"] = link.rate;
              row["usual"] = link.usual;
              row["state"] = state_name(link.state);
              rows.append(row);
            }
            return rows;
          },
          "Observations of each connection in both directions; call it from any thread.")
      .def(
          "peers",
          [](const Endpoint& e) {
            Rows rows;
            for (const auto& [rank, peer] : e.peers()) {
              nb::dict row;
              row["rank"] = rank;
              row["away_s"] = peer.away;
              row["share"] = peer.share;
              row["slow"] = peer.slow;
              rows.append(row);
            }
            return rows;
          },
          "How long each peer was outside of calls, and whether that is longer than the others; "
          "call it "
          "between calls.")
      .def_prop_ro("away_s", &Endpoint::away_s, "Seconds that this rank was outside of calls.")
      .def(
          "calls",
          [](const Endpoint& e) {
            Rows rows;
            for (const auto& call : e.calls()) {
              nb::dict row;
              row["algorithm"] = call.algorithm;
              row["elements"] = call.count;
              row["dtype"] = std::string(name_of(static_cast<DType>(call.dtype)));
              row["op"] = std::string(name_of(static_cast<ReduceOp>(call.op)));
              row["listed"] = call.listed;
              row["begin_s"] = call.begin_s;
              row["end_s"] = call.end_s;
              nb::dict waited;
              for (const auto& [peer, time] : call.waited) {
                const nb::int_ key(peer);
                waited[key] = time + (waited.contains(key) ? nb::cast<double>(waited[key]) : 0.0);
              }
              row["waited_s"] = waited;
              row["needs"] = call.needs;
              rows.append(row);
            }
            return rows;
          },
          "The last calls, oldest first, by the steady clock; call it from any thread.")
      .def_prop_ro("listed", &Endpoint::listed, "Number of the job's collectives that were begun.")
      .def("watch", &Endpoint::watch, "algorithm"_a, "doing"_a,
           nb::call_guard<nb::gil_scoped_release>(),
           "Between calls: a message about a rank that will not take part, or an empty string.")
      .def("interrupt", &Endpoint::interrupt, "why"_a,
           "End the current call and all later ones; call it from any thread.")
      .def("abort", &Endpoint::abort, "why"_a, nb::call_guard<nb::gil_scoped_release>(),
           "Tell all peers that this rank gives up.")
      .def_prop_ro("failure", &Endpoint::failure, "Why the endpoint cannot be used, or empty.")
      .def("close", &Endpoint::close, "Close all connections.");
}

}  // namespace tacos::bindings
