// The step-synchronous greedy matching on a GPU. The rule and the order of ties are those of
// cpp/synth/greedy_steps.cpp, and so is the schedule: a choice depends on earlier steps only.
//
// A team of threads serves a destination, one thread per in-link. Teams are powers of two, so that a
// warp holds whole teams and a team communicates by shuffles. In a step, each thread reads a window of
// its source's log, then the links choose in turn. All teams wait at a barrier after each step. A
// launch runs many steps; the host starts the next launch, and can stop in between.
//
// Written for NVRTC, without headers.

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

static constexpr u32 kThreads = 256;  // threads per block of the matching kernels
static constexpr u32 kBlocks = 5;     // least blocks per multiprocessor: enough threads for 40,000 NPUs
static constexpr u32 kNone = 0xffffffffu;
static constexpr u32 kWarp = 0xffffffffu;

// Reads memory that other threads may have written since the last barrier. This bypasses the
// first-level cache, which does not see their writes.
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

// A thread's window into the log of its link's source: the entries from the link's cursor on that it
// reads together.
template <u32 kWindow>
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
  // Entries before the first useful one will never be useful again.
  __device__ u32 cursor() const { return from + (useful ? __ffs(useful) - 1 : length); }
};

// Marks the chunks that NPUs hold at the start. One thread per NPU.
extern "C" __global__ void note_inputs(u32 npus, u64 words, const u32* own_begin, const u32* own,
                                       u32* have) {
  const u32 npu = blockIdx.x * blockDim.x + threadIdx.x;
  if (npu >= npus) return;
  for (u32 i = own_begin[npu]; i < own_begin[npu + 1]; ++i) {
    have[npu * words + own[i] / 32] |= 1u << (own[i] % 32);
  }
}

// A thread's data about its in-link and about the destination that its team serves.
template <u32 kWindow>
struct Seat {
  u32 npu, first_link, degree, shift;
  u32 total, count;  // chunks to send to the destination, and those sent so far
  u64 region;        // begin of the destination's log
  u32 source, own_first, own_count;
  u64 source_region;
  Window<kWindow> window;
};

struct Problem {
  const u32 *in_begin, *in_source, *own_begin, *own;
  const u64* log_begin;
  const u32* shift;
};

struct State {
  u32* cursor;     // per in-link, into its source's log
  u32* log_chunk;  // per destination, in order of arrival
  u32* log_start;
  u8* log_link;
  u32* have;      // a bit per NPU and chunk that it has or is being sent
  u32* received;  // chunks sent to each NPU by the end of each of the last lag + 1 steps
  u64* missing;   // transfers yet to be made
  u32* arrived;   // arrivals of blocks at the barrier, over all steps of this launch
};

// Runs the steps. If there is a team for each destination, threads keep their seats and windows from
// step to step; otherwise each team serves several destinations in turn.
template <bool kKeeps, u32 kWindow>
__device__ void match(u32 npus, u32 team, u32 lag, u64 words, const Problem& problem,
                      const State& state, u32 first_step, u32 steps) {
  const auto [in_begin, in_source, own_begin, own, log_begin, shift] = problem;
  const auto [cursor, log_chunk, log_start, log_link, have, received, missing, arrived] = state;
  __shared__ u32 matched;
  __shared__ u32 finished;
  const u32 lane = threadIdx.x % team;
  const u32 teams = gridDim.x * blockDim.x / team;
  const u32 mine = (blockIdx.x * blockDim.x + threadIdx.x) / team;
  const u32 rounds = kKeeps ? 1 : (npus + teams - 1) / teams;
  const u32 slots = lag + 1;
  if (threadIdx.x == 0) matched = 0;
  __syncthreads();

  const auto sit = [&](u32 npu, u32 step) {
    Seat<kWindow> seat;
    seat.npu = npu;
    const bool real = npu < npus;
    seat.first_link = real ? in_begin[npu] : 0;
    seat.degree = real ? in_begin[npu + 1] - seat.first_link : 0;
    seat.shift = real ? shift[npu] : 0;
    seat.region = real ? log_begin[npu] : 0;
    seat.total = real ? (u32)(log_begin[npu + 1] - seat.region) : 0;
    const u32 before = (step + slots - 1) % slots;
    seat.count = real && step > 0 ? fresh(received + (u64)before * npus + npu) : 0;
    seat.source = seat.own_first = seat.own_count = 0;
    seat.source_region = 0;
    seat.window.useful = seat.window.from = seat.window.length = 0;
    if (lane < seat.degree) {
      seat.source = in_source[seat.first_link + lane];
      seat.own_first = own_begin[seat.source];
      seat.own_count = own_begin[seat.source + 1] - seat.own_first;
      seat.source_region = log_begin[seat.source];
      seat.window.from = cursor[seat.first_link + lane];
    }
    return seat;
  };
  const auto rise = [&](const Seat<kWindow>& seat) {
    if (lane < seat.degree) cursor[seat.first_link + lane] = seat.window.cursor();
  };

  Seat<kWindow> seat;
  if (kKeeps) seat = sit(mine, first_step);
  for (u32 turn = 0; turn < steps; ++turn) {
    const u32 step = first_step + turn;
    u32* const now = received + (u64)(step % slots) * npus;
    const u32* const there = received + (u64)((step + slots - lag) % slots) * npus;
    // Every thread of a warp takes part in every round, as shuffles require.
    for (u32 round = 0; round < rounds; ++round) {
      if (!kKeeps) seat = sit(mine + round * teams, step);
      Window<kWindow>& window = seat.window;
      const u32 degree = seat.degree;
      const bool active = seat.count < seat.total && lane < degree;
      u32 available = 0;
      if (active) {
        available = seat.own_count + (step >= lag ? fresh(there + seat.source) : 0);
      }
      const u32* const row = have + (u64)seat.npu * words;
      u32 chosen = kNone;  // by this thread's link in this step
      // Moves the window on until it has a useful entry or the log ends.
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
              window.entry[i] =
                  i >= window.length ? kNone
                  : at < seat.own_count
                      ? own[seat.own_first + at]
                      : fresh(log_chunk + seat.source_region + at - seat.own_count);
            }
#pragma unroll
            for (u32 i = 0; i < kWindow; ++i) {
              if (i < window.length &&
                  !(fresh(row + window.entry[i] / 32) >> (window.entry[i] % 32) & 1)) {
                window.useful |= 1u << i;
              }
            }
          }
          // Chunks chosen in this step are not marked in `have` yet.
          for (u32 other = 0; other < team; ++other) {
            const u32 taken = __shfl_sync(kWarp, chosen, other, team);
            if (looks && taken != kNone) window.drop(taken);
          }
        }
      };
      look(active);
      const u32 begins = degree ? (seat.count + seat.shift) % degree : 0;
      const u32 turn_of_mine = (lane + degree - begins) % max(degree, 1u);
      u32 earlier = 0, made = 0;  // choices before this link's, and all
      for (u32 place = 0; place < team; ++place) {
        const u32 chooser = begins + place < degree ? begins + place : begins + place - degree;
        const bool mine_now = active && place < degree && lane == chooser;
        if (mine_now) {
          chosen = window.first();
          earlier = made;
        }
        const u32 taken =
            __shfl_sync(kWarp, mine_now ? chosen : kNone, chooser & (team - 1), team);
        const bool counts = place < degree && taken != kNone;
        made += counts;
        if (counts && active) window.drop(taken);
        look(active && turn_of_mine > place);
      }
      if (chosen != kNone) {
        const u64 at = seat.region + seat.count + earlier;
        log_chunk[at] = chosen;
        log_start[at] = step;
        log_link[at] = (u8)lane;
        atomicOr(have + (u64)seat.npu * words + chosen / 32, 1u << (chosen % 32));
      }
      seat.count += made;
      if (seat.npu < npus && lane == 0) {
        now[seat.npu] = seat.count;
        if (made) atomicAdd(&matched, made);
      }
      if (!kKeeps) rise(seat);
    }
    __syncthreads();
    if (threadIdx.x == 0 && matched) {
      atomicAdd(missing, 0ull - matched);
      matched = 0;
    }
    meet(arrived, gridDim.x * (turn + 1));
    if (threadIdx.x == 0) finished = fresh(missing) == 0;
    __syncthreads();
    if (finished) break;
  }
  if (kKeeps) rise(seat);
}

