// The page: reads the data that Python put into it, and shows one view at a time.

import { decode } from "./columns.js";
import { escaped } from "./format.js";
import { Viewer } from "./main.js";
import { Run } from "./run.js";
import { TimelineView } from "./timeline.js";
/** @import { View } from "./types.d.ts" */

/** @param {string} id */
const at = (id) => /** @type {HTMLElement} */ (document.getElementById(id));
/** @param {string} id */
const read = (id) => JSON.parse(at(id).textContent ?? "null");

class Views {
  /** @type {Viewer | TimelineView | null} */
  shown = null;
  /** @type {(Promise<Run> | undefined)[]} */
  runs = [];
  /** @type {Promise<any>[]} */
  timelines = [];
  /** @type {number[]} */
  past = []; // views shown before

  constructor() {
    /** @type {View[]} */
    this.list = read("views");
    this.runData = read("runs");
    this.timelineData = read("timelines");
    const tabs = at("views");
    this.nav = at("tabs");
    tabs.remove();
    this.nav.hidden = this.list.length < 2;
    this.nav.innerHTML = this.list
      .map((view, k) => `<button role="tab" data-view="${k}">${escaped(view.title)}</button>`)
      .join("");
    this.nav.onclick = (event) => {
      const button = /** @type {HTMLElement} */ (event.target).closest("button");
      if (button) void this.show(Number(button.dataset.view));
    };
  }

  /** A run, decoded when it is first shown. @param {number} k @returns {Promise<Run>} */
  run(k) {
    return (this.runs[k] ??= this.readRun(k));
  }
  /** @param {number} k */
  async readRun(k) {
    const { facts, layout, base } = this.runData[k];
    const holder = at(`columns-${k}`);
    const columns = await decode(holder.textContent ?? "", layout);
    holder.remove(); // frees many megabytes of text
    if (base === undefined) return new Run(facts, columns);
    const before = await this.run(base);
    return new Run({ ...before.facts, ...facts }, { ...before.columns, ...columns });
  }
  /** @param {number} k */
  timeline(k) {
    return (this.timelines[k] ??= (async () => {
      const { facts, layout } = this.timelineData[k];
      const holder = at(`timeline-${k}`);
      const columns = await decode(holder.textContent ?? "", layout);
      holder.remove();
      return { facts, columns };
    })());
  }

  /** @param {number} k */
  async show(k) {
    const view = this.list[k];
    const before = this.shown;
    const runs = await Promise.all((view.runs ?? []).map((run) => this.run(run)));
    const line = view.timeline === undefined ? null : await this.timeline(view.timeline);
    before?.end();
    [...this.nav.children].forEach((tab, i) => tab.setAttribute("aria-selected", `${i === k}`));
    this.nav.children[k]?.scrollIntoView({ block: "nearest", inline: "nearest" });
    // Keep the selection if the network is the same.
    const same = before instanceof Viewer && runs[0]?.facts.title === before.runs[0].facts.title;
    this.shown = line
      ? new TimelineView(line.facts, line.columns, (other) => void this.show(other))
      : new Viewer(runs, view, same ? before : null);
    Object.assign(window, { viewer: this.shown }); // for tests and debugging
  }
}

async function open() {
  const views = new Views();
  await views.show(0);
  Object.assign(window, { views });
  document.body.classList.remove("loading");
}

open().catch((error) => {
  at("title").textContent = `This page could not be read: ${error.message}`;
  throw error;
});
