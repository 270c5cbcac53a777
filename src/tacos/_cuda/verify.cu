// Checks a schedule over single links that are all alike: written from the rules of the model, and
// from nothing of what makes such schedules.
//
// A transfer of chunk c over a link from u to v that starts at step s is there `delay` later. Per NPU
// and chunk are noted: `first`, the earliest start of a copy to it; `last`, one more than the latest
// start of a sum to it, 0 if there is none; `sent`, a bit if it has added its part to another's sum.
//
// A chunk's sum is right if every NPU but one, the root, passes its part on exactly once, and does so
// after all parts it is sent have come: times grow along a chain of transfers, so the chains form a
// tree that ends at the root. The host has counted the transfers: as many copies as there are copies
// to bring, and as many sums, so that nothing comes twice if everything comes.
//
// Written for NVRTC: no header is included.

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

// Whether two transfers over one link keep it busy at different times.
__device__ bool apart(u32 earlier, u32 later, u64 step_ps, u64 busy_ps) {
  return later > earlier && (u64)(later - earlier) * step_ps >= busy_ps;
}

// Notes what comes and goes, and that no link carries two chunks at once. A block per lane.
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

// Counts transfers whose source does not have what they carry when they start. A block per lane.
// `owner` has, per chunk, who begins with it or, where there are sums, who ends with its sum.
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

// Counts chunks that an NPU should get a copy of and never gets. A block per NPU.
extern "C" __global__ void check_copies(u32 chunks, const u32* owner, const u32* first,
                                        u64* wrong) {
  const u32 npu = blockIdx.x;
  u64 bad = 0;
  for (u32 c = threadIdx.x; c < chunks; c += blockDim.x) {
    bad += owner[c] != npu && first[(u64)npu * chunks + c] == kNever;
  }
  if (bad) atomicAdd(wrong, bad);
}

// Finds the NPU that passes no part of a chunk on, where its sum ends; 0xffffffff, and one wrong, if
// there is none or more than one. A thread per chunk.
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
