#include "runtime/tcp.hpp"

#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "support/index.hpp"

namespace tacos {

namespace {

using Header = MessageHeader;
using Kind = MessageKind;

// Bytes of later calls, over all connections, that are read ahead to find the notices behind them.
constexpr std::size_t kAhead = std::size_t{64} << 20;
// Keeps sums of sizes from overflowing.
constexpr std::uint64_t kLongestData = std::uint64_t{1} << 60;
constexpr auto kIdle = std::chrono::milliseconds(100);
constexpr double kLongestTimeout = 1e9;  // seconds

// Whether the other end of a socket is on this machine, so that no network link can be slow or fail.
bool is_local(int socket) {
  sockaddr_storage name{};
  socklen_t length = sizeof name;
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&name), &length) != 0) return true;
  if (name.ss_family == AF_INET6) {
    const auto& address = reinterpret_cast<const sockaddr_in6*>(&name)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(&address) ||
           (IN6_IS_ADDR_V4MAPPED(&address) && address.s6_addr[12] == IN_LOOPBACKNET);
  }
  if (name.ss_family != AF_INET) return name.ss_family == AF_UNIX;
  const auto& address = reinterpret_cast<const sockaddr_in*>(&name)->sin_addr;
  return (ntohl(address.s_addr) >> 24U) == IN_LOOPBACKNET;
}

}  // namespace

Endpoint::Endpoint(NodeId rank, NodeId size, double timeout_s, double report_s, Waiting waiting)
    : rank_(rank),
      size_(size),
      timeout_(std::chrono::duration_cast<Clock::duration>(
          std::chrono::duration<double>(std::min(timeout_s, kLongestTimeout)))),
      report_(std::chrono::duration_cast<Clock::duration>(
          std::chrono::duration<double>(std::min(report_s, kLongestTimeout)))),
      waiting_(std::move(waiting)),
      process_(getpid()),
      epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  if (epoll_ < 0) throw std::system_error(errno, std::generic_category(), "epoll_create1");
}

Endpoint::~Endpoint() { close(); }

void Endpoint::close() {
  if (executor_ != nullptr) {
    closing_ = true;
    interrupt("the communicator is closed");
    return;
  }
  const bool own = process_ == getpid();
  for (const auto& connection : connections_) {
    // Closing a socket with unread input would reset the connection and discard data that the peer has not read yet.
    while (own && recv(connection->socket, connection->buffer.data.get(),
                       connection->buffer.capacity, MSG_DONTWAIT) > 0) {
    }
  }
  {
    const std::lock_guard lock(records_lock_);
    by_port_.clear();
    connections_.clear();
  }
  bound_to_ = 0;
  if (epoll_ >= 0) ::close(epoll_);
  epoll_ = -1;
  if (failure_.empty()) failure_ = "the communicator is closed";
}

void Endpoint::add(Port port, int socket) {
  auto added = std::make_unique<Connection>();
  added->socket = socket;
  if (has(port)) invalid("there is a connection with " + ranked(port.peer) + " already");
  added->port = port;
  added->buffer.reserve(kBuffer);
  const int on = 1;
  if (fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK) < 0) {
    throw std::system_error(errno, std::generic_category(), "fcntl");
  }
  // Failure is ignored: other sockets lack the option.
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.ptr = added.get();
  added->local = is_local(socket);
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, socket, &event) < 0) {
    throw std::system_error(errno, std::generic_category(), "epoll_ctl");
  }
  const std::lock_guard lock(records_lock_);
  by_port_[port] = added.get();
  connections_.push_back(std::move(added));
  bound_to_ = 0;
}

// --- a call

