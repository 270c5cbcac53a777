// Checks a schedule that only copies, over single links that are all alike: written from the rules
// of the model, and from nothing of what makes such schedules.
//
// A transfer of chunk c over a link from u to v that starts at s is there at s + delay. `first` has,
// per NPU and chunk, the earliest start of a transfer that brings it. Starts are in steps. The host
// has counted the transfers: as many as there are chunks to bring, so that none comes twice if all come.
//
// Written for NVRTC: no header is included.

typedef unsigned int u32;
typedef unsigned long long u64;

static constexpr u32 kNever = 0xffffffffu;

// Notes when each NPU is first sent each chunk, and that no link carries two at once. A block per lane.
extern "C" __global__ void note_arrivals(const u64* lane_begin, const u32* lane_dst,
                                         const u32* chunk, const u32* start, u32 chunks,
                                         u64 step_ps, u64 busy_ps, u32* first, u64* wrong) {
  const u32 lane = blockIdx.x;
  u32* const row = first + (u64)lane_dst[lane] * chunks;
  for (u64 i = lane_begin[lane] + threadIdx.x; i < lane_begin[lane + 1]; i += blockDim.x) {
    atomicMin(row + chunk[i], start[i]);
    if (i > lane_begin[lane]) {
      const bool apart =
          start[i] > start[i - 1] && (u64)(start[i] - start[i - 1]) * step_ps >= busy_ps;
      if (!apart) atomicAdd(wrong, 1ull);
    }
  }
}

// Counts transfers whose source does not have the chunk when they start. A block per lane.
extern "C" __global__ void check_sources(const u64* lane_begin, const u32* lane_src,
                                         const u32* chunk, const u32* start, u32 chunks,
                                         u64 step_ps, u64 delay_ps, const u32* holder,
                                         const u32* first, u64* wrong) {
  const u32 lane = blockIdx.x;
  const u32* const source = first + (u64)lane_src[lane] * chunks;
  u64 bad = 0;
  for (u64 i = lane_begin[lane] + threadIdx.x; i < lane_begin[lane + 1]; i += blockDim.x) {
    const u32 sent = source[chunk[i]];
    const bool has = holder[chunk[i]] == lane_src[lane] ||
                     (sent != kNever && (u64)sent * step_ps + delay_ps <= (u64)start[i] * step_ps);
    bad += !has;
  }
  if (bad) atomicAdd(wrong, bad);
}

// Counts chunks that an NPU never gets. A block per NPU.
extern "C" __global__ void check_outputs(u32 chunks, const u32* holder, const u32* first,
                                         u64* wrong) {
  const u32 npu = blockIdx.x;
  u64 bad = 0;
  for (u32 c = threadIdx.x; c < chunks; c += blockDim.x) {
    bad += holder[c] != npu && first[(u64)npu * chunks + c] == kNever;
  }
  if (bad) atomicAdd(wrong, bad);
}
