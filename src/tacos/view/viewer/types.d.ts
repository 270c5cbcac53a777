// The types that the viewer's modules share; `make lint` checks the modules against them. The page does
// not contain this file. view/record.py writes `Facts` and `Columns`; tests/view/test_page.py compares them.

/** Plain values of a run that the page uses. */
export interface Facts {
  name: string;
  title: string;
  subtitle: string;
  npus: number;
  nodes: number;
  links: number;
  /** Names of all nodes, or empty. */
  names: string[];
  pipelined: boolean;
  whole_chunks: boolean;
  /** Radius of a node, in units of the layout. */
  radius: number;
  /** Width of a link, in units of the layout. */
  width: number;
  /** The smallest distance between two NPUs, in units of the layout. */
  gap: number;
  frames: [left: number, top: number, right: number, bottom: number, label: string][];
  /** Largest factor by which the picture may be stretched in one direction. */
  elastic: number;
  /** Names of the classes of links (by bandwidth and latency), and of boxes. */
  classes: string[];
  boxes: string[];
  collective: string;
  size_bytes: number;
  engine: string | null;
  seed: number | null;
  /** Chunks per part; null if parts have different numbers of chunks. */
  chunks: number | null;
  total_chunks: number;
  transfers: number;
  /** How long this view takes. */
  time_s: number;
  /** The time that counts: the executed one or, in a simulation of the user's, the simulated one. */
  leading: string;
  leading_s: number;
  executed_s: number;
  ideal_s: number;
  algbw_Bps: number;
  busbw_Bps: number;
  utilisation_mean: number;
  /** Executed times in seconds: the slowest rule, and each rule. Null if they could not be computed. */
  executed: Record<
    "executed_s" | "executed_order_s" | "executed_first_come_s" | "executed_shared_s",
    number
  > | null;
  /** Whether the times were simulated and are not the schedule's own; then what was simulated, in words. */
  simulated: boolean;
  banner: string;
  /** What was simulated to go wrong. */
  disturbances: [kind: string, words: string][];
  faults: Fault[];
  bound_s: number | null;
  /** One unit of the columns' times. */
  tick_s: number;
  /** Equal parts of the time, in overviews. */
  bins: number;
  /** The page has the transfers of every n-th chunk; 1: of all chunks. */
  every: number;
  /** The chunks whose transfers the page has, in words. */
  chosen: string;
  reducing: boolean;
  notes: string[];
}

/** Links that are down or slow for a time; begin and end are ticks. */
export interface Fault {
  links: number[];
  begin: number;
  end: number;
  down: boolean;
  words: string;
}

/** Plain values of a timeline. */
export interface TimelineFacts {
  title: string;
  time_s: number;
  tick_s: number;
  ranks: number;
  /** Ranks that are in the page. */
  shown: number[];
  streams: string[];
  names: string[];
  categories: string[];
  /** Facts about the whole timeline, for the panel. */
  summary: [string, string][];
  /** Views of collectives: number and title. */
  opens: [number, string][];
  notes: string[];
  /** The most important sentence, or "". */
  headline: string;
  /** Per category, a colour of the theme and whether it is hatched; empty: colours in order. */
  looks: [colour: Exclude<keyof Colours, "shades" | "css">, hatched: boolean][];
  /** Ranks whose rows stand out. */
  marked: number[];
  /** Further facts about spans: names and values. */
  details: [string, string][][];
}

/** Columns of a timeline: spans in the order of rank, stream and time; times are ticks. */
export interface TimelineColumns {
  span_rank: Uint32Array;
  span_stream: Uint8Array;
  span_begin: Uint32Array;
  span_length: Uint32Array;
  span_name: Uint32Array;
  span_category: Uint8Array;
  span_bytes: Float64Array;
  /** Number of members of its group; 0: no group. */
  span_members: Uint32Array;
  /** The last span that it waited for, or -1. */
  span_after: Int32Array;
  /** The view that shows its collective, or -1. */
  span_view: Int32Array;
  /** Its index in `details`, if there are any. */
  span_detail?: Uint32Array;
}

/** A ring through NPUs, and the links of its hops. */
export interface Ring {
  npus: number[];
  links: number[];
}

