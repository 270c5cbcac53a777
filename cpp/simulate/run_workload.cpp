#include "simulate/run_workload.hpp"

#include <queue>
#include <string>

#include "simulate/shared_loop.hpp"
#include "support/error.hpp"
#include "support/index.hpp"

namespace tacos::simulation {

namespace {

using Node = std::uint32_t;

class WorkloadRun {
 public:
  WorkloadRun(const LoweredWorkload& workload, const Routes& routes, const Progress& progress)
      : workload_(workload),
        nodes_(workload.rank.size()),
        missing_(nodes_),
        sender_(workload.bytes.size(), kNone),
        receiver_(workload.bytes.size(), kNone),
        there_(workload.bytes.size(), 0),
        waiting_(nodes_, 0),
        loop_(*this, routes, workload.connection_route, {},
              {workload.bytes.size(), workload.bytes.size() + 1, 0}, progress) {
    times_.start.assign(nodes_, 0);
    times_.end.assign(nodes_, -1);
    std::int32_t ranks = 0;
    for (const auto rank : workload.rank) ranks = std::max(ranks, rank + 1);
    ready_.resize(at(ranks));
    busy_.assign(at(ranks), 0);
    next_begin_.assign(nodes_ + 1, 0);
    for (const auto before : workload.dep) ++next_begin_[at(before) + 1];
    for (std::size_t i = 0; i < nodes_; ++i) next_begin_[i + 1] += next_begin_[i];
    next_.resize(workload.dep.size());
    auto place = next_begin_;
    for (std::size_t node = 0; node < nodes_; ++node) {
      missing_[node] =
          static_cast<std::uint32_t>(workload.dep_begin[node + 1] - workload.dep_begin[node]);
      for (auto i = workload.dep_begin[node]; i < workload.dep_begin[node + 1]; ++i) {
        next_[place[at(workload.dep[at(i)])]++] = static_cast<Node>(node);
      }
      const auto message = workload.message[node];
      if (message < 0) continue;
      (kind(static_cast<Node>(node)) == LoweredNode::send ? sender_ : receiver_)[at(message)] =
          static_cast<Node>(node);
    }
  }

  NodeTimes run() {
    loop_.run();
    if (done_ < nodes_) {
      std::size_t node = 0;
      while (times_.end[node] >= 0 || missing_[node] > 0) ++node;
      invalid("node " + std::to_string(node) + " of rank " + std::to_string(workload_.rank[node]) +
              " never ends");
    }
    return std::move(times_);
  }

  // Called by the event loop.
  static constexpr bool alarms = true;
  std::uint32_t connection(Item message) const {
    return static_cast<std::uint32_t>(workload_.connection[message]);
  }
  std::int64_t bytes(Item message) const { return workload_.bytes[message]; }
  template <typename Submit>
  void begin(const Submit& submit) {
    for (Node node = 0; node < nodes_; ++node) {
      if (missing_[node] == 0) fresh_.push_back(node);
    }
    work(0, submit);
  }
  template <typename Submit>
  void on_start(Item, Leg, Time, const Submit&) {}
  template <typename Windows, typename Submit>
  void on_sent(Item message, Leg, Time, Time now, const Windows&, const Submit& submit) {
    if (sender_[message] == kNone || times_.end[sender_[message]] >= 0) return;  // a later leg
    end(sender_[message], now);
    work(now, submit);
  }
  Time delay(Item, Leg, std::size_t) const { return 0; }
  template <typename Submit>
  void on_arrival(Item message, std::size_t, Time now, const Submit& submit) {
    there_[message] = 1;
    const Node node = receiver_[message];
    if (waiting_[node] != 0) end(node, now);
    work(now, submit);
  }
  template <typename Submit>
  void on_alarm(Item node, Time now, const Submit& submit) {
    if (kind(node) == LoweredNode::compute) {
      busy_[at(workload_.rank[node])] = 0;
      freed_.push_back(workload_.rank[node]);
    }
    end(node, now);
    work(now, submit);
  }

 private:
  LoweredNode kind(Node node) const { return static_cast<LoweredNode>(workload_.kind[node]); }

  void end(Node node, Time now) {
    times_.end[node] = now;
    ++done_;
    for (auto i = next_begin_[node]; i < next_begin_[node + 1]; ++i) {
      if (--missing_[next_[i]] == 0) fresh_.push_back(next_[i]);
    }
  }