int Endpoint::run(RankExecutor& executor, std::int32_t algorithm, const Call& call, bool joint,
                  const std::function<void()>& idle) {
  check_usable();
  look_up(executor);
  executor.start(call);
  {
    const std::scoped_lock lock(records_lock_);  // other threads read it with the records
    ++call_;
  }
  executor_ = &executor;
  algorithm_ = algorithm;
  staged_.assign(executor.program().steps.size(), nullptr);
  heard_.clear();
  note_progress();
  idle_ = progress_;
  meeting_ = joint && wanted_ && wanted_.exchange(false);
  carrying_ = false;  // an error may have left it set
  begin_record();
  try {
    for (std::size_t i = 0; i < in_.size(); ++i) {  // some may have left after the last call
      const auto step = static_cast<std::int32_t>(i);
      const bool needed = in_[i] != nullptr && !executor.is_done(step) && !executor.silent(step);
      if (needed && in_[i]->closed && !in_[i]->parked) lost(*in_[i], 0);
    }
    carry_out();
    for (const auto& connection : connections_) {
      if (!connection->parked) continue;
      connection->parked = connection->looking = false;
      receive(*connection);
    }
    while (!executor.finished() || !all_sent()) wait_for_events(idle);
  } catch (const CommunicationError&) {
    end_record(false);
    executor_ = nullptr;
    if (closing_) close();
    throw;
  } catch (...) {
    end_record(false);
    executor_ = nullptr;
    abort(ranked(rank_) + " was interrupted");
    if (closing_) close();
    throw;
  }
  executor_ = nullptr;
  executor.finish();
  end_record(true);
  if (closing_) close();
  return (std::exchange(news_, false) ? kNews : 0) | (meeting_ ? kMeeting : 0);
}

// A rank must not leave a call with unsent notices that a peer waits for.
bool Endpoint::all_sent() const {
  return std::all_of(connections_.begin(), connections_.end(),
                     [](const auto& connection) { return connection->queue.empty(); });
}

// Looks up the connections of all steps, unless they are those of the last call.
void Endpoint::look_up(const RankExecutor& executor) {
  if (bound_to_ == executor.serial()) return;
  const auto& steps = executor.program().steps;
  const auto find = [&](const Port& port) -> Connection* {
    if (port.peer < 0) return nullptr;
    const auto found = by_port_.find(port);
    if (found == by_port_.end()) {
      invalid("there is no connection with " + ranked(port.peer) + ", channel " +
              std::to_string(port.channel));
    }
    return found->second;
  };
  out_.clear();
  in_.clear();
  for (const auto& step : steps) {
    out_.push_back(find(step.to));
    in_.push_back(find(step.from));
  }
  bound_to_ = executor.serial();
}

// Starts the sends that may start, and stores data that arrived before their step could run.
// It must not be entered twice: a send that fails reads the reason (flush), which may complete messages and call this function
// again, while the outer call still holds the lists and would send their entries twice.
void Endpoint::carry_out() {
  if (std::exchange(carrying_, true)) return;
  auto& executor = *executor_;
  while (!executor.to_send.empty() || !executor.to_receive.empty()) {
    for (std::size_t i = 0; i < executor.to_send.size(); ++i) {
      const auto step = executor.to_send[i];
      const auto& row = executor.program().steps[at(step)];
      Header header = header_of_call();
      header.step = row.id;
      std::vector<iovec> pieces;
      executor.outgoing(step, pieces);
      for (const auto& piece : pieces) header.bytes += piece.iov_len;
      post(*out_[at(step)], header, std::move(pieces), step);
    }
    executor.to_send.clear();
    for (std::size_t i = 0; i < executor.to_receive.size(); ++i) {
      receivable_[at(executor.to_receive[i])] = progress_;
      release_staged(executor.to_receive[i]);
    }
    executor.to_receive.clear();
  }
  carrying_ = false;
}

bool Endpoint::take_events(int wait_ms) {
  epoll_event events[kPieces];
  const int count = epoll_wait(epoll_, events, kPieces, wait_ms);
  if (count < 0 && errno != EINTR) {
    throw std::system_error(errno, std::generic_category(), "epoll_wait");
  }
  for (int i = 0; i < count; ++i) {
    auto& connection = *static_cast<Connection*>(events[i].data.ptr);
    const auto what = events[i].events;
    if (what & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) connection.ending = true;
    if ((what & EPOLLOUT) && !connection.writable) {
      connection.writable = true;
      flush(connection);
    }
    if (what & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) {
      connection.readable = true;
      if (!connection.parked) {
        receive(connection);
      } else if (connection.looking || connection.ending) {
        look_past(connection);
      }
    }
    if (executor_ != nullptr) carry_out();
  }
  return count > 0;
}

