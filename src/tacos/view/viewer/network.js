// Draws the network: nodes, links coloured by how busy they are, and chunks in flight.

import { BAR, ELBOW, LINE, FloorPlan } from "./floorplan.js";
import { REDUCE } from "./run.js";
import { fitted, ringColour } from "./theme.js";
/** @import { Colours, Look, Pick, TreeRow } from "./types.d.ts" */

const MOST_DOTS = 15000;
const PIES = 1500; // largest number of NPUs drawn as pies of their share
const SMALLEST = 10; // smallest font in pixels; smaller labels are omitted

export class NetworkView extends FloorPlan {
  /** @type {CanvasRenderingContext2D} */
  context;
  /** @type {Colours} */
  colours;
  longest = [0, 0]; // pixels of the longest number and name, in the smallest font
  dotsHidden = 0;
  dotsShown = 0;

  /**
   * @param {number} tick the moment
   * @param {Pick | null} pick what is selected
   * @param {Look} look
   */
  draw(tick, pick, look) {
    const { context, width, height } = fitted(this.canvas);
    this.context = context;
    this.colours = look.colours;
    this.aim(width, height);
    context.fillStyle = look.colours.panel;
    context.fillRect(0, 0, width, height);
    this.drawFrames();
    if (look.rings) return this.drawRings(look);
    this.drawLinks(tick);
    this.drawFaults(tick);
    const rows = pick?.kind === "chunk" ? this.run.tree(pick.id) : [];
    if (look.path) this.drawPath(tick);
    this.drawTree(rows, tick);
    if (pick?.kind === "link") this.strokeLinks([pick.id], look.colours.pick, this.wide + 2.5, true);
    this.drawDots(tick, pick);
    this.drawCrosses(tick);
    this.drawNodes(tick, pick, rows);
  }

  drawFrames() {
    const { context, colours } = this;
    context.lineWidth = 1;
    context.font = `${Math.min(13, Math.max(SMALLEST, 0.3 * this.unit))}px system-ui, sans-serif`;
    context.textAlign = "left";
    context.textBaseline = "top";
    for (const [left, top, right, bottom, label] of this.run.facts.frames) {
      context.beginPath();
      context.roundRect(
        this.px(left),
        this.py(top),
        this.zoom.scale * (right - left),
        this.zoom.scale * this.zoom.tall * (bottom - top),
        6,
      );
      context.fillStyle = colours.paper;
      context.fill();
      context.strokeStyle = colours.line;
      context.stroke();
      if (context.measureText(label).width > this.zoom.scale * (right - left + 0.6)) continue;
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
      for (const k of [2, 4, 6]) context.lineTo(this.px(points[at + k]), this.py(points[at + k + 1]));
    } else {
      const [a, b, c, d, e, f] = points.subarray(at + 2, at + 8);
      context.bezierCurveTo(this.px(a), this.py(b), this.px(c), this.py(d), this.px(e), this.py(f));
    }
  }

  /** @param {number} tick */
  drawLinks(tick) {
    const { context, colours } = this;
    const shades = 17;
    const { link_wide: wide } = this.run.columns;
    /** @type {Map<number, number[]>} */
    const members = new Map(); // by shade and width
    for (let k = 0; k < this.links.length; k++) {
      const link = this.links[k];
      if (!this.visible(k) || this.run.fault(link, tick)?.down) continue;
      const shade = Math.round((this.run.busy(link, tick) / 255) * (shades - 1));
      const key = shade * this.widths.length + this.widths.indexOf(wide[link]);
      const group = members.get(key);
      if (group) group.push(k);
      else members.set(key, [k]);
    }
    context.lineCap = "butt";
    for (const [key, group] of [...members].sort((a, b) => a[0] - b[0])) {
      const shade = Math.floor(key / this.widths.length);
      context.lineWidth = Math.max(this.wide * this.widths[key % this.widths.length], 0.6);
      context.strokeStyle = colours.css[Math.round((shade / (shades - 1)) * 255)];
      context.beginPath();
      for (const k of group) this.trace(k);
      context.stroke();
    }
  }

  /** Dash the links that are down or slow. @param {number} tick */
  drawFaults(tick) {
    for (const link of this.run.faultsOf.keys()) {
      const fault = this.run.fault(link, tick);
      if (!fault) continue;
      const width = fault.down ? 1.5 : Math.max(this.wide, 2);
      this.strokeLinks([link], this.colours.fault, width, false, [6, 4]);
    }
  }
  /** Cross out the links that are down, over the chunks that wait on them. @param {number} tick */
  drawCrosses(tick) {
    const { context, colours, run } = this;
    const size = Math.max(6, 1.4 * this.wide);
    context.beginPath();
    for (const link of run.faultsOf.keys()) {
      const k = this.placeOfLink.get(link);
      if (k === undefined || !run.fault(link, tick)?.down) continue;
      const [x, y] = this.along(k, 0.5);
      for (const side of [1, -1]) {
        context.moveTo(x - size, y - side * size);
        context.lineTo(x + size, y + side * size);
      }
    }
    for (const [colour, width] of /** @type {const} */ ([[colours.panel, 6], [colours.fault, 3]])) {
      context.strokeStyle = colour;
      context.lineWidth = width;
      context.stroke();
    }
  }

