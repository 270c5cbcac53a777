// The state of one call: which steps may run, what they send and where arriving data go.
//
// An executor knows no network. A driver (TCP, MPI) starts it, carries out what `to_send` and
// `to_receive` list, and reports back; copies and sums within the rank happen here.
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

// The memory of a call; the scratch buffer and copies that a call needs belong to the executor.
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
  std::uint64_t serial() const { return serial_; }  // unlike an address, never used again
  const Layout& layout(std::int64_t count);         // the last few are kept

  // Begins a call. Throws std::invalid_argument for an operation that the dtype does not have.
  void start(const Call& call);
  // What a driver has to carry out, as indices of steps; it takes the entries away.
  std::vector<std::int32_t> to_send, to_receive;
  // Reports: everything that a step sends has left, and all that it takes in was stored.
  void sent(std::int32_t step);
  void received(std::int32_t step);
  // A peer has stored what a put sent to it. Before, nothing may tell a third rank of it.
  void stored(NodeId peer);
  bool finished() const { return left_ == 0; }
  void finish();  // averages, and copies back what was kept elsewhere

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
  bool silent(std::int32_t step) const;    // whether it has nothing to send or receive in this call
  bool takes_in(std::int32_t step) const;  // whether something is still to come for the step
  bool reduces(std::int32_t step) const;   // whether what arrives is added to something
  // Adds the pieces of memory that a step sends.
  void outgoing(std::int32_t step, std::vector<iovec>& pieces) const;
  // Adds the pieces of memory that take in the rest of a step that does not reduce.
  void incoming(std::int32_t step, std::vector<iovec>& pieces) const;
  void skip(std::int32_t step, std::size_t bytes);  // so much was stored there
  // Stores or adds what arrived; for one that reduces, whole elements.
  void take(std::int32_t step, const std::byte* data, std::size_t bytes);

  // Steps that have started and wait for a peer, for messages about what holds a call up.
  std::vector<std::int32_t> waiting() const;
  std::string describe(std::int32_t step) const;  // what such a step waits for
  NodeId awaited(std::int32_t step) const;        // and on which rank

 private:
  enum class State : std::uint8_t { waiting, receiving, sending, done };
  struct Cursor {
    std::int64_t segment = 0, offset = 0;  // offset in bytes
  };

  std::byte* address(const Place& place) const;
  void place_buffers();
  void begin(std::int32_t step);
  void complete(std::int32_t step);
  void settle();  // runs all that became ready
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
  std::vector<std::vector<std::byte>> passing_;  // what a step passes on and does not store
  std::size_t left_ = 0;
  std::vector<std::int32_t> unstored_;  // per peer: puts on their way
  std::int32_t all_unstored_ = 0;
  std::vector<std::int32_t> held_;  // sends that wait for them
};

}  // namespace tacos
