#include "runtime/tcp.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace tacos {

namespace {

constexpr std::size_t kBuffer = std::size_t{1}
                                << 17;  // a block that stays in the cache while it is added
constexpr std::size_t kPieces = 64;     // of memory in one system call
constexpr std::size_t kLongestText = 4096;
constexpr std::uint8_t kMagic = 0xa7;
constexpr auto kCurious = std::chrono::seconds(1);  // then peers are asked where they are
constexpr auto kIdle = std::chrono::milliseconds(100);
constexpr auto kFarewell = std::chrono::seconds(3);  // for peers that are slow to read
constexpr double kLongestTimeout = 1e9;              // seconds

template <typename Int>
std::size_t as_size(Int i) {
  return static_cast<std::size_t>(i);
}

std::string ranked(NodeId rank) { return "rank " + std::to_string(rank); }

std::string of_call(std::int64_t count, std::uint8_t dtype, std::uint8_t op) {
  const auto known = dtype < kDTypes && op < kReduceOps;
  return std::to_string(count) + " elements" +
         (known ? " of " + std::string(name_of(static_cast<DType>(dtype))) + " (" +
                      std::string(name_of(static_cast<ReduceOp>(op))) + ")"
                : "");
}

// Uninitialized memory that is used again.
struct Block {
  std::unique_ptr<std::byte[]> data;
  std::size_t capacity = 0;

  void reserve(std::size_t bytes) {
    if (bytes <= capacity) return;
    data.reset(new std::byte[bytes]);
    capacity = bytes;
  }
};

}  // namespace

struct Endpoint::Header {
  std::uint8_t magic = kMagic;
  Kind kind = Kind::data;
  std::uint8_t dtype = 0, op = 0;
  std::uint32_t call = 0;
  StepId step = -1;  // in the program: the one that sends
  std::int32_t algorithm = 0;
  std::int64_t count = 0;
  std::uint64_t bytes = 0;  // that follow
};

struct Endpoint::Message {
  Header header;
  std::vector<iovec> pieces;  // after the header
  std::string text;           // of a notice
  std::int32_t step = -1;     // of this rank: the one that sends
  std::size_t left = 0;       // bytes, header included
  std::size_t first = 0;      // piece to send next; 0: the header
};

struct Endpoint::Connection {
  Connection() = default;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() {
    if (socket >= 0) ::close(socket);
  }

  Port port;
  bool outgoing = false;
  int socket = -1;
  bool closed = false;  // by the peer

  std::deque<Message> queue;
  bool writable = true;

  Block buffer;  // what was read ahead
  std::size_t begin = 0, end = 0;
  bool readable = true, ending = false;  // ending: the peer will send no more
  bool reading = false, parked = false;  // within a message; before one of a later call
  Header header;
  std::int32_t step = -1;
  std::size_t left = 0;
  std::string text;
  struct Staged {
    Block block;
    std::size_t filled = 0, whole = 0;
  };
  std::map<std::int32_t, Staged> staged;  // by step
  Staged* staging = nullptr;
};

Endpoint::Endpoint(NodeId rank, double timeout_s)
    : rank_(rank),
      timeout_(std::chrono::duration_cast<Clock::duration>(
          std::chrono::duration<double>(std::min(timeout_s, kLongestTimeout)))),
      process_(getpid()),
      epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  if (epoll_ < 0) throw std::system_error(errno, std::generic_category(), "epoll_create1");
}

Endpoint::~Endpoint() { close(); }

void Endpoint::close() {
  if (execution_ != nullptr) {
    closing_ = true;
    interrupt("the communicator is closed");
    return;
  }
  const bool own = process_ == getpid();
  for (const auto& connection : connections_) {
    // To close a socket with something unread would take back what the peer has not read yet.
    while (own && recv(connection->socket, connection->buffer.data.get(),
                       connection->buffer.capacity, MSG_DONTWAIT) > 0) {
    }
  }
  connections_.clear();
  by_port_.clear();
  bound_to_ = 0;
  if (epoll_ >= 0) ::close(epoll_);
  epoll_ = -1;
  if (failure_.empty()) failure_ = "the communicator is closed";
}

