#include "simulate/run_job.hpp"

#include <queue>
#include <string>

#include "simulate/shared_loop.hpp"
#include "support/error.hpp"
#include "support/index.hpp"

namespace tacos::simulation {

namespace {

using Node = std::uint32_t;

class Run {
 public:
  Run(const Job& job, const Routes& routes, const Progress& progress)
      : job_(job),
        nodes_(job.rank.size()),
        missing_(nodes_),
        sender_(job.bytes.size(), kNone),
        receiver_(job.bytes.size(), kNone),
        there_(job.bytes.size(), 0),
        waiting_(nodes_, 0),
        loop_(*this, routes, job.connection_route, {}, {job.bytes.size(), job.bytes.size() + 1, 0},
              progress) {
    times_.start.assign(nodes_, 0);
    times_.end.assign(nodes_, -1);
    std::int32_t ranks = 0;
    for (const auto rank : job.rank) ranks = std::max(ranks, rank + 1);
    ready_.resize(at(ranks));
    busy_.assign(at(ranks), 0);
    next_begin_.assign(nodes_ + 1, 0);
    for (const auto before : job.dep) ++next_begin_[at(before) + 1];
    for (std::size_t i = 0; i < nodes_; ++i) next_begin_[i + 1] += next_begin_[i];
    next_.resize(job.dep.size());
    auto place = next_begin_;
    for (std::size_t node = 0; node < nodes_; ++node) {
      missing_[node] = static_cast<std::uint32_t>(job.dep_begin[node + 1] - job.dep_begin[node]);
      for (auto i = job.dep_begin[node]; i < job.dep_begin[node + 1]; ++i) {
        next_[place[at(job.dep[at(i)])]++] = static_cast<Node>(node);
      }
      const auto message = job.message[node];
      if (message < 0) continue;
      (kind(static_cast<Node>(node)) == JobNode::send ? sender_ : receiver_)[at(message)] =
          static_cast<Node>(node);
    }
  }

  JobTimes run() {
    loop_.run();
    if (done_ < nodes_) {
      std::size_t node = 0;
      while (times_.end[node] >= 0 || missing_[node] > 0) ++node;
      invalid("node " + std::to_string(node) + " of rank " + std::to_string(job_.rank[node]) +
              " never ends");
    }
    return std::move(times_);
  }

  // Called by the event loop.
  static constexpr bool alarms = true;
  std::uint32_t connection(Item message) const {
    return static_cast<std::uint32_t>(job_.connection[message]);
  }
  std::int64_t bytes(Item message) const { return job_.bytes[message]; }
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
    if (kind(node) == JobNode::compute) {
      busy_[at(job_.rank[node])] = 0;
      freed_.push_back(job_.rank[node]);
    }
    end(node, now);
    work(now, submit);
  }

 private:
  JobNode kind(Node node) const { return static_cast<JobNode>(job_.kind[node]); }

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
          case JobNode::send:
            submit(static_cast<Item>(job_.message[node]), now);
            break;
          case JobNode::receive:
            if (there_[at(job_.message[node])] != 0) {
              end(node, now);
            } else {
              waiting_[node] = 1;
            }
            break;
          case JobNode::pause:
            last(node, now);
            break;
          case JobNode::compute:
            ready_[at(job_.rank[node])].push({now, node});
            freed_.push_back(job_.rank[node]);
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
  void last(Node node, Time now) { loop_.alarm(node, now + job_.duration[node]); }

  const Job& job_;
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
  JobTimes times_;
  std::size_t done_ = 0;
  SharedLoop<Run> loop_;
};

void check(const Job& job) {
  const auto nodes = job.rank.size(), messages = job.bytes.size();
  if (job.kind.size() != nodes || job.duration.size() != nodes || job.message.size() != nodes ||
      job.dep_begin.size() != nodes + 1 || job.connection.size() != messages) {
    invalid("the columns of a job have different lengths");
  }
  if (job.dep_begin[0] != 0 || at(job.dep_begin[nodes]) != job.dep.size()) {
    invalid("dep_begin does not fit dep");
  }
  std::vector<std::uint8_t> ends(messages, 0);
  for (std::size_t node = 0; node < nodes; ++node) {
    if (job.dep_begin[node] > job.dep_begin[node + 1]) invalid("dep_begin must ascend");
    if (job.rank[node] < 0 || job.duration[node] < 0 || job.kind[node] > 3) {
      invalid("node " + std::to_string(node) + " has a value out of range");
    }
    const bool moves = job.kind[node] < 2;
    const auto message = job.message[node];
    if (moves != (message >= 0) || (moves && at(message) >= messages)) {
      invalid("node " + std::to_string(node) + " has message " + std::to_string(message));
    }
    if (moves) ends[at(message)] |= static_cast<std::uint8_t>(1 + job.kind[node]);
  }
  for (const auto before : job.dep) {
    if (before < 0 || at(before) >= nodes) invalid("dep has a value out of range");
  }
  for (std::size_t message = 0; message < messages; ++message) {
    if (ends[message] != 3) {
      invalid("message " + std::to_string(message) + " lacks a send or a receive");
    }
    if (job.bytes[message] < 0 || job.connection[message] < 0 ||
        at(job.connection[message]) >= job.connection_route.size()) {
      invalid("message " + std::to_string(message) + " has a value out of range");
    }
  }
}

}  // namespace

JobTimes run_job(const Job& job, const Routes& routes, const Progress& progress) {
  check(job);
  return Run(job, routes, progress).run();
}

}  // namespace tacos::simulation
