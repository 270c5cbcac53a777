// Charts over time and over links. Each converts moments or links to positions, and back.

import { fitted } from "./theme.js";
import { percent, time } from "./format.js";
/** @import { Colours, Look, Pick } from "./types.d.ts" */
/** @import { Run } from "./run.js" */

const LEFT = 8,
  RIGHT = 8,
  BOTTOM = 18;
export const TOP = 6;

/** The smallest round number that is at least `step`. @param {number} step */
function roundStep(step) {
  const power = 10 ** Math.floor(Math.log10(step));
  return power * ([1, 2, 2.5, 5].find((k) => k * power >= step * (1 - 1e-9)) ?? 10);
}

/** The axis of time, common to all charts. */
export class TimeChart {
  /** @type {CanvasRenderingContext2D} */
  context;
  /** @type {Colours} */
  colours;
  width = 0;
  height = 0;
  wide = 0; // pixels inside the axes
  high = 0;

  /** @param {HTMLCanvasElement} canvas @param {number} whole */
  constructor(canvas, whole) {
    this.canvas = canvas;
    this.whole = whole; // seconds
    this.left = LEFT;
  }
  /** @param {Look} look */
  begin(look) {
    Object.assign(this, fitted(this.canvas));
    this.colours = look.colours;
    this.context.clearRect(0, 0, this.width, this.height);
    this.wide = this.width - this.left - RIGHT;
    this.high = this.height - TOP - BOTTOM;
  }
  /** @param {number} seconds */
  x(seconds) {
    return this.left + (this.wide * seconds) / this.whole;
  }
  /** The moment at a position, in seconds. @param {number} x */
  moment(x) {
    return Math.min(Math.max((x - this.left) / this.wide, 0), 1) * this.whole;
  }
  axis(ticks = 5) {
    const { context } = this;
    const step = roundStep(this.whole / ticks);
    context.fillStyle = this.colours.soft;
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "alphabetic";
    for (let k = 0; k * step <= this.whole * (1 + 1e-9); k++) {
      const x = this.x(k * step);
      context.textAlign = k === 0 ? "left" : x > this.width - 30 ? "right" : "center";
      context.fillText(k === 0 ? "0" : time(k * step), x, this.height - 4);
      context.fillRect(x, TOP + this.high, 1, 3);
    }
  }
  /** Shade the times in which a link is down or slow. @param {Run} run */
  shade(run) {
    const { context } = this;
    context.fillStyle = this.colours.fault;
    context.globalAlpha = 0.12;
    for (const { begin, end } of run.facts.faults) {
      const x = this.x(begin * run.tick);
      context.fillRect(x, TOP, this.x(end * run.tick) - x, this.high);
    }
    context.globalAlpha = 1;
  }
  /** @param {number} seconds */
  playhead(seconds) {
    const { context } = this;
    context.strokeStyle = this.colours.ink;
    context.lineWidth = 1.5;
    context.beginPath();
    context.moveTo(this.x(seconds), TOP - 4);
    context.lineTo(this.x(seconds), TOP + this.high);
    context.stroke();
  }
}

/** The share of their data that NPUs have received over time, with the bound. */
export class Progress extends TimeChart {
  /** @param {HTMLCanvasElement} canvas @param {Run[]} runs @param {number} whole */
  constructor(canvas, runs, whole) {
    super(canvas, whole);
    this.runs = runs;
    this.left = 40;
  }
  /** @param {number} share */
  y(share) {
    return TOP + this.high * (1 - share);
  }

  /** @param {number} seconds @param {Pick | null} pick @param {Look} look */
  draw(seconds, pick, look) {
    this.begin(look);
    const { context, colours } = this;
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const share of [0, 0.5, 1]) {
      context.fillStyle = colours.soft;
      context.fillText(`${100 * share} %`, this.left - 5, this.y(share));
      context.fillStyle = colours.line;
      context.fillRect(this.left, this.y(share), this.wide, 1);
    }
    this.runs.forEach((run, k) => {
      const colour = k ? colours.b : colours.a;
      this.shade(run);
      this.bound(run, colour);
      this.band(run, colour);
      this.curve(run, run.columns.received_median, colour, k ? [6, 3] : []);
      if (pick?.kind === "npu" && pick.id < run.npus) {
        const row = run.columns.received.subarray(pick.id * run.bins, (pick.id + 1) * run.bins);
        this.curve(
          run,
          Float32Array.from(row, (v) => v / 255),
          colours.pick,
          k ? [6, 3] : [],
        );
      }
    });
    this.axis(4);
    this.playhead(seconds);
  }

  /** @param {Run} run @param {number} bin */
  at(run, bin) {
    return this.x((run.facts.time_s * bin) / run.bins);
  }
  /** @param {Run} run @param {Float32Array} shares @param {string} colour @param {number[]} dash */
  curve(run, shares, colour, dash) {
    const { context } = this;
    context.strokeStyle = colour;
    context.lineWidth = 2;
    context.setLineDash(dash);
    context.beginPath();
    context.moveTo(this.x(0), this.y(0));
    shares.forEach((share, bin) => context.lineTo(this.at(run, bin + 1), this.y(share)));
    context.stroke();
    context.setLineDash([]);
  }
  /** @param {Run} run @param {string} colour */
  band(run, colour) {
    const { context } = this;
    const { received_least: least, received_most: most } = run.columns;
    context.beginPath();
    context.moveTo(this.x(0), this.y(0));
    most.forEach((share, bin) => context.lineTo(this.at(run, bin + 1), this.y(share)));
    for (let bin = run.bins - 1; bin >= 0; bin--) context.lineTo(this.at(run, bin + 1), this.y(least[bin]));
    context.globalAlpha = 0.25;
    context.fillStyle = colour;
    context.fill();
    context.globalAlpha = 1;
  }
  /** @param {Run} run @param {string} colour */
  bound(run, colour) {
    if (!run.facts.bound_s) return;
    const { context } = this;
    context.strokeStyle = colour;
    context.lineWidth = 1;
    context.setLineDash([2, 3]);
    context.beginPath();
    context.moveTo(this.x(0), this.y(0));
    context.lineTo(this.x(run.facts.bound_s), this.y(1));
    context.lineTo(this.x(run.facts.bound_s), this.y(0));
    context.stroke();
    context.setLineDash([]);
  }
}