void Endpoint::add(Port port, bool outgoing, int socket) {
  auto added = std::make_unique<Connection>();
  added->socket = socket;
  if (has(port, outgoing)) invalid("there is a connection with " + ranked(port.peer) + " already");
  added->port = port;
  added->outgoing = outgoing;
  added->buffer.reserve(outgoing ? kLongestText : kBuffer);
  const int on = 1;
  if (fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK) < 0) {
    throw std::system_error(errno, std::generic_category(), "fcntl");
  }
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on,
             sizeof on);  // fails on other sockets, no matter
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.ptr = added.get();
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, socket, &event) < 0) {
    throw std::system_error(errno, std::generic_category(), "epoll_ctl");
  }
  by_port_[{port, outgoing}] = added.get();
  connections_.push_back(std::move(added));
  bound_to_ = 0;
}

bool Endpoint::has(Port port, bool outgoing) const { return by_port_.contains({port, outgoing}); }

// --- a call

void Endpoint::run(Execution& execution, std::int32_t algorithm, const Call& call,
                   const std::function<void()>& idle) {
  check_usable();
  look_up(execution);
  execution.start(call);
  ++call_;
  execution_ = &execution;
  algorithm_ = algorithm;
  staged_.assign(execution.program().steps.size(), nullptr);
  heard_.clear();
  note_progress();
  idle_ = progress_;
  try {
    for (std::size_t i = 0; i < in_.size(); ++i) {  // some may have left after the last call
      const bool needed = in_[i] != nullptr && !execution.is_done(static_cast<std::int32_t>(i));
      if (needed && in_[i]->closed) lost(*in_[i], 0);
    }
    carry_out();
    for (const auto& connection : connections_) {
      if (!connection->parked) continue;
      connection->parked = false;
      receive(*connection);
    }
    while (!execution.finished() || !all_sent()) wait_for_events(idle);
  } catch (const CommunicationError&) {
    execution_ = nullptr;
    if (closing_) close();
    throw;
  } catch (...) {
    execution_ = nullptr;
    abort(ranked(rank_) + " was interrupted");
    if (closing_) close();
    throw;
  }
  execution_ = nullptr;
  execution.finish();
}

// A rank that leaves a call must not keep notices that a peer waits for.
bool Endpoint::all_sent() const {
  return std::all_of(connections_.begin(), connections_.end(),
                     [](const auto& connection) { return connection->queue.empty(); });
}

// Looks up the connections of all steps, unless they are those of the last call.
void Endpoint::look_up(const Execution& execution) {
  if (bound_to_ == execution.serial()) return;
  const auto& steps = execution.program().steps;
  const auto find = [&](const Port& port, bool outgoing) -> Connection* {
    if (port.peer < 0) return nullptr;
    const auto found = by_port_.find({port, outgoing});
    if (found == by_port_.end()) {
      invalid("there is no connection with " + ranked(port.peer) + ", channel " +
              std::to_string(port.channel));
    }
    return found->second;
  };
  out_.clear();
  in_.clear();
  for (const auto& step : steps) {
    out_.push_back(find(step.to, true));
    in_.push_back(find(step.from, false));
  }
  bound_to_ = execution.serial();
}

// Sends what may be sent and takes in what had arrived before its step could run.
void Endpoint::carry_out() {
  auto& execution = *execution_;
  while (!execution.to_send.empty() || !execution.to_receive.empty()) {
    for (std::size_t i = 0; i < execution.to_send.size(); ++i) {
      const auto step = execution.to_send[i];
      const auto& row = execution.program().steps[as_size(step)];
      Header header = header_of_call();
      header.step = row.id;
      std::vector<iovec> pieces;
      execution.outgoing(step, pieces);
      for (const auto& piece : pieces) header.bytes += piece.iov_len;
      post(*out_[as_size(step)], header, std::move(pieces), step);
    }
    execution.to_send.clear();
    for (std::size_t i = 0; i < execution.to_receive.size(); ++i) {
      release_staged(execution.to_receive[i]);
    }
    execution.to_receive.clear();
  }
}

void Endpoint::note_progress() {
  progress_ = Clock::now();
  asking_ = curious_ = false;
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
      if (!connection.parked) receive(connection);
    }
    if (execution_ != nullptr) carry_out();
  }
  return count > 0;
}

void Endpoint::wait_for_events(const std::function<void()>& idle) {
  check_usable();
  if (!take_events(static_cast<int>(kIdle.count()))) {
    if (idle) idle();
    check_progress();
  } else if (idle && progress_ - idle_ > kIdle) {
    idle_ = progress_;
    idle();
  }
}

