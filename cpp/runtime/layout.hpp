// The addresses of a rank's slots and the data of each step, for a given number of elements.
//
// A program applies to any size. The chunks have the sizes of the same collective, resized to the given number of
// elements. Input and output slots follow each other without gaps; scratch slots have the size of the
// largest chunk. If chunks differ in size and the program keeps some in slots of others, this is impossible: then
// all slots have the size of the largest chunk, and the data are copied in and out.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/rank_program.hpp"

namespace tacos {

struct Place {
  Buffer buffer = Buffer::none;
  std::int64_t offset = 0;  // in elements
};

// A run of elements that is contiguous at both ends.
struct Segment {
  Place src, dst;
  std::int64_t elements = 0;
};

struct Layout {
  std::int64_t count = 0;
  bool padded = false;  // all slots have one size, and the buffers are copies of the caller's
  std::vector<std::int64_t> input_offset, output_offset;  // per slot, then the total
  std::int64_t scratch_elements = 0;
  std::vector<std::int64_t> begin;  // per step: its first segment
  std::vector<Segment> segments;
  std::vector<std::int64_t> elements;  // per step

  // Offsets in the caller's buffers: the slots without gaps.
  std::vector<std::int64_t> given_input, given_output;
  std::int64_t input_elements() const { return given_input.back(); }
  std::int64_t output_elements() const { return given_output.back(); }
};

// `count`: elements of the whole buffer, as nccl-tests counts them; zero or more.
Layout lay_out(const RankProgram& program, std::int64_t count);

}  // namespace tacos