const CLASSES = 10;

/** The number of links by the share of time in which they are busy. */
export class Histogram {
  /** @param {HTMLCanvasElement} canvas @param {Run[]} runs */
  constructor(canvas, runs) {
    this.canvas = canvas;
    this.runs = runs;
    this.left = 40;
  }

  /** @param {Run} run @param {(link: number) => number} share */
  counts(run, share) {
    const counts = new Uint32Array(CLASSES);
    for (let link = 0; link < run.links; link++)
      counts[Math.min(CLASSES - 1, Math.floor(share(link) * CLASSES))]++;
    return counts;
  }

  /** @param {number} seconds @param {Look} look */
  draw(seconds, look) {
    const { context, width, height } = fitted(this.canvas);
    const { runs } = this;
    const { colours } = look;
    const wide = width - this.left - RIGHT,
      high = height - TOP - BOTTOM;
    const series = runs.map((run, k) => ({
      counts: this.counts(run, (link) => run.columns.utilisation[link]),
      colour: k ? colours.b : colours.a,
    }));
    const now = runs.map((run) => this.counts(run, (link) => run.busy(link, seconds / run.tick) / 255.01));
    const most = Math.max(
      1,
      ...series.flatMap(({ counts }) => [...counts]),
      ...now.flatMap((counts) => [...counts]),
    );
    context.clearRect(0, 0, width, height);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const share of [0, 0.5, 1]) {
      const y = TOP + high * (1 - share);
      context.fillStyle = colours.soft;
      if (share !== 0.5 || most > 1) context.fillText(`${Math.round(most * share)}`, this.left - 5, y);
      context.fillStyle = colours.line;
      context.fillRect(this.left, y, wide, 1);
    }
    const step = wide / CLASSES,
      bar = (0.8 * step) / series.length;
    series.forEach(({ counts, colour }, k) => {
      counts.forEach((number, c) => {
        const x = this.left + c * step + 0.1 * step + k * bar;
        const up = (high * number) / most,
          then = (high * now[k][c]) / most;
        context.fillStyle = colour;
        context.globalAlpha = 0.75;
        context.fillRect(x, TOP + high - up, bar - 1, up);
        context.globalAlpha = 1;
        if (!now[k][c]) return;
        context.strokeStyle = colours.ink;
        context.lineWidth = 1.5;
        context.strokeRect(x + 0.75, TOP + high - then, bar - 2.5, then);
      });
    });
    context.fillStyle = colours.soft;
    context.textBaseline = "alphabetic";
    for (const share of [0, 0.5, 1]) {
      context.textAlign = share === 0 ? "left" : share === 1 ? "right" : "center";
      context.fillText(`${100 * share} %`, this.left + wide * share, height - 4);
    }
  }

  words() {
    return `mean ${this.runs.map((run) => percent(run.used)).join(", ")}`;
  }
}

/**
 * Draw one link: its busy intervals, and the number of transfers that wait for it.
 * @param {HTMLCanvasElement} canvas @param {Run} run @param {number} link @param {number} tick
 * @param {Look} look
 */
export function drawQueue(canvas, run, link, tick, look) {
  const { context, width, height } = fitted(canvas);
  const { colours } = look;
  const steps = run.queue(link);
  const most = steps.reduce((largest, [, number]) => Math.max(largest, number), 1);
  /** @param {number} at */
  const x = (at) => 26 + ((width - 30) * at) / run.end;
  const top = 6,
    base = height - 34;
  context.clearRect(0, 0, width, height);
  context.fillStyle = colours.b;
  steps.forEach(([at, number], k) => {
    const end = k + 1 < steps.length ? steps[k + 1][0] : run.end;
    const high = ((base - top) * number) / most;
    if (number) context.fillRect(x(at), base - high, Math.max(x(end) - x(at), 0.5), high);
  });
  context.fillStyle = colours.a;
  for (let i = run.linkBegin[link]; i < run.linkBegin[link + 1]; i++) {
    const begin = x(run.begin[i]);
    context.fillRect(begin, base + 5, Math.max(x(run.leaves(i)) - begin - 0.6, 0.4), 11);
  }
  context.fillStyle = colours.soft;
  context.font = "10px system-ui, sans-serif";
  context.textBaseline = "middle";
  context.textAlign = "right";
  context.fillText(`${most}`, 22, top + 4);
  context.fillText("0", 22, base - 3);
  context.textBaseline = "alphabetic";
  context.textAlign = "left";
  context.fillText("0", 26, height - 3);
  context.textAlign = "right";
  context.fillText(time(run.facts.time_s), width - 4, height - 3);
  context.fillStyle = colours.ink;
  context.fillRect(x(tick) - 0.75, 2, 1.5, base + 14);
}
