// The heat map: links from top to bottom, time from left to right. The user chooses groups and order.

import { TOP, TimeChart } from "./charts.js";
import { percent } from "./format.js";
/** @import { Colours, Look, Pick } from "./types.d.ts" */
/** @import { Run } from "./run.js" */

const LABELS = 128; // pixels for the names of rows; fewer on a narrow page
const LINE = 11; // pixels from one label to the next

/** @typedef {{ label: string, first: number, count: number }} Group */

export class HeatMap extends TimeChart {
  key = ""; // the settings that the cached image was made with
  /** @type {OffscreenCanvas} */
  cached;
  /** @type {Group[]} */
  groups = [];

  /** @param {HTMLCanvasElement} canvas @param {Run} run @param {number} whole */
  constructor(canvas, run, whole) {
    super(canvas, whole);
    this.run = run;
    this.order = new Uint32Array(run.links); // the link of each row
    this.place = new Uint32Array(run.links); // the row of each link
    this.grouping = run.facts.classes.length > 1 ? "class" : "none";
    this.sorting = "number";
    this.arrange(this.grouping, this.sorting);
  }

  /**
   * Put links into groups ("none", "class", "box") and order ("number", "busy").
   * @param {string} grouping @param {string} sorting
   */
  arrange(grouping, sorting) {
    const { run } = this;
    this.grouping = grouping;
    this.sorting = sorting;
    const { utilisation: used, link_class: kind, link_box: box } = run.columns;
    const keys = grouping === "class" ? kind : grouping === "box" ? box : null;
    // Links between boxes are last.
    const key = (/** @type {number} */ link) => (keys ? (keys[link] < 0 ? Infinity : keys[link]) : 0);
    const links = Array.from({ length: run.links }, (_, link) => link);
    links.sort((a, b) => {
      const apart = key(a) === key(b) ? 0 : key(a) - key(b);
      return apart || (sorting === "busy" ? used[b] - used[a] : 0) || a - b;
    });
    this.order.set(links);
    links.forEach((link, row) => (this.place[link] = row));
    this.groups = [];
    links.forEach((link, row) => {
      const last = this.groups[this.groups.length - 1];
      if (last && key(links[last.first]) === key(link)) last.count++;
      else this.groups.push({ label: this.groupName(link), first: row, count: 1 });
    });
    this.key = "";
  }
  /** @param {number} link */
  groupName(link) {
    const { facts, columns } = this.run;
    if (this.grouping === "class") return facts.classes[columns.link_class[link]];
    if (this.grouping === "box") return facts.boxes[columns.link_box[link]] ?? "between boxes";
    return "";
  }

  /** @param {Colours} colours */
  image(colours) {
    const { run } = this;
    const rows = Math.min(run.links, Math.max(1, Math.floor(this.high))),
      bins = run.bins;
    const key = `${rows} ${colours.paper} ${this.grouping} ${this.sorting}`;
    if (this.key === key) return this.cached;
    const canvas = new OffscreenCanvas(bins, rows);
    const context = /** @type {OffscreenCanvasRenderingContext2D} */ (canvas.getContext("2d"));
    const image = context.createImageData(bins, rows);
    for (let row = 0; row < rows; row++) {
      const first = Math.floor((row * run.links) / rows),
        last = Math.floor(((row + 1) * run.links) / rows);
      for (let bin = 0; bin < bins; bin++) {
        let sum = 0;
        for (let k = first; k < last; k++) sum += run.columns.busy[this.order[k] * bins + bin];
        const [r, g, b] = colours.shades[Math.round(sum / (last - first))];
        image.data.set([r, g, b, 255], 4 * (row * bins + bin));
      }
    }
    context.putImageData(image, 0, 0);
    this.key = key;
    return (this.cached = canvas);
  }

  /** @param {number} link */
  y(link) {
    return TOP + (this.high * (this.place[link] + 0.5)) / this.run.links;
  }
  /** The link at a position, or -1. @param {number} y */
  link(y) {
    const row = Math.floor(((y - TOP) / this.high) * this.run.links);
    return row >= 0 && row < this.run.links ? this.order[row] : -1;
  }

  /** @param {number} seconds @param {Pick | null} pick @param {Look} look */
  draw(seconds, pick, look) {
    this.left = Math.min(LABELS, Math.round(this.canvas.clientWidth * 0.3));
    this.begin(look);
    const { context, run } = this;
    const wide = this.x(run.facts.time_s) - this.left;
    context.imageSmoothingEnabled = false;
    if (run.links) context.drawImage(this.image(look.colours), this.left, TOP, wide, this.high);
    context.strokeStyle = look.colours.line;
    context.lineWidth = 1;
    context.strokeRect(this.left + 0.5, TOP + 0.5, wide - 1, this.high - 1);
    this.drawFaults();
    this.drawGroups(wide);
    if (look.path) this.drawPath();
    if (pick?.kind === "link" && pick.id < run.links) this.drawRow(pick.id, wide);
    if (pick?.kind === "chunk") this.drawChunk(pick.id);
    this.axis();
    this.playhead(seconds);
  }

