// Checks a schedule over equal single links. Written from the rules of the model, and independent of
// the code that makes such schedules.
//
// A transfer of chunk c over a link from u to v that starts at step s arrives `delay` later. For each
// NPU and chunk there are: `first`, the earliest start of a copy to it; `last`, one more than the latest
// start of a sum to it, or 0 if there is none; `sent`, a bit that is set if it has passed its part on.
//
// A chunk's sum is right if every NPU except one, the root, passes its part on exactly once, after all
// parts sent to it have arrived: times increase along a chain of transfers, so the chains form a tree
// that ends at the root. The host has checked that the numbers of copies and of sums are those that the
// collective needs, so if all arrive, none arrives twice.
//
// Written for NVRTC, without headers.

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

static constexpr u32 kNever = 0xffffffffu;
static constexpr u32 kNone = 0xffffffffu;

// The lanes of a schedule. `partner` is another lane over the same link, or kNone.
struct Lanes {
  const u64* begin;
  const u32* src;
  const u32* dst;
  const u32* partner;
  const u8* sums;
  const u32* chunk;
  const u32* start;
};

// Returns whether two transfers over one link keep it busy at different times.
__device__ bool apart(u32 earlier, u32 later, u64 step_ps, u64 busy_ps) {
  return later > earlier && (u64)(later - earlier) * step_ps >= busy_ps;
}

// Records `first`, `last` and `sent`; counts unknown chunks, parts that are passed on twice, and
// transfers that overlap on a link. One block per lane.
extern "C" __global__ void note_transfers(Lanes lanes, u32 chunks, u64 step_ps, u64 busy_ps,
                                          u32* first, u32* last, u32* sent, u64* wrong) {
  const u32 lane = blockIdx.x;
  const u64 begin = lanes.begin[lane], end = lanes.begin[lane + 1];
  const u64 to = (u64)lanes.dst[lane] * chunks, from = (u64)lanes.src[lane] * chunks;
  const bool sums = lanes.sums[lane];
  const u32 partner = lanes.partner[lane];
  u64 bad = 0;
  for (u64 i = begin + threadIdx.x; i < end; i += blockDim.x) {
    const u32 chunk = lanes.chunk[i], start = lanes.start[i];
    if (chunk >= chunks) {
      ++bad;
      continue;
    }
    if (sums) {
      atomicMax(last + to + chunk, start + 1);
      const u64 bit = from + chunk;
      const u32 mask = 1u << (bit % 32);
      bad += (atomicOr(sent + bit / 32, mask) & mask) != 0;
    } else {
      atomicMin(first + to + chunk, start);
    }
    bad += i > begin && !apart(lanes.start[i - 1], start, step_ps, busy_ps);
    if (partner != kNone) {  // the first transfer of the other lane that starts no earlier
      u64 low = lanes.begin[partner], high = lanes.begin[partner + 1];
      while (low < high) {
        const u64 middle = (low + high) / 2;
        if (lanes.start[middle] < start) {
          low = middle + 1;
        } else {
          high = middle;
        }
      }
      bad += low < lanes.begin[partner + 1] && !apart(start, lanes.start[low], step_ps, busy_ps);
    }
  }
  if (bad) atomicAdd(wrong, bad);
}

// Counts transfers that start before their source has the data that they carry. One block per lane.
// `owner` is, per chunk, the NPU that holds it at the start or, with sums, that ends with its sum.
extern "C" __global__ void check_sources(Lanes lanes, u32 chunks, u64 step_ps, u64 delay_ps,
                                         u32 any_sums, const u32* owner, const u32* first,
                                         const u32* last, u64* wrong) {
  const u32 lane = blockIdx.x, src = lanes.src[lane];
  const bool sums = lanes.sums[lane];
  u64 bad = 0;
  for (u64 i = lanes.begin[lane] + threadIdx.x; i < lanes.begin[lane + 1]; i += blockDim.x) {
    const u32 chunk = lanes.chunk[i];
    if (chunk >= chunks) continue;
    const u64 place = (u64)src * chunks + chunk, now = (u64)lanes.start[i] * step_ps;
    const u64 after = any_sums ? last[place] : 0;
    const bool complete = after == 0 || (after - 1) * step_ps + delay_ps <= now;
    bool has;
    if (sums) {
      has = complete;
    } else if (owner[chunk] == src) {
      has = complete;
    } else {
      has = first[place] != kNever && (u64)first[place] * step_ps + delay_ps <= now;
    }
    bad += !has;
  }
  if (bad) atomicAdd(wrong, bad);
}

// Counts the copies that an NPU should receive but does not. One block per NPU.
extern "C" __global__ void check_copies(u32 chunks, const u32* owner, const u32* first,
                                        u64* wrong) {
  const u32 npu = blockIdx.x;
  u64 bad = 0;
  for (u32 c = threadIdx.x; c < chunks; c += blockDim.x) {
    bad += owner[c] != npu && first[(u64)npu * chunks + c] == kNever;
  }
  if (bad) atomicAdd(wrong, bad);
}

// Finds the NPU that does not pass its part of a chunk on, where the sum ends. If there is not exactly
// one, the owner is 0xffffffff and `wrong` is incremented. One thread per chunk.
extern "C" __global__ void find_roots(u32 npus, u32 chunks, const u32* sent, u32* owner,
                                      u64* wrong) {
  const u32 chunk = blockIdx.x * blockDim.x + threadIdx.x;
  if (chunk >= chunks) return;
  u32 found = 0;
  for (u32 npu = 0; npu < npus; ++npu) {
    const u64 bit = (u64)npu * chunks + chunk;
    if (!(sent[bit / 32] >> (bit % 32) & 1)) {
      ++found;
      owner[chunk] = npu;
    }
  }
  if (found != 1) {
    owner[chunk] = kNone;
    atomicAdd(wrong, 1ull);
  }
}