  // Starts all nodes that have become ready at this moment.
  template <typename Submit>
  void work(Time now, const Submit& submit) {
    while (!fresh_.empty() || !freed_.empty()) {
      while (!fresh_.empty()) {
        const Node node = fresh_.back();
        fresh_.pop_back();
        times_.start[node] = now;
        switch (kind(node)) {
          case LoweredNode::send:
            submit(static_cast<Item>(workload_.message[node]), now);
            break;
          case LoweredNode::receive:
            if (there_[at(workload_.message[node])] != 0) {
              end(node, now);
            } else {
              waiting_[node] = 1;
            }
            break;
          case LoweredNode::pause:
            last(node, now);
            break;
          case LoweredNode::compute:
            ready_[at(workload_.rank[node])].push({now, node});
            freed_.push_back(workload_.rank[node]);
            break;
        }
      }
      while (!freed_.empty()) {
        const auto rank = at(freed_.back());
        freed_.pop_back();
        if (busy_[rank] != 0 || ready_[rank].empty()) continue;
        const Node node = ready_[rank].top().second;
        ready_[rank].pop();
        times_.start[node] = now;
        busy_[rank] = 1;
        last(node, now);
      }
    }
  }
  void last(Node node, Time now) { loop_.alarm(node, now + workload_.duration[node]); }

  const LoweredWorkload& workload_;
  const std::size_t nodes_;
  std::vector<std::uint32_t> missing_;   // per node: dependencies that are not complete
  std::vector<Node> sender_, receiver_;  // per message
  std::vector<std::uint8_t> there_;      // per message: whether it has arrived
  std::vector<std::uint8_t> waiting_;    // per node: a receive whose message has not arrived
  std::vector<std::size_t> next_begin_;  // per node: its first successor
  std::vector<Node> next_;
  std::vector<Node> fresh_;
  std::vector<std::int32_t> freed_;
  using Ready = std::pair<Time, Node>;
  std::vector<std::priority_queue<Ready, std::vector<Ready>, std::greater<>>> ready_;  // per rank
  std::vector<std::uint8_t> busy_;                                                     // per rank
  NodeTimes times_;
  std::size_t done_ = 0;
  SharedLoop<WorkloadRun> loop_;
};

void check(const LoweredWorkload& workload) {
  const auto nodes = workload.rank.size(), messages = workload.bytes.size();
  if (workload.kind.size() != nodes || workload.duration.size() != nodes ||
      workload.message.size() != nodes || workload.dep_begin.size() != nodes + 1 ||
      workload.connection.size() != messages) {
    invalid("the columns of a workload have different lengths");
  }
  if (workload.dep_begin[0] != 0 || at(workload.dep_begin[nodes]) != workload.dep.size()) {
    invalid("dep_begin does not fit dep");
  }
  std::vector<std::uint8_t> ends(messages, 0);
  for (std::size_t node = 0; node < nodes; ++node) {
    if (workload.dep_begin[node] > workload.dep_begin[node + 1]) invalid("dep_begin must ascend");
    if (workload.rank[node] < 0 || workload.duration[node] < 0 || workload.kind[node] > 3) {
      invalid("node " + std::to_string(node) + " has a value out of range");
    }
    const bool moves = workload.kind[node] < 2;
    const auto message = workload.message[node];
    if (moves != (message >= 0) || (moves && at(message) >= messages)) {
      invalid("node " + std::to_string(node) + " has message " + std::to_string(message));
    }
    if (moves) ends[at(message)] |= static_cast<std::uint8_t>(1 + workload.kind[node]);
  }
  for (const auto before : workload.dep) {
    if (before < 0 || at(before) >= nodes) invalid("dep has a value out of range");
  }
  for (std::size_t message = 0; message < messages; ++message) {
    if (ends[message] != 3) {
      invalid("message " + std::to_string(message) + " lacks a send or a receive");
    }
    if (workload.bytes[message] < 0 || workload.connection[message] < 0 ||
        at(workload.connection[message]) >= workload.connection_route.size()) {
      invalid("message " + std::to_string(message) + " has a value out of range");
    }
  }
}

}  // namespace

NodeTimes run_workload(const LoweredWorkload& workload, const Routes& routes,
                       const Progress& progress) {
  check(workload);
  return WorkloadRun(workload, routes, progress).run();
}

}  // namespace tacos::simulation
