#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "simulate/workload.hpp"

namespace tacos {

namespace {

using Row = std::uint32_t;
constexpr Row kNone = 0xffffffff;

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

// Builds the nodes of one schedule: first their places, then their columns and dependencies.
class Builder {
 public:
  Builder(const Schedule& schedule, bool fences)
      : schedule_(schedule), rows_(schedule.rows(std::nullopt, std::nullopt)) {
    check_ends();
    place(fences);
    fill();
    depend();
  }

  Workload build() && {
    WorkloadColumns c;
    const auto nodes = rank_.size();
    std::vector<std::int64_t> id(nodes);
    for (std::size_t node = 0; node < nodes; ++node) {
      id[node] = static_cast<std::int64_t>(node - first_[at(rank_[node])]);
    }
    c.npus = schedule_.topology().npus();
    c.rank = std::move(rank_);
    c.kind = std::move(kind_);
    c.peer = std::move(peer_);
    c.bytes = std::move(bytes_);
    c.tag = std::move(tag_);
    c.duration_us = std::move(duration_us_);
    c.comm = std::vector<std::uint8_t>(nodes, 0);
    c.id = std::move(id);
    c.on_cpu = std::vector<std::uint8_t>(nodes, 0);
    c.group = std::vector<std::int32_t>(nodes, 0);
    c.priority = std::vector<std::int32_t>(nodes, 0);
    c.dims = std::vector<std::uint8_t>(nodes, 0xff);
    c.dep_begin = std::move(dep_begin_);
    c.dep = std::move(dep_);
    return Workload(std::move(c));
  }

 private:
  std::size_t messages() const { return rows_.transfer.size(); }

  void check_ends() const {
    for (std::size_t m = 0; m < messages(); ++m) {
      for (const NodeId node : {rows_.src[m], rows_.dst[m]}) {
        if (!schedule_.topology().is_npu(node)) {
          invalid("transfer " + std::to_string(rows_.transfer[m]) + " ends at " +
                  schedule_.topology().name(node) + ", but only NPUs send and receive messages");
        }
      }
    }
  }

  LinkId first_link(std::size_t m) const {
    for (const LinkId link : schedule_.routes().links(rows_.route[m])) {
      if (schedule_.topology().src(link) == rows_.src[m]) return link;
    }
    return 0;
  }

  bool sums(std::size_t m) const {
    return rows_.op[m] == static_cast<std::uint8_t>(Op::reduce) &&
           schedule_.topology().spec().reduce_bandwidth_Bps > 0;
  }

  // Every rank's nodes in the order of the schedule's starts. A send that is not the first on its
  // link has a fence before it; idle ranks get one comp.
  void place(bool fences) {
    std::vector<bool> used(at(schedule_.topology().links()), false);
    std::vector<Row> count(at(schedule_.topology().npus()), 0);
    fence_.assign(messages(), kNone);
    sum_.assign(messages(), kNone);
    send_.resize(messages());
    recv_.resize(messages());
    for (std::size_t m = 0; m < messages(); ++m) {
      auto &sender = count[at(rows_.src[m])], &receiver = count[at(rows_.dst[m])];
      const auto link = at(first_link(m));
      if (fences && used[link]) fence_[m] = sender++;
      used[link] = true;
      send_[m] = sender++;
      recv_[m] = receiver++;
      if (sums(m)) sum_[m] = receiver++;
    }
    first_.assign(1, 0);
    for (const Row n : count) first_.push_back(first_.back() + std::max<Row>(n, 1));
    for (std::size_t m = 0; m < messages(); ++m) {
      const Row src = first_[at(rows_.src[m])], dst = first_[at(rows_.dst[m])];
      if (fence_[m] != kNone) fence_[m] += src;
      send_[m] += src;
      recv_[m] += dst;
      if (sum_[m] != kNone) sum_[m] += dst;
    }
  }