/** One view of the page: runs, rings on the network of a run, or a timeline. */
export interface View {
  title: string;
  runs?: number[];
  rings?: Ring[];
  timeline?: number;
}

/** Columns of a run; times are ticks unless stated otherwise. */
export interface Columns {
  link_src: Int32Array;
  link_dst: Int32Array;
  link_bandwidth: Float64Array;
  /** Seconds. */
  link_latency: Float64Array;
  link_class: Uint8Array;
  /** The box of both ends, or -1. */
  link_box: Int32Array;
  /** Relative to the widest link. */
  link_wide: Float32Array;
  drawn_node: Uint32Array;
  node_xy: Float32Array;
  node_half: Float32Array;
  drawn_link: Uint32Array;
  link_points: Float32Array;
  link_kind: Uint8Array;
  busy: Uint8Array;
  utilisation: Float32Array;
  received: Uint8Array;
  received_bytes: Float64Array;
  received_least: Float32Array;
  received_median: Float32Array;
  received_most: Float32Array;
  lane_count: Uint32Array;
  lane_op: Uint8Array;
  lane_reads: Uint8Array;
  lane_kind: Uint8Array;
  lane_links: Uint32Array;
  lane_link: Uint32Array;
  chunk: Uint32Array;
  link_count: Uint32Array;
  busy_transfer: Uint32Array;
  busy_begin: Uint32Array;
  busy_length: Uint32Array;
  npu_count: Uint32Array;
  arrival_transfer: Uint32Array;
  arrival_time: Uint32Array;
  /** A single value if all chunks have the same size. */
  chunk_bytes: Float64Array;
  chunk_source: Int32Array;
  path_chunk: Uint32Array;
  path_begin: Uint32Array;
  path_end: Uint32Array;
  path_why: Uint8Array;
  path_links: Uint32Array;
  path_link: Uint32Array;
}

/** Per column: its name, type and length, and whether differences are stored. */
export type Layout = [
  name: string,
  type: "u8" | "u32" | "i32" | "f32" | "f64",
  count: number,
  differences: boolean,
][];

export type Kind = "npu" | "link" | "chunk";

/** An object that is selected or under the pointer. A switch is an "npu" too, since nodes are numbered together. */
export interface Pick {
  kind: Kind;
  id: number;
}

/** One transfer of a chunk's tree; begin and end are ticks. */
export interface TreeRow {
  transfer: number;
  begin: number;
  end: number;
  op: number;
  links: Uint32Array;
  sources: number[];
  targets: number[];
}

/** One transfer of the critical path. */
export interface PathRow {
  chunk: number;
  begin: number;
  end: number;
  links: Uint32Array;
  from: number;
  to: number;
  why: number;
}

/** Why a transfer has not begun. */
export type Why =
  | { what: "data"; until: number; from: number }
  | { what: "link" | "way"; until: number; chunk: number; link: number }
  | { what: "schedule"; until: number };

/** Indices grouped by a key. */
export interface Groups {
  begin: Uint32Array;
  index: Uint32Array;
  of(key: number): Uint32Array;
}

export type Rgb = number[];

/** The colours of the current theme; names are those of the style sheet. */
export type Colours = Record<
  | "paper"
  | "panel"
  | "ink"
  | "soft"
  | "line"
  | "copy"
  | "reduce"
  | "pick"
  | "path"
  | "fault"
  | "a"
  | "b"
  | "node"
  | "bar"
  | "fill",
  string
> & { shades: Rgb[]; css: string[] };

export interface Look {
  colours: Colours;
  path: boolean;
  /** Rings that are drawn instead of transfers. */
  rings?: Ring[];
  /** The ring that is selected, or -1. */
  ring: number;
}

/** Elements of viewer.html that are more than an HTMLElement, by id. */
export interface Elements {
  slider: HTMLInputElement;
  find: HTMLInputElement;
  speed: HTMLSelectElement;
  grouping: HTMLSelectElement;
  sorting: HTMLSelectElement;
  keys: HTMLDialogElement;
  progress: HTMLCanvasElement;
  histogram: HTMLCanvasElement;
}
