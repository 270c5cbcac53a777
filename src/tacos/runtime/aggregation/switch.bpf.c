// A switch that adds up, in the kernel: contributions are added, and answered, before the network stack sees them.
//
// The program in user space does the joining, and enters a job here when its generation begins. `add` runs for each frame
// of the interface. It takes contributions to the jobs that are entered, and passes everything else on. The state of a
// slot and its rules are those of cpp/aggregation/switch.hpp. The packet that completes a sum becomes the result;
// `spread` sends a copy of it to each worker. Compiled by clang when a switch is started, without any header.

typedef unsigned char u8;
typedef unsigned short u16;
typedef short s16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define SECTION(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))

// What the kernel calls xdp_md and __sk_buff, as far as it is used here.
struct frame {
  u32 data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex;
};
struct buffer {
  u32 len, pkt_type, mark, queue_mapping, protocol, vlan_present, vlan_tci, vlan_proto, priority;
  u32 ingress_ifindex, ifindex, tc_index, cb[5], hash, tc_classid, data, data_end;
};

static void *(*lookup)(void *map, const void *key) = (void *)1;
static u32 (*random)(void) = (void *)7;
static long (*store)(void *buffer, u32 offset, const void *from, u32 bytes, u64 flags) = (void *)9;
static long (*clone_redirect)(void *buffer, u32 interface, u64 flags) = (void *)13;
static long (*adjust_tail)(void *frame, int delta) = (void *)65;
struct lock {
  u32 value;
};
static void (*acquire)(struct lock *) = (void *)93;
static void (*release)(struct lock *) = (void *)94;

enum { XDP_DROP = 1, XDP_PASS = 2, XDP_TX = 3 };
enum { TC_NEXT = -1, TC_SHOT = 2 };
enum { ARRAY = 2, PERCPU_ARRAY = 6 };

// --- packets

struct __attribute__((packed)) headers {
  u8 to[6], from[6];
  u16 protocol;
  u8 version_length, service;
  u16 length, id, fragment;
  u8 hops, transport;
  u16 checksum;
  u32 source, target;
  u16 source_port, target_port, udp_length, udp_checksum;
};

struct packet {
  u16 magic;
  u8 version, kind;
  u32 job;
  u64 generation;
  u32 sequence, tag;
  u16 slot, worker, elements;
  s16 exponent;
};
enum { CONTRIBUTION = 1, RESULT = 2, NOTICE = 5, MISMATCH = 9 };
enum { MAGIC = 0x7AC0, PROTOCOL = 1, VERSION_BIT = 0x8000, WAITING = 1 };

struct notice {
  u64 incarnation, members;
  u32 attempt;
  u8 code, unused[3];
};

#define HEADERS 42
#define MOST_WORKERS 64
#define MOST_ELEMENTS 360  // an MTU of 1500
#define STEP 8             // elements per turn of a loop

INLINE u16 swapped(u16 x) { return __builtin_bswap16(x); }

// --- maps: the loader creates them, with the entries that user space asks for

struct map {
  u32 type, value_bytes, entries;
};
#define MAP(name, kind, value) struct map name SECTION("maps") = {kind, sizeof(value), 1}

struct child {  // where a worker's packets came from last
  u32 address;
  u16 port;
  u8 hardware[6];
};
struct job {
  u64 generation, children;
  u32 first, pool;  // of its slots
  u32 packet_elements, unused;
  struct child child[MOST_WORKERS];
};
struct slot {  // one version
  struct lock lock;
  u32 sequence;
  u64 generation, seen;
  u32 tag;
  u16 elements;
  s16 exponent;
  u32 done, unused;
  u32 sums[MOST_ELEMENTS];
};
struct settings {
  u32 address, loss;  // loss: of 2^32
  u16 port, unused[3];
};
// In the order of cpp/aggregation/kernel.hpp.
enum {
  PACKETS, CONTRIBUTIONS, DUPLICATES, RESENT, OLD, EARLY, OUT_OF_RANGE, MISMATCHED, MALFORMED,
  RESULTS, SENT, LOST_IN, LOST_OUT, BYTES_IN, BYTES_OUT, COUNTERS
};
struct counters {
  u64 of[COUNTERS];
};
struct tally {  // of a job
  u64 contributions, results, duplicates;
};

