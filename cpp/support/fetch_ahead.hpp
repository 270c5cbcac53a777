// Fetching memory into the cache ahead of its use.
#pragma once

namespace tacos {

// The empty assembly keeps it alive: GCC takes a function that only prefetches for one without effects, and drops calls of it.
[[gnu::always_inline]] inline void fetch_ahead(const void* memory) {
  __builtin_prefetch(memory);
  asm volatile("" : : "r"(memory));
}

}  // namespace tacos