void Endpoint::wait_for_events(const std::function<void()>& idle) {
  check_usable();
  if (!take_events(static_cast<int>(kIdle.count()))) {
    note_needs();
    hear_parked();
    if (idle) idle();
    if (healing_) find_dead_links();
    check_progress();
  } else if (progress_ - idle_ > kIdle) {
    idle_ = progress_;
    hear_parked();
    if (idle) idle();
  }
}

MessageHeader Endpoint::header_of_call() const {
  const auto& call = executor_->call();
  Header header;
  header.dtype = static_cast<std::uint8_t>(call.dtype);
  header.op = static_cast<std::uint8_t>(call.op);
  header.call = call_;
  header.algorithm = algorithm_;
  header.count = call.count;
  header.away_us = away_us_;
  header.flags = meeting_ ? kMeet : 0;
  return header;
}

// --- sending

void Endpoint::post(Connection& to, const Header& header, std::vector<iovec> pieces,
                    std::int32_t step) {
  if (to.closed && header.kind == Kind::data) lost(to, 0);
  if (to.closed) return;  // the peer would not read the notice
  auto& message = to.enqueue(header);
  message.pieces = std::move(pieces);
  message.step = step;
  if (to.queue.size() == 1) flush(to);
}

void Endpoint::flush(Connection& connection) {
  while (connection.writable && !connection.queue.empty()) {
    auto& message = connection.queue.front();
    if (const int error = connection.write_some(message); error == EAGAIN) {
      connection.writable = false;
      return;
    } else if (error != 0) {
      const bool data = std::any_of(connection.queue.begin(), connection.queue.end(),
                                    [](const auto& one) { return one.header.kind == Kind::data; });
      if (!data) {  // the peer would not read the notices
        connection.queue.clear();
        return;
      }
      connection.readable = true;  // the peer may have sent the reason
      connection.parked ? look_past(connection) : receive(connection);
      lost(connection, error);
    }
    if (message.header.kind == Kind::data) note_progress();
    if (message.left > 0) continue;
    const auto step = message.step;
    if (message.header.kind == Kind::data) {
      connection.away.messages += 1;
      connection.away.bytes += static_cast<std::int64_t>(message.header.bytes);
    }
    connection.queue.pop_front();
    if (step >= 0) executor_->sent(step);
  }
}

// --- receiving

void Endpoint::receive(Connection& connection) {
  while (true) {
    if (!connection.reading) {
      if (connection.end - connection.begin < sizeof(Header)) {
        if (fill(connection) == 0) return;
      } else if (!begin_message(connection)) {
        connection.parked = true;
        connection.past = 0;
        return;
      }
    } else if (connection.left == 0) {
      end_message(connection);
    } else {
      if (!store(connection)) return;
    }
  }
}

// Handles notices of peers that are a call ahead, which follow their data.
void Endpoint::hear_parked() {
  for (const auto& connection : connections_) {
    if (connection->parked) look_past(*connection);
  }
}

