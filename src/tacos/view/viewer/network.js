// The network as a picture: nodes, links in the colour of how busy they are, chunks on their way.

import { REDUCE } from "./run.js";
import { fitted } from "./theme.js";
/** @import { Colours, Look, Pick, TreeRow } from "./types.d.ts" */
/** @import { Run } from "./run.js" */

const LINE = 0,
  ELBOW = 2;
const BAR = 0.36; // height of a switch drawn as a bar, in units of the layout
const MOST_DOTS = 15000;
const PIES = 1500; // NPUs up to which each shows its share as a pie

export class NetworkView {
  /** @type {CanvasRenderingContext2D} */
  context;
  /** @type {Colours} */
  colours;
  width = 0;
  height = 0;
  radius = 0; // of an NPU, in pixels
  wide = 0; // of a link, in pixels
  dotsHidden = 0;
  dotsShown = 0;

  /** @param {HTMLCanvasElement} canvas @param {Run} run */
  constructor(canvas, run) {
    this.canvas = canvas;
    this.run = run;
    const c = run.columns;
    this.nodes = c.drawn_node;
    this.links = c.drawn_link;
    this.xy = c.node_xy;
    this.half = c.node_half;
    this.points = c.link_points;
    this.kind = c.link_kind;
    this.placeOfNode = new Map(Array.from(this.nodes, (node, k) => [node, k]));
    this.placeOfLink = new Map(Array.from(this.links, (link, k) => [link, k]));
    this.zoom = { scale: 1, x: 0, y: 0, free: false };
    this.box = this.extent();
    this.rims = this.margins();
  }

  extent() {
    const box = { left: Infinity, top: Infinity, right: -Infinity, bottom: -Infinity };
    /** @param {number} x @param {number} y */
    const add = (x, y) => {
      box.left = Math.min(box.left, x);
      box.right = Math.max(box.right, x);
      box.top = Math.min(box.top, y);
      box.bottom = Math.max(box.bottom, y);
    };
    const air = this.run.facts.radius * 1.5;
    for (let k = 0; k < this.nodes.length; k++) {
      add(this.xy[2 * k] - this.half[k] - air, this.xy[2 * k + 1] - air);
      add(this.xy[2 * k] + this.half[k] + air, this.xy[2 * k + 1] + air);
    }
    for (let i = 0; i < this.points.length; i += 2) add(this.points[i], this.points[i + 1]);
    for (const [left, top, right, bottom] of this.run.facts.frames) (add(left, top), add(right, bottom));
    return box;
  }

  /** Per link, the shares of its way that lie under the nodes at its ends: chunks move in between. */
  margins() {
    const rims = new Float32Array(2 * this.links.length);
    const { radius } = this.run.facts;
    for (let k = 0; k < this.links.length; k++) {
      const p = this.points,
        at = 8 * k;
      const corner = this.kind[k] === ELBOW ? 2 : 6;
      const length =
        Math.hypot(p[at + corner] - p[at], p[at + corner + 1] - p[at + 1]) +
        Math.hypot(p[at + 6] - p[at + corner], p[at + 7] - p[at + corner + 1]);
      [this.run.src, this.run.dst].forEach((ends, side) => {
        const bar = this.half[this.placeOfNode.get(ends[this.links[k]]) ?? -1] > 0;
        rims[2 * k + side] = Math.min((bar ? BAR / 2 : radius) / Math.max(length, 1e-9), 0.4);
      });
    }
    return rims;
  }

  // --- zoom and pan

