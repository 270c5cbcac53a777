// One run: its events, and queries about them. Times are whole numbers of ticks;
// `tick` is one tick in seconds. Intervals (a link busy with a transfer) are grouped by link, arrivals by
// NPU, both in order of time. Other groupings are computed on demand.

/** @import { Columns, Facts, Fault, Groups, PathRow, Pick, TreeRow, Why } from "./types.d.ts" */

export const COPY = 0,
  REDUCE = 1;
const READS_INPUT = 0,
  MULTICAST = 1,
  REDUCE_TREE = 2;

/**
 * First index in [from, to) whose value is above `limit`.
 * @param {ArrayLike<number>} values @param {number} limit @param {number} from @param {number} to
 */
export function above(values, limit, from, to) {
  while (from < to) {
    const middle = (from + to) >>> 1;
    if (values[middle] > limit) to = middle;
    else from = middle + 1;
  }
  return from;
}

/** @param {Uint32Array} counts */
function begins(counts) {
  const begin = new Uint32Array(counts.length + 1);
  for (let i = 0; i < counts.length; i++) begin[i + 1] = begin[i] + counts[i];
  return begin;
}

/**
 * Indices of `keys` grouped by value, each group in order.
 * @param {Uint32Array | Int32Array} keys @param {number} groups
 */
function grouped(keys, groups) {
  const counts = new Uint32Array(groups);
  for (const key of keys) counts[key]++;
  const begin = begins(counts);
  const next = begin.slice();
  const index = new Uint32Array(keys.length);
  for (let i = 0; i < keys.length; i++) index[next[keys[i]]++] = i;
  return { begin, index, of: (/** @type {number} */ key) => index.subarray(begin[key], begin[key + 1]) };
}

export class Run {
  /** @type {Groups | undefined} */
  groups;
  /** @type {Groups | undefined} */
  intervalGroups;
  /** @type {Groups | undefined} */
  arrivalGroups;
  /** @type {Groups | undefined} */
  outLinks;
  /** @type {Groups | undefined} */
  inLinks;
  /** @type {Uint32Array | undefined} */
  arrivedAt;
  /** @type {{ chunk: number, rows: TreeRow[] } | undefined} */
  lastTree;
  /** @type {{ link: number, steps: [number, number][] } | undefined} */
  lastQueue;
  /** @type {PathRow[] | undefined} */
  chain;
  /** @type {Map<number, { sources: number[], targets: number[] }>} */
  ends = new Map(); // by lane

  /** @param {Facts} facts @param {Columns} columns */
  constructor(facts, columns) {
    this.facts = facts;
    this.columns = columns;
    this.tick = facts.tick_s;
    this.end = Math.max(1, facts.time_s / facts.tick_s);
    this.npus = facts.npus;
    this.links = facts.links;
    this.bins = facts.bins;
    this.src = columns.link_src;
    this.dst = columns.link_dst;
    this.linkBegin = begins(columns.link_count);
    this.npuBegin = begins(columns.npu_count);
    this.laneLinks = begins(columns.lane_links);
    this.begin = columns.busy_begin;
    this.transferOf = columns.busy_transfer;
    this.chunkOf = columns.chunk;
    this.transfers = columns.chunk.length;
    this.laneOf = new Uint32Array(this.transfers);
    for (let lane = 0, at = 0; lane < columns.lane_count.length; lane++) {
      this.laneOf.fill(lane, at, (at += columns.lane_count[lane]));
    }
    this.latency = Float64Array.from(columns.link_latency, (s) => (facts.pipelined ? s / facts.tick_s : 0));
    this.pathLinks = begins(columns.path_links);
    /** @type {Map<number, Fault[]>} */
    this.faultsOf = new Map();
    for (const fault of facts.faults)
      for (const link of fault.links) this.faultsOf.set(link, [...(this.faultsOf.get(link) ?? []), fault]);
  }

  get chunks() {
    return this.facts.total_chunks;
  }