// Reads data of a later call into memory, to find the notices behind them: the peer may have failed, or may ask whether this
// rank is alive.
void Endpoint::look_past(Connection& connection) {
  auto& c = connection;
  c.looking = true;
  const auto parked = std::count_if(connections_.begin(), connections_.end(),
                                    [](const auto& one) { return one->parked; });
  const auto share = kAhead / static_cast<std::size_t>(std::max<std::ptrdiff_t>(parked, 1));
  while (true) {
    while (c.past + sizeof(Header) <= c.end - c.begin) {
      std::byte* at = c.buffer.data.get() + c.begin + c.past;
      Header header;
      std::memcpy(&header, at, sizeof(Header));
      const bool data = header.kind == Kind::data;
      if (header.magic != kMessageMagic || header.kind > Kind::stored ||
          header.bytes > (data ? kLongestData : kLongestText)) {
        fail(ranked(rank_) + " received a malformed message from " + ranked(c.port.peer));
      }
      const auto whole = sizeof(Header) + header.bytes;
      if (data) {
        c.past += whole;
        continue;
      }
      if (c.past + whole > c.end - c.begin) break;
      const std::string text(reinterpret_cast<const char*>(at) + sizeof(Header), header.bytes);
      std::memmove(at, at + whole, c.end - c.begin - c.past - whole);
      c.end -= whole;
      notice(c, header, text);
    }
    const auto held = c.end - c.begin;
    if (!c.readable || c.closed || (held > share && !c.ending)) return;
    if (c.buffer.capacity - held < kBuffer / 2) c.resize(2 * c.buffer.capacity);
    if (fill(c) == 0) return;
  }
}

bool Endpoint::begin_message(Connection& connection) {
  auto& header = connection.header;
  std::memcpy(&header, connection.buffer.data.get() + connection.begin, sizeof(Header));
  const auto from = ranked(connection.port.peer);
  if (header.magic != kMessageMagic || header.kind > Kind::stored || header.bytes > kLongestData) {
    fail(ranked(rank_) + " received a malformed message from " + from);
  }
  connection.left = header.bytes;
  connection.text.clear();
  connection.staging = nullptr;
  if (header.kind == Kind::data) {
    if (executor_ == nullptr || header.call > call_) return false;
    const auto& executor = *executor_;
    const auto& call = executor.call();
    if (header.call < call_ || header.algorithm != algorithm_ || header.count != call.count ||
        header.dtype != static_cast<std::uint8_t>(call.dtype) ||
        header.op != static_cast<std::uint8_t>(call.op)) {
      disagree(connection.port.peer, header);
    }
    const auto& takers = executor.program().by_message;
    const auto found = takers.find(header.step);
    const std::int32_t step = found == takers.end() ? -1 : found->second;
    if (step < 0 || in_[at(step)] != &connection || executor.is_done(step)) {
      fail(ranked(rank_) + " does not expect what step " + std::to_string(header.step) + " of " +
           from + " sends, in call " + std::to_string(call_));
    }
    note_progress();
    const auto& row = executor.program().steps[at(step)];
    const bool request = row.served && row.op != StepOp::put;
    const auto bytes = request || row.op == StepOp::wait ? 0 : executor.bytes(step);
    if (header.bytes != bytes) {
      fail(from + " sends " + std::to_string(header.bytes) + " bytes where " + ranked(rank_) +
           " expects " + std::to_string(bytes));
    }
    connection.step = step;
    note_begin(connection);
    if (!executor.may_receive(step)) {
      connection.staging = &connection.staged[step];
      connection.staging->block.reserve(header.bytes);
      connection.staging->filled = 0;
      connection.staging->whole = header.bytes;
      staged_[at(step)] = &connection;
    }
  } else if (header.bytes > kLongestText) {
    fail(ranked(rank_) + " received a malformed message from " + from);
  }
  connection.begin += sizeof(Header);
  connection.reading = true;
  return true;
}