  fit() {
    this.zoom.free = false;
  }
  /** @param {number} width @param {number} height */
  aim(width, height) {
    if (this.zoom.free) return;
    const { left, top, right, bottom } = this.box;
    const air = 14;
    const scale = Math.min((width - 2 * air) / (right - left), (height - 2 * air) / (bottom - top), 110);
    this.zoom.scale = scale;
    this.zoom.x = width / 2 - (scale * (left + right)) / 2;
    this.zoom.y = height / 2 - (scale * (top + bottom)) / 2;
  }
  /** @param {number} factor */
  zoomBy(factor, x = this.canvas.clientWidth / 2, y = this.canvas.clientHeight / 2) {
    const zoom = this.zoom;
    const scale = Math.min(Math.max(zoom.scale * factor, 0.5), 4000);
    zoom.x = x - ((x - zoom.x) * scale) / zoom.scale;
    zoom.y = y - ((y - zoom.y) * scale) / zoom.scale;
    zoom.scale = scale;
    zoom.free = true;
  }
  /** @param {number} dx @param {number} dy */
  panBy(dx, dy) {
    this.zoom.x += dx;
    this.zoom.y += dy;
    this.zoom.free = true;
  }
  /** @param {number} x */
  px(x) {
    return this.zoom.x + this.zoom.scale * x;
  }
  /** @param {number} y */
  py(y) {
    return this.zoom.y + this.zoom.scale * y;
  }

  // --- drawing

  /**
   * @param {number} tick the moment
   * @param {Pick | null} pick what is selected
   * @param {Look} look
   */
  draw(tick, pick, look) {
    const { context, width, height } = fitted(this.canvas);
    this.context = context;
    this.width = width;
    this.height = height;
    this.colours = look.colours;
    this.aim(width, height);
    const radius = this.run.facts.radius * this.zoom.scale;
    this.radius = Math.min(Math.max(radius, 1), 60);
    this.wide = Math.min(Math.max(this.run.facts.width * this.zoom.scale, 0.7), 7);
    context.fillStyle = look.colours.panel;
    context.fillRect(0, 0, width, height);
    this.drawFrames();
    this.drawLinks(tick);
    const rows = pick?.kind === "chunk" ? this.run.tree(pick.id) : [];
    if (look.path) this.drawPath(tick);
    this.drawTree(rows, tick);
    if (pick?.kind === "link") this.strokeLinks([pick.id], look.colours.pick, this.wide + 2.5, true);
    this.drawDots(tick, pick);
    this.drawNodes(tick, pick, rows);
  }

  drawFrames() {
    const { context, colours } = this;
    context.lineWidth = 1;
    context.font = `${Math.min(13, Math.max(9, 0.3 * this.zoom.scale))}px system-ui, sans-serif`;
    context.textAlign = "left";
    context.textBaseline = "top";
    for (const [left, top, right, bottom, label] of this.run.facts.frames) {
      context.beginPath();
      context.roundRect(
        this.px(left),
        this.py(top),
        this.zoom.scale * (right - left),
        this.zoom.scale * (bottom - top),
        6,
      );
      context.fillStyle = colours.paper;
      context.fill();
      context.strokeStyle = colours.line;
      context.stroke();
      if (this.zoom.scale < 22) continue;
      context.fillStyle = colours.soft;
      context.fillText(label, this.px(left) + 2, this.py(bottom) + 2);
    }
  }

  /** Adds a link's curve to the current path. @param {number} k */
  trace(k) {
    const { context, points } = this;
    const at = 8 * k;
    context.moveTo(this.px(points[at]), this.py(points[at + 1]));
    if (this.kind[k] === LINE) context.lineTo(this.px(points[at + 6]), this.py(points[at + 7]));
    else if (this.kind[k] === ELBOW) {
      context.lineTo(this.px(points[at + 2]), this.py(points[at + 3]));
      context.lineTo(this.px(points[at + 6]), this.py(points[at + 7]));
    } else {
      const [a, b, c, d, e, f] = points.subarray(at + 2, at + 8);
      context.bezierCurveTo(this.px(a), this.py(b), this.px(c), this.py(d), this.px(e), this.py(f));
    }
  }

