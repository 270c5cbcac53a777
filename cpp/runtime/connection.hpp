// A socket between two ranks, which carries data both ways: its send queue, and the input that was read ahead.
//
// A connection moves framed bytes; the endpoint interprets the messages.
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

constexpr std::size_t kPieces = 64;  // memory ranges per system call (chosen)
constexpr std::size_t kLongestText = 4096;
constexpr std::size_t kBuffer = std::size_t{1}
                                << 17;  // a block that stays in the cache while it is added
constexpr std::uint8_t kMessageMagic = 0xa7;

enum class MessageKind : std::uint8_t { data, abort, ask, answer, stored };

// Uninitialized memory that is reused.
struct Block {
  std::unique_ptr<std::byte[]> data;
  std::size_t capacity = 0;

  void reserve(std::size_t bytes) {
    if (bytes <= capacity) return;
    data.reset(new std::byte[bytes]);
    capacity = bytes;
  }
};

// Flags of a header. kMeet: all ranks are to meet after this call. kBroken, in a notice that a rank gives up: the link
// from rank `algorithm` to rank `count` is dead, and the call may be repeated without it.
constexpr std::uint32_t kMeet = 1, kBroken = 2;

struct MessageHeader {
  std::uint8_t magic = kMessageMagic;
  MessageKind kind = MessageKind::data;
  std::uint8_t dtype = 0, op = 0;
  std::uint32_t call = 0;
  StepId step = -1;  // the step that sends, by its number in the program
  std::int32_t algorithm = 0;
  std::int64_t count = 0;
  std::uint64_t bytes = 0;    // of data after the header
  std::uint32_t away_us = 0;  // how long the sender was outside of calls before this one
  std::uint32_t flags = 0;
};

struct Message {
  MessageHeader header;
  std::vector<iovec> pieces;  // data after the header
  std::string text;           // text of a notice
  std::int32_t step = -1;     // the step of this rank that sends
  std::size_t left = 0;       // bytes left to send, header included
  std::size_t first = 0;      // next piece to send; 0: the header

  bool begun() const { return left < sizeof(MessageHeader) + header.bytes; }
};

struct Connection {
  Connection() = default;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection();

  // Makes one system call; returns 0 or the error, which is EAGAIN if the socket is full.
  int write_some(Message& message);
  // Reads into the pieces, and further input into the buffer; returns the bytes in the pieces.
  // At the end of the connection sets `closed`, and `error` if there was one.
  std::size_t read(const std::vector<iovec>& pieces);
  // Reads ahead; returns 0 if there is nothing to read now.
  std::size_t fill();
  // Moves the input that was read ahead to a buffer of another size.
  void resize(std::size_t capacity);
  // Adds a message to the queue; a notice goes before all data that have not begun to leave.
  Message& enqueue(const MessageHeader& what);

  Port port;
  int socket = -1;
  bool closed = false;  // by the peer or by an error
  int error = 0;        // the error, or 0

  std::deque<Message> queue;
  bool writable = true;

  Block buffer;  // input that was read ahead
  std::size_t begin = 0, end = 0;
  bool readable = true, ending = false;  // ending: the peer sends nothing more
  // Reading: within a message; parked: before a message of a later call.
  bool reading = false, parked = false;
  bool looking = false;  // while parked: keeps reading, to find notices
  std::size_t past = 0;  // bytes after `begin` that were examined
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

  // Observations. Times are those of the endpoint's clock.
  using Time = std::chrono::steady_clock::time_point;
  bool local = false;  // both ends are on one machine, so no link is watched
  bool dead = false;   // nothing gets through any more
  Time began, ended;   // start of the message that is being read, end of the one before
  // Bytes of that message that were in flight when it began; 0: too few to measure a speed.
  std::size_t timed = 0;
  std::uint32_t heard = 0;  // the last call in which the peer sent something
  struct Count {
    Seen<std::int64_t> messages, bytes;
  };
  Count away, came;          // data sent and received
  Seen<double> waited;       // seconds in which a step was ready to receive
  double waited_before = 0;  // value of `waited` when the call began
  LinkWatch watch;           // speed of received data
  LinkWatch sending;         // speed of sent data, measured by the kernel
  // Bytes that the peer's machine had acknowledged when the kernel was last asked.
  std::uint64_t acked = 0;
  // How long bytes had been in flight in total when the kernel was last asked.
  std::uint64_t busy_us = 0;
};

// Names of a rank and of a call in messages for users.
std::string ranked(NodeId rank);
std::string of_call(std::int64_t count, std::uint8_t dtype, std::uint8_t op);

// Sends a last notice, with the given header and text, on all connections that are not dead, and closes them. Waits at most
// the given time for the peers to read it.
void say_farewell(const std::vector<std::unique_ptr<Connection>>& connections,
                  const MessageHeader& header, const std::string& text,
                  std::chrono::milliseconds patience);

}  // namespace tacos