// Stores the part of a message that has arrived; returns whether there was any.
bool Endpoint::store(Connection& connection) {
  const std::byte* data = connection.buffer.data.get() + connection.begin;
  const auto ahead = std::min(connection.end - connection.begin, connection.left);
  std::size_t some = 0;
  if (connection.header.kind != Kind::data) {
    if (ahead == 0) return fill(connection) > 0;
    connection.text.append(reinterpret_cast<const char*>(data), ahead);
    some = ahead;
    connection.begin += some;
  } else if (connection.staging != nullptr) {
    auto& staging = *connection.staging;
    std::byte* into = staging.block.data.get() + staging.filled;
    if (ahead > 0) {
      std::memcpy(into, data, ahead);
      some = ahead;
      connection.begin += some;
    } else {
      std::vector<iovec> pieces{{into, connection.left}};
      some = read_pieces(connection, pieces);
    }
    staging.filled += some;
  } else if (executor_->reduces(connection.step)) {
    const auto width = executor_->width();
    if (ahead < width) return fill(connection) > 0;
    some = ahead / width * width;
    if (reinterpret_cast<std::uintptr_t>(data) % width != 0) {
      std::memmove(connection.buffer.data.get(), data, connection.end - connection.begin);
      connection.end -= connection.begin;
      connection.begin = 0;
      data = connection.buffer.data.get();
    }
    executor_->take(connection.step, data, some);
    connection.begin += some;
  } else if (ahead > 0) {
    executor_->take(connection.step, data, ahead);
    some = ahead;
    connection.begin += some;
  } else {
    std::vector<iovec> pieces;
    executor_->incoming(connection.step, pieces);
    some = read_pieces(connection, pieces);
    executor_->skip(connection.step, some);
  }
  connection.left -= some;
  if (some > 0 && connection.header.kind == Kind::data) note_progress();
  return some > 0 || connection.begin < connection.end;
}

std::size_t Endpoint::fill(Connection& connection) {
  const auto some = connection.fill();
  if (some == 0 && connection.closed) check_end(connection);
  return some;
}

std::size_t Endpoint::read_pieces(Connection& connection, const std::vector<iovec>& pieces) {
  const auto some = connection.read(pieces);
  if (some == 0 && connection.closed) check_end(connection);
  return some;
}

// The peer sends nothing more; this is an error if this rank still expects data.
void Endpoint::check_end(const Connection& connection) {
  if (connection.reading) lost(connection, connection.error);
  for (std::size_t i = 0; executor_ != nullptr && i < in_.size(); ++i) {
    const auto step = static_cast<std::int32_t>(i);
    if (executor_->silent(step)) continue;  // even if steps before it are not done
    const bool to_come =
        in_[i] == &connection && executor_->takes_in(step) && staged_[i] == nullptr;
    const bool to_go = out_[i] == &connection && !executor_->is_done(step);
    if (to_come || to_go) lost(connection, connection.error);
  }
}

void Endpoint::end_message(Connection& connection) {
  connection.reading = false;
  if (connection.header.kind != Kind::data) {
    notice(connection, connection.header, connection.text);
    return;
  }
  note_end(connection);
  if (connection.staging != nullptr) {
    connection.staging = nullptr;  // release_staged() stores it
    return;
  }
  const auto& row = executor_->program().steps[at(connection.step)];
  if (row.op == StepOp::put) {
    Header stored;
    stored.kind = Kind::stored;
    stored.call = call_;
    post(connection, stored, {}, -1);
  }
  executor_->received(connection.step);
  carry_out();
}

// The step may run now: stores the data that arrived early, and directs the rest to its place.
void Endpoint::release_staged(std::int32_t step) {
  Connection* connection = staged_[at(step)];
  if (connection == nullptr) return;
  staged_[at(step)] = nullptr;
  const auto found = connection->staged.find(step);
  auto& staged = found->second;
  const bool whole = connection->staging != &staged;
  const auto width = executor_->reduces(step) ? executor_->width() : 1;
  const auto some = staged.filled / width * width;
  executor_->take(step, staged.block.data.get(), some);
  if (!whole) {
    // An incomplete element goes back to the buffer, which is empty while a message is staged from it.
    const auto rest = staged.filled - some;
    if (rest > 0) {
      auto& c = *connection;
      const auto held = c.end - c.begin;
      std::memmove(c.buffer.data.get() + rest, c.buffer.data.get() + c.begin, held);
      std::memcpy(c.buffer.data.get(), staged.block.data.get() + some, rest);
      c.begin = 0;
      c.end = held + rest;
      c.left += rest;
    }
    connection->staging = nullptr;
  }
  connection->staged.erase(found);
  if (whole) executor_->received(step);
}

}  // namespace tacos