MAP(settings_map, ARRAY, struct settings);
MAP(jobs_map, ARRAY, struct job);
MAP(slots_map, ARRAY, struct slot);
MAP(counters_map, PERCPU_ARRAY, struct counters);
MAP(tallies_map, ARRAY, struct tally);

// --- adding up

// The verifier follows every way through these loops, and remembers what each says about the registers in use. So each
// loop appears once, and what follows it reads pointers and lengths anew.
INLINE void take(struct slot *slot, const u32 *words, const void *end, u32 elements, u32 keep) {
  for (u32 i = 0; i < MOST_ELEMENTS; i += STEP) {
    if (i + STEP > elements || (const void *)(words + i + STEP) > end) break;
#pragma unroll
    for (u32 k = 0; k < STEP; ++k) slot->sums[i + k] = (slot->sums[i + k] & keep) + words[i + k];
  }
  const u32 rest = elements / STEP * STEP;
  for (u32 k = 0; k < STEP; ++k) {
    const u32 i = rest + k;
    if (i >= elements || i >= MOST_ELEMENTS) break;
    const u32 *word = words + i;
    if ((const void *)(word + 1) > end) break;
    slot->sums[i] = (slot->sums[i] & keep) + *word;
  }
}

INLINE void give(const struct slot *slot, u32 *words, const void *end, u32 elements) {
  for (u32 i = 0; i < MOST_ELEMENTS; i += STEP) {
    if (i + STEP > elements || (const void *)(words + i + STEP) > end) break;
#pragma unroll
    for (u32 k = 0; k < STEP; ++k) words[i + k] = slot->sums[i + k];
  }
  const u32 rest = elements / STEP * STEP;
  for (u32 k = 0; k < STEP; ++k) {
    const u32 i = rest + k;
    if (i >= elements || i >= MOST_ELEMENTS) break;
    u32 *word = words + i;
    if ((const void *)(word + 1) > end) break;
    *word = slot->sums[i];
  }
}

INLINE void set_checksum(struct headers *h) {
  h->checksum = 0;
  u32 sum = 0;
  const u16 *words = (const u16 *)&h->version_length;
#pragma unroll
  for (int i = 0; i < 10; ++i) sum += words[i];
  sum = (sum & 0xffff) + (sum >> 16);
  sum = (sum & 0xffff) + (sum >> 16);
  h->checksum = (u16)~sum;
}

// From here back to the sender.
INLINE void turn_around(struct headers *h) {
  u8 hardware[6];
  __builtin_memcpy(hardware, h->to, 6);
  __builtin_memcpy(h->to, h->from, 6);
  __builtin_memcpy(h->from, hardware, 6);
  const u32 address = h->source;
  h->source = h->target;
  h->target = address;
  const u16 port = h->source_port;
  h->source_port = h->target_port;
  h->target_port = port;
  h->udp_checksum = 0;
  h->hops = 64;
  set_checksum(h);
}

// Volatile, so that they are read again, see above.
INLINE void *start_of(const struct frame *frame) {
  return (void *)(u64) * (const volatile u32 *)&frame->data;
}
INLINE void *end_of(const struct frame *frame) {
  return (void *)(u64) * (const volatile u32 *)&frame->data_end;
}

enum verdict { ADDED, FINISHED, HELD, STORED, LATE, SOON, OTHER };

