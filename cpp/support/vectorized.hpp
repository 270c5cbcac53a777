// How loops over many numbers are compiled.
#pragma once

// Loops with this attribute are compiled twice, and the loader picks what the processor can do.
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__)
#define TACOS_VECTORIZED __attribute__((target_clones("arch=haswell", "default")))
#else
#define TACOS_VECTORIZED
#endif
