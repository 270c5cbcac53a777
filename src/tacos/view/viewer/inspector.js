// The panel beside the picture describes the selection. Its buttons select other things or go to moments.

import { REDUCE } from "./run.js";
import { bandwidth, count, escaped, moment, percent, ranges, size, time } from "./format.js";
import { ringColour } from "./theme.js";
/** @import { Facts, Kind, PathRow, Pick, TreeRow, View } from "./types.d.ts" */
/** @import { Run } from "./run.js" */

const ROWS = 60; // most rows of a table; the others are only counted
const LINES = 12; // most lines of a list

/**
 * The panel's HTML for one run at a moment.
 * @param {Run} run @param {Pick | null} pick @param {number} tick @param {boolean} path
 */
export function inspect(run, pick, tick, path) {
  if (pick?.kind === "npu") return node(run, pick.id, tick);
  if (pick?.kind === "link") return link(run, pick.id, tick);
  if (pick?.kind === "chunk") return chunk(run, pick.id, tick);
  return path ? critical(run, tick) : overview(run);
}

/** @param {Run} run @param {number} tick */
const at = (run, tick) => escaped(moment(tick * run.tick, run.facts.time_s));
/** @param {Run} run @param {number} tick */
const go = (run, tick) => `<button class="time" data-seconds="${tick * run.tick}">${at(run, tick)}</button>`;
/** @param {Kind} kind @param {number} id @param {string | number} words */
const choose = (kind, id, words) => `<button data-kind="${kind}" data-id="${id}">${escaped(words)}</button>`;
/** @param {Run} run @param {number} id */
const toNode = (run, id) => choose("npu", id, run.nodeName(id));
/** @param {Run} run @param {number} id */
const toBrief = (run, id) =>
  choose("npu", id, run.facts.names[id] ?? (id < run.npus ? `${id}` : `switch ${id - run.npus}`));
/** @param {Run} run @param {number} id */
const toLink = (run, id) => choose("link", id, run.linkName(id));
/** @param {number} id */
const toChunk = (id) => choose("chunk", id, `chunk ${id}`);
/** @param {string[][]} rows */
const facts = (rows) =>
  `<dl>${rows.map(([name, value]) => `<dt>${name}</dt><dd>${value}</dd>`).join("")}</dl>`;
/** @param {string[]} items @param {string} none */
const list = (items, none) =>
  items.length
    ? `<ul>${items.map((item) => `<li>${item}</li>`).join("")}</ul>`
    : `<p class="none">${none}</p>`;
/** @param {number} shown @param {number} all @param {string} what */
const rest = (shown, all, what) =>
  all > shown ? `<p class="none">and ${count(all - shown)} more ${what}</p>` : "";

/**
 * The ends of a transfer on one side.
 * @param {Run} run @param {number} transfer @param {"to" | "from"} side
 */
function others(run, transfer, side) {
  const { sources, targets } = run.endsOf(transfer);
  return (side === "to" ? targets : sources).map((end) => toNode(run, end)).join(" ");
}

/** A note, if the page does not have all transfers. @param {Facts} f */
function chosen(f) {
  return f.every > 1 ? `<p class="none">This page has the transfers of ${f.chosen} only.</p>` : "";
}

/** @param {Run} run */
function overview(run) {
  const f = run.facts;
  const rows = [
    ["collective", `${escaped(f.collective)}, ${size(f.size_bytes)}`],
    ...(f.leading === "executed" ? [] : [[f.leading, time(f.leading_s)]]),
    ["executed", executedTimes(f)],
    ["bound", f.bound_s ? time(f.bound_s) : "not computed"],
    ["of the bound", run.share === null ? "–" : percent(run.share)],
    ["algbw", bandwidth(run.algbw)],
    ["busbw", bandwidth(run.busbw)],
    ["ideal", time(f.ideal_s)],
    ["engine", escaped(f.engine ?? "–")],
    ["seed", escaped(f.seed ?? "–")],
    [
      "chunks",
      `${f.chunks === null ? "" : `${count(f.chunks)} per part, `}${count(f.total_chunks)} in all${run.columns.chunk_bytes.length === 1 ? ` of ${size(run.bytesOf(0))}` : ""}`,
    ],
    ["transfers", count(f.transfers)],
    ["links busy", `${percent(run.used)} of the time`],
  ];
  for (const [kind, words] of f.disturbances) rows.push([escaped(kind), escaped(words)]);
  return `<h2>${escaped(f.title)}</h2><p class="sub">${escaped(f.subtitle)}</p>${facts(rows)}
    <p class="hint">Click an NPU or a link, or type into <b>Find</b>. Press <kbd>?</kbd> for all keys.</p>`;
}