  /** Whether the page has the transfers of a chunk. @param {number} chunk */
  hasChunk(chunk) {
    return chunk >= 0 && chunk < this.chunks && chunk % this.facts.every === 0;
  }

  /** @param {number} node */
  nodeName(node) {
    if (this.facts.names.length) return this.facts.names[node];
    return node < this.npus ? `NPU ${node}` : `switch ${node - this.npus}`;
  }
  /** @param {number} link */
  linkName(link) {
    return `${this.nodeName(this.src[link])} → ${this.nodeName(this.dst[link])}`;
  }
  /** A link's name without the words that all links share. @param {number} link */
  briefLink(link) {
    return this.linkName(link).replaceAll("NPU ", "");
  }
  /** The mean share of the time that links are busy. */
  get used() {
    const all = this.columns.utilisation;
    return all.reduce((sum, share) => sum + share, 0) / Math.max(1, all.length);
  }
  /** The bound over the leading time; null if unknown. */
  get share() {
    const { bound_s, leading_s } = this.facts;
    return bound_s && leading_s ? bound_s / leading_s : null;
  }
  /** Size over the leading time. */
  get algbw() {
    return this.facts.size_bytes / this.facts.leading_s;
  }
  /** Bus bandwidth of the leading time; 0 if it is undefined. */
  get busbw() {
    return (this.facts.busbw_Bps / this.facts.algbw_Bps) * this.algbw || 0;
  }
  /** @param {string} text a number or a name */
  nodeNamed(text) {
    const words = text.trim().toLowerCase();
    const named = this.facts.names.findIndex((name) => name.toLowerCase() === words);
    if (named >= 0) return named;
    const found = words.match(/^(npu|gpu|switch)?\s*#?(\d+)$/);
    const id = found ? Number(found[2]) + (found[1] === "switch" ? this.npus : 0) : -1;
    return id < this.facts.nodes ? id : -1;
  }
  /**
   * Resolve a text: "npu 3", "switch 1", "link 12", "chunk 40", a plain number (an NPU), a node's name, or the two
   * ends of a link as in `a/gpu0-tor`, `0 → 1` or `a/gpu0 tor`.
   * @param {string} text @returns {Pick | null}
   */
  named(text) {
    const words = text.trim().toLowerCase();
    const counted = words.match(/^(link|chunk)\s*#?(\d+)$/);
    if (counted) return { kind: /** @type {"link" | "chunk"} */ (counted[1]), id: Number(counted[2]) };
    const node = this.nodeNamed(words);
    if (node >= 0) return { kind: "npu", id: node };
    const link = this.linkNamed(words.replace(/^link\s+/, ""));
    return link >= 0 ? { kind: "link", id: link } : null;
  }
  /** @param {string} words */
  linkNamed(words) {
    // Names may contain the separator, so every position is tried.
    for (const { 0: sign, index } of words.matchAll(/\s*(?:->|→|–|-|,|\s)\s*/g)) {
      const from = this.nodeNamed(words.slice(0, index)),
        to = this.nodeNamed(words.slice(index + sign.length));
      if (from < 0 || to < 0) continue;
      const link = this.linksOf(from).out.find((one) => this.dst[one] === to);
      if (link !== undefined) return link;
    }
    return -1;
  }
  /** @param {number} chunk */
  bytesOf(chunk) {
    const sizes = this.columns.chunk_bytes;
    return sizes.length === 1 ? sizes[0] : sizes[chunk];
  }

  /** @param {number} tick */
  bin(tick) {
    return Math.min(this.bins - 1, Math.max(0, Math.floor((tick / this.end) * this.bins)));
  }
  /**
   * How busy a link is around a moment, 0 to 255; 0 before the first transfer, after the last, and
   * while the link is down.
   * @param {number} link @param {number} tick
   */
  busy(link, tick) {
    if (tick <= 0 || tick >= this.end || this.fault(link, tick)?.down) return 0;
    return this.columns.busy[link * this.bins + this.bin(tick)];
  }
  /** The fault of a link at a moment; if there are several, one that cuts the link. @param {number} link @param {number} tick */
  fault(link, tick) {
    const here = this.faultsOf.get(link)?.filter((fault) => fault.begin <= tick && tick < fault.end);
    return here?.find((fault) => fault.down) ?? here?.[0];
  }
  /** The number of ticks between two moments in which a link is down. @param {number} link @param {number} from @param {number} to */
  stalled(link, from, to) {
    let sum = 0;
    for (const fault of this.faultsOf.get(link) ?? [])
      if (fault.down) sum += Math.max(0, Math.min(to, fault.end) - Math.max(from, fault.begin));
    return sum;
  }
  /** The share of its data that an NPU has received, 0 to 1. @param {number} npu @param {number} tick */
  received(npu, tick) {
    const at = (tick / this.end) * this.bins;
    if (at >= this.bins) return this.columns.received_bytes[npu] > 0 ? 1 : 0;
    const row = npu * this.bins,
      k = Math.floor(at);
    const before = k > 0 ? this.columns.received[row + k - 1] : 0;
    return (before + (this.columns.received[row + k] - before) * (at - k)) / 255;
  }

  // --- intervals of a link

  /** @param {number} i */
  leaves(i) {
    return this.begin[i] + this.columns.busy_length[i];
  }
  /**
   * When the data of interval i have left the far end of the link.
   * @param {number} i @param {number} link
   */
  lands(i, link) {
    return this.leaves(i) + this.latency[link];
  }
  /**
   * Call visit(interval, share of the way) for each transfer on a link.
   * @param {number} link @param {number} tick @param {(interval: number, share: number) => void} visit
   */
  moving(link, tick, visit) {
    const first = this.linkBegin[link];
    for (let i = above(this.begin, tick, first, this.linkBegin[link + 1]) - 1; i >= first; i--) {
      const end = this.lands(i, link);
      if (end <= tick) break;
      const gone = tick - this.begin[i] - this.stalled(link, this.begin[i], tick);
      const whole = end - this.begin[i] - this.stalled(link, this.begin[i], this.leaves(i));
      visit(i, Math.min(gone / Math.max(whole, 1), 1));
    }
  }
  /** The interval that keeps a link busy, or -1. @param {number} link @param {number} tick */
  current(link, tick) {
    const i = above(this.begin, tick, this.linkBegin[link], this.linkBegin[link + 1]) - 1;
    return i >= this.linkBegin[link] && this.leaves(i) > tick ? i : -1;
  }
  /**
   * The first interval of a link that begins after a moment, or -1.
   * @param {number} link @param {number} tick
   */
  next(link, tick) {
    const i = above(this.begin, tick, this.linkBegin[link], this.linkBegin[link + 1]);
    return i < this.linkBegin[link + 1] ? i : -1;
  }
  /**
   * The nearest moment before or after another one at which a transfer starts.
   * @param {number} tick @param {boolean} forth
   */
  neighbour(tick, forth) {
    let best = forth ? this.end : 0;
    for (let link = 0; link < this.links; link++) {
      const first = this.linkBegin[link],
        last = this.linkBegin[link + 1];
      let i = above(this.begin, tick + (forth ? 0.5 : -1), first, last);
      if (forth && i < last) best = Math.min(best, this.begin[i]);
      if (!forth && --i >= first) best = Math.max(best, this.begin[i]);
    }
    return best;
  }

  // --- transfers

  get byChunk() {
    return (this.groups ??= grouped(this.chunkOf, this.chunks));
  }
  get intervalsByTransfer() {
    return (this.intervalGroups ??= grouped(this.transferOf, this.transfers));
  }
  get arrivalsByTransfer() {
    return (this.arrivalGroups ??= grouped(this.columns.arrival_transfer, this.transfers));
  }
  get npuOfArrival() {
    if (!this.arrivedAt) {
      this.arrivedAt = new Uint32Array(this.columns.arrival_time.length);
      for (let npu = 0; npu < this.npus; npu++) {
        this.arrivedAt.fill(npu, this.npuBegin[npu], this.npuBegin[npu + 1]);
      }
    }
    return this.arrivedAt;
  }
  /** @param {number} interval */
  linkOf(interval) {
    return above(this.linkBegin, interval, 0, this.links + 1) - 1;
  }
  /** @param {number} transfer */
  op(transfer) {
    return this.columns.lane_op[this.laneOf[transfer]];
  }
  /** @param {number} transfer */
  route(transfer) {
    const lane = this.laneOf[transfer];
    return this.columns.lane_link.subarray(this.laneLinks[lane], this.laneLinks[lane + 1]);
  }
  /** The sources and destinations of a transfer: the ends of its tree of links. @param {number} transfer */
  endsOf(transfer) {
    const lane = this.laneOf[transfer];
    let ends = this.ends.get(lane);
    if (!ends) {
      const route = [...this.route(transfer)],
        kind = this.columns.lane_kind[lane];
      const from = route.map((link) => this.src[link]),
        to = route.map((link) => this.dst[link]);
      const sources = kind === REDUCE_TREE ? from.filter((node) => !to.includes(node)) : from.slice(0, 1);
      const targets = kind === MULTICAST ? to.filter((node) => !from.includes(node)) : to.slice(-1);
      this.ends.set(lane, (ends = { sources, targets }));
    }
    return ends;
  }
  /** When a transfer takes its first link. @param {number} transfer */
  start(transfer) {
    let first = Infinity;
    for (const i of this.intervalsByTransfer.of(transfer)) first = Math.min(first, this.begin[i]);
    return first;
  }
  /** When a transfer has arrived at all destinations. @param {number} transfer */
  arrival(transfer) {
    let last = 0;
    for (const a of this.arrivalsByTransfer.of(transfer)) last = Math.max(last, this.columns.arrival_time[a]);
    if (last > 0) return last;
    for (const i of this.intervalsByTransfer.of(transfer))
      last = Math.max(last, this.lands(i, this.linkOf(i)));
    return last;
  }
  /** The transfers of a chunk in order of time. @param {number} chunk */
  tree(chunk) {
    if (this.lastTree?.chunk === chunk) return this.lastTree.rows;
    return (this.lastTree = { chunk, rows: this.grown(chunk) }).rows;
  }
  /** @param {number} chunk */
  grown(chunk) {
    if (!this.hasChunk(chunk)) return [];
    return [...this.byChunk.of(chunk)]
      .map((transfer) => ({
        transfer,
        begin: this.start(transfer),
        end: this.arrival(transfer),
        op: this.op(transfer),
        links: this.route(transfer),
        ...this.endsOf(transfer),
      }))
      .sort((a, b) => a.begin - b.begin || a.transfer - b.transfer);
  }
  /**
   * The last arrival of a chunk at a node up to a moment, or null.
   * @param {number} chunk @param {number} node @param {number} tick
   */
  lastArrival(chunk, node, tick) {
    const { byChunk, arrivalsByTransfer, npuOfArrival } = this,
      times = this.columns.arrival_time;
    let last = null;
    for (let k = byChunk.begin[chunk]; k < byChunk.begin[chunk + 1]; k++) {
      const transfer = byChunk.index[k];
      for (let j = arrivalsByTransfer.begin[transfer]; j < arrivalsByTransfer.begin[transfer + 1]; j++) {
        const a = arrivalsByTransfer.index[j];
        if (npuOfArrival[a] !== node || times[a] > tick || (last && times[a] <= last.time)) continue;
        last = { transfer, time: times[a] };
      }
    }
    return last;
  }

  // --- queries

  /** When the data of interval i were ready to be sent. @param {number} i */
  ready(i) {
    const transfer = this.transferOf[i],
      link = this.linkOf(i),
      node = this.src[link];
    const whole = node < this.npus || this.facts.whole_chunks;
    const { sources } = this.endsOf(transfer);
    if (!sources.includes(node)) {
      for (const other of this.intervalsByTransfer.of(transfer)) {
        const before = this.linkOf(other);
        if (this.dst[before] === node && whole) return { time: this.lands(other, before), by: transfer };
      }
    }
    if (this.columns.lane_reads[this.laneOf[transfer]] === READS_INPUT) return { time: 0, by: -1 };
    let last = { time: 0, by: -1 };
    for (const source of sources) {
      const latest = this.lastArrival(this.chunkOf[transfer], source, this.start(transfer));
      if (latest && latest.time > last.time) last = { time: latest.time, by: latest.transfer };
    }
    return last;
  }

  /** The number of ready transfers that wait for a link, as steps [tick, number]. @param {number} link */
  queue(link) {
    if (this.lastQueue?.link === link) return this.lastQueue.steps;
    return (this.lastQueue = { link, steps: this.queued(link) }).steps;
  }
  /** @param {number} link */
  queued(link) {
    const changes = [];
    for (let i = this.linkBegin[link]; i < this.linkBegin[link + 1]; i++) {
      const ready = Math.min(this.ready(i).time, this.begin[i]);
      if (ready < this.begin[i]) changes.push([ready, 1], [this.begin[i], -1]);
    }
    changes.sort((a, b) => a[0] - b[0]);
    /** @type {[number, number][]} */
    const steps = [[0, 0]];
    for (const [tick, change] of changes) {
      const top = steps[steps.length - 1];
      if (top[0] === tick) top[1] += change;
      else steps.push([tick, top[1] + change]);
    }
    return steps;
  }

  /**
   * Why interval i has not begun yet.
   * @param {number} i @param {number} tick @returns {Why}
   */
  why(i, tick) {
    const link = this.linkOf(i),
      ready = this.ready(i);
    if (ready.time > tick) {
      const from = ready.by < 0 ? -1 : this.endsOf(ready.by).sources[0];
      return { what: "data", until: ready.time, from };
    }
    for (const other of [link, ...this.route(this.transferOf[i])]) {
      const busy = this.current(other, tick);
      if (busy >= 0 && busy !== i) {
        const chunk = this.chunkOf[this.transferOf[busy]];
        return { what: other === link ? "link" : "way", until: this.leaves(busy), chunk, link: other };
      }
    }
    return { what: "schedule", until: this.begin[i] };
  }

  /** @param {number} node */
  linksOf(node) {
    this.outLinks ??= grouped(this.src, this.facts.nodes);
    this.inLinks ??= grouped(this.dst, this.facts.nodes);
    return { out: this.outLinks.of(node), into: this.inLinks.of(node) };
  }

  /**
   * The data of an NPU: chunks that arrived complete, and partial sums.
   * @param {number} npu @param {number} tick
   */
  holds(npu, tick) {
    const from = this.npuBegin[npu],
      to = this.npuBegin[npu + 1];
    const until = above(this.columns.arrival_time, tick, from, to);
    const whole = new Set(),
      sums = new Set();
    for (let a = from; a < until; a++) {
      const transfer = this.columns.arrival_transfer[a];
      (this.op(transfer) === COPY ? whole : sums).add(this.chunkOf[transfer]);
    }
    /** @type {number[]} */
    const own = [];
    this.columns.chunk_source.forEach((source, chunk) => source === npu && own.push(chunk));
    for (const chunk of whole) sums.delete(chunk);
    /** @param {Set<number>} set */
    const sorted = (set) => [...set].sort((a, b) => a - b);
    return { own, whole: sorted(whole), sums: sorted(sums), arrived: until - from, all: to - from };
  }

  /** The critical path as rows. */
  path() {
    const c = this.columns;
    return (this.chain ??= Array.from(c.path_chunk, (chunk, k) => {
      const links = c.path_link.subarray(this.pathLinks[k], this.pathLinks[k + 1]);
      const from = this.src[links[0]],
        to = this.dst[links[links.length - 1]];
      return { chunk, links, from, to, begin: c.path_begin[k], end: c.path_end[k], why: c.path_why[k] };
    }));
  }
}