std::string Endpoint::watch(std::int32_t algorithm, const std::string& doing) {
  check_usable();
  while (take_events(0)) {
  }
  std::string left;
  auto heard = std::exchange(heard_, {});
  for (const auto& connection : connections_) {
    if (connection->parked) {
      auto& [peer, header] = heard.emplace_back();
      peer = connection->port.peer;
      std::memcpy(&header, connection->buffer.data.get() + connection->begin, sizeof(Header));
    } else if (connection->closed && left.empty()) {
      left =
          ranked(connection->port.peer) + " closed its connection: " + ranked(rank_) + " " + doing;
    }
  }
  // A peer that runs the algorithm itself has prepared it: it is only ahead.
  const auto other = std::find_if(heard.begin(), heard.end(), [&](const auto& one) {
    return one.second.call == call_ + 1 && one.second.algorithm < algorithm;
  });
  if (other == heard.end()) return left;
  const auto& [peer, header] = *other;
  return "the ranks do not agree on call " + std::to_string(header.call) + ": " + ranked(peer) +
         " runs algorithm " + std::to_string(header.algorithm) + " on " +
         of_call(header.count, header.dtype, header.op) + ", " + ranked(rank_) + " " + doing;
}

// Without progress for too long, asks those it waits for whether they are there. A rank within the
// call answers, and waits itself for somebody; one that does not is the one to name. Long before, it asks
// once so that a rank which prepares another call hears of this one.
void Endpoint::check_progress() {
  const auto now = Clock::now();
  if (!curious_ && now - progress_ > kCurious) {
    curious_ = true;
    for (const auto step : execution_->waiting()) {
      if (execution_->may_receive(step)) ask(*in_[as_size(step)]);
    }
  }
  if (now - progress_ < timeout_) return;
  const auto grace =
      std::clamp<Clock::duration>(timeout_ / 4, std::chrono::seconds(1), std::chrono::seconds(5));
  if (!asking_) {
    asking_ = true;
    asked_ = now;
    unanswered_.clear();
    for (const auto step : execution_->waiting()) {
      Connection* peer = execution_->may_receive(step) ? in_[as_size(step)] : out_[as_size(step)];
      if (std::find(unanswered_.begin(), unanswered_.end(), peer) != unanswered_.end()) continue;
      unanswered_.push_back(peer);
      ask(*peer);
    }
    return;
  }
  if (now - asked_ < grace) return;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - progress_).count();
  if (!unanswered_.empty() || now - progress_ > 2 * timeout_ + grace) {
    for (const auto step : execution_->waiting()) {
      Connection* peer = execution_->may_receive(step) ? in_[as_size(step)] : out_[as_size(step)];
      const bool silent =
          std::find(unanswered_.begin(), unanswered_.end(), peer) != unanswered_.end();
      if (!silent && !unanswered_.empty()) continue;
      fail(ranked(peer->port.peer) + " did not answer for " + std::to_string(seconds) +
           " s: " + purpose(step));
    }
  }
  asking_ = false;  // all are there: ask again
}

// Only backwards: on the way of the data, the question would wait behind them.
void Endpoint::ask(Connection& peer) {
  if (peer.outgoing) return;
  Header header = header_of_call();
  header.kind = Kind::ask;
  post(peer, header, {}, -1);
}

Endpoint::Header Endpoint::header_of_call() const {
  const auto& call = execution_->call();
  Header header;
  header.dtype = static_cast<std::uint8_t>(call.dtype);
  header.op = static_cast<std::uint8_t>(call.op);
  header.call = call_;
  header.algorithm = algorithm_;
  header.count = call.count;
  return header;
}

std::string Endpoint::purpose(std::int32_t step) const {
  return execution_->describe(step) + ", call " + std::to_string(call_);
}

// --- sending

void Endpoint::post(Connection& to, const Header& header, std::vector<iovec> pieces,
                    std::int32_t step) {
  if (to.closed && header.kind == Kind::data) lost(to, 0);
  if (to.closed) return;  // a notice that nobody will read
  auto& message = to.queue.emplace_back();
  message.header = header;
  message.pieces = std::move(pieces);
  message.step = step;
  message.left = sizeof(Header) + header.bytes;
  if (to.queue.size() == 1) flush(to);
}

