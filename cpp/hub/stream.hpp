// The bytes of one connection: frames that arrive in pieces, and frames that wait to be sent. It knows nothing of jobs.
#pragma once

#include <sys/uio.h>

#include <deque>
#include <memory>
#include <span>

#include "hub/frame.hpp"

namespace tacos::hub {

// A frame to be sent, with data that it owns or that outlives it.
struct Piece {
  Frame frame;
  const std::byte* data = nullptr;
  std::unique_ptr<std::byte[]> own;
  std::size_t whole() const { return sizeof(Frame) + padded(frame.bytes); }
};

class Stream {
 public:
  Stream();

  // The buffer to read into; `received` then reports how many bytes arrived.
  std::span<std::byte> space();
  void received(std::size_t bytes) { end_ += bytes; }
  enum class Next : std::uint8_t { none, frame, malformed };
  // Removes the next complete frame from the input. The payload is valid until the next call of `space`.
  Next next(Frame& frame, const std::byte*& payload);
  void discard() { begin_ = end_ = 0; }  // drops unread input

  void queue(Piece piece);
  std::size_t front(std::span<iovec> pieces) const;  // what to send next, still in the queue
  void sent(std::size_t bytes);
  bool idle() const { return out_.empty(); }
  std::size_t queued() const { return queued_; }  // bytes
  void forget();                                  // drops everything that waits to be sent

 private:
  std::unique_ptr<std::byte[]> buffer_;
  std::size_t begin_ = 0, end_ = 0;
  std::deque<Piece> out_;
  std::size_t done_ = 0, queued_ = 0;  // bytes of the first piece sent; bytes in the queue
};

}  // namespace tacos::hub
