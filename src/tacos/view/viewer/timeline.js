// A timeline: ranks and their streams from top to bottom, time from left to right.

import { count, escaped, moment, percent, size, time } from "./format.js";
import { above } from "./run.js";
import { colours, fitted, inkOn, ringColour, toggle } from "./theme.js";
/** @import { Colours, TimelineColumns, TimelineFacts } from "./types.d.ts" */

const BOTTOM = 22, // pixels of the axis
  TALLEST = 40, // pixels of a row
  SHORTEST = 5;

/** @param {string} id */
const $ = (id) => /** @type {any} */ (document.getElementById(id));

/** Spans of one stream of one rank. @typedef {{ rank: number, stream: number, first: number, end: number }} Row */

export class TimelineView {
  /** @type {Row[]} */
  rows = [];
  /** @type {Colours} */
  colours;
  /** @type {number | undefined} */
  waiting;
  pick = -1;
  left = 96; // pixels of row names
  top = 0; // rows scrolled out at the top
  from = 0; // ticks at the left edge
  panelKey = "";
  canvas = /** @type {HTMLCanvasElement} */ (/** @type {unknown} */ (null));

  /**
   * @param {TimelineFacts} facts @param {TimelineColumns} columns
   * @param {(view: number) => void} open shows another view
   */
  constructor(facts, columns, open) {
    this.facts = facts;
    this.columns = columns;
    this.open = open;
    this.end_ = Math.max(1, facts.time_s / facts.tick_s);
    this.until = this.end_; // ticks at the right edge
    this.ended = new AbortController();
    this.build();
    this.listen();
    this.look();
  }

  build() {
    const { span_rank: rank, span_stream: stream } = this.columns;
    for (let first = 0; first < rank.length;) {
      let end = first;
      while (end < rank.length && rank[end] === rank[first] && stream[end] === stream[first]) end++;
      this.rows.push({ rank: rank[first], stream: stream[first], first, end });
      first = end;
    }
    document.body.dataset.view = "timeline";
    document.body.classList.remove("many");
    $("title").textContent = this.facts.title;
    document.title = `${this.facts.title} – tacos`;
    for (const id of ["banner", "clear"]) $(id).hidden = true;
    $("headline").textContent = this.facts.headline;
    $("headline").hidden = !this.facts.headline;
    $("notes").textContent = this.facts.notes.join(" ");
    $("notes").hidden = !this.facts.notes.length;
    const keys = this.facts.categories.map(
      (name, k) => `<span class="key"><i class="swatch" style="${this.swatch(k)}"></i>${escaped(name)}</span>`,
    );
    $("networks").innerHTML = `<figure><figcaption>${keys.join("")}</figcaption>
      <canvas tabindex="0" data-timeline="0" role="img" aria-label="what each rank does over time"></canvas></figure>`;
    this.canvas = /** @type {HTMLCanvasElement} */ (document.querySelector("[data-timeline]"));
    $("find").placeholder = "rank 3, or a name";
    const words = [...this.facts.shown.map((one) => `rank ${one}`), ...this.facts.names];
    $("names").innerHTML = words.map((word) => `<option value="${escaped(word)}"></option>`).join("");
    $("path").hidden = true;
  }

  /** The style of a category's swatch. @param {number} k */
  swatch(k) {
    const look = this.facts.looks[k];
    if (!look) return `background:${ringColour(k)}`;
    const colour = `var(--${look[0]})`;
    if (!look[1]) return `background:${colour}`;
    return `border:1px solid ${colour};background:repeating-linear-gradient(135deg, ${colour} 0 1px, transparent 1px 4px)`;
  }

