// A socket between two ranks, which carries data both ways: what is to be sent, what has been read ahead.
//
// A connection moves bytes and knows their frames; what messages mean is the endpoint's affair.
#pragma once

#include <sys/uio.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/figures.hpp"
#include "runtime/rank_program.hpp"

namespace tacos {

constexpr std::size_t kPieces = 64;  // of memory in one system call
constexpr std::size_t kLongestText = 4096;
constexpr std::size_t kBuffer = std::size_t{1}
                                << 17;  // a block that stays in the cache while it is added
constexpr std::uint8_t kMessageMagic = 0xa7;

enum class MessageKind : std::uint8_t { data, abort, ask, answer, stored };

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

// What a header says beside its message. `meet`: all ranks are to meet after this call. `broken`: in a notice that a
// rank gives up, the link from rank `algorithm` to rank `count` is dead, and the call may be repeated without it.
constexpr std::uint32_t kMeet = 1, kBroken = 2;

struct MessageHeader {
  std::uint8_t magic = kMessageMagic;
  MessageKind kind = MessageKind::data;
  std::uint8_t dtype = 0, op = 0;
  std::uint32_t call = 0;
  StepId step = -1;  // in the program: the one that sends
  std::int32_t algorithm = 0;
  std::int64_t count = 0;
  std::uint64_t bytes = 0;    // that follow
  std::uint32_t away_us = 0;  // for how long the sender was in no call before this one
  std::uint32_t flags = 0;
};

struct Message {
  MessageHeader header;
  std::vector<iovec> pieces;  // after the header
  std::string text;           // of a notice
  std::int32_t step = -1;     // of this rank: the one that sends
  std::size_t left = 0;       // bytes, header included
  std::size_t first = 0;      // piece to send next; 0: the header

  bool begun() const { return left < sizeof(MessageHeader) + header.bytes; }
};

struct Connection {
  Connection() = default;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection();

  // One system call; returns 0 or the error, EAGAIN if the socket is full.
  int write_some(Message& message);
  // Reads into the pieces, and what comes after them into the buffer; returns the bytes in the pieces.
  // An end is noted in `closed`, and why in `error`.
  std::size_t read(const std::vector<iovec>& pieces);
  // Reads ahead; returns 0 if there is nothing to read now.
  std::size_t fill();
  // Moves what was read ahead into a buffer of another size.
  void resize(std::size_t capacity);
  // Adds a message to the queue: a notice before all data that have not begun to leave.
  Message& enqueue(const MessageHeader& what);

  Port port;
  int socket = -1;
  bool closed = false;  // by the peer
  int error = 0;        // or by an error

  std::deque<Message> queue;
  bool writable = true;

  Block buffer;  // what was read ahead
  std::size_t begin = 0, end = 0;
  bool readable = true, ending = false;  // ending: the peer will send no more
  bool reading = false, parked = false;  // within a message; before one of a later call
  bool looking = false;                  // while it is parked: reads on, for notices
  std::size_t past = 0;                  // bytes after `begin` that were looked at
  MessageHeader header;
  std::int32_t step = -1;
  std::size_t left = 0;
  std::string text;
  struct Staged {
    Block block;
    std::size_t filled = 0, whole = 0;
  };
  std::map<std::int32_t, Staged> staged;  // by step
  Staged* staging = nullptr;

  // What is noticed about it. Times are those of the endpoint's clock.
  using Time = std::chrono::steady_clock::time_point;
  bool local = false;  // no link between machines: there is nothing to watch
  bool dead = false;   // nothing gets through any more
  Time began, ended;   // of the message that is read, and of the one before
  // Bytes of it that were on their way when it began; 0: too few to tell a speed.
  std::size_t timed = 0;
  std::uint32_t heard = 0;  // the latest call in which the peer was heard of
  struct Count {
    Seen<std::int64_t> messages, bytes;
  };
  Count away, came;          // data
  Seen<double> waited;       // seconds while a step could have taken data in
  double waited_before = 0;  // the same when the call began
  LinkWatch watch;           // what comes
  LinkWatch sending;         // what leaves, as the kernel sees it
  std::uint64_t acked = 0;   // bytes that the peer's machine had acknowledged
  // And for how long some were on their way, when the kernel was last asked.
  std::uint64_t busy_us = 0;
};

// How messages for people name a rank, and what a call is about.
std::string ranked(NodeId rank);
std::string of_call(std::int64_t count, std::uint8_t dtype, std::uint8_t op);

// Sends a last text, with the rest of its header as given, on all connections that are not dead, and ends them, as far as the
// peers read within that time.
void say_farewell(const std::vector<std::unique_ptr<Connection>>& connections,
                  const MessageHeader& header, const std::string& text,
                  std::chrono::milliseconds patience);

}  // namespace tacos
