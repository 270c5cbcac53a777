// The state of one call: which steps may run, what they send, and where arriving data are stored.
//
// An executor does no communication. A driver (TCP, MPI) starts it, carries out the steps in `to_send` and
// `to_receive`, and reports back; copies and sums within the rank happen here.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/layout.hpp"
#include "runtime/rank_program.hpp"
#include "runtime/reduce.hpp"

namespace tacos {

// The caller's memory of a call. The executor owns the scratch buffer and any copies.
struct Call {
  void* source = nullptr;
  void* target = nullptr;
  std::int64_t count = 0;
  DType dtype = DType::float32;
  ReduceOp op = ReduceOp::sum;
};

class RankExecutor {
 public:
  explicit RankExecutor(std::shared_ptr<const RankProgram> program);

  const RankProgram& program() const { return *program_; }
  const Call& call() const { return call_; }
  std::uint64_t serial() const { return serial_; }  // unlike an address, never reused
  const Layout& layout(std::int64_t count);         // caches the last few

  // Begins a call. Throws std::invalid_argument for an operation that the dtype does not have.
  void start(const Call& call);
  // Steps that the driver must carry out; it removes the entries.
  std::vector<std::int32_t> to_send, to_receive;
  // Reports from the driver: all data that a step sends have left; all data that it receives were stored.
  void sent(std::int32_t step);
  void received(std::int32_t step);
  // Reports that a peer has stored the data of a put. Until then, no third rank may be told about them.
  void stored(NodeId peer);
  bool finished() const { return left_ == 0; }
  void finish();  // divides averages, and copies results back to the caller's buffers

  std::size_t bytes(std::int32_t step) const {
    return static_cast<std::size_t>(layout_->elements[static_cast<std::size_t>(step)]) * width_;
  }
  // Bytes of the message that a step receives or sends now.
  std::size_t message_bytes(std::int32_t step) const;
  std::size_t width() const { return width_; }  // bytes per element
  // Whether arriving data of the step may be stored.
  bool may_receive(std::int32_t step) const {
    return state_[static_cast<std::size_t>(step)] == State::receiving;
  }
  bool is_done(std::int32_t step) const {
    return state_[static_cast<std::size_t>(step)] == State::done;
  }
  // Whether the step has nothing to send or receive in this call.
  bool silent(std::int32_t step) const;
  bool takes_in(std::int32_t step) const;  // whether the step still expects data
  bool reduces(std::int32_t step) const;   // whether arriving data are added up
  // Appends the memory ranges that a step sends.
  void outgoing(std::int32_t step, std::vector<iovec>& pieces) const;
  // Appends the memory ranges for the rest of the data of a step; only for steps that do not reduce.
  void incoming(std::int32_t step, std::vector<iovec>& pieces) const;
  void skip(std::int32_t step, std::size_t bytes);  // reports bytes stored there
  // Stores or adds data that arrived; for steps that reduce, whole elements.
  void take(std::int32_t step, const std::byte* data, std::size_t bytes);

  // Steps that have started and wait for a peer, for messages about calls that make no progress.
  std::vector<std::int32_t> waiting() const;
  std::string describe(std::int32_t step) const;  // what a waiting step waits for
  NodeId awaited(std::int32_t step) const;        // the rank that it waits for

 private:
  enum class State : std::uint8_t { waiting, receiving, sending, done };
  struct Cursor {
    std::int64_t segment = 0, offset = 0;  // offset in bytes
  };

  std::byte* address(const Place& place) const;
  void place_buffers();
  void begin(std::int32_t step);
  void complete(std::int32_t step);
  void settle();  // runs all steps that have become ready
  void run_locally(std::int32_t step);
  void list_send(std::int32_t step);

  std::uint64_t serial_;
  std::shared_ptr<const RankProgram> program_;
  std::vector<std::shared_ptr<const Layout>> layouts_;  // latest first
  std::shared_ptr<const Layout> layout_;
  Call call_;
  std::size_t width_ = 1;
  Reduction reduction_ = nullptr;
  std::byte *input_ = nullptr, *output_ = nullptr;
  std::vector<std::byte> scratch_, input_copy_, output_copy_;
  std::vector<State> state_;
  std::vector<std::int32_t> waits_, ready_;
  std::vector<Cursor> cursor_;
  std::vector<std::vector<std::byte>> passing_;  // data that a step forwards without storing them
  std::size_t left_ = 0;
  std::vector<std::int32_t> unstored_;  // per peer: puts in flight
  std::int32_t all_unstored_ = 0;
  std::vector<std::int32_t> held_;  // sends that wait for those puts
};

}  // namespace tacos
