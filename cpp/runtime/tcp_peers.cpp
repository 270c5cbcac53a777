// The part of an endpoint that checks whether peers are alive and agree on the call, and reports it if not.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "runtime/tcp.hpp"
#include "support/index.hpp"

namespace tacos {

namespace {

using Header = MessageHeader;
using Kind = MessageKind;

constexpr auto kCurious = std::chrono::seconds(1);        // wait before the first question
constexpr auto kAnswer = std::chrono::seconds(1);         // time for a live rank to answer
constexpr auto kLongestAnswer = std::chrono::seconds(5);  // the same, if the timeout is long enough
constexpr auto kFarewell = std::chrono::seconds(3);       // time for slow peers to read a farewell

}  // namespace

void Endpoint::note_progress() {
  progress_ = Clock::now();
  asking_ = curious_ = false;
  judged_ = {};
}

void Endpoint::interrupt(const std::string& why) {
  const std::lock_guard lock(interruption_lock_);
  if (interruption_.empty()) interruption_ = why;
  interrupted_ = true;
}

void Endpoint::check_usable() {
  if (process_ != getpid()) {
    throw CommunicationError("the communicator is that of process " + std::to_string(process_) +
                             ", which this one was forked from");
  }
  if (!failure_.empty()) throw CommunicationError(failure_);
  if (!interrupted_) return;
  const std::lock_guard lock(interruption_lock_);
  fail(interruption_);
}

std::string Endpoint::watch(std::int32_t algorithm, const std::string& doing) {
  check_usable();
  while (take_events(0)) {
  }
  hear_parked();
  std::string left;
  auto heard = std::exchange(heard_, {});
  for (const auto& connection : connections_) {
    if (connection->parked) {
      auto& [peer, header] = heard.emplace_back();
      peer = connection->port.peer;
      std::memcpy(&header, connection->buffer.data.get() + connection->begin, sizeof(Header));
    }
    if (connection->closed && left.empty()) {
      left =
          ranked(connection->port.peer) + " closed its connection: " + ranked(rank_) + " " + doing;
    }
  }
  // A peer that runs this algorithm has prepared it and is only ahead.
  const auto other = std::find_if(heard.begin(), heard.end(), [&](const auto& one) {
    return one.second.call == call_ + 1 && one.second.algorithm < algorithm;
  });
  if (other == heard.end()) return left;
  heard_ = {*other};  // keep it, because a peer asks only once
  const auto& [peer, header] = *other;
  return "the ranks do not agree on call " + std::to_string(header.call) + ": " + ranked(peer) +
         " runs " + what_runs(header) + ", " + ranked(rank_) + " " + doing;
}

// Some time before its timeout ends, a waiting rank asks the ranks that it waits for whether they are alive. A rank within
// the call answers, because it waits for another rank. A rank that does not answer is named in a report and, at the
// end of the timeout, in an error. Much earlier, a rank asks once, so that a rank that prepares another call learns of this one.
void Endpoint::check_progress() {
  const auto waited = Clock::now() - progress_;
  if (!curious_ && waited > kCurious) {
    curious_ = true;
    reported_ = report_;
    for (const auto step : executor_->waiting()) {
      if (executor_->may_receive(step)) ask(*in_[at(step)]);
    }
  }
  if (!asking_) {
    const auto last = std::max(timeout_, judged_ + kAnswer);  // after the timeout, ask repeatedly
    const bool reports = curious_ && reported_ < timeout_ && judged_ < timeout_;
    const auto grace = reports ? std::min<Clock::duration>(kAnswer, reported_ / 2)
                               : std::clamp<Clock::duration>(
                                     timeout_ / 4, std::min<Clock::duration>(kAnswer, timeout_ / 2),
                                     kLongestAnswer);
    if (const auto next = reports ? reported_ : last; waited >= next - grace) ask_all(next);
    return;
  }
  if (waited < judged_) return;
  asking_ = false;
  const auto seconds = std::chrono::duration<double>(waited).count();
  if (judged_ < timeout_) {
    reported_ = 2 * judged_;
    if (waiting_ && !unanswered_.empty()) {
      waiting_(unanswered_.front()->port.peer, name_of_algorithm(algorithm_), seconds);
    }
    return;
  }
  if (unanswered_.empty() && waited < 2 * timeout_) return;  // all are alive: ask again
  for (const auto step : executor_->waiting()) {
    Connection* peer = executor_->may_receive(step) ? in_[at(step)] : out_[at(step)];
    const bool silent =
        std::find(unanswered_.begin(), unanswered_.end(), peer) != unanswered_.end();
    if (!silent && !unanswered_.empty()) continue;
    fail(ranked(peer->port.peer) + " did not answer for " +
         std::to_string(static_cast<std::int64_t>(seconds)) + " s in " +
         name_of_algorithm(algorithm_) + ": " + purpose(step));
  }
}

// Asks all peers that steps wait for; those that have not answered by then are reported.
void Endpoint::ask_all(Clock::duration until_judged) {
  asking_ = true;
  judged_ = until_judged;
  unanswered_.clear();
  for (const auto step : executor_->waiting()) {
    Connection* peer = executor_->may_receive(step) ? in_[at(step)] : out_[at(step)];
    if (std::find(unanswered_.begin(), unanswered_.end(), peer) != unanswered_.end()) continue;
    unanswered_.push_back(peer);
    ask(*peer);
  }
}

std::string Endpoint::name_of_algorithm(std::int32_t algorithm) const {
  const auto found = names_.find(algorithm);
  return found == names_.end() ? "algorithm " + std::to_string(algorithm) : found->second;
}

std::string Endpoint::what_runs(const Header& header) const {
  return name_of_algorithm(header.algorithm) + " of " +
         of_call(header.count, header.dtype, header.op);
}

void Endpoint::disagree(NodeId peer, const Header& theirs) {
  const auto mine = header_of_call();
  auto one = what_runs(theirs), other = what_runs(mine);
  if (theirs.call != mine.call) {
    one += " in call " + std::to_string(theirs.call);
    other += " in call " + std::to_string(mine.call);
  } else if (one == other) {
    one += " by algorithm " + std::to_string(theirs.algorithm);
    other += " by algorithm " + std::to_string(mine.algorithm);
  }
  fail("the ranks do not agree on call " + std::to_string(call_) + ": " + ranked(peer) + " runs " +
       one + ", " + ranked(rank_) + " runs " + other);
}

void Endpoint::ask(Connection& peer) {
  Header header = header_of_call();
  header.kind = Kind::ask;
  post(peer, header, {}, -1);
}

std::string Endpoint::purpose(std::int32_t step) const {
  return executor_->describe(step) + ", call " + std::to_string(call_);
}

void Endpoint::notice(Connection& connection, const Header& header, const std::string& text) {
  if (header.kind == Kind::abort) {
    if ((header.flags & kBroken) != 0) {
      const std::int64_t src = header.algorithm, dst = header.count;
      if (std::min(src, dst) < 0 || std::max(src, dst) >= size_ || src == dst) {
        fail(ranked(rank_) + " received a malformed message from " + ranked(connection.port.peer));
      }
      broken_ = {header.algorithm, static_cast<NodeId>(dst)};
    }
    fail(text);
  }
  if (header.kind == Kind::ask) {
    if (header.call > call_) heard_.emplace_back(connection.port.peer, header);  // for watch()
    // This rank is not in the call, so the peer rightly waits for it.
    if (executor_ == nullptr) return;
    Header answer;
    answer.kind = Kind::answer;
    post(connection, answer, {}, -1);
    return;
  }
  if (header.kind == Kind::stored) {
    if (executor_ == nullptr || header.call != call_) return;  // that call has ended
    executor_->stored(connection.port.peer);
    note_progress();
    carry_out();
    return;
  }
  std::erase_if(unanswered_,
                [&](const Connection* asked) { return asked->port.peer == connection.port.peer; });
}

void Endpoint::lost(const Connection& connection, int error) {
  std::string why = ranked(connection.port.peer) + " closed its connection";
  if (error != 0) {
    why = "the connection with " + ranked(connection.port.peer) + " broke (" +
          std::generic_category().message(error) + ")";
    const bool no_way =
        error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH || error == ENETDOWN;
    if (healing_ && no_way) broken_ = {rank_, connection.port.peer};
  }
  for (std::size_t i = 0; executor_ != nullptr && i < in_.size(); ++i) {
    const auto step = static_cast<std::int32_t>(i);
    if (in_[i] != &connection && out_[i] != &connection) continue;
    if (executor_->is_done(step)) continue;
    const auto& program = *executor_->program().program;
    why += ": " + program.describe(executor_->program().steps[i].id) + " needs it, call " +
           std::to_string(call_);
    break;
  }
  fail(why);
}

void Endpoint::fail(const std::string& why) {
  abort(why);
  throw CommunicationError(why);
}

void Endpoint::abort(const std::string& why) {
  if (!failure_.empty()) return;
  if (process_ != getpid()) return;
  failure_ = why.substr(0, kLongestText);
  Header header;
  if (const auto [src, dst] = broken_; src >= 0) {
    header.flags = kBroken;
    header.algorithm = src;
    header.count = dst;
    // Both directions: a disconnected cable carries neither.
    for (const auto& connection : connections_) {
      const auto peer = connection->port.peer;
      connection->dead |= (src == rank_ && dst == peer) || (dst == rank_ && src == peer);
    }
  }
  say_farewell(connections_, header, failure_, kFarewell);
}

}  // namespace tacos