void Endpoint::flush(Connection& connection) {
  while (connection.writable && !connection.queue.empty()) {
    auto& message = connection.queue.front();
    if (const int error = write_some(connection, message); error == EAGAIN) {
      connection.writable = false;
      return;
    } else if (error != 0 && !connection.outgoing) {  // notices that nobody will read
      connection.queue.clear();
      return;
    } else if (error != 0) {
      connection.readable = true;
      receive(connection);  // the peer may have said why
      lost(connection, error);
    }
    if (message.header.kind == Kind::data) note_progress();
    if (message.left > 0) continue;
    const auto step = message.step;
    connection.queue.pop_front();
    if (step >= 0) execution_->sent(step);
  }
}

// One system call; returns 0 or the error, EAGAIN if the socket is full.
int Endpoint::write_some(Connection& connection, Message& message) {
  iovec pieces[kPieces];
  std::size_t count = 0;
  if (message.first == 0) {
    const auto sent = sizeof(Header) + message.header.bytes - message.left;
    pieces[count++] = {reinterpret_cast<std::byte*>(&message.header) + sent, sizeof(Header) - sent};
  }
  for (auto i = std::max<std::size_t>(message.first, 1);
       i <= message.pieces.size() && count < kPieces; ++i) {
    pieces[count++] = message.pieces[i - 1];
  }
  msghdr out{};
  out.msg_iov = pieces;
  out.msg_iovlen = count;
  const auto sent = sendmsg(connection.socket, &out, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0) return errno == EINTR ? 0 : errno == EWOULDBLOCK ? EAGAIN : errno;
  message.left -= as_size(sent);
  auto rest = as_size(sent);
  for (std::size_t i = 0; i < count && rest > 0; ++i) {
    const auto some = std::min(rest, pieces[i].iov_len);
    rest -= some;
    if (some == pieces[i].iov_len) {
      ++message.first;
    } else if (message.first > 0) {  // what was sent of a piece is cut off
      message.pieces[message.first - 1] = {static_cast<std::byte*>(pieces[i].iov_base) + some,
                                           pieces[i].iov_len - some};
    }
  }
  return 0;
}

// --- receiving

void Endpoint::receive(Connection& connection) {
  while (true) {
    if (!connection.reading) {
      if (connection.end - connection.begin < sizeof(Header)) {
        if (fill(connection) == 0) return;
      } else if (!begin_message(connection)) {
        connection.parked = true;
        return;
      }
    } else if (connection.left == 0) {
      end_message(connection);
    } else {
      if (!store(connection)) return;
    }
  }
}

bool Endpoint::begin_message(Connection& connection) {
  auto& header = connection.header;
  std::memcpy(&header, connection.buffer.data.get() + connection.begin, sizeof(Header));
  const auto from = ranked(connection.port.peer);
  if (header.magic != kMagic || header.kind > Kind::stored) {
    fail(ranked(rank_) + " received what is no message from " + from);
  }
  connection.left = header.bytes;
  connection.text.clear();
  connection.staging = nullptr;
  if (header.kind == Kind::data) {
    if (execution_ == nullptr || header.call > call_) return false;
    const auto& execution = *execution_;
    const auto& call = execution.call();
    if (header.call < call_ || header.algorithm != algorithm_) {
      fail(from + " runs algorithm " + std::to_string(header.algorithm) + " in call " +
           std::to_string(header.call) + ", " + ranked(rank_) + " algorithm " +
           std::to_string(algorithm_) + " in call " + std::to_string(call_));
    }
    if (header.count != call.count || header.dtype != static_cast<std::uint8_t>(call.dtype) ||
        header.op != static_cast<std::uint8_t>(call.op)) {
      fail("the ranks do not agree on call " + std::to_string(call_) + ": " + from + " has " +
           of_call(header.count, header.dtype, header.op) + ", " + ranked(rank_) + " has " +
           of_call(call.count, static_cast<std::uint8_t>(call.dtype),
                   static_cast<std::uint8_t>(call.op)));
    }
    const auto& takers = execution.program().by_message;
    const auto found = takers.find(header.step);
    const std::int32_t step = found == takers.end() ? -1 : found->second;
    if (step < 0 || in_[as_size(step)] != &connection || execution.is_done(step)) {
      fail(ranked(rank_) + " does not expect what step " + std::to_string(header.step) + " of " +
           from + " sends, in call " + std::to_string(call_));
    }
    note_progress();
    const auto& row = execution.program().steps[as_size(step)];
    const bool request = row.served && row.op != StepOp::put;
    const auto bytes = request || row.op == StepOp::wait ? 0 : execution.bytes(step);
    if (header.bytes != bytes) {
      fail(from + " sends " + std::to_string(header.bytes) + " bytes where " + ranked(rank_) +
           " expects " + std::to_string(bytes));
    }
    connection.step = step;
    if (!execution.may_receive(step)) {
      connection.staging = &connection.staged[step];
      connection.staging->block.reserve(header.bytes);
      connection.staging->filled = 0;
      connection.staging->whole = header.bytes;
      staged_[as_size(step)] = &connection;
    }
  } else if (header.bytes > kLongestText) {
    fail(ranked(rank_) + " received what is no message from " + from);
  }
  connection.begin += sizeof(Header);
  connection.reading = true;
  return true;
}