/** @param {Run} run @param {number} id @param {number} tick */
function node(run, id, tick) {
  if (id >= run.facts.nodes) return `<p class="none">There is no node ${id} here.</p>`;
  const { out, into } = run.linksOf(id);
  const next = waiting(run, out, tick);
  return `<h2>${escaped(run.nodeName(id))}</h2>
    ${id < run.npus ? facts(holdings(run, id, tick)) : ""}${chosen(run.facts)}
    <h3>Sends now</h3>${list(moving(run, out, tick, "to"), "nothing")}
    <h3>Sends next, and why it waits</h3>
    ${list(next.slice(0, LINES), "nothing left to send")}${rest(LINES, next.length, "links")}
    <h3>Receives now</h3>${list(moving(run, into, tick, "from"), "nothing")}`;
}

/** The data that an NPU holds. @param {Run} run @param {number} npu @param {number} tick */
function holdings(run, npu, tick) {
  const held = run.holds(npu, tick);
  const share = run.received(npu, tick),
    all = run.columns.received_bytes[npu];
  const part = `${size(share * all)} of ${size(all)} (${percent(share)})`;
  const rows = [["received", all ? part : "nothing"]];
  if (held.own.length) rows.push(["own data", `chunks ${ranges(held.own)}`]);
  else if (run.facts.reducing) rows.push(["own data", "a contribution to the sums"]);
  rows.push(["complete", held.whole.length ? `chunks ${ranges(held.whole)}` : "none yet"]);
  if (run.facts.reducing)
    rows.push(["partial sums", held.sums.length ? `chunks ${ranges(held.sums)}` : "none"]);
  return rows;
}

/**
 * The chunks on some links, with their destinations or sources.
 * @param {Run} run @param {Iterable<number>} links @param {number} tick @param {"to" | "from"} side
 */
function moving(run, links, tick, side) {
  /** @type {string[]} */
  const items = [];
  for (const one of links) {
    run.moving(one, tick, (i) => {
      const transfer = run.transferOf[i];
      const added = run.op(transfer) === REDUCE ? " to be added" : "";
      const arrow = side === "to" ? "→" : "←";
      items.push(`${toChunk(run.chunkOf[transfer])}${added} ${arrow} ${others(run, transfer, side)}`);
    });
  }
  return items;
}

/**
 * The next transfer of each of some links, the earliest first, and why it has not begun.
 * @param {Run} run @param {Iterable<number>} links @param {number} tick
 */
function waiting(run, links, tick) {
  return [...links]
    .map((one) => run.next(one, tick))
    .filter((i) => i >= 0)
    .sort((a, b) => run.begin[a] - run.begin[b])
    .map((i) => {
      const transfer = run.transferOf[i];
      const what = `${toChunk(run.chunkOf[transfer])} → ${others(run, transfer, "to")}`;
      return `${what} at ${go(run, run.begin[i])}<br><small>${because(run, i, tick)}</small>`;
    });
}

/** Why an interval has not begun, in words. @param {Run} run @param {number} i @param {number} tick */
function because(run, i, tick) {
  const why = run.why(i, tick);
  if (why.what === "data") {
    const from = why.from >= 0 ? ` from ${toNode(run, why.from)}` : "";
    return `waits for its data${from}, which arrive at ${go(run, why.until)}`;
  }
  if (why.what === "link")
    return `waits for the link, busy with ${toChunk(why.chunk)} until ${go(run, why.until)}`;
  if (why.what === "way") {
    const until = `busy with ${toChunk(why.chunk)} until ${go(run, why.until)}`;
    return `waits for ${toLink(run, why.link)} on its way, ${until}`;
  }
  return "its data and links are ready, but the schedule starts it later";
}