// A kept window pays off with more entries than one that is read anew in each step.
extern "C" __global__ void __launch_bounds__(kThreads, kBlocks)
    match_keeping(u32 npus, u32 team, u32 lag, u64 words, Problem problem, State state,
                  u32 first_step, u32 steps) {
  match<true, 8>(npus, team, lag, words, problem, state, first_step, steps);
}

extern "C" __global__ void __launch_bounds__(kThreads)
    match_in_rounds(u32 npus, u32 team, u32 lag, u64 words, Problem problem, State state,
                    u32 first_step, u32 steps) {
  match<false, 4>(npus, team, lag, words, problem, state, first_step, steps);
}

// Counts the transfers of each in-link of each destination. One block per destination.
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

// Sorts each destination's log by in-link, in place, and keeps the order of arrival. A warp sorts one
// log at a time; its part of `spare`, of `longest` entries, holds a copy of the log meanwhile.
extern "C" __global__ void sort_lanes(u32 npus, u64 longest, const u32* in_begin,
                                      const u64* log_begin, const u8* log_link,
                                      const u64* lane_begin, u32* log_chunk, u32* log_start,
                                      u32* spare) {
  const u32 warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  const u32 warps = gridDim.x * blockDim.x / 32;
  const u32 earlier = (1u << lane) - 1;  // threads of the warp before this one
  u32* const chunks = spare + 2 * longest * warp;
  u32* const starts = chunks + longest;
  for (u32 npu = warp; npu < npus; npu += warps) {
    const u32 degree = in_begin[npu + 1] - in_begin[npu];
    const u64 begin = log_begin[npu], size = log_begin[npu + 1] - begin;
    for (u64 i = lane; i < size; i += 32) {
      chunks[i] = log_chunk[begin + i];
      starts[i] = log_start[begin + i];
    }
    __syncwarp();
    // Thread k of the warp knows where the next entry of in-link k goes.
    u64 next = lane < degree ? lane_begin[in_begin[npu] + lane] : 0;
    u32 link = kNone, chunk = 0, start = 0;
    const auto load = [&](u64 i) {
      link = i < size ? log_link[begin + i] : kNone;
      chunk = i < size ? chunks[i] : 0;
      start = i < size ? starts[i] : 0;
    };
    load(lane);
    for (u64 first = 0; first < size; first += 32) {
      const u32 its_link = link, its_chunk = chunk, its_start = start;
      load(first + 32 + lane);  // ahead of its use
      u32 rank = 0, more = 0;
      for (u32 one = 0; one < degree; ++one) {
        const u32 same = __ballot_sync(kWarp, its_link == one);
        if (its_link == one) rank = __popc(same & earlier);
        if (lane == one) more = __popc(same);
      }
      const u64 to = __shfl_sync(kWarp, next, its_link & 31) + rank;
      next += more;
      if (its_link != kNone) {
        log_chunk[to] = its_chunk;
        log_start[to] = its_start;
      }
    }
  }
}