// Stores what has arrived of a message; returns whether anything had.
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
  } else if (execution_->reduces(connection.step)) {
    const auto width = execution_->width();
    if (ahead < width) return fill(connection) > 0;
    some = ahead / width * width;
    if (reinterpret_cast<std::uintptr_t>(data) % width != 0) {
      std::memmove(connection.buffer.data.get(), data, connection.end - connection.begin);
      connection.end -= connection.begin;
      connection.begin = 0;
      data = connection.buffer.data.get();
    }
    execution_->take(connection.step, data, some);
    connection.begin += some;
  } else if (ahead > 0) {
    execution_->take(connection.step, data, ahead);
    some = ahead;
    connection.begin += some;
  } else {
    std::vector<iovec> pieces;
    execution_->incoming(connection.step, pieces);
    some = read_pieces(connection, pieces);
    execution_->skip(connection.step, some);
  }
  connection.left -= some;
  if (some > 0 && connection.header.kind == Kind::data) note_progress();
  return some > 0 || connection.begin < connection.end;
}

// Reads ahead; returns 0 if there is nothing to read now.
std::size_t Endpoint::fill(Connection& connection) {
  auto& c = connection;
  if (c.begin > 0) {
    std::memmove(c.buffer.data.get(), c.buffer.data.get() + c.begin, c.end - c.begin);
    c.end -= c.begin;
    c.begin = 0;
  }
  std::vector<iovec> none;
  const auto before = c.end;
  read_pieces(c, none);
  return c.end - before;
}

// Reads into the pieces, and what comes after them into the buffer; returns the bytes in the pieces.
std::size_t Endpoint::read_pieces(Connection& connection, std::vector<iovec>& pieces) {
  auto& c = connection;
  while (c.readable) {
    iovec into[kPieces];
    std::size_t count = 0, wanted = 0;
    for (; count < std::min(pieces.size(), kPieces - 1); ++count) {
      into[count] = pieces[count];
      wanted += pieces[count].iov_len;
    }
    if (c.begin == c.end) c.begin = c.end = 0;
    const auto room = c.buffer.capacity - c.end;
    if (count == pieces.size()) into[count++] = {c.buffer.data.get() + c.end, room};
    const auto got = readv(c.socket, into, static_cast<int>(count));
    if (got > 0) {
      // A short read has emptied the socket, and epoll will tell when there is more.
      const auto all = wanted + (count > pieces.size() ? room : 0);
      if (as_size(got) < all && !c.ending) c.readable = false;
      const auto stored = std::min(as_size(got), wanted);
      c.end += as_size(got) - stored;
      return stored;
    }
    if (got < 0 && errno == EINTR) continue;
    c.readable = false;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    c.closed = true;
    const int error = got < 0 ? errno : 0;
    if (c.reading) lost(c, error);
    for (std::size_t i = 0; execution_ != nullptr && i < in_.size(); ++i) {
      const auto step = static_cast<std::int32_t>(i);
      const bool needed = (c.outgoing ? out_[i] : in_[i]) == &c && !execution_->is_done(step);
      if (needed && staged_[i] == nullptr) lost(c, error);
    }
    break;
  }
  return 0;
}