/** @param {Run} run @param {number} id @param {number} tick */
function link(run, id, tick) {
  const f = run.facts,
    c = run.columns;
  if (id >= run.links) return `<p class="none">There is no link ${id} here.</p>`;
  const current = run.current(id, tick);
  const rows = [
    ["ends", `${toNode(run, run.src[id])} → ${toNode(run, run.dst[id])}`],
    ["speed", `${bandwidth(c.link_bandwidth[id])}, ${time(c.link_latency[id])}`],
    ["class", escaped(f.classes[c.link_class[id]])],
    ["busy", `${percent(c.utilisation[id])} of the time, ${percent(run.busy(id, tick) / 255)} around now`],
    [
      "now",
      run.fault(id, tick)?.down
        ? `down until ${go(run, /** @type {any} */ (run.fault(id, tick)).end)}${current >= 0 ? `, ${toChunk(run.chunkOf[run.transferOf[current]])} waits on it` : ""}`
        : current >= 0
        ? `${toChunk(run.chunkOf[run.transferOf[current]])} until ${go(run, run.leaves(current))}`
        : "idle",
    ],
  ];
  for (const fault of run.faultsOf.get(id) ?? []) rows.push(["fault", escaped(fault.words)]);
  const first = run.next(id, tick);
  const coming = [];
  if (first >= 0) {
    for (let i = first; i < Math.min(first + LINES, run.linkBegin[id + 1]); i++) {
      const ready = run.ready(i).time;
      const since = ready <= tick ? `ready since ${at(run, ready)}` : `ready at ${at(run, ready)}`;
      coming.push(
        `${toChunk(run.chunkOf[run.transferOf[i]])} at ${go(run, run.begin[i])} <small>${since}</small>`,
      );
    }
  }
  const left = first >= 0 ? run.linkBegin[id + 1] - first : 0;
  return `<h2>Link ${id}</h2>${facts(rows)}${chosen(f)}
    <h3>Transfers waiting for it, and its busy times</h3>
    <canvas class="queue" data-link="${id}" role="img" aria-label="queue of the link over time"></canvas>
    <h3>Next</h3>${list(coming, "nothing left to send")}${rest(LINES, left, "transfers")}`;
}

/** @param {Run} run @param {number} id @param {number} tick */
function chunk(run, id, tick) {
  if (id >= run.chunks) return `<p class="none">There is no chunk ${id} here.</p>`;
  if (!run.hasChunk(id)) {
    const kept = `which has those of ${run.facts.chosen} only`;
    return `<h2>Chunk ${id}</h2><p class="none">Its transfers are not in this page, ${kept}.</p>`;
  }
  const tree = run.tree(id);
  const source = run.columns.chunk_source[id];
  const done = tree.filter((row) => row.end <= tick).length;
  const rows = [
    ["size", size(run.bytesOf(id))],
    ["starts at", source >= 0 ? toNode(run, source) : "several NPUs contribute"],
    ["transfers", `${count(done)} of ${count(tree.length)} done`],
    ["last arrival", tree.length ? go(run, Math.max(...tree.map((row) => row.end))) : "–"],
  ];
  const adds = tree.some((row) => row.op === REDUCE) ? " (⊕ adds)" : "";
  /** @param {number[]} nodes */
  const ends = (nodes) => nodes.map((n) => toBrief(run, n)).join(" ");
  /** @param {TreeRow} row */
  const cells = (row) => {
    const arrow = row.op === REDUCE ? "⊕→" : "→";
    return [go(run, row.begin), `${ends(row.sources)} ${arrow} ${ends(row.targets)}`, at(run, row.end)];
  };
  return `<h2>Chunk ${id}</h2>${facts(rows)}${table(["leaves", `from, to${adds}`, "arrives"], tree, tick, cells)}`;
}

const WHY = ["at once", "after its data", "after the link", "delayed"];

/** @param {Run} run @param {number} tick */
function critical(run, tick) {
  const path = run.path();
  /** @param {number} why */
  const began = (why) => path.filter((row) => row.why === why).length;
  const late = began(3) ? `, ${count(began(3))} later than both` : "";
  /** @param {PathRow} row */
  const cells = (row) => {
    const ends = `${toBrief(run, row.from)} → ${toBrief(run, row.to)}`;
    return [go(run, row.begin), choose("chunk", row.chunk, row.chunk), ends, WHY[row.why]];
  };
  return `<h2>Critical path</h2>
    <p class="sub">The chain that ends last: ${count(path.length)} transfers, of which ${count(began(1))} began when
    their data arrived, ${count(began(2))} when a link was free${late}.</p>
    ${table(["leaves", "chunk", "from, to", "begins"], path, tick, cells)}`;
}

/**
 * Transfers in order of time; if there are many, those around the moment.
 * @template {TreeRow | PathRow} Row
 * @param {string[]} heads @param {Row[]} rows @param {number} tick @param {(row: Row) => string[]} cells
 */
function table(heads, rows, tick, cells) {
  const done = rows.filter((row) => row.end <= tick).length;
  const first = Math.max(0, Math.min(done - 5, rows.length - ROWS));
  const body = rows.slice(first, first + ROWS).map((row) => {
    const state = row.end <= tick ? "done" : row.begin <= tick ? "now" : "later";
    return `<tr class="${state}">${cells(row)
      .map((cell) => `<td>${cell}</td>`)
      .join("")}</tr>`;
  });
  const head = heads.map((words) => `<th>${words}</th>`).join("");
  return `<table><thead><tr>${head}</tr></thead><tbody>${body.join("")}</tbody></table>
    ${rest(ROWS, rows.length, "transfers")}`;
}

const RULES = /** @type {const} */ ([
  ["executed_order_s", "in order"],
  ["executed_first_come_s", "first come"],
  ["executed_shared_s", "on shared links"],
]);

