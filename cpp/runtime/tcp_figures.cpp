// The part of an endpoint that observes: speeds of links, time that ranks spend outside of calls, past calls, dead links.
//
// Observing costs almost nothing: it uses the times at which progress is recorded anyway, and plain counters of the thread
// that runs the call.
#include <linux/tcp.h>  // its tcp_info has more than that of netinet/tcp.h
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "runtime/tcp.hpp"
#include "support/index.hpp"

namespace tacos {

namespace {

constexpr std::size_t kRecords = 256;  // calls that are remembered
constexpr std::size_t kLeast = std::size_t{4}
                               << 10;  // fewer bytes in flight never measure a link's speed
constexpr std::size_t kMany = std::size_t{32} << 10;  // this many bytes always do
constexpr double kLong = 1e-3;                        // numbers in between do after these seconds
constexpr std::size_t kNeeds = 8;                     // waiting steps that are described
// Shortest time between questions to the kernel.
constexpr auto kOften = std::chrono::milliseconds(20);
constexpr unsigned kUnanswered = 3;  // unanswered retransmissions of a dead link: at least 1.4 s

double seconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

void Endpoint::begin_record() {
  const bool listed = hidden_.empty() || !hidden_.contains(algorithm_);
  if (listed) listed_ += 1;
  if (!watching_) {
    receivable_.assign(staged_.size(), progress_);
    return;
  }
  const auto away = ended_ == Clock::time_point{} ? Clock::duration{0} : progress_ - ended_;
  const auto away_us = std::chrono::duration_cast<std::chrono::microseconds>(away).count();
  away_us_ = static_cast<std::uint32_t>(std::min<std::int64_t>(away_us, UINT32_MAX));
  began_ = progress_;
  receivable_.assign(staged_.size(), progress_);
  for (const auto& connection : connections_) connection->waited_before = connection->waited;
  note_sent();
  const auto& call = executor_->call();
  const std::lock_guard lock(records_lock_);
  ranks_.start(seconds(away), seconds(progress_.time_since_epoch()));
  if (records_.size() < kRecords) records_.resize(kRecords);
  auto& record = records_[call_ % kRecords];
  record.call = call_;
  record.algorithm = algorithm_;
  record.count = call.count;
  record.dtype = static_cast<std::uint8_t>(call.dtype);
  record.op = static_cast<std::uint8_t>(call.op);
  record.listed = listed;
  record.begin_s = seconds(progress_.time_since_epoch());
  record.end_s = 0;
  record.waited.clear();
  record.needs.clear();
}

void Endpoint::end_record(bool whole) {
  if (!watching_) return;
  if (!whole) note_needs();
  ended_ = Clock::now();
  const auto now = seconds(ended_.time_since_epoch());
  const std::lock_guard lock(records_lock_);
  if (whole && ranks_.judge(now)) news_ = true;
  auto& record = records_[call_ % kRecords];
  if (whole) {
    record.end_s = now;
    record.needs.clear();
  }
  for (const auto& connection : connections_) {
    const double waited = connection->waited - connection->waited_before;
    if (waited > 0) record.waited.emplace_back(connection->port.peer, waited);
  }
}

// Records what steps wait for, for readers in other threads or after a failure.
void Endpoint::note_needs() {
  if (!watching_) return;
  const auto steps = executor_->waiting();
  const std::lock_guard lock(records_lock_);
  auto& needs = records_[call_ % kRecords].needs;
  needs.clear();
  for (const auto step : steps) {
    if (needs.size() == kNeeds) break;
    needs.emplace_back(executor_->awaited(step), executor_->describe(step));
  }
}

void Endpoint::note_begin(Connection& connection) {
  auto& c = connection;
  if ((c.header.flags & kMeet) != 0) meeting_ = true;
  if (!watching_) return;
  if (c.heard != call_) {
    c.heard = call_;
    const std::lock_guard lock(records_lock_);
    ranks_.hear(c.port.peer, c.header.away_us * 1e-6);
  }
  const auto step = at(c.step);
  if (executor_->may_receive(c.step)) {
    const auto since = std::max(receivable_[step], c.ended);
    if (progress_ > since) c.waited += seconds(progress_ - since);
  }
  c.came.messages += 1;
  c.came.bytes += static_cast<std::int64_t>(c.header.bytes);
  c.began = progress_;
  c.timed = 0;
  if (c.local) return;
  // Only data that arrive at an empty socket measure the link's speed, not data that had arrived before this rank looked.
  const auto ahead = c.end - c.begin - sizeof(MessageHeader);
  if (!c.readable && c.header.bytes >= ahead + kLeast) {
    c.timed = c.header.bytes - ahead;
  } else if (c.header.bytes >= kMany) {
    c.watch.doubt();
  }
}

void Endpoint::note_end(Connection& connection) {
  auto& c = connection;
  if (!watching_) return;
  c.ended = progress_;
  if (c.timed == 0) return;
  const auto now = seconds(progress_.time_since_epoch());
  const auto taken = seconds(progress_ - c.began);
  if (c.timed < kMany && taken < kLong) return;
  if (c.watch.add(algorithm_, static_cast<double>(c.timed), taken, now)) {
    news_ = true;
    if (healing_) wanted_ = true;
  }
}

// A short message arrives in one piece, so its receiver cannot measure the link. The sender's kernel knows how long
// data took to be acknowledged; time in which the peer did not read is not counted.
void Endpoint::note_sent() {
  const auto algorithm = std::exchange(sent_by_, algorithm_);
  if (progress_ - asked_ < kOften) return;
  asked_ = progress_;
  for (const auto& connection : connections_) {
    auto& c = *connection;
    if (c.local || c.closed) continue;
    tcp_info info{};
    socklen_t length = sizeof info;
    if (getsockopt(c.socket, IPPROTO_TCP, TCP_INFO, &info, &length) < 0) continue;
    if (length < offsetof(tcp_info, tcpi_sndbuf_limited)) return;  // a kernel before 4.10
    const std::uint64_t acked = info.tcpi_bytes_acked;
    const std::uint64_t busy = info.tcpi_busy_time - info.tcpi_rwnd_limited;
    const auto bytes = acked - c.acked;
    const auto taken = static_cast<double>(busy - c.busy_us) * 1e-6;
    if (bytes < kLeast || (bytes < kMany && taken < kLong)) continue;
    c.acked = acked;
    c.busy_us = busy;
    if (c.sending.add(algorithm, static_cast<double>(bytes), taken,
                      seconds(progress_.time_since_epoch()))) {
      news_ = true;
      if (healing_) wanted_ = true;
    }
  }
}

// TCP retransmits unacknowledged data, at intervals that double. If nothing was in flight when the link died, sending itself
// fails, and TCP sends probes instead. A peer that is alive but does not read acknowledges both.
void Endpoint::find_dead_links() {
  for (const auto& connection : connections_) {
    if (connection->local || connection->closed) continue;
    tcp_info info{};
    socklen_t length = sizeof info;
    if (getsockopt(connection->socket, IPPROTO_TCP, TCP_INFO, &info, &length) < 0) continue;
    const unsigned resent = info.tcpi_unacked > 0 ? info.tcpi_retransmits : 0;
    const auto tries = std::max<unsigned>(resent, info.tcpi_probes);
    if (tries < kUnanswered) continue;
    const auto peer = connection->port.peer;
    broken_ = {rank_, peer};
    fail("the link from " + ranked(rank_) + " to " + ranked(peer) +
         " is dead: nothing was acknowledged that was sent " + std::to_string(tries + 1) +
         " times, call " + std::to_string(call_));
  }
}

void Endpoint::expect(Port port, bool outgoing, double rate, bool known) {
  const auto found = by_port_.find(port);
  if (found == by_port_.end()) return;
  auto& c = *found->second;
  (outgoing ? c.sending : c.watch).expect(rate, known);
}

std::vector<Endpoint::LinkFigures> Endpoint::links() const {
  const std::lock_guard lock(records_lock_);
  std::vector<LinkFigures> rows;
  for (const auto& [port, c] : by_port_) {
    rows.push_back({.port = port,
                    .outgoing = true,
                    .local = c->local,
                    .messages = c->away.messages,
                    .bytes = c->away.bytes,
                    .rate = c->sending.rate(),
                    .usual = c->sending.usual(),
                    .state = c->sending.state()});
    rows.push_back({.port = port,
                    .outgoing = false,
                    .local = c->local,
                    .messages = c->came.messages,
                    .bytes = c->came.bytes,
                    .waited_s = c->waited,
                    .rate = c->watch.rate(),
                    .usual = c->watch.usual(),
                    .state = c->watch.state()});
  }
  return rows;
}

std::vector<std::pair<NodeId, RankWatch::Peer>> Endpoint::peers() const {
  const std::lock_guard lock(records_lock_);
  std::vector<std::pair<NodeId, RankWatch::Peer>> rows;
  const auto all = ranks_.peers();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].known) rows.emplace_back(static_cast<NodeId>(i), all[i]);
  }
  return rows;
}

double Endpoint::away_s() const {
  const std::lock_guard lock(records_lock_);
  return ranks_.away();
}

std::vector<Endpoint::CallRecord> Endpoint::calls() const {
  const std::lock_guard lock(records_lock_);
  std::vector<CallRecord> rows;
  for (std::size_t i = 1; i <= records_.size(); ++i) {
    const auto& record = records_[(call_ + i) % kRecords];
    if (record.call > 0) rows.push_back(record);
  }
  return rows;
}

}  // namespace tacos