void Endpoint::end_message(Connection& connection) {
  connection.reading = false;
  if (connection.header.kind != Kind::data) {
    notice(connection, connection.header, connection.text);
    return;
  }
  if (connection.staging != nullptr) {
    connection.staging = nullptr;  // release_staged() takes it in
    return;
  }
  const auto& row = execution_->program().steps[as_size(connection.step)];
  if (row.op == StepOp::put) {
    Header stored;
    stored.kind = Kind::stored;
    stored.call = call_;
    post(connection, stored, {}, -1);
  }
  execution_->received(connection.step);
  carry_out();
}

void Endpoint::notice(Connection& connection, const Header& header, const std::string& text) {
  if (header.kind == Kind::abort) fail(text);
  if (header.kind == Kind::ask) {
    if (header.call > call_) heard_.emplace_back(connection.port.peer, header);  // for watch()
    if (execution_ == nullptr) return;  // not in a call: whoever asks waits for that
    Header answer;
    answer.kind = Kind::answer;
    post(connection, answer, {}, -1);
    return;
  }
  if (header.kind == Kind::stored) {
    if (execution_ == nullptr || header.call != call_) return;  // nobody waits for it any more
    execution_->stored(connection.port.peer);
    note_progress();
    carry_out();
    return;
  }
  std::erase_if(unanswered_,
                [&](const Connection* asked) { return asked->port.peer == connection.port.peer; });
}

// The step may run now: takes in what came before, and lets the rest come straight to its place.
void Endpoint::release_staged(std::int32_t step) {
  Connection* connection = staged_[as_size(step)];
  if (connection == nullptr) return;
  staged_[as_size(step)] = nullptr;
  const auto found = connection->staged.find(step);
  auto& staged = found->second;
  const bool whole = connection->staging != &staged;
  const auto width = execution_->reduces(step) ? execution_->width() : 1;
  const auto some = staged.filled / width * width;
  execution_->take(step, staged.block.data.get(), some);
  if (!whole) {
    // A started element goes back to the buffer, which is empty while a message is staged from it.
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
  if (whole) execution_->received(step);
}

// --- failure

void Endpoint::lost(const Connection& connection, int error) {
  std::string why = ranked(connection.port.peer) + " closed its connection";
  if (error != 0) {
    why = "the connection with " + ranked(connection.port.peer) + " broke (" +
          std::generic_category().message(error) + ")";
  }
  for (std::size_t i = 0; execution_ != nullptr && i < in_.size(); ++i) {
    const auto step = static_cast<std::int32_t>(i);
    if (in_[i] != &connection && out_[i] != &connection) continue;
    if (execution_->is_done(step)) continue;
    const auto& program = *execution_->program().program;
    why += ": " + program.describe(execution_->program().steps[i].id) + " needs it, call " +
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
  std::vector<pollfd> open;
  std::vector<Connection*> which;
  for (const auto& connection : connections_) {
    // A message that was begun must be ended before the notice; the others do not matter any more.
    auto& queue = connection->queue;
    const auto begun = [](const Message& m) { return m.left < sizeof(Header) + m.header.bytes; };
    while (queue.size() > (!queue.empty() && begun(queue.front()) ? 1U : 0U)) queue.pop_back();
    auto& message = queue.emplace_back();
    message.text = failure_;
    message.header.kind = Kind::abort;
    message.header.bytes = message.text.size();
    message.left = sizeof(Header) + message.header.bytes;
    message.pieces.push_back({message.text.data(), message.text.size()});
    open.push_back({connection->socket, POLLOUT, 0});
    which.push_back(connection.get());
  }
  const auto end = Clock::now() + kFarewell;
  while (!open.empty() && Clock::now() < end) {
    if (poll(open.data(), open.size(), 50) < 0) {
      if (errno == EINTR) continue;
      break;
    }
    for (std::size_t i = open.size(); i-- > 0;) {
      if (open[i].revents == 0) continue;
      auto& queue = which[i]->queue;
      int error = 0;
      while (error == 0 && !queue.empty()) {
        error = write_some(*which[i], queue.front());
        if (queue.front().left == 0) queue.pop_front();
      }
      if (error == EAGAIN) continue;
      shutdown(open[i].fd, SHUT_WR);
      open.erase(open.begin() + static_cast<std::ptrdiff_t>(i));
      which.erase(which.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
}

}  // namespace tacos
