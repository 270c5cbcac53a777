// An attribute for functions with loops over many numbers.
#pragma once

// Functions with this attribute are compiled twice, and the loader picks the version for the processor.
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__)
#define TACOS_VECTORIZED __attribute__((target_clones("arch=haswell", "default")))
#else
#define TACOS_VECTORIZED
#endif