  listen() {
    const { canvas } = this,
      { signal } = this.ended;
    /** @type {[number, number] | null} */
    let at = null;
    let moved = false;
    canvas.onpointerdown = (event) => {
      at = [event.offsetX, event.offsetY];
      moved = false;
      canvas.setPointerCapture(event.pointerId);
    };
    canvas.onpointermove = (event) => {
      if (!at) return this.hover(event);
      const [dx, dy] = [event.offsetX - at[0], event.offsetY - at[1]];
      if (!moved && Math.hypot(dx, dy) < 4) return;
      moved = true;
      at = [event.offsetX, event.offsetY];
      this.pan((-dx / this.wide) * (this.until - this.from), -dy / this.high);
    };
    canvas.onpointerup = (event) => {
      if (at && !moved) this.select(this.hit(event.offsetX, event.offsetY));
      at = null;
    };
    canvas.onpointerleave = () => ($("tip").hidden = true);
    canvas.ondblclick = () => this.fit();
    canvas.addEventListener(
      "wheel",
      (event) => {
        event.preventDefault();
        if (event.shiftKey) return this.pan(0, event.deltaY / this.high);
        this.zoom(Math.exp(event.deltaY * 0.0016), this.tickAt(event.offsetX));
      },
      { passive: false },
    );
    $("fit").onclick = () => this.fit();
    $("theme").onclick = () => (toggle(), this.look());
    $("help").onclick = () => $("keys").showModal();
    $("clear").onclick = () => this.select(-1);
    $("find").oninput = () => $("find").setCustomValidity("");
    $("find").onchange = () => this.find($("find").value);
    $("panel").onclick = (/** @type {Event} */ event) => {
      const button = /** @type {HTMLElement} */ (event.target).closest("button");
      if (button?.dataset.span) this.select(Number(button.dataset.span), true);
      if (button?.dataset.open) this.open(Number(button.dataset.open));
    };
    addEventListener("keydown", (event) => this.key(event), { signal });
    const sized = new ResizeObserver(() => this.refresh());
    sized.observe(document.body);
    signal.addEventListener("abort", () => sized.disconnect());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.look(), { signal });
  }
  /** Stop, because another view is shown. */
  end() {
    this.ended.abort();
    if (this.waiting !== undefined) cancelAnimationFrame(this.waiting);
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const typing = /** @type {HTMLElement} */ (event.target).matches("input, select") || $("keys").open;
    if (event.key === "Escape" && !$("keys").open) return this.select(-1);
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const part = 0.1 * (this.until - this.from),
      middle = (this.from + this.until) / 2;
    /** @type {Record<string, () => void>} */
    const actions = {
      ArrowRight: () => this.pan(part, 0),
      ArrowLeft: () => this.pan(-part, 0),
      ArrowDown: () => this.pan(0, 3),
      ArrowUp: () => this.pan(0, -3),
      "+": () => this.zoom(0.8, middle),
      "=": () => this.zoom(0.8, middle),
      "-": () => this.zoom(1.25, middle),
      0: () => this.fit(),
      ".": () => this.step(1),
      ",": () => this.step(-1),
      t: () => (toggle(), this.look()),
      f: () => $("find").focus(),
      "?": () => $("keys").showModal(),
    };
    const action = actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }

  // --- visible part

  look() {
    this.colours = colours();
    this.refresh();
  }
  fit() {
    this.from = this.top = 0;
    this.until = this.end_;
    this.refresh();
  }
  /** @param {number} ticks @param {number} rows */
  pan(ticks, rows) {
    const span = this.until - this.from;
    this.from = Math.min(Math.max(this.from + ticks, 0), this.end_ - span);
    this.until = this.from + span;
    this.top = Math.min(Math.max(this.top + rows, 0), Math.max(0, this.rows.length - this.fits));
    this.refresh();
  }
  /** @param {number} factor @param {number} about a tick that stays in place */
  zoom(factor, about) {
    const span = Math.min(Math.max((this.until - this.from) * factor, 10), this.end_);
    const share = (about - this.from) / (this.until - this.from);
    this.from = Math.min(Math.max(about - share * span, 0), this.end_ - span);
    this.until = this.from + span;
    this.refresh();
  }
  refresh() {
    this.waiting ??= requestAnimationFrame(() => {
      this.waiting = undefined;
      this.draw();
    });
  }

  get wide() {
    return Math.max(1, this.canvas.clientWidth - this.left - 8);
  }
  /** Pixels of a row. */
  get high() {
    const room = (this.canvas.clientHeight - BOTTOM) / Math.max(1, this.rows.length);
    return Math.min(Math.max(room, this.rows.length > 200 ? SHORTEST : 11), TALLEST);
  }
  /** Rows that fit. */
  get fits() {
    return Math.max(1, Math.floor((this.canvas.clientHeight - BOTTOM) / this.high));
  }
  /** @param {number} tick */
  x(tick) {
    return this.left + (this.wide * (tick - this.from)) / (this.until - this.from);
  }
  /** @param {number} x */
  tickAt(x) {
    const share = Math.min(Math.max((x - this.left) / this.wide, 0), 1);
    return this.from + share * (this.until - this.from);
  }
  /** The span at a position, or -1. @param {number} x @param {number} y */
  hit(x, y) {
    const row = this.rows[Math.floor(this.top + y / this.high)];
    if (!row || x < this.left || y > this.canvas.clientHeight - BOTTOM) return -1;
    const tick = this.tickAt(x),
      near = (2 * (this.until - this.from)) / this.wide;
    const { span_begin: begin, span_length: length } = this.columns;
    const i = above(begin, tick + near, row.first, row.end) - 1;
    return i >= row.first && begin[i] + length[i] + near >= tick ? i : -1;
  }

  /** @param {number} span */
  name(span) {
    return this.facts.names[this.columns.span_name[span]];
  }
  /** Further facts about a span. @param {number} span */
  details(span) {
    return this.facts.details[this.columns.span_detail?.[span] ?? -1] ?? [];
  }
  /** @param {number} tick */
  words(tick) {
    return moment(tick * this.facts.tick_s, this.facts.time_s);
  }

  draw() {
    const { context, width, height } = fitted(this.canvas);
    const { colours, high } = this;
    const { span_begin: begin, span_length: length, span_category: category } = this.columns;
    this.left = Math.min(110, Math.round(width * 0.28));
    context.fillStyle = colours.panel;
    context.fillRect(0, 0, width, height);
    this.axis(context, width, height);
    context.save();
    context.beginPath();
    context.rect(0, 0, width, height - BOTTOM);
    context.clip();
    context.textBaseline = "middle";
    const first = Math.floor(this.top),
      last = Math.min(this.rows.length, Math.ceil(this.top + this.fits) + 1);
    let named = -1; // the last rank whose name is drawn
    for (let r = first; r < last; r++) {
      const row = this.rows[r],
        y = (r - this.top) * high;
      if (row.rank !== this.rows[r - 1]?.rank) {
        context.fillStyle = colours.line;
        context.fillRect(0, y, width, 1);
      }
      const marked = this.facts.marked.includes(row.rank);
      if (marked) {
        context.fillStyle = colours.fault;
        context.globalAlpha = 0.13;
        context.fillRect(0, y + 1, width, high - 1);
        context.globalAlpha = 1;
      }
      /** @type {Map<number, number>} */
      const short = new Map(); // pixels per category of the short spans in a column of pixels
      let column = -1,
        painted = -Infinity; // right edge of the last long span
      const from = above(begin, this.from, row.first, row.end);
      for (let i = Math.max(row.first, from - 1); i < row.end && begin[i] <= this.until; i++) {
        const x = Math.max(this.x(begin[i]), this.left),
          end = Math.min(this.x(begin[i] + length[i]), width - 8);
        if (end < this.left) continue;
        if (end - x >= 1 || Math.floor(x) !== column)
          this.paintColumn(context, short, Math.max(column, painted), y + 1.5, high - 2.5);
        if (end - x < 1) {
          column = Math.floor(x);
          short.set(category[i], (short.get(category[i]) ?? 0) + end - x);
          continue;
        }
        painted = end;
        const hatched = this.paint(context, category[i], x, y + 1.5, Math.max(end - x - 0.4, 0.6), high - 2.5);
        if (end - x > 44 && high >= 12) {
          const plain = this.facts.looks.length ? colours.paper : inkOn(ringColour(category[i]));
          context.fillStyle = hatched ? colours.ink : plain;
          context.font = "10px system-ui, sans-serif";
          context.textAlign = "left";
          context.fillText(fitting(context, this.name(i), end - x - 8), x + 4, y + high / 2 + 0.5);
        }
      }
      this.paintColumn(context, short, Math.max(column, painted), y + 1.5, high - 2.5);
      context.fillStyle = marked ? colours.fault : colours.soft;
      context.font = `${marked ? "bold " : ""}10px system-ui, sans-serif`;
      context.textAlign = "right";
      const stream = this.facts.streams[row.stream];
      const whole = row.rank === named ? stream : `rank ${row.rank} ${stream}`.trim();
      if (high >= 10 || row.rank !== named)
        context.fillText(fitting(context, whole, this.left - 8), this.left - 5, y + high / 2 + 0.5);
      named = row.rank;
    }
    if (this.pick >= 0) this.outline(context);
    context.restore();
    this.panel();
  }

  /**
   * Draw a span; returns whether it is hatched.
   * @param {CanvasRenderingContext2D} context @param {number} category
   * @param {number} x @param {number} y @param {number} wide @param {number} high
   */
  paint(context, category, x, y, wide, high) {
    const look = this.facts.looks[category];
    context.fillStyle = look ? this.colours[look[0]] : ringColour(category);
    if (!look?.[1]) {
      context.fillRect(x, y, wide, high);
      return false;
    }
    context.save();
    context.beginPath();
    context.rect(x, y, wide, high);
    context.clip();
    context.strokeStyle = context.fillStyle;
    context.lineWidth = 1;
    context.globalAlpha = 0.6;
    context.beginPath();
    for (let at = x - high; at < x + wide; at += 7) {
      context.moveTo(at, y + high);
      context.lineTo(at + high, y);
    }
    context.stroke();
    context.globalAlpha = 1;
    context.strokeRect(x + 0.5, y + 0.5, Math.max(wide - 1, 0), high - 1);
    context.restore();
    return true;
  }

  /**
   * Draw the short spans in a column of pixels, each category as high as its share, and forget them.
   * @param {CanvasRenderingContext2D} context @param {Map<number, number>} short
   * @param {number} x @param {number} y @param {number} high
   */
  paintColumn(context, short, x, y, high) {
    const whole = [...short.values()].reduce((sum, one) => sum + one, 0);
    for (const [category, wide] of [...short].sort((a, b) => a[0] - b[0])) {
      const part = whole ? (high * wide) / whole : high / short.size;
      this.paint(context, category, x, y, Math.min(Math.max(whole, 0.6), 1), part);
      y += part;
    }
    short.clear();
  }

  /** @param {CanvasRenderingContext2D} context */
  outline(context) {
    const { span_begin: begin, span_length: length } = this.columns;
    const r = this.rows.findIndex((row) => row.first <= this.pick && this.pick < row.end);
    const x = Math.max(this.x(begin[this.pick]), this.left),
      end = this.x(begin[this.pick] + length[this.pick]);
    context.strokeStyle = this.colours.pick;
    context.lineWidth = 2.5;
    context.strokeRect(x - 1, (r - this.top) * this.high + 0.5, Math.max(end - x, 2) + 2, this.high - 1);
  }

  /** @param {CanvasRenderingContext2D} context @param {number} width @param {number} height */
  axis(context, width, height) {
    const { colours } = this;
    const tick = this.facts.tick_s;
    const span = (this.until - this.from) * tick,
      most = Math.min(6, Math.max(2, this.wide / 80)), // labels that fit
      power = 10 ** Math.floor(Math.log10(span / most));
    const step = power * ([1, 2, 5].find((k) => k * power >= span / most) ?? 10);
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "center";
    context.textBaseline = "alphabetic";
    for (let k = Math.ceil((this.from * tick) / step); k * step <= this.until * tick * (1 + 1e-9); k++) {
      const x = this.x((k * step) / tick);
      context.fillStyle = colours.line;
      context.fillRect(x, 0, 1, height - BOTTOM + 4);
      context.fillStyle = colours.soft;
      context.textAlign = x > width - 30 ? "right" : "center";
      context.fillText(k === 0 ? "0" : moment(k * step, this.until * tick), x, height - 6);
    }
  }

  // --- user input

  /** @param {MouseEvent} event */
  hover(event) {
    const span = this.hit(event.offsetX, event.offsetY),
      tip = $("tip");
    tip.hidden = span < 0;
    if (span < 0) return;
    const { span_begin: begin, span_length: length, span_bytes: bytes } = this.columns;
    const [state] = this.details(span);
    const lines = [
      this.name(span),
      state ? state[1] : "",
      `${this.words(begin[span])}, for ${time(length[span] * this.facts.tick_s)}`,
      bytes[span] ? size(bytes[span]) : "",
    ];
    tip.textContent = lines.filter(Boolean).join("\n");
    const x = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
    const y = Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8);
    tip.style.transform = `translate(${x}px, ${y}px)`;
  }
  /** The next or previous span of the stream. @param {number} by */
  step(by) {
    const row = this.rows.find((one) => one.first <= this.pick && this.pick < one.end) ?? this.rows[0];
    if (!row) return;
    const next = this.pick < 0 ? row.first : this.pick + by;
    this.select(Math.min(Math.max(next, row.first), row.end - 1), true);
  }
  /** @param {string} text */
  find(text) {
    const words = text.trim().toLowerCase();
    const rank = words.match(/^(?:rank|npu)?\s*#?(\d+)$/);
    let span = -1;
    if (rank) span = this.rows.find((row) => row.rank === Number(rank[1]))?.first ?? -1;
    else if (words) {
      const name = this.facts.names.findIndex((one) => one.toLowerCase().includes(words));
      if (name >= 0) span = this.columns.span_name.findIndex((one) => one === name);
    }
    $("find").setCustomValidity(span >= 0 || !words ? "" : "rank 3, or a part of a name");
    $("find").reportValidity();
    if (span >= 0) this.select(span, true);
  }
  /** @param {number} span @param {boolean} show whether to bring it into view */
  select(span, show = false) {
    this.pick = span;
    $("clear").hidden = span < 0;
    if (span >= 0 && show) {
      const { span_begin: begin, span_length: length } = this.columns;
      const r = this.rows.findIndex((row) => row.first <= span && span < row.end);
      if (r < this.top || r >= this.top + this.fits) this.pan(0, r - this.top - this.fits / 2);
      const middle = begin[span] + length[span] / 2;
      if (middle < this.from || middle > this.until) this.pan(middle - (this.from + this.until) / 2, 0);
    }
    $("said").textContent = span < 0 ? "nothing selected" : `${this.name(span)} selected`;
    this.refresh();
  }

  panel() {
    const key = `${this.pick}`;
    if (key === this.panelKey) return;
    this.panelKey = key;
    $("panel").innerHTML = this.pick < 0 ? this.overview() : this.about(this.pick);
  }
  overview() {
    const rows = this.facts.summary.map(([name, words]) => `<dt>${escaped(name)}</dt><dd>${escaped(words)}</dd>`);
    const links = this.facts.opens.map(
      ([view, title]) => `<li><button data-open="${view}">${escaped(title)}</button></li>`,
    );
    const collectives = links.length ? `<h3>Collectives, each with its own view</h3><ul>${links.join("")}</ul>` : "";
    return `<h2>${escaped(this.facts.title)}</h2><dl>${rows.join("")}</dl>${collectives}
      <p class="hint">Click a bar for details. The wheel zooms, dragging moves, shift and the wheel scroll.</p>`;
  }
  /** @param {number} span */
  about(span) {
    const c = this.columns,
      tick = this.facts.tick_s;
    const rows = [
      ["rank", [c.span_rank[span], escaped(this.facts.streams[c.span_stream[span]])].filter((one) => one !== "").join(", ")],
      ["begins", this.words(c.span_begin[span])],
      ["ends", this.words(c.span_begin[span] + c.span_length[span])],
      ["takes", `${time(c.span_length[span] * tick)}, ${percent(c.span_length[span] / this.end_)} of the whole`],
    ];
    if (c.span_bytes[span]) rows.push(["size", size(c.span_bytes[span])]);
    if (c.span_members[span]) rows.push(["group", `${count(c.span_members[span])} ranks`]);
    const after = c.span_after[span];
    if (after >= 0) {
      const rank = c.span_rank[after] === c.span_rank[span] ? "" : ` of rank ${c.span_rank[after]}`;
      rows.push(["waited for", `<button data-span="${after}">${escaped(this.name(after))}</button>${rank}`]);
    }
    for (const [name, words] of this.details(span)) rows.push([escaped(name), escaped(words)]);
    const view = c.span_view[span];
    const open = view < 0 ? "" : `<p><button class="open" data-open="${view}">Open this collective's own view</button></p>`;
    const list = rows.map(([name, words]) => `<dt>${name}</dt><dd>${words}</dd>`).join("");
    return `<h2>${escaped(this.name(span))}</h2><dl>${list}</dl>${open}`;
  }
}

/** Shorten a text to a width. @param {CanvasRenderingContext2D} context @param {string} text @param {number} room */
function fitting(context, text, room) {
  let kept = text;
  while (kept.length > 1 && context.measureText(kept).width > room) kept = kept.slice(0, -1);
  return kept.length < text.length ? `${kept.slice(0, -1)}…` : text;
}
