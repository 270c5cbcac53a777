// Fetching memory into the cache ahead of its use.
#pragma once

namespace tacos {

// The empty assembly is needed: GCC considers a function that only prefetches to have no effect, and drops calls to it.
[[gnu::always_inline]] inline void fetch_ahead(const void* memory) {
  __builtin_prefetch(memory);
  asm volatile("" : : "r"(memory));
}

}  // namespace tacos