  void fill() {
    const auto nodes = first_.back();
    for (std::size_t rank = 0; rank + 1 < first_.size(); ++rank) {
      rank_.resize(first_[rank + 1], static_cast<std::int32_t>(rank));
    }
    kind_.assign(nodes, static_cast<std::uint8_t>(NodeKind::comp));
    peer_.assign(nodes, -1);
    bytes_.assign(nodes, 0);
    tag_.assign(nodes, 0);
    duration_us_.assign(nodes, 0);
    for (std::size_t m = 0; m < messages(); ++m) {
      const auto set = [&](Row node, NodeKind kind, NodeId peer) {
        kind_[node] = static_cast<std::uint8_t>(kind);
        peer_[node] = peer;
        bytes_[node] = rows_.bytes[m];
        tag_[node] = static_cast<std::int32_t>(m);
      };
      set(send_[m], NodeKind::send, rows_.dst[m]);
      set(recv_[m], NodeKind::recv, rows_.src[m]);
      if (sum_[m] != kNone) {
        const auto time =
            transmission_time(rows_.bytes[m], schedule_.topology().spec().reduce_bandwidth_Bps);
        duration_us_[sum_[m]] = (time + 500'000) / 1'000'000;  // files know whole microseconds
      }
    }
  }

  void depend() {
    const auto written = schedule_.dependencies();
    std::vector<std::int64_t> message_begin(at(schedule_.stored_transfers()) + 1, 0);
    for (const auto transfer : rows_.transfer) ++message_begin[at(transfer) + 1];
    for (std::size_t t = 1; t < message_begin.size(); ++t) message_begin[t] += message_begin[t - 1];
    std::vector<std::uint32_t> of_transfer(messages());
    auto next = message_begin;
    for (std::size_t m = 0; m < messages(); ++m) {
      of_transfer[at(next[at(rows_.transfer[m])]++)] = static_cast<std::uint32_t>(m);
    }

    std::vector<std::pair<Row, Row>> edges;
    // What the send of message m waits for, `node` is to wait for.
    const auto wait_like = [&](Row node, std::uint32_t m) {
      const auto t = at(rows_.transfer[m]);
      for (auto i = written.begin[t]; i < written.begin[t + 1]; ++i) {
        const auto writer = at(written.writer[at(i)]);
        for (auto j = message_begin[writer]; j < message_begin[writer + 1]; ++j) {
          const auto read = of_transfer[at(j)];
          if (rows_.dst[read] != rows_.src[m]) continue;
          edges.emplace_back(node, sum_[read] == kNone ? recv_[read] : sum_[read]);
        }
      }
      if (fence_[m] != kNone) edges.emplace_back(node, fence_[m]);
    };
    std::vector<std::uint32_t> last(at(schedule_.topology().links()), kNone);
    for (std::uint32_t m = 0; m < messages(); ++m) {
      wait_like(send_[m], m);
      auto& before = last[at(first_link(m))];
      if (fence_[m] != kNone)
        wait_like(fence_[m], before);  // so it ends 1 ns after that send began
      before = m;
      if (sum_[m] != kNone) edges.emplace_back(sum_[m], recv_[m]);
    }
    std::sort(edges.begin(), edges.end());
    dep_begin_.assign(first_.back() + std::size_t{1}, 0);
    dep_.reserve(edges.size());
    for (const auto& [node, dep] : edges) {
      ++dep_begin_[node + std::size_t{1}];
      dep_.push_back(dep);
    }
    for (std::size_t i = 1; i < dep_begin_.size(); ++i) dep_begin_[i] += dep_begin_[i - 1];
  }

  const Schedule& schedule_;
  Schedule::Rows rows_;
  // Of each message its nodes: kNone where it needs no fence or no sum.
  std::vector<Row> fence_, send_, recv_, sum_;
  std::vector<Row> first_;  // node of each rank
  std::vector<std::int32_t> rank_, peer_, tag_;
  std::vector<std::uint8_t> kind_;
  std::vector<std::int64_t> bytes_, duration_us_, dep_begin_, dep_;
};

}  // namespace

Workload Workload::from_schedule(const Schedule& schedule, bool fences) {
  constexpr std::int64_t kMost = 500'000'000;  // numbers of messages that ASTRA-sim tells apart
  if (schedule.transfers() > kMost) {
    invalid("the schedule has " + std::to_string(schedule.transfers()) +
            " transfers, a workload at most " + std::to_string(kMost));
  }
  return Builder(schedule.symmetry() ? schedule.expand() : schedule, fences).build();
}

}  // namespace tacos