SECTION("xdp") int add(struct frame *frame) {
  void *data = (void *)(u64)frame->data, *end = (void *)(u64)frame->data_end;
  struct headers *h = data;
  struct packet *p = data + HEADERS;
  if ((void *)(p + 1) > end) return XDP_PASS;
  if (h->protocol != swapped(0x0800) || h->version_length != 0x45 || h->transport != 17 ||
      (h->fragment & swapped(0x3fff)) != 0) {
    return XDP_PASS;
  }
  const u32 zero = 0;
  const struct settings *settings = lookup(&settings_map, &zero);
  struct counters *count = lookup(&counters_map, &zero);
  if (!settings || !count) return XDP_PASS;
  if (h->target_port != settings->port || h->target != settings->address) return XDP_PASS;
  if (p->magic != MAGIC || p->version != PROTOCOL) return XDP_PASS;
  if (p->kind == RESULT || p->kind == MISMATCH) {  // these kinds are said by this program only
    ++count->of[PACKETS];
    ++count->of[MALFORMED];
    return XDP_DROP;
  }
  if (p->kind != CONTRIBUTION) return XDP_PASS;
  const u32 number = p->job;
  struct job *job = lookup(&jobs_map, &number);
  if (!job || job->generation == 0 || job->generation != p->generation) return XDP_PASS;

  const u32 elements = p->elements;
  const u32 bytes = swapped(h->udp_length);
  if (settings->loss && random() < settings->loss) {
    ++count->of[LOST_IN];
    return XDP_DROP;
  }
  ++count->of[PACKETS];
  count->of[BYTES_IN] += bytes - 8;
  if (bytes != 8 + sizeof *p + 4 * elements ||
      (void *)p + sizeof *p + 4 * (elements & 0xffff) > end) {
    ++count->of[MALFORMED];
    return XDP_DROP;
  }
  const u32 index = p->slot & (VERSION_BIT - 1), version = p->slot >> 15;
  const u32 worker = p->worker;
  if (worker >= MOST_WORKERS || !(job->children >> worker & 1) || index > job->pool ||
      elements > job->packet_elements || elements > MOST_ELEMENTS ||
      job->child[worker].address != h->source) {
    ++count->of[OUT_OF_RANGE];
    return XDP_DROP;
  }
  const u32 place = 2 * (job->first + index);
  const u32 mine = place + version, twin = place + 1 - version;
  struct slot *slot = lookup(&slots_map, &mine), *other = lookup(&slots_map, &twin);
  struct tally *tally = lookup(&tallies_map, &number);
  if (!slot || !other || !tally) return XDP_PASS;
  // A switch below may send from several ports; answers go where the worker was heard last.
  job->child[worker].port = h->source_port;
  __builtin_memcpy(job->child[worker].hardware, h->from, 6);

  const u64 bit = 1ull << worker, generation = p->generation, children = job->children;
  const u32 stride = index == job->pool ? 2 : 2 * job->pool;
  const u32 sequence = p->sequence, tag = p->tag;
  const s16 exponent = p->exponent;
  u32 *words = (u32 *)(p + 1);
  u64 seen = 0;
  s16 greatest = 0;
  enum verdict verdict;

  // The other version needs no lock: a worker begins this use when it has the other's result, so that one is done by now,
  // and stays so until this use has ended.
  const u32 ready = *(volatile u32 *)&other->done;
  acquire(&slot->lock);
  const u32 ahead = sequence - slot->sequence;
  if (slot->generation != generation) {
    verdict = LATE;  // user space is changing the generation
  } else if (ahead != 0 && ahead != stride) {
    verdict = (int)ahead < 0 ? LATE : SOON;
  } else if (ahead == stride && (!slot->done || !ready)) {
    verdict = SOON;
  } else {
    const int first = ahead == stride;
    if (first) {
      slot->sequence = sequence;
      slot->seen = 0;
      slot->done = 0;
      slot->tag = tag;
      slot->elements = elements;
      slot->exponent = exponent;
    }
    if (slot->tag != tag || slot->elements != elements) {
      verdict = OTHER;
    } else {
      verdict = slot->seen & bit ? HELD : ADDED;
      if (verdict == ADDED) {
        take(slot, words, end, elements, first ? 0 : ~0u);
        if (exponent > slot->exponent) slot->exponent = exponent;
        slot->seen |= bit;
      }
      if (slot->seen == children) {
        verdict = verdict == ADDED ? FINISHED : STORED;
        slot->done = 1;
        const u32 stored = *(volatile u16 *)&slot->elements;
        give(slot, start_of(frame) + HEADERS + sizeof *p, end_of(frame), stored);
      }
    }
  }
  seen = slot->seen;
  greatest = slot->exponent;
  release(&slot->lock);
  data = start_of(frame);
  end = end_of(frame);
  h = data;
  p = data + HEADERS;
  if ((void *)(p + 1) > end) return XDP_DROP;

  if (verdict == ADDED || verdict == FINISHED) {
    ++count->of[CONTRIBUTIONS];
    __sync_fetch_and_add(&tally->contributions, 1);
  }
  switch (verdict) {
    case ADDED:
      return XDP_DROP;
    case FINISHED:
      ++count->of[RESULTS];
      __sync_fetch_and_add(&tally->results, 1);
      p->kind = RESULT;
      p->exponent = greatest;
      h->udp_checksum = 0;
      return XDP_PASS;  // to `spread`
    case STORED:
      ++count->of[RESENT];
      ++count->of[SENT];
      count->of[BYTES_OUT] += swapped(h->udp_length) - 8;
      p->kind = RESULT;
      p->exponent = greatest;
      turn_around(h);
      return XDP_TX;
    case LATE:
      ++count->of[OLD];
      return XDP_DROP;
    case SOON:
      ++count->of[EARLY];
      return XDP_DROP;
    case OTHER:  // user space ends the job
      ++count->of[MISMATCHED];
      p->kind = MISMATCH;
      h->udp_checksum = 0;
      return XDP_PASS;
    case HELD:
      break;
  }
  // The sum waits for other workers: say for whom, so that the sender knows that the switch lives.
  ++count->of[DUPLICATES];
  __sync_fetch_and_add(&tally->duplicates, 1);
  const u16 length = sizeof(struct packet) + sizeof(struct notice);
  if (adjust_tail(frame, (int)sizeof(struct notice) - 4 * (int)p->elements)) return XDP_DROP;
  data = start_of(frame);
  end = end_of(frame);
  h = data;
  p = data + HEADERS;
  struct notice *body = (void *)(p + 1);
  if ((void *)(body + 1) > end) return XDP_DROP;
  p->kind = NOTICE;
  p->job = p->tag = 0;
  p->worker = p->elements = 0;
  p->exponent = 0;
  __builtin_memset(body, 0, sizeof *body);
  body->members = seen;
  body->code = WAITING;
  h->udp_length = swapped(8 + length);
  h->length = swapped(28 + length);
  turn_around(h);
  ++count->of[SENT];
  count->of[BYTES_OUT] += length;
  return XDP_TX;
}

