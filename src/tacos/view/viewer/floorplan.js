// Positions of a network's nodes and links in a canvas: zoom, curves, and the object under the pointer.

/** @import { Pick } from "./types.d.ts" */
/** @import { Run } from "./run.js" */

export const LINE = 0,
  ELBOW = 2; // kinds of links; others are curves
export const BAR = 0.36; // height of a switch drawn as a bar, in units of the layout
const LARGEST = 56; // radius of an NPU, in pixels
const AIR = 16, // pixels around the network
  NAMES = 12; // pixels for the names of boxes, below them

export class FloorPlan {
  width = 0; // pixels of the canvas
  height = 0;
  radius = 0; // pixels, of an NPU
  wide = 0; // pixels, of a link

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
    this.zoom = { scale: 1, tall: 1, x: 0, y: 0, free: false };
    this.box = this.extent();
    this.rims = new Float32Array(2 * this.links.length);
    this.rimsKey = "";
    this.widths = [...new Set(this.run.columns.link_wide)];
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
    const air = this.run.facts.radius * 1.5 * (this.run.facts.elastic > 1 ? 0.8 : 1);
    for (let k = 0; k < this.nodes.length; k++) {
      add(this.xy[2 * k] - this.half[k] - air, this.xy[2 * k + 1] - air);
      add(this.xy[2 * k] + this.half[k] + air, this.xy[2 * k + 1] + air);
    }
    for (let i = 0; i < this.points.length; i += 2) add(this.points[i], this.points[i + 1]);
    for (const [left, top, right, bottom] of this.run.facts.frames) (add(left, top), add(right, bottom));
    return box;
  }

  /** Per link, the parts of its curve that its end nodes cover; chunks move in between. */
  margins() {
    const { rims } = this;
    const key = `${this.zoom.tall} ${this.radius / this.zoom.scale}`;
    if (key === this.rimsKey) return;
    this.rimsKey = key;
    const radius = this.radius / this.zoom.scale,
      { tall } = this.zoom;
    for (let k = 0; k < this.links.length; k++) {
      const p = this.points,
        at = 8 * k;
      const stops = this.kind[k] === ELBOW ? [0, 2, 4, 6] : [0, 6];
      let length = 0;
      for (let i = 1; i < stops.length; i++) {
        const a = at + stops[i - 1],
          b = at + stops[i];
        length += Math.hypot(p[b] - p[a], (p[b + 1] - p[a + 1]) * tall);
      }
      [this.run.src, this.run.dst].forEach((ends, side) => {
        const bar = this.half[this.placeOfNode.get(ends[this.links[k]]) ?? -1] > 0;
        rims[2 * k + side] = Math.min((bar ? BAR / 2 : radius) / Math.max(length, 1e-9), 0.4);
      });
    }
  }

  // --- zoom and pan

  fit() {
    this.zoom.free = false;
  }
  /** Fit the network to a canvas, unless the user has zoomed. @param {number} width @param {number} height */
  aim(width, height) {
    this.width = width;
    this.height = height;
    if (!this.zoom.free) this.fill(width, height);
    this.radius = Math.min(Math.max(this.run.facts.radius * this.unit, 1), LARGEST);
    this.wide = Math.min(Math.max(this.run.facts.width * this.unit, 0.7), 8);
    this.margins();
  }
  /** The scale at which the network fills a canvas, and how much that stretches heights. @param {number} width @param {number} height */
  scaleFor(width, height) {
    const { left, top, right, bottom } = this.box;
    const below = this.run.facts.frames.length ? NAMES : 0;
    const across = (width - 2 * AIR) / (right - left),
      down = (height - 2 * AIR - below) / (bottom - top);
    const most = LARGEST / this.run.facts.radius; // otherwise, links would miss the NPUs that they join
    const least = Math.min(across, down, most);
    const longer = this.run.facts.elastic;
    const scale = Math.min(across, longer * least);
    return { scale, tall: Math.min(down, longer * least) / scale, least };
  }
  /** @param {number} width @param {number} height */
  fill(width, height) {
    const { left, top, right, bottom } = this.box;
    const below = this.run.facts.frames.length ? NAMES : 0;
    const { scale, tall } = this.scaleFor(width, height);
    this.zoom.scale = scale;
    this.zoom.tall = tall;
    this.zoom.x = width / 2 - (scale * (left + right)) / 2;
    this.zoom.y = (height - below) / 2 - (scale * this.zoom.tall * (top + bottom)) / 2;
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
    return this.zoom.y + this.zoom.scale * this.zoom.tall * y;
  }
  /** Pixels per unit of the layout, in the direction with fewer pixels. */
  get unit() {
    return this.zoom.scale * Math.min(1, this.zoom.tall);
  }

  // --- curves

  /**
   * The point at a share of the way along a link's curve, in pixels.
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
      const parts = [0, 2, 4].map((k) =>
        Math.hypot(p[at + k + 2] - p[at + k], (p[at + k + 3] - p[at + k + 1]) * this.zoom.tall),
      );
      let gone = share * (parts[0] + parts[1] + parts[2]),
        k = 0;
      while (k < 2 && gone > parts[k]) gone -= parts[k++];
      const within = parts[k] ? Math.min(gone / parts[k], 1) : 0;
      weights = [0, 0, 0, 0];
      weights[k] = 1 - within;
      weights[k + 1] = within;
    } else weights = [r * r * r, 3 * r * r * share, 3 * r * share * share, share * share * share];
    return [this.px(mix(...weights, 0)), this.py(mix(...weights, 1))];
  }

  /** @param {number} k */
  visible(k) {
    const p = this.points,
      at = 8 * k;
    const xs = [p[at], p[at + 2], p[at + 4], p[at + 6]],
      ys = [p[at + 1], p[at + 3], p[at + 5], p[at + 7]];
    const x0 = this.px(Math.min(...xs)),
      x1 = this.px(Math.max(...xs)),
      y0 = this.py(Math.min(...ys)),
      y1 = this.py(Math.max(...ys));
    return x1 >= -9 && y1 >= -9 && x0 <= this.width + 9 && y0 <= this.height + 9;
  }

  /** The object under the pointer. @param {number} x @param {number} y @returns {Pick | null} */
  hit(x, y) {
    for (let k = this.nodes.length - 1; k >= 0; k--) {
      const dx = Math.abs(x - this.px(this.xy[2 * k])),
        dy = Math.abs(y - this.py(this.xy[2 * k + 1]));
      const half = this.half[k] * this.zoom.scale;
      const inside = half
        ? dx <= half && dy <= Math.max(0.5 * BAR * this.unit, 7)
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
