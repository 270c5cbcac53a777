// The step-synchronous greedy matching on a GPU: the rule, the ties and so the schedule are those of
// cpp/synth/greedy_steps.cpp, where a destination's choice in a step depends on earlier steps alone.
//
// A team of threads serves a destination, one thread per in-link; teams are powers of two, so that a
// warp holds whole teams and a team talks by shuffles. In a step each thread looks a window of its
// source's log through at once, then the links choose in turn. All teams meet at a barrier after each
// step. A launch runs many steps; the host starts the next one, and can stop in between.
//
// Written for NVRTC: no header is included.

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

static constexpr u32 kWindow = 4;  // entries of a log that a thread looks at together
static constexpr u32 kNone = 0xffffffffu;
static constexpr u32 kWarp = 0xffffffffu;

// What other threads may have written since the last barrier is read past the first-level cache,
// which does not see their writes.
template <typename T>
__device__ T fresh(const T* place) {
  return __ldcg(place);
}

// All blocks of the launch wait here for each other. They are all resident: the launch is cooperative.
__device__ void meet(u32* arrived, u32 expected) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(arrived, 1u);
    u32 seen;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(arrived) : "memory");
    } while (seen < expected);
    __threadfence();
  }
  __syncthreads();
}

// A thread's window into the log of its link's source, from the link's cursor on.
struct Window {
  u32 entry[kWindow];
  u32 useful;  // a bit per entry that the destination neither has nor is being sent
  u32 from;    // position of the first entry
  u32 length;

  __device__ u32 first() const {
    u32 found = kNone;
#pragma unroll
    for (u32 i = kWindow; i-- > 0;) {
      if (useful >> i & 1) found = entry[i];
    }
    return found;
  }
  __device__ void drop(u32 chunk) {
#pragma unroll
    for (u32 i = 0; i < kWindow; ++i) {
      if (entry[i] == chunk) useful &= ~(1u << i);
    }
  }
  // Entries before the first useful one will never be of use again.
  __device__ u32 cursor() const { return from + (useful ? __ffs(useful) - 1 : length); }
};

// Notes what NPUs begin with; a thread per NPU.
extern "C" __global__ void note_inputs(u32 npus, u64 words, const u32* own_begin, const u32* own,
                                       u32* have) {
  const u32 npu = blockIdx.x * blockDim.x + threadIdx.x;
  if (npu >= npus) return;
  for (u32 i = own_begin[npu]; i < own_begin[npu + 1]; ++i) {
    have[npu * words + own[i] / 32] |= 1u << (own[i] % 32);
  }
}

