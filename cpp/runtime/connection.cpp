#include "runtime/connection.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/reduce.hpp"

namespace tacos {

std::string ranked(NodeId rank) { return "rank " + std::to_string(rank); }

std::string of_call(std::int64_t count, std::uint8_t dtype, std::uint8_t op) {
  const auto known = dtype < kDTypes && op < kReduceOps;
  // Collectives without arithmetic transfer plain bytes, whatever the element type.
  if (known && static_cast<DType>(dtype) == DType::uint8 &&
      static_cast<ReduceOp>(op) == ReduceOp::sum) {
    return std::to_string(count) + " bytes";
  }
  return std::to_string(count) + " elements" +
         (known ? " of " + std::string(name_of(static_cast<DType>(dtype))) + " (" +
                      std::string(name_of(static_cast<ReduceOp>(op))) + ")"
                : "");
}

Connection::~Connection() {
  if (socket >= 0) ::close(socket);
}

int Connection::write_some(Message& message) {
  iovec pieces[kPieces];
  std::size_t count = 0;
  if (message.first == 0) {
    const auto sent = sizeof(MessageHeader) + message.header.bytes - message.left;
    pieces[count++] = {reinterpret_cast<std::byte*>(&message.header) + sent,
                       sizeof(MessageHeader) - sent};
  }
  for (auto i = std::max<std::size_t>(message.first, 1);
       i <= message.pieces.size() && count < kPieces; ++i) {
    pieces[count++] = message.pieces[i - 1];
  }
  msghdr out{};
  out.msg_iov = pieces;
  out.msg_iovlen = count;
  const auto sent = sendmsg(socket, &out, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0) return errno == EINTR ? 0 : errno == EWOULDBLOCK ? EAGAIN : errno;
  message.left -= static_cast<std::size_t>(sent);
  auto rest = static_cast<std::size_t>(sent);
  for (std::size_t i = 0; i < count && rest > 0; ++i) {
    const auto some = std::min(rest, pieces[i].iov_len);
    rest -= some;
    if (some == pieces[i].iov_len) {
      ++message.first;
    } else if (message.first > 0) {  // skip the part of a piece that was sent
      message.pieces[message.first - 1] = {static_cast<std::byte*>(pieces[i].iov_base) + some,
                                           pieces[i].iov_len - some};
    }
  }
  return 0;
}

Message& Connection::enqueue(const MessageHeader& what) {
  auto place = queue.end();
  if (what.kind != MessageKind::data) {
    place = std::find_if(queue.begin(), queue.end(), [](const Message& message) {
      return message.header.kind == MessageKind::data && !message.begun();
    });
  }
  auto& message = *queue.emplace(place);
  message.header = what;
  message.left = sizeof(MessageHeader) + what.bytes;
  return message;
}

void Connection::resize(std::size_t capacity) {
  Block other;
  other.reserve(capacity);
  std::memcpy(other.data.get(), buffer.data.get() + begin, end - begin);
  end -= begin;
  begin = 0;
  buffer = std::move(other);
}

std::size_t Connection::fill() {
  if (buffer.capacity > kBuffer && !parked && end - begin < kBuffer) resize(kBuffer);
  if (begin > 0) {
    std::memmove(buffer.data.get(), buffer.data.get() + begin, end - begin);
    end -= begin;
    begin = 0;
  }
  const auto before = end;
  read({});
  return end - before;
}

std::size_t Connection::read(const std::vector<iovec>& pieces) {
  while (readable) {
    iovec into[kPieces];
    std::size_t count = 0, wanted = 0;
    for (; count < std::min(pieces.size(), kPieces - 1); ++count) {
      into[count] = pieces[count];
      wanted += pieces[count].iov_len;
    }
    if (begin == end) begin = end = 0;
    const auto room = buffer.capacity - end;
    if (count == pieces.size()) into[count++] = {buffer.data.get() + end, room};
    const auto got = readv(socket, into, static_cast<int>(count));
    if (got > 0) {
      // A short read has emptied the socket; epoll reports when more arrives.
      const auto all = wanted + (count > pieces.size() ? room : 0);
      if (static_cast<std::size_t>(got) < all && !ending) readable = false;
      const auto stored = std::min(static_cast<std::size_t>(got), wanted);
      end += static_cast<std::size_t>(got) - stored;
      return stored;
    }
    if (got < 0 && errno == EINTR) continue;
    readable = false;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    closed = true;
    error = got < 0 ? errno : 0;
    break;
  }
  return 0;
}

namespace {

// Reads and drops the input of a socket; returns false at its end.
bool discard(int socket) {
  std::array<std::byte, std::size_t{1} << 16> dropped{};
  ssize_t got = 1;
  while (got > 0) got = recv(socket, dropped.data(), dropped.size(), MSG_DONTWAIT);
  return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
}

}  // namespace

void say_farewell(const std::vector<std::unique_ptr<Connection>>& connections,
                  const MessageHeader& header, const std::string& text,
                  std::chrono::milliseconds patience) {
  using Clock = std::chrono::steady_clock;
  std::vector<pollfd> open;
  std::vector<Connection*> which;
  for (const auto& connection : connections) {
    if (connection->dead) continue;
    // A message that has begun must be completed before the notice. All others are dropped.
    auto& queue = connection->queue;
    while (queue.size() > (!queue.empty() && queue.front().begun() ? 1U : 0U)) queue.pop_back();
    auto& message = queue.emplace_back();
    message.header = header;
    message.text = text;
    message.header.kind = MessageKind::abort;
    message.header.bytes = message.text.size();
    message.left = sizeof(MessageHeader) + message.header.bytes;
    message.pieces.push_back({message.text.data(), message.text.size()});
    open.push_back({connection->socket, POLLIN | POLLOUT, 0});
    which.push_back(connection.get());
  }
  const auto end = Clock::now() + patience;
  while (!open.empty() && Clock::now() < end) {
    if (poll(open.data(), open.size(), 50) < 0) {
      if (errno == EINTR) continue;
      break;
    }
    for (std::size_t i = open.size(); i-- > 0;) {
      if (open[i].revents == 0) continue;
      // Input is read and dropped: two ranks that have each begun a large message would otherwise wait for each other. A
      // peer that has left needs no notice.
      const bool gone = (open[i].revents & POLLIN) != 0 && !discard(open[i].fd);
      auto& queue = which[i]->queue;
      int error = 0;
      while (error == 0 && !queue.empty() && !gone) {
        error = which[i]->write_some(queue.front());
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