  /**
   * Where on a link's curve a share of the way is, in pixels.
   * @param {number} k @param {number} share @returns {[number, number]}
   */
  along(k, share) {
    const p = this.points,
      at = 8 * k,
      r = 1 - share;
    /** @param {number} a @param {number} b @param {number} c @param {number} d @param {number} axis */
    const mix = (a, b, c, d, axis) =>
      a * p[at + axis] + b * p[at + 2 + axis] + c * p[at + 4 + axis] + d * p[at + 6 + axis];
    /** @type {[number, number, number, number]} */
    let weights;
    if (this.kind[k] === LINE) weights = [r, 0, 0, share];
    else if (this.kind[k] === ELBOW) {
      const first = Math.hypot(p[at + 2] - p[at], p[at + 3] - p[at + 1]);
      const second = Math.hypot(p[at + 6] - p[at + 2], p[at + 7] - p[at + 3]);
      const gone = share * (first + second);
      weights =
        gone <= first
          ? [1 - gone / first, gone / first, 0, 0]
          : [0, 1 - (gone - first) / second, 0, (gone - first) / second];
    } else weights = [r * r * r, 3 * r * r * share, 3 * r * share * share, share * share * share];
    return [this.px(mix(...weights, 0)), this.py(mix(...weights, 1))];
  }

  /** @param {number} k */
  visible(k) {
    const p = this.points,
      at = 8 * k;
    const x0 = this.px(Math.min(p[at], p[at + 6], p[at + 2])),
      x1 = this.px(Math.max(p[at], p[at + 6], p[at + 2]));
    const y0 = this.py(Math.min(p[at + 1], p[at + 7], p[at + 3])),
      y1 = this.py(Math.max(p[at + 1], p[at + 7], p[at + 3]));
    return x1 >= -9 && y1 >= -9 && x0 <= this.width + 9 && y0 <= this.height + 9;
  }

  /** @param {number} tick */
  drawLinks(tick) {
    const { context, colours } = this;
    const shades = 17;
    /** @type {number[][]} */
    const members = Array.from({ length: shades }, () => []);
    for (let k = 0; k < this.links.length; k++) {
      if (!this.visible(k)) continue;
      members[Math.round((this.run.busy(this.links[k], tick) / 255) * (shades - 1))].push(k);
    }
    context.lineWidth = this.wide;
    context.lineCap = "butt";
    members.forEach((group, shade) => {
      if (!group.length) return;
      context.strokeStyle = colours.css[Math.round((shade / (shades - 1)) * 255)];
      context.beginPath();
      for (const k of group) this.trace(k);
      context.stroke();
    });
  }

  /** @param {Iterable<number>} links @param {string} colour @param {number} width @param {number[]} dash */
  strokeLinks(links, colour, width, arrows = false, dash = []) {
    const { context } = this;
    const places = Array.from(links, (link) => this.placeOfLink.get(link)).filter((k) => k !== undefined);
    context.strokeStyle = context.fillStyle = colour;
    context.lineWidth = width;
    context.setLineDash(dash);
    context.beginPath();
    for (const k of places) this.trace(k);
    context.stroke();
    context.setLineDash([]);
    if (arrows) for (const k of places) this.arrow(k);
  }

  /** @param {number} k */
  arrow(k) {
    const { context } = this;
    const [x, y] = this.along(k, 0.62),
      [fx, fy] = this.along(k, 0.55);
    const angle = Math.atan2(y - fy, x - fx),
      size = Math.max(5, 2.2 * this.wide);
    context.beginPath();
    for (const turn of [0, 2.5, -2.5])
      context.lineTo(x + size * Math.cos(angle + turn), y + size * Math.sin(angle + turn));
    context.fill();
  }

  /** @param {number} tick */
  drawPath(tick) {
    const rows = this.run.path();
    const past = rows.filter((row) => row.begin <= tick),
      later = rows.filter((row) => row.begin > tick);
    this.strokeLinks(
      later.flatMap((row) => [...row.links]),
      this.colours.path,
      this.wide + 1,
      false,
      [3, 3],
    );
    this.strokeLinks(
      past.flatMap((row) => [...row.links]),
      this.colours.path,
      this.wide + 2,
      rows.length < 300,
    );
  }

  /** @param {TreeRow[]} rows @param {number} tick */
  drawTree(rows, tick) {
    const later = rows.filter((row) => row.begin > tick),
      past = rows.filter((row) => row.begin <= tick);
    this.strokeLinks(
      later.flatMap((row) => [...row.links]),
      this.colours.pick,
      this.wide + 0.5,
      false,
      [2, 4],
    );
    this.strokeLinks(
      past.flatMap((row) => [...row.links]),
      this.colours.pick,
      this.wide + 2,
      rows.length < 400,
    );
  }

