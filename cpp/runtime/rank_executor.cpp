#include "runtime/rank_executor.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "support/index.hpp"

namespace tacos {

namespace {

constexpr std::size_t kKeptLayouts = 8;
std::atomic<std::uint64_t> last_serial = 0;

bool is_message(StepOp op) { return op == StepOp::signal || op == StepOp::wait; }
bool is_get(StepOp op) { return op == StepOp::get || op == StepOp::get_reduce; }

}  // namespace

RankExecutor::RankExecutor(std::shared_ptr<const RankProgram> program)
    : serial_(++last_serial), program_(std::move(program)) {
  const auto steps = program_->steps.size();
  state_.resize(steps);
  waits_.resize(steps);
  cursor_.resize(steps);
  passing_.resize(steps);
  unstored_.resize(at(program_->program->ranks()));
}

const Layout& RankExecutor::layout(std::int64_t count) {
  if (count < 0) invalid("count is " + std::to_string(count) + "; it must not be negative");
  const auto found = std::find_if(layouts_.begin(), layouts_.end(),
                                  [&](const auto& kept) { return kept->count == count; });
  if (found != layouts_.end()) {
    std::rotate(layouts_.begin(), found, found + 1);
  } else {
    layouts_.insert(layouts_.begin(), std::make_shared<const Layout>(lay_out(*program_, count)));
    if (layouts_.size() > kKeptLayouts) layouts_.pop_back();
  }
  return *layouts_.front();
}

void RankExecutor::start(const Call& call) {
  reduction_ = reduction(call.dtype, call.op);
  layout(call.count);
  layout_ = layouts_.front();
  call_ = call;
  width_ = size_of(call.dtype);
  place_buffers();
  to_send.clear();
  to_receive.clear();
  ready_.clear();
  held_.clear();
  std::fill(unstored_.begin(), unstored_.end(), 0);
  all_unstored_ = 0;
  left_ = program_->steps.size();
  for (std::size_t i = 0; i < program_->steps.size(); ++i) {
    waits_[i] = program_->steps[i].waits;
    state_[i] = State::waiting;
    cursor_[i] = {layout_->begin[i], 0};
  }
  for (std::size_t i = 0; i < program_->steps.size(); ++i) {
    if (waits_[i] == 0) ready_.push_back(static_cast<std::int32_t>(i));
  }
  std::reverse(ready_.begin(), ready_.end());
  settle();
}

// Copies the input slots that the program shares with the output, unless the caller's buffers are in place. The
// program's other inputs are read from the caller's buffer, unless the program writes to them or they overlap with the
// output.
void RankExecutor::place_buffers() {
  const auto& l = *layout_;
  const auto given_in = at(l.input_elements()) * width_;
  const auto given_out = at(l.output_elements()) * width_;
  auto* source = static_cast<std::byte*>(call_.source);
  auto* target = static_cast<std::byte*>(call_.target);
  const auto offset = [&](const std::vector<std::int64_t>& offsets, std::size_t slot) {
    return at(offsets[slot]) * width_;
  };
  const auto bytes = [&](std::size_t slot) {
    return at(l.given_input[slot + 1] - l.given_input[slot]) * width_;
  };
  const std::less<> before;
  const bool overlaps = given_in > 0 && given_out > 0 && before(source, target + given_out) &&
                        before(target, source + given_in);
  // Whether the buffers overlap exactly as the program shares slots.
  bool exact = program_->program->spec().in_place;
  for (std::size_t slot = 0; overlaps && exact && slot < program_->inputs.size(); ++slot) {
    const std::byte* here = source + offset(l.given_input, slot);
    const auto same = program_->shared[slot];
    exact = same >= 0 ? here == target + offset(l.given_output, at(same))
                      : !(before(here, target + given_out) && before(target, here + bytes(slot)));
  }
  scratch_.resize(std::max(scratch_.size(), at(l.scratch_elements) * width_));
  input_ = source;
  output_ = target;
  if (l.padded) {
    output_copy_.resize(at(l.output_offset.back()) * width_);
    output_ = output_copy_.data();
  }
  const bool in_place = overlaps && exact;
  if (l.padded || (overlaps && !exact) || (program_->writes_input && !in_place)) {
    input_copy_.resize(at(l.input_offset.back()) * width_);
    for (std::size_t slot = 0; slot < program_->inputs.size(); ++slot) {
      if (bytes(slot) == 0) continue;
      std::memcpy(input_copy_.data() + offset(l.input_offset, slot),
                  source + offset(l.given_input, slot), bytes(slot));
    }
    input_ = input_copy_.data();
  }
  for (std::size_t slot = 0; slot < program_->inputs.size(); ++slot) {
    const auto same = program_->shared[slot];
    if (same < 0 || bytes(slot) == 0) continue;
    std::byte* to = output_ + offset(l.output_offset, at(same));
    const std::byte* from = input_ + offset(l.input_offset, slot);
    if (to != from) std::memcpy(to, from, bytes(slot));
  }
}

void RankExecutor::finish() {
  const auto& l = *layout_;
  const auto& collective = program_->program->collective();
  auto* target = static_cast<std::byte*>(call_.target);
  for (std::size_t slot = 0; slot < program_->outputs.size(); ++slot) {
    const auto elements = at(l.given_output[slot + 1] - l.given_output[slot]);
    if (elements == 0) continue;
    std::byte* here = output_ + at(l.output_offset[slot]) * width_;
    const ChunkId chunk = program_->outputs[slot];
    if (call_.op == ReduceOp::avg && collective.reduces(chunk)) {
      divide(here, elements, call_.dtype,
             static_cast<std::int64_t>(collective.inputs(chunk).size()));
    }
    if (l.padded) {
      std::memcpy(target + at(l.given_output[slot]) * width_, here, elements * width_);
    }
  }
}

std::byte* RankExecutor::address(const Place& place) const {
  std::byte* base = nullptr;
  switch (place.buffer) {
    case Buffer::input:
      base = input_;
      break;
    case Buffer::output:
      base = output_;
      break;
    default:
      base = const_cast<std::byte*>(scratch_.data());
  }
  return base + at(place.offset) * width_;
}

void RankExecutor::settle() {
  while (!ready_.empty()) {
    const auto step = ready_.back();
    ready_.pop_back();
    begin(step);
  }
}

void RankExecutor::begin(std::int32_t step) {
  const RankStep& row = program_->steps[at(step)];
  auto& state = state_[at(step)];
  if (silent(step)) {
    complete(step);
  } else if (row.served) {
    state = State::receiving;  // a put, or the request of a get
    to_receive.push_back(step);
  } else if (row.op == StepOp::copy || row.op == StepOp::reduce) {
    run_locally(step);
    complete(step);
  } else if (receives(row.op) || row.op == StepOp::wait) {
    state = State::receiving;
    if (row.op == StepOp::recv_reduce_forward) passing_[at(step)].resize(bytes(step));
    to_receive.push_back(step);
  } else if (row.op == StepOp::nop) {
    complete(step);
  } else {
    state = State::sending;
    list_send(step);
  }
}

void RankExecutor::list_send(std::int32_t step) {
  const RankStep& row = program_->steps[at(step)];
  const bool tells = !row.served && row.op != StepOp::put;
  const bool early = tells && all_unstored_ > unstored_[at(row.to.peer)];
  (early ? held_ : to_send).push_back(step);
}

void RankExecutor::stored(NodeId peer) {
  --unstored_[at(peer)];
  --all_unstored_;
  for (const auto step : std::exchange(held_, {})) list_send(step);
}

void RankExecutor::complete(std::int32_t step) {
  state_[at(step)] = State::done;
  --left_;
  if (at(step) >= program_->own) return;
  const auto begin = program_->next_begin[at(step)], end = program_->next_begin[at(step) + 1];
  for (auto i = end; i-- > begin;) {
    const auto after = program_->next[at(i)];
    if (--waits_[at(after)] == 0) ready_.push_back(after);
  }
}

void RankExecutor::sent(std::int32_t step) {
  const RankStep& row = program_->steps[at(step)];
  if (is_get(row.op) && !row.served) {  // the request has left, the reply has not arrived
    state_[at(step)] = State::receiving;
    to_receive.push_back(step);
    return;
  }
  if (row.op == StepOp::recv_reduce_forward) passing_[at(step)] = {};
  if (row.op == StepOp::put) {
    ++unstored_[at(row.to.peer)];
    ++all_unstored_;
  }
  complete(step);
  settle();
}

void RankExecutor::received(std::int32_t step) {
  const RankStep& row = program_->steps[at(step)];
  if (sends(row.op) || (row.served && is_get(row.op))) {
    state_[at(step)] = State::sending;
    list_send(step);
    return;
  }
  complete(step);
  settle();
}

std::size_t RankExecutor::message_bytes(std::int32_t step) const {
  const RankStep& row = program_->steps[at(step)];
  const bool request = is_get(row.op) && may_receive(step) == row.served;
  return is_message(row.op) || request ? 0 : bytes(step);
}

// A step without bytes sends no message; both ends know this.
bool RankExecutor::silent(std::int32_t step) const {
  return bytes(step) == 0 && !is_message(program_->steps[at(step)].op);
}

bool RankExecutor::takes_in(std::int32_t step) const {
  const RankStep& row = program_->steps[at(step)];
  if (state_[at(step)] == State::sending) return is_get(row.op) && !row.served;
  return row.from.peer >= 0 && !is_done(step);
}

bool RankExecutor::reduces(std::int32_t step) const {
  const RankStep& row = program_->steps[at(step)];
  return row.op == StepOp::recv_reduce || row.op == StepOp::recv_reduce_send ||
         row.op == StepOp::recv_reduce_forward || (row.op == StepOp::get_reduce && !row.served);
}

void RankExecutor::run_locally(std::int32_t step) {
  const bool adds = program_->steps[at(step)].op == StepOp::reduce;
  for (auto i = layout_->begin[at(step)]; i < layout_->begin[at(step) + 1]; ++i) {
    const Segment& segment = layout_->segments[at(i)];
    std::byte *src = address(segment.src), *dst = address(segment.dst);
    const auto elements = at(segment.elements);
    if (adds) {
      reduction_(dst, dst, src, elements);
    } else if (src != dst) {
      std::memmove(dst, src, elements * width_);
    }
  }
}

void RankExecutor::outgoing(std::int32_t step, std::vector<iovec>& pieces) const {
  const RankStep& row = program_->steps[at(step)];
  if (is_message(row.op) || (is_get(row.op) && !row.served)) return;
  if (row.op == StepOp::recv_reduce_forward) {
    const auto& passing = passing_[at(step)];
    pieces.push_back({const_cast<std::byte*>(passing.data()), bytes(step)});
    return;
  }
  const bool from_dst = row.op == StepOp::recv_send || row.op == StepOp::recv_reduce_send;
  for (auto i = layout_->begin[at(step)]; i < layout_->begin[at(step) + 1]; ++i) {
    const Segment& segment = layout_->segments[at(i)];
    pieces.push_back(
        {address(from_dst ? segment.dst : segment.src), at(segment.elements) * width_});
  }
}

void RankExecutor::incoming(std::int32_t step, std::vector<iovec>& pieces) const {
  const Cursor& cursor = cursor_[at(step)];
  auto offset = at(cursor.offset);
  for (auto i = cursor.segment; i < layout_->begin[at(step) + 1]; ++i) {
    const Segment& segment = layout_->segments[at(i)];
    pieces.push_back({address(segment.dst) + offset, at(segment.elements) * width_ - offset});
    offset = 0;
  }
}

void RankExecutor::skip(std::int32_t step, std::size_t bytes) {
  Cursor& cursor = cursor_[at(step)];
  while (bytes > 0) {
    const auto whole = at(layout_->segments[at(cursor.segment)].elements) * width_;
    const auto some = std::min(bytes, whole - at(cursor.offset));
    cursor.offset += static_cast<std::int64_t>(some);
    bytes -= some;
    if (at(cursor.offset) == whole) cursor = {cursor.segment + 1, 0};
  }
}

void RankExecutor::take(std::int32_t step, const std::byte* data, std::size_t bytes) {
  const RankStep& row = program_->steps[at(step)];
  const bool adds = reduces(step);
  Cursor& cursor = cursor_[at(step)];
  std::size_t passed = 0;  // bytes of the contiguous data that are forwarded
  if (row.op == StepOp::recv_reduce_forward) {
    for (auto i = layout_->begin[at(step)]; i < cursor.segment; ++i) {
      passed += at(layout_->segments[at(i)].elements) * width_;
    }
  }
  while (bytes > 0) {
    const Segment& segment = layout_->segments[at(cursor.segment)];
    const auto offset = at(cursor.offset);
    const auto whole = at(segment.elements) * width_;
    const auto some = std::min(bytes, whole - offset);
    std::byte* dst = row.op == StepOp::recv_reduce_forward
                         ? passing_[at(step)].data() + passed + offset
                         : address(segment.dst) + offset;
    if (adds) {
      const std::byte* src = row.op == StepOp::get_reduce ? dst : address(segment.src) + offset;
      reduction_(dst, src, data, some / width_);
    } else {
      std::memcpy(dst, data, some);
    }
    data += some;
    bytes -= some;
    cursor.offset += static_cast<std::int64_t>(some);
    if (at(cursor.offset) == whole) {
      cursor = {cursor.segment + 1, 0};
      passed += whole;
    }
  }
}

std::vector<std::int32_t> RankExecutor::waiting() const {
  std::vector<std::int32_t> steps;
  for (std::size_t i = 0; i < state_.size(); ++i) {
    if (state_[i] == State::receiving || state_[i] == State::sending) {
      steps.push_back(static_cast<std::int32_t>(i));
    }
  }
  return steps;
}

NodeId RankExecutor::awaited(std::int32_t step) const {
  const RankStep& row = program_->steps[at(step)];
  return may_receive(step) ? row.from.peer : row.to.peer;
}

std::string RankExecutor::describe(std::int32_t step) const {
  const RankStep& row = program_->steps[at(step)];
  const auto server =
      row.served ? "rank " + std::to_string(program_->rank) + " serves " : std::string();
  return server + program_->program->describe(row.id) + " waits to " +
         (may_receive(step) ? "receive from" : "send to") + " rank " +
         std::to_string(awaited(step));
}

}  // namespace tacos
