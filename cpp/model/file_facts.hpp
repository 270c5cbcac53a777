// Facts in an algorithm's file besides its steps. A program that was read from a file has them, and so has the schedule
// that it is lifted to, so that a file written from either contains them again.
#pragma once

#include <cstdint>
#include <string>

namespace tacos {

// Empty or 0 if the file does not contain the fact.
struct FileFacts {
  std::string name, dialect, protocol;
  std::uint64_t min_bytes = 0, max_bytes = 0;  // range of sizes; 0: no limit
  std::int32_t threads_per_block = 0;
};

}  // namespace tacos
