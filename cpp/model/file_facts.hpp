// What the file of an algorithm says besides its steps. A program read from a file has it, and so has the schedule that
// the program is lifted to, so that a file written from either says it again.
#pragma once

#include <cstdint>
#include <string>

namespace tacos {

// Empty or 0 where the file does not say.
struct FileFacts {
  std::string name, dialect, protocol;
  std::uint64_t min_bytes = 0, max_bytes = 0;  // sizes that the algorithm is for; 0: no limit
  std::int32_t threads_per_block = 0;
};

}  // namespace tacos