  /** @param {number} tick @param {Pick | null} pick */
  drawDots(tick, pick) {
    const { context, colours, run } = this;
    const size = Math.min(Math.max(0.27 * this.radius, 1.3), 11);
    const chosen = pick?.kind === "chunk" ? pick.id : -1;
    /** @type {[x: number, y: number, chunk: number][][]} */
    const dots = [[], [], []];
    let hidden = 0,
      shown = 0;
    const { rims } = this;
    for (let k = 0; k < this.links.length; k++) {
      if (!this.visible(k)) continue;
      run.moving(this.links[k], tick, (i, share) => {
        const transfer = run.transferOf[i],
          chunk = run.chunkOf[transfer];
        if (shown >= MOST_DOTS && chunk !== chosen) return void hidden++;
        shown++;
        dots[chunk === chosen ? 2 : run.op(transfer) === REDUCE ? 1 : 0].push([
          ...this.along(k, rims[2 * k] + share * (1 - rims[2 * k] - rims[2 * k + 1])),
          chunk,
        ]);
      });
    }
    this.dotsHidden = hidden;
    this.dotsShown = shown;
    context.lineWidth = Math.min(1.2, 0.3 * size);
    context.strokeStyle = colours.panel;
    [colours.copy, colours.reduce, colours.pick].forEach((colour, group) => {
      const r = group === 2 ? size * 1.35 + 1 : size;
      context.fillStyle = colour;
      context.beginPath();
      for (const [x, y] of dots[group]) {
        if (group === 1) {
          context.moveTo(x, y - 1.25 * r);
          context.lineTo(x + 1.25 * r, y);
          context.lineTo(x, y + 1.25 * r);
          context.lineTo(x - 1.25 * r, y);
          context.closePath();
        } else {
          context.moveTo(x + r, y);
          context.arc(x, y, r, 0, 7);
        }
      }
      context.fill();
      if (size > 2) context.stroke();
      if (size < 7) return;
      context.fillStyle = colours.panel;
      context.textAlign = "center";
      context.textBaseline = "middle";
      for (const [x, y, chunk] of dots[group]) {
        const high = Math.min(9, (2.6 * r) / `${chunk}`.length); // so that its digits stay inside
        if (high < 6) continue;
        context.font = `600 ${high}px system-ui, sans-serif`;
        context.fillText(`${chunk}`, x, y + 0.5);
      }
    });
  }

  /**
   * NPUs that have a chunk at a moment: 2 whole, 1 a part of the sum.
   * @param {TreeRow[]} rows @param {number} chunk @param {number} tick
   */
  holders(rows, chunk, tick) {
    const state = new Map();
    const source = this.run.columns.chunk_source[chunk];
    if (source >= 0) state.set(source, 2);
    for (const row of rows) {
      if (row.end > tick) continue;
      for (const node of row.targets) state.set(node, row.op === REDUCE ? 1 : 2);
    }
    return state;
  }