  /** Rings over the links that their hops take, each a little aside from the others. @param {Look} look */
  drawRings(look) {
    const { context, colours } = this;
    const rings = look.rings ?? [];
    context.strokeStyle = colours.line;
    context.lineWidth = Math.max(0.5 * this.wide, 0.7);
    context.beginPath();
    for (let k = 0; k < this.links.length; k++) if (this.visible(k)) this.trace(k);
    context.stroke();
    const shown = rings.map((_, k) => k).filter((k) => look.ring < 0 || k === look.ring);
    const pitch = Math.min(3, 12 / Math.max(1, shown.length));
    shown.forEach((k, place) => {
      const aside = (place - (shown.length - 1) / 2) * pitch;
      context.save();
      context.translate(aside, aside);
      this.strokeLinks(rings[k].links, ringColour(k), look.ring < 0 ? 1.6 : 3, look.ring >= 0);
      context.restore();
    });
    this.drawNodes(0, null, []);
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
      context.fillStyle = colours.panel;
      context.textAlign = "center";
      context.textBaseline = "middle";
      context.font = `600 ${SMALLEST}px system-ui, sans-serif`;
      if (context.measureText(`${run.chunks - 1}`).width > 1.65 * r) return; // does not fit into all dots
      for (const [x, y, chunk] of dots[group]) context.fillText(`${chunk}`, x, y + 0.5);
    });
  }

  /**
   * The NPUs that have a chunk at a moment: 2 complete, 1 a partial sum.
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
    const place = this.labelling();
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
      if (place) this.label(place, node, x, y, held === 2 ? colours.panel : colours.ink);
    }
  }

  /** Choose names or numbers, inside or below the NPUs: whichever is readable for all of them. */
  labelling() {
    const { context, run } = this;
    const r = this.radius;
    if (r <= 2.5) return null;
    const apart = run.facts.gap * this.zoom.scale;
    const low = apart * this.zoom.tall - 2 * r > 12;
    for (const named of [true, false]) {
      if (!this.longest[+named]) {
        context.font = `600 ${SMALLEST}px system-ui, sans-serif`;
        for (const node of this.nodes) {
          if (node >= run.npus) continue;
          const { width } = context.measureText(named ? this.shortName(node) : `${node}`);
          this.longest[+named] = Math.max(this.longest[+named], width);
        }
      }
      const wide = this.longest[+named];
      const size = Math.min(13, (SMALLEST * 1.75 * r) / wide, 0.95 * r + 3);
      if (size >= SMALLEST && r >= 7) return { named, size, inside: true };
      if (low && wide + 4 <= apart) return { named, size: SMALLEST, inside: false };
    }
    return null;
  }
  /**
   * @param {{ named: boolean, size: number, inside: boolean }} place
   * @param {number} node @param {number} x @param {number} y @param {string} colour of text in the NPU
   */
  label({ named, size, inside }, node, x, y, colour) {
    const { context, colours } = this;
    const text = named ? this.shortName(node) : `${node}`;
    context.font = `600 ${size}px system-ui, sans-serif`;
    context.fillStyle = colour;
    if (inside) return context.fillText(text, x, y + 0.5);
    context.strokeStyle = colours.paper;
    context.lineWidth = 3;
    context.strokeText(text, x, y + this.radius + 7);
    context.fillStyle = colours.ink;
    context.fillText(text, x, y + this.radius + 7);
  }
  /** A node's name, without its box where a frame carries that. @param {number} node */
  shortName(node) {
    const name = this.run.facts.names[node];
    if (name === undefined) return node < this.run.npus ? `${node}` : `switch ${node - this.run.npus}`;
    const at = name.lastIndexOf("/");
    const framed = at > 0 && this.run.facts.frames.some((frame) => frame[4] === name.slice(0, at));
    return framed ? name.slice(at + 1) : name;
  }

  /** @param {number} k @param {number} x @param {number} y @param {number} half @param {boolean} picked */
  drawSwitch(k, x, y, half, picked) {
    const { context, colours } = this;
    const least = this.unit > 14 ? 14 : 2; // room for a name
    const high = this.half[k] ? Math.min(Math.max(BAR * this.unit, least), 32) : 2 * this.radius;
    context.beginPath();
    context.roundRect(x - half, y - high / 2, 2 * half, high, Math.min(5, high / 4));
    context.fillStyle = colours.bar;
    context.fill();
    context.lineWidth = picked ? 4 : 1;
    context.strokeStyle = picked ? colours.pick : colours.panel;
    context.stroke();
    const name = this.shortName(this.nodes[k]);
    context.font = "11px system-ui, sans-serif";
    const text = [name, name.replace(/^switch /, "")].find(
      (words) => context.measureText(words).width < 2 * half - 4,
    );
    if (high < 12) return;
    if (text !== undefined) {
      context.fillStyle = colours.panel;
      context.fillText(text, x, y + 0.5);
    } else if (!this.half[k]) {
      context.strokeStyle = colours.paper;
      context.lineWidth = 3;
      context.strokeText(name, x, y + high / 2 + 8);
      context.fillStyle = colours.ink;
      context.fillText(name, x, y + high / 2 + 8);
    }
  }
}