/** The executed time, and how long the program takes under each rule for links. @param {Facts} f */
function executedTimes(f) {
  const { executed } = f;
  const lines = [`${time(f.executed_s)}${f.disturbances.length ? ", undisturbed" : ""}`];
  if (!executed) return lines[0];
  const times = RULES.map(([name]) => time(executed[name]));
  if (new Set(times).size === 1) lines.push("under every rule for links");
  else lines.push(...RULES.map(([, words], k) => `${times[k]} ${words}`));
  return lines.join("<br>");
}

/** Which of two runs is faster, in a sentence. @param {Run[]} runs */
export function headline([a, b]) {
  const ratio = b.facts.leading_s / a.facts.leading_s;
  const [name, other] = [a, b].map((run, k) => `${"AB"[k]} (${run.facts.name || run.facts.engine || "–"})`);
  if (Math.abs(ratio - 1) < 0.0005) return `${name} and ${other} take the same time`;
  const [fast, slow, by] = ratio > 1 ? [name, other, ratio] : [other, name, 1 / ratio];
  return `${fast} is ${by.toFixed(2)} times as fast as ${slow}`;
}

/** Two runs in one table, with their differences. @param {Run[]} runs */
export function compare([a, b]) {
  /** @param {(run: Run) => number | null | undefined} value @param {(value: number) => string} words */
  const figures = (value, words) => {
    const [one, two] = [value(a), value(b)];
    const cells = [one, two].map((v) => (v === null || v === undefined ? "–" : words(v)));
    const share = one && two ? two / one - 1 : 0;
    const apart = Math.abs(share) < 0.0005 ? "" : `${share > 0 ? "+" : "−"}${percent(Math.abs(share))}`;
    return [...cells, one && two ? apart || "same" : ""];
  };
  /** @param {(run: Run) => string} value */
  const texts = (value) => [value(a), value(b), value(a) === value(b) ? "same" : ""].map(escaped);
  const simulated = [a, b].some((run) => run.facts.leading === "simulated");
  const rows = [
    ...(simulated ? [["simulated", ...figures((run) => run.facts.time_s, time)]] : []),
    ["executed", ...figures((run) => run.facts.executed_s, time)],
    ["bound", ...figures((run) => run.facts.bound_s, time)],
    ["of the bound", ...figures((run) => run.share, percent)],
    ["busbw", ...figures((run) => run.busbw || null, bandwidth)],
    ["ideal", ...figures((run) => run.facts.ideal_s, time)],
    ["links busy", ...figures((run) => run.used, percent)],
    ["path length", ...figures((run) => run.path().length, count)],
    ["transfers", ...figures((run) => run.facts.transfers, count)],
    ["chunks", ...figures((run) => run.facts.total_chunks, count)],
    ["engine", ...texts((run) => run.facts.engine ?? "–")],
    ["collective", ...texts((run) => `${run.facts.collective}, ${size(run.facts.size_bytes)}`)],
    ["network", ...texts((run) => run.facts.title)],
  ];
  const tags = [a, b].map((run, k) => {
    const name = escaped(run.facts.name).replaceAll(".", "<wbr>."); // a long name breaks before its extension
    return `<th><b class="tag ${"ab"[k]}">${"AB"[k]}</b> ${name}</th>`;
  });
  const body = rows
    .map(([name, ...cells]) => `<tr><th>${name}</th>${cells.map((cell) => `<td>${cell}</td>`).join("")}</tr>`)
    .join("");
  return `<h2>Side by side</h2>
    <table class="compare"><thead><tr><th></th>${tags.join("")}<th>A to B</th></tr></thead><tbody>${body}</tbody></table>
    <p class="hint">Click an NPU or a link, or type into <b>Find</b>: it is selected in both.</p>`;
}

/** The rings of a view, each a button. @param {Run} run @param {View} view @param {number} chosen */
export function ringList(run, view, chosen) {
  const rings = view.rings ?? [];
  const items = rings.map((ring, k) => {
    const order = ring.npus.map((npu) => escaped(run.facts.names[npu] ?? npu)).join(" → ");
    const swatch = `<i class="swatch" style="background:${ringColour(k)}"></i>`;
    const pressed = `aria-pressed="${k === chosen}"`;
    return `${swatch}<button data-ring="${k}" ${pressed}>ring ${k}</button><br><small>${order}</small>`;
  });
  return `<h2>${escaped(view.title)}</h2>
    <p class="sub">${count(rings.length)} ring${rings.length === 1 ? "" : "s"} through ${count(run.npus)} NPUs of
    ${escaped(run.facts.title)}, drawn over the links that they take. Click one to see it alone.</p>${list(items, "none")}`;
}
