#include "hub/stream.hpp"

#include <cstring>
#include <utility>

#include "hub/pieces.hpp"

namespace tacos::hub {

namespace {

constexpr std::size_t kReadAhead = 5 * (sizeof(Frame) + kLargestPayload);  // bytes read ahead

}  // namespace

Stream::Stream() : buffer_(new std::byte[kReadAhead]) {}

std::span<std::byte> Stream::space() {
  if (begin_ == end_) begin_ = end_ = 0;
  if (begin_ > 0 && kReadAhead - end_ < sizeof(Frame) + kLargestPayload) {
    std::memmove(buffer_.get(), buffer_.get() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  return {buffer_.get() + end_, kReadAhead - end_};
}

Stream::Next Stream::next(Frame& frame, const std::byte*& payload) {
  if (end_ - begin_ < sizeof frame) return Next::none;
  std::memcpy(&frame, buffer_.get() + begin_, sizeof frame);
  const auto kind = static_cast<std::uint8_t>(frame.kind);
  if (frame.magic != kMagic || kind == 0 || kind > kLastKind || frame.bytes > kLargestPayload ||
      frame.wire > Wire::float16) {
    return Next::malformed;
  }
  const auto whole = sizeof frame + padded(frame.bytes);
  if (end_ - begin_ < whole) return Next::none;
  payload = buffer_.get() + begin_ + sizeof frame;
  begin_ += whole;
  return Next::frame;
}

void Stream::queue(Piece piece) {
  queued_ += piece.whole();
  out_.push_back(std::move(piece));
}

std::size_t Stream::front(std::span<iovec> pieces) const {
  return list_pieces(out_, done_, pieces);
}

void Stream::sent(std::size_t bytes) {
  queued_ -= bytes;
  done_ += bytes;
  while (!out_.empty() && done_ >= out_.front().whole()) {
    done_ -= out_.front().whole();
    out_.pop_front();
  }
}

void Stream::forget() {
  out_.clear();
  queued_ = done_ = 0;
}

}  // namespace tacos::hub