extern "C" __global__ void __launch_bounds__(512)
    greedy_steps(u32 npus, u32 team, u32 lag, u64 words, const u32* in_begin, const u32* in_source,
                 const u32* own_begin, const u32* own, const u64* log_begin, const u32* shift,
                 u32* cursor,     // per in-link, into its source's log
                 u32* log_chunk,  // per destination, in order of arrival
                 u32* log_start, u8* log_link,
                 u32* have,      // a bit per NPU and chunk that it has or is being sent
                 u32* received,  // after each of the last lag + 1 steps, per NPU
                 u64* missing,   // transfers yet to be made
                 u32* arrived, u32 first_step, u32 steps) {
  __shared__ u32 matched;
  __shared__ u32 finished;
  const u32 lane = threadIdx.x % team;
  const u32 teams = gridDim.x * blockDim.x / team;
  const u32 mine = (blockIdx.x * blockDim.x + threadIdx.x) / team;
  const u32 rounds = (npus + teams - 1) / teams;
  if (threadIdx.x == 0) matched = 0;
  __syncthreads();
  for (u32 turn = 0; turn < steps; ++turn) {
    const u32 step = first_step + turn;
    const u32 slots = lag + 1;
    u32* const now = received + (u64)(step % slots) * npus;
    const u32* const before = received + (u64)((step + slots - 1) % slots) * npus;
    const u32* const there = received + (u64)((step + slots - lag) % slots) * npus;
    // Every thread of a warp goes through every round: shuffles need all of them.
    for (u32 round = 0; round < rounds; ++round) {
      const u32 npu = mine + round * teams;
      const bool real = npu < npus;
      const u32 first_link = real ? in_begin[npu] : 0;
      const u32 degree = real ? in_begin[npu + 1] - first_link : 0;
      const u64 region = real ? log_begin[npu] : 0;
      const u32 total = real ? (u32)(log_begin[npu + 1] - region) : 0;
      const u32 count = real && step > 0 ? fresh(before + npu) : 0;
      const bool active = count < total && lane < degree;
      u32 available = 0, own_first = 0, own_count = 0;
      u64 source_region = 0;
      Window window;
      window.useful = window.from = window.length = 0;
      if (active) {
        const u32 source = in_source[first_link + lane];
        own_first = own_begin[source];
        own_count = own_begin[source + 1] - own_first;
        source_region = log_begin[source];
        available = own_count + (step >= lag ? fresh(there + source) : 0);
        window.from = cursor[first_link + lane];
      }
      const u32* const row = have + (u64)npu * words;
      u32 chosen = kNone;  // by this thread's link in this step
      // Moves the window on until it holds something useful or the log ends.
      const auto look = [&](bool wanted) {
        while (__any_sync(kWarp,
                          wanted && !window.useful && window.from + window.length < available)) {
          const bool looks = wanted && !window.useful && window.from + window.length < available;
          if (looks) {
            window.from += window.length;
            window.length = min(kWindow, available - window.from);
#pragma unroll
            for (u32 i = 0; i < kWindow; ++i) {
              const u32 at = window.from + i;
              window.entry[i] = i >= window.length ? kNone
                                : at < own_count
                                    ? own[own_first + at]
                                    : fresh(log_chunk + source_region + at - own_count);
            }
#pragma unroll
            for (u32 i = 0; i < kWindow; ++i) {
              if (i < window.length &&
                  !(fresh(row + window.entry[i] / 32) >> (window.entry[i] % 32) & 1)) {
                window.useful |= 1u << i;
              }
            }
          }
          // The bits of what was chosen in this step are not set yet.
          for (u32 other = 0; other < team; ++other) {
            const u32 taken = __shfl_sync(kWarp, chosen, other, team);
            if (looks && taken != kNone) window.drop(taken);
          }
        }
      };
      look(active);
      const u32 begins = degree ? (count + shift[npu]) % degree : 0;
      u32 earlier = 0, made = 0;  // choices before this link's, and all
      for (u32 place = 0; place < team; ++place) {
        const u32 chooser = degree ? (begins + place) % degree : 0;
        const bool mine_now = active && place < degree && lane == chooser;
        if (mine_now) {
          chosen = window.first();
          earlier = made;
        }
        const u32 taken = __shfl_sync(kWarp, mine_now ? chosen : kNone, chooser, team);
        const bool counts = place < degree && taken != kNone;
        made += counts;
        bool again = false;
        if (counts && active && chosen == kNone) {
          const u32 was = window.useful;
          window.drop(taken);
          again = was != 0 && window.useful == 0;
        }
        look(again);
      }
      if (chosen != kNone) {
        const u64 at = region + count + earlier;
        log_chunk[at] = chosen;
        log_start[at] = step;
        log_link[at] = (u8)lane;
        atomicOr(have + (u64)npu * words + chosen / 32, 1u << (chosen % 32));
        window.drop(chosen);
      }
      if (active) cursor[first_link + lane] = window.cursor();
      if (real && lane == 0) {
        now[npu] = count + made;
        if (made) atomicAdd(&matched, made);
      }
    }
    __syncthreads();
    if (threadIdx.x == 0 && matched) {
      atomicAdd(missing, 0ull - matched);
      matched = 0;
    }
    meet(arrived, gridDim.x * (turn + 1));
    if (threadIdx.x == 0) finished = fresh(missing) == 0;
    __syncthreads();
    if (finished) return;
  }
}

// How many transfers each in-link of each destination has; a block per destination.
extern "C" __global__ void count_lanes(const u32* in_begin, const u64* log_begin,
                                       const u8* log_link, u64* lane_size) {
  __shared__ u32 sizes[256];
  const u32 npu = blockIdx.x;
  for (u32 i = threadIdx.x; i < 256; i += blockDim.x) sizes[i] = 0;
  __syncthreads();
  for (u64 i = log_begin[npu] + threadIdx.x; i < log_begin[npu + 1]; i += blockDim.x) {
    atomicAdd(sizes + log_link[i], 1u);
  }
  __syncthreads();
  const u32 degree = in_begin[npu + 1] - in_begin[npu];
  for (u32 i = threadIdx.x; i < degree; i += blockDim.x) lane_size[in_begin[npu] + i] = sizes[i];
}

// Sorts each destination's log by in-link and keeps the order of arrival; a warp per destination.
extern "C" __global__ void sort_lanes(u32 npus, const u32* in_begin, const u64* log_begin,
                                      const u32* log_chunk, const u32* log_start,
                                      const u8* log_link, u64* lane_next, u32* chunk, u32* start) {
  const u32 npu = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (npu >= npus) return;
  u64* const next = lane_next + in_begin[npu];
  const u64 last = log_begin[npu + 1];
  for (u64 first = log_begin[npu]; first < last; first += 32) {
    const u64 i = first + lane;
    const bool real = i < last;
    const u32 link = real ? log_link[i] : 256u + lane;
    const u32 same = __match_any_sync(kWarp, link);
    const u32 rank = __popc(same & ((1u << lane) - 1));
    const u64 begin = real ? next[link] : 0;
    __syncwarp();
    if (real) {
      chunk[begin + rank] = log_chunk[i];
      start[begin + rank] = log_start[i];
      if (rank == 0) next[link] = begin + __popc(same);
    }
    __syncwarp();
  }
}