  /** @param {number} tick @param {Pick | null} pick @param {TreeRow[]} rows */
  drawNodes(tick, pick, rows) {
    const { context, colours, run } = this;
    const holders = pick?.kind === "chunk" ? this.holders(rows, pick.id, tick) : null;
    const r = this.radius;
    const pies = run.npus <= PIES && r > 3;
    const label = r >= 7.5;
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (let k = 0; k < this.nodes.length; k++) {
      const node = this.nodes[k],
        x = this.px(this.xy[2 * k]),
        y = this.py(this.xy[2 * k + 1]);
      const half = Math.max(this.half[k] * this.zoom.scale, r);
      if (x + half < 0 || y + r < 0 || x - half > this.width || y - r > this.height) continue;
      const picked = pick?.kind === "npu" && pick.id === node;
      if (node >= run.npus) {
        this.drawSwitch(k, x, y, half, picked);
        continue;
      }
      context.beginPath();
      context.arc(x, y, r, 0, 7);
      const share = run.received(node, tick);
      const held = holders?.get(node);
      context.fillStyle =
        held === 2 ? colours.pick : pies || holders ? colours.node : colours.css[Math.round(share * 255)];
      context.fill();
      if (pies && share > 0 && !holders) {
        context.beginPath();
        context.moveTo(x, y);
        context.arc(x, y, r, -Math.PI / 2, -Math.PI / 2 + 2 * Math.PI * share);
        context.fillStyle = colours.fill;
        context.fill();
      }
      if (r > 2) {
        context.beginPath();
        context.arc(x, y, r, 0, 7);
        context.lineWidth = picked ? 4 : held ? 3 : Math.min(1.4, 0.12 * r);
        context.strokeStyle = picked || held ? colours.pick : colours.ink;
        context.stroke();
      }
      if (!label) continue;
      const text = run.facts.names.length && r > 14 ? run.facts.names[node] : `${node}`;
      context.font = `600 ${Math.min(13, 0.85 * r, (2.7 * r) / text.length)}px system-ui, sans-serif`;
      context.fillStyle = held === 2 ? colours.panel : colours.ink;
      context.fillText(text, x, y + 0.5);
    }
  }

  /** @param {number} k @param {number} x @param {number} y @param {number} half @param {boolean} picked */
  drawSwitch(k, x, y, half, picked) {
    const { context, colours } = this;
    const high = this.half[k] ? Math.min(Math.max(BAR * this.zoom.scale, 2), 26) : 2 * this.radius;
    context.beginPath();
    context.roundRect(x - half, y - high / 2, 2 * half, high, Math.min(5, high / 4));
    context.fillStyle = colours.bar;
    context.fill();
    context.lineWidth = picked ? 4 : 1;
    context.strokeStyle = picked ? colours.pick : colours.panel;
    context.stroke();
    const name = this.run.nodeName(this.nodes[k]);
    const text = [name, name.replace(/^switch /, "")].find((words) => 6.2 * words.length < 2 * half - 4);
    if (high < 10 || text === undefined) return;
    context.fillStyle = colours.panel;
    context.font = "11px system-ui, sans-serif";
    context.fillText(text, x, y + 0.5);
  }

  /** What is under the pointer. @param {number} x @param {number} y @returns {Pick | null} */
  hit(x, y) {
    for (let k = this.nodes.length - 1; k >= 0; k--) {
      const dx = Math.abs(x - this.px(this.xy[2 * k])),
        dy = Math.abs(y - this.py(this.xy[2 * k + 1]));
      const half = this.half[k] * this.zoom.scale;
      const inside = half
        ? dx <= half && dy <= Math.max(0.5 * BAR * this.zoom.scale, 4)
        : Math.hypot(dx, dy) <= Math.max(this.radius, 4);
      if (inside) return { kind: "npu", id: this.nodes[k] };
    }
    /** @type {Pick | null} */
    let best = null,
      distance = Math.max(this.wide, 5);
    for (let k = 0; k < this.links.length; k++) {
      if (!this.visible(k)) continue;
      for (let step = 0; step <= 24; step++) {
        const [px, py] = this.along(k, step / 24);
        const away = Math.hypot(px - x, py - y);
        if (away < distance) [best, distance] = [{ kind: "link", id: this.links[k] }, away];
      }
      const p = this.points,
        at = 8 * k;
      if (this.kind[k] === LINE) {
        const away = toSegment(
          x,
          y,
          this.px(p[at]),
          this.py(p[at + 1]),
          this.px(p[at + 6]),
          this.py(p[at + 7]),
        );
        if (away < distance) [best, distance] = [{ kind: "link", id: this.links[k] }, away];
      }
    }
    return best;
  }
}

/**
 * @param {number} x @param {number} y @param {number} ax @param {number} ay @param {number} bx
 * @param {number} by
 */
function toSegment(x, y, ax, ay, bx, by) {
  const length = (bx - ax) ** 2 + (by - ay) ** 2 || 1;
  const share = Math.min(1, Math.max(0, ((x - ax) * (bx - ax) + (y - ay) * (by - ay)) / length));
  return Math.hypot(x - ax - share * (bx - ax), y - ay - share * (by - ay));
}