  /** Draw the names of groups, and those of rows if there is room. @param {number} wide */
  drawGroups(wide) {
    const { context, run, colours } = this;
    const row = this.high / Math.max(run.links, 1);
    context.font = "10px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "right";
    const named = row >= LINE - 1 || this.grouping === "none";
    const every = Math.max(1, Math.ceil(LINE / row));
    context.fillStyle = colours.soft;
    if (named)
      for (let k = 0; k < run.links; k += every) {
        const link = this.order[k];
        const share = this.sorting === "busy" ? ` ${percent(run.columns.utilisation[link])}` : "";
        const y = TOP + row * (k + Math.min(every, run.links - k) / 2);
        context.fillText(this.cut(run.briefLink(link) + share), this.left - 5, y);
      }
    if (this.grouping === "none") return;
    let free = -Infinity; // where the last label ended
    for (const { label, first, count } of this.groups) {
      const top = TOP + row * first,
        high = row * count;
      context.fillStyle = colours.ink;
      if (first) context.fillRect(this.left - (named ? 0 : 6), top, wide + 6, 1);
      const y = top + high / 2;
      if (named) {
        const words = this.cut(label, wide - 8);
        const across = context.measureText(words).width + 6;
        const at = this.free(this.order[first], across, wide);
        context.textAlign = "left";
        context.globalAlpha = 0.85;
        context.fillStyle = colours.paper;
        context.fillRect(at, top + 2, across, LINE);
        context.globalAlpha = 1;
        context.fillStyle = colours.ink;
        context.fillText(words, at + 3, top + 2 + LINE / 2);
        context.textAlign = "right";
      } else if (y - LINE / 2 >= free) {
        context.fillStyle = colours.soft;
        context.fillText(this.cut(label), this.left - 8, y);
        free = y + LINE / 2;
      }
    }
  }
  /**
   * Where to put a label on a link's row: on the left, or on the right if only that hides no fault.
   * @param {number} link @param {number} across @param {number} wide
   */
  free(link, across, wide) {
    const { run } = this;
    const faults = run.faultsOf.get(link) ?? [];
    const [left, right] = [this.left + 2, this.left + wide - across - 2];
    /** @param {number} at */
    const hides = (at) =>
      faults.some((one) => this.x(one.begin * run.tick) < at + across && at < this.x(one.end * run.tick));
    return hides(left) && !hides(right) ? right : left;
  }
  /** Shorten a text to fit beside the rows. @param {string} text */
  cut(text, room = this.left - 10) {
    const { context } = this;
    if (context.measureText(text).width <= room) return text;
    let kept = text;
    while (kept.length > 1 && context.measureText(`${kept}…`).width > room) kept = kept.slice(0, -1);
    return `${kept}…`;
  }

  /** Mark the times in which links were down or slow. */
  drawFaults() {
    const { context, run, colours } = this;
    this.shade(run);
    const high = Math.max(this.high / run.links, 4);
    for (const fault of run.facts.faults) {
      const x = this.x(fault.begin * run.tick),
        wide = Math.max(this.x(fault.end * run.tick) - x, 2);
      for (const link of fault.links) {
        const y = this.y(link) - high / 2;
        context.fillStyle = colours.paper;
        context.fillRect(x, y, wide, high);
        context.strokeStyle = colours.fault;
        context.lineWidth = 1.5;
        context.strokeRect(x, y, wide, high);
        context.save();
        context.beginPath();
        context.rect(x, y, wide, high);
        context.clip();
        context.lineWidth = 1;
        context.beginPath();
        for (let at = x - high; at < x + wide; at += fault.down ? 5 : 12) {
          context.moveTo(at, y + high);
          context.lineTo(at + high, y);
        }
        context.stroke();
        context.restore();
      }
    }
  }

  /** @param {number} link @param {number} wide */
  drawRow(link, wide) {
    const { context } = this;
    const high = Math.max(this.high / this.run.links, 3);
    context.strokeStyle = this.colours.pick;
    context.lineWidth = 2;
    context.strokeRect(this.left, this.y(link) - high / 2, wide, high);
  }

  /** Mark when and on which links a chunk was. @param {number} chunk */
  drawChunk(chunk) {
    const { context, run } = this;
    context.fillStyle = this.colours.pick;
    const high = Math.max(this.high / run.links, 2.5);
    for (const row of run.tree(chunk)) {
      for (const i of run.intervalsByTransfer.of(row.transfer)) {
        const x = this.x(run.begin[i] * run.tick),
          end = this.x(run.leaves(i) * run.tick);
        context.fillRect(x, this.y(run.linkOf(i)) - high / 2, Math.max(end - x, 2), high);
      }
    }
  }

  /** Outline each transfer of the critical path, on each of its links. */
  drawPath() {
    const { context, run } = this;
    const high = Math.max(this.high / run.links, 4);
    context.strokeStyle = this.colours.path;
    context.lineWidth = 2;
    for (const row of run.path()) {
      for (const link of row.links) {
        const x = this.x(row.begin * run.tick),
          wide = Math.max(this.x(row.end * run.tick) - x, 3);
        context.strokeRect(x, this.y(link) - high / 2, wide, high);
      }
    }
  }
}
