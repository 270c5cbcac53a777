#include "runtime/layout.hpp"

#include <algorithm>
#include <functional>

#include "support/index.hpp"

namespace tacos {

namespace {

// Elements per chunk.
std::vector<std::int64_t> chunk_elements(const Collective& collective, std::int64_t count) {
  std::vector<std::int64_t> elements(collective.chunks(), 0);
  if (count == 0) return elements;
  const Collective resized = collective.resized(count);
  for (ChunkId chunk = 0; chunk < collective.chunks(); ++chunk) {
    elements[chunk] = resized.bytes(chunk);
  }
  return elements;
}

std::vector<std::int64_t> offsets(const std::vector<ChunkId>& chunks,
                                  const std::function<std::int64_t(ChunkId)>& elements) {
  std::vector<std::int64_t> result{0};
  for (const ChunkId chunk : chunks) result.push_back(result.back() + elements(chunk));
  return result;
}

bool follows(const Place& before, const Place& after, std::int64_t elements) {
  if (before.buffer != after.buffer) return false;
  return before.buffer == Buffer::none || before.offset + elements == after.offset;
}

}  // namespace

Layout lay_out(const RankProgram& program, std::int64_t count) {
  const auto per_chunk = chunk_elements(program.program->collective(), count);
  std::int64_t largest = 0, smallest = per_chunk.empty() ? 0 : per_chunk[0];
  for (const auto elements : per_chunk) {
    largest = std::max(largest, elements);
    smallest = std::min(smallest, elements);
  }
  Layout result;
  result.count = count;
  result.padded = program.misplaced && largest != smallest;
  const bool alike = program.misplaced;  // then `content` is not reliable
  const auto given = [&](ChunkId chunk) { return per_chunk[chunk]; };
  const auto kept = [&](ChunkId chunk) { return alike ? largest : per_chunk[chunk]; };
  result.given_input = offsets(program.inputs, given);
  result.given_output = offsets(program.outputs, given);
  result.input_offset = offsets(program.inputs, kept);
  result.output_offset = offsets(program.outputs, kept);
  result.scratch_elements = largest * program.program->slots(program.rank, Buffer::scratch);

  const auto place = [&](Buffer buffer, std::int32_t slot) -> Place {
    switch (buffer) {
      case Buffer::input:
        if (const auto same = program.shared[at(slot)]; same >= 0) {
          return {Buffer::output, result.output_offset[at(same)]};
        }
        return {buffer, result.input_offset[at(slot)]};
      case Buffer::output:
        return {buffer, result.output_offset[at(slot)]};
      case Buffer::scratch:
        return {buffer, largest * slot};
      case Buffer::none:
        break;
    }
    return {};
  };
  result.begin.push_back(0);
  for (std::size_t i = 0; i < program.steps.size(); ++i) {
    const RankStep& step = program.steps[i];
    std::int64_t total = 0;
    const auto first = program.content_begin[i];
    for (auto k = first; k < program.content_begin[i + 1]; ++k) {
      const std::int64_t elements = alike ? largest : per_chunk[program.content[at(k)]];
      const auto slot = static_cast<std::int32_t>(k - first);
      if (elements == 0) continue;
      const Place src = place(step.src_buffer, step.src_slot + slot);
      const Place dst = place(step.dst_buffer, step.dst_slot + slot);
      total += elements;
      if (at(result.begin.back()) < result.segments.size()) {
        Segment& last = result.segments.back();
        if (follows(last.src, src, last.elements) && follows(last.dst, dst, last.elements)) {
          last.elements += elements;
          continue;
        }
      }
      result.segments.push_back({src, dst, elements});
    }
    result.begin.push_back(static_cast<std::int64_t>(result.segments.size()));
    result.elements.push_back(total);
  }
  return result;
}

}  // namespace tacos