// --- copies for all workers

SECTION("tc") int spread(struct buffer *buffer) {
  void *data = (void *)(u64)buffer->data, *end = (void *)(u64)buffer->data_end;
  struct packet *p = data + HEADERS;
  if ((void *)(p + 1) > end) return TC_NEXT;
  struct headers h;
  __builtin_memcpy(&h, data, HEADERS);
  const u32 zero = 0;
  const struct settings *settings = lookup(&settings_map, &zero);
  struct counters *count = lookup(&counters_map, &zero);
  if (!settings || !count) return TC_NEXT;
  if (h.protocol != swapped(0x0800) || h.version_length != 0x45 || h.transport != 17 ||
      h.target_port != settings->port || h.target != settings->address || p->magic != MAGIC ||
      p->version != PROTOCOL || p->kind != RESULT) {
    return TC_NEXT;
  }
  const u32 number = p->job;
  const struct job *job = lookup(&jobs_map, &number);
  if (!job || job->generation != p->generation) return TC_SHOT;
  const u64 children = job->children;
  const u32 interface = buffer->ifindex, bytes = swapped(h.udp_length) - 8;
  __builtin_memcpy(h.from, h.to, 6);
  h.source = h.target;
  h.source_port = h.target_port;
  h.udp_checksum = 0;
  h.hops = 64;
  for (u32 worker = 0; worker < MOST_WORKERS; ++worker) {
    if (!(children >> worker & 1)) continue;
    if (settings->loss && random() < settings->loss) {
      ++count->of[LOST_OUT];
      continue;
    }
    __builtin_memcpy(h.to, job->child[worker].hardware, 6);
    h.target = job->child[worker].address;
    h.target_port = job->child[worker].port;
    set_checksum(&h);
    if (store(buffer, 0, &h, HEADERS, 0) || clone_redirect(buffer, interface, 0)) continue;
    ++count->of[SENT];
    count->of[BYTES_OUT] += bytes;
  }
  return TC_SHOT;
}
