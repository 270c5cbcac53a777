// A view of runs: connects clock, pictures, charts and panel.

import { Histogram, Progress, drawQueue } from "./charts.js";
import { bandwidth, count, escaped, moment, percent, size, time } from "./format.js";
import { HeatMap } from "./heat.js";
import { compare, headline, inspect, ringList } from "./inspector.js";
import { NetworkView } from "./network.js";
import { colours, toggle } from "./theme.js";
/** @import { Colours, Elements, Kind, Look, Pick, View } from "./types.d.ts" */
/** @import { Run } from "./run.js" */

const STEPS = 100000; // steps of the slider
const DURATION = 20; // seconds to play a run at speed 1
const SPEEDS = [0.1, 0.25, 0.5, 1, 2, 4, 8];
const LETTERS = "AB";
const MOST_NAMES = 4000; // most names that Find completes
const LONGEST_HINT = 24; // letters that fit into Find
const CAPTION = 30; // pixels above a network

/**
 * The element of viewer.html with an id.
 * @template {string} Id
 * @param {Id} id @returns {Id extends keyof Elements ? Elements[Id] : HTMLElement}
 */
const $ = (id) => /** @type {any} */ (document.getElementById(id));
/** @param {Event} event @returns {HTMLElement} */
const element = (event) => /** @type {any} */ (event.target);
/** @param {string} where */
const canvasAt = (where) => /** @type {HTMLCanvasElement} */ (document.querySelector(where));

export class Viewer {
  /** @type {NetworkView[]} */
  views;
  /** @type {HeatMap[]} */
  heats;
  /** @type {Progress} */
  progress;
  /** @type {Histogram} */
  histogram;
  /** @type {Colours} */
  colours;
  /** @type {Pick | null} */
  pick = null;
  panelKey = ""; // identifies the panel's contents
  /** @type {number | undefined} */
  waiting; // the request for the next frame
  ring = -1; // the ring that is selected

  /**
   * @param {Run[]} runs @param {View} view
   * @param {Viewer | null} before the previous view, whose selection is kept
   */
  constructor(runs, view, before = null) {
    this.runs = runs;
    this.view = view;
    this.whole = Math.max(...runs.map((run) => run.facts.time_s), 1e-12);
    this.seconds = Math.min(before?.seconds ?? 0, this.whole);
    this.playing = false;
    this.speed = before?.speed ?? 3;
    this.path = before?.path ?? false;
    this.ended = new AbortController();
    this.build();
    this.listen();
    this.look();
    this.select(before?.pick ?? null);
  }

  /** Stop, because another view is shown. */
  end() {
    this.play(false);
    this.ended.abort();
    if (this.waiting !== undefined) cancelAnimationFrame(this.waiting);
  }

  // --- contents of the page

  build() {
    const many = this.runs.length > 1;
    document.body.classList.toggle("many", many);
    document.body.dataset.view = this.view.rings ? "rings" : "runs";
    $("networks").innerHTML = this.runs.map((run, k) => this.figure(run, k)).join("");
    const label = `role="img" aria-label="how busy each link is over time"`;
    $("heat").innerHTML = this.runs
      .map((_, k) => `<div>${this.tag(k)}<canvas data-heat="${k}" ${label}></canvas></div>`)
      .join("");
    const first = this.runs[0].facts;
    this.complete();
    const titles = [...new Set(this.runs.map((run) => run.facts.title))];
    const words = this.view.rings
      ? `${this.view.title} on ${first.title}`
      : `${first.collective}, ${size(first.size_bytes)} on ${titles.join(" and ")}`;
    const simulated = !this.view.rings && this.runs.some((run) => run.facts.simulated);
    $("title").textContent = simulated ? `${words}, simulated` : words;
    document.title = `${$("title").textContent} – tacos`;
    const banners = this.runs.map((run, k) =>
      run.facts.banner && many ? `${LETTERS[k]} ${run.facts.banner}` : run.facts.banner,
    );
    $("banner").textContent = this.view.rings ? "" : [...new Set(banners)].filter(Boolean).join(" · ");
    $("banner").hidden = !$("banner").textContent;
    $("banner").classList.toggle("fault", this.runs.some((run) => run.facts.disturbances.length > 0));
    $("headline").textContent = many ? headline(this.runs) : "";
    $("headline").hidden = !many;
    const notes = this.runs.flatMap((run, k) =>
      run.facts.notes.map((note) => (many ? `${LETTERS[k]}: ${note}` : note)),
    );
    $("notes").textContent = notes.join(" ");
    $("notes").hidden = !notes.length;
    this.views = this.runs.map((run, k) => new NetworkView(canvasAt(`[data-run="${k}"]`), run));
    this.heats = this.runs.map((run, k) => new HeatMap(canvasAt(`[data-heat="${k}"]`), run, this.whole));
    this.progress = new Progress($("progress"), this.runs, this.whole);
    this.histogram = new Histogram($("histogram"), this.runs);
    $("used").textContent = this.histogram.words();
    $("progress-key").innerHTML = many
      ? `<i class="line a"></i>A <i class="line b"></i>B, median`
      : `<i class="line a"></i>median NPU`;
    $("slider").max = `${STEPS}`;
    $("speed").value = `${this.speed}`;
    $("grouping").value = this.heats[0].grouping;
    $("sorting").value = this.heats[0].sorting;
    /** @type {HTMLOptionElement} */ ($("grouping").options[2]).disabled = !first.boxes.length;
    $("path").hidden = Boolean(this.view.rings);
    $("path").setAttribute("aria-pressed", `${this.path}`);
  }

  /** Fill in the completions of Find: nodes by name, links by their ends. */
  complete() {
    const run = this.runs[0];
    const nodes = Array.from({ length: run.facts.nodes }, (_, node) => run.nodeName(node));
    const links = Array.from({ length: run.links }, (_, link) => {
      const ends = [run.src[link], run.dst[link]];
      return ends.map((node) => run.facts.names[node] ?? `${node}`).join("-");
    });
    const words = [...new Set([...nodes, ...links])].slice(0, MOST_NAMES);
    $("names").innerHTML = words.map((word) => `<option value="${escaped(word)}"></option>`).join("");
    const [a, b] = [run.facts.names[run.src[0]], run.facts.names[run.dst[0]]];
    const examples = a && b ? [`${a}, ${a}-${b}, chunk 4`, `${a}-${b}`, a] : ["npu 3, 0-1, chunk 40"];
    $("find").placeholder = examples.find((words) => words.length <= LONGEST_HINT) ?? "";
  }

  /** A run's letter, where there are two. @param {number} k */
  tag(k) {
    return this.runs.length > 1 ? `<b class="tag ${LETTERS[k].toLowerCase()}">${LETTERS[k]}</b> ` : "";
  }

  /** @param {Run} run @param {number} k */
  figure(run, k) {
    const words = `role="img" aria-label="${escaped(run.facts.subtitle)}"`;
    return `<figure>
      <figcaption>${this.tag(k)}${escaped(run.facts.name)} ${this.chips(run)}</figcaption>
      <canvas tabindex="0" data-run="${k}" ${words}></canvas>
    </figure>`;
  }

  /** @param {Run} run */
  chips(run) {
    const f = run.facts;
    if (this.view.rings) return "";
    const chips = [
      [f.leading, time(f.leading_s)],
      ["bound", f.bound_s ? time(f.bound_s) : "–"],
      ["of the bound", run.share === null ? "–" : percent(run.share)],
      ["busbw", bandwidth(run.busbw)],
      ["ideal", time(f.ideal_s)],
      ["engine", f.engine ?? "–"],
      ["transfers", count(f.transfers)],
    ];
    return chips
      .map(([name, value]) => `<span class="chip ${name.replaceAll(" ", "-")}">${name} <b>${escaped(value)}</b></span>`)
      .join("");
  }

  // --- user input

  listen() {
    $("play").onclick = () => this.play(!this.playing);
    $("back").onclick = () => this.step(false);
    $("forth").onclick = () => this.step(true);
    $("slider").oninput = () => this.goto((Number($("slider").value) / STEPS) * this.whole);
    $("speed").onchange = () => (this.speed = Number($("speed").value));
    $("path").onclick = () => this.showPath(!this.path);
    $("fit").onclick = () => this.zoom(0);
    $("theme").onclick = () => (toggle(), this.look());
    $("help").onclick = () => $("keys").showModal();
    $("clear").onclick = () => this.select(null);
    $("find").onchange = () => this.find($("find").value);
    $("find").oninput = () => this.finding($("find").value);
    for (const id of /** @type {const} */ (["grouping", "sorting"]))
      $(id).onchange = () => {
        for (const heat of this.heats) heat.arrange($("grouping").value, $("sorting").value);
        this.refresh();
      };
    $("larger").onclick = () => {
      const on = document.body.classList.toggle("tall");
      $("larger").setAttribute("aria-pressed", `${on}`);
      this.refresh();
    };
    $("panel").onclick = (event) => this.follow(element(event).closest("button"));
    this.views.forEach((view) => this.listenTo(view));
    this.heats.forEach((heat) => this.listenToHeat(heat));
    this.scrub($("progress"), (x) => this.progress.moment(x));
    const { signal } = this.ended;
    addEventListener("keydown", (event) => this.key(event), { signal });
    const sized = new ResizeObserver(() => this.refresh());
    sized.observe(document.body);
    signal.addEventListener("abort", () => sized.disconnect());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.look(), { signal });
  }

  /** @param {NetworkView} view */
  listenTo(view) {
    const canvas = view.canvas;
    /** @type {[number, number] | null} */
    let from = null;
    let moved = false;
    canvas.onpointerdown = (event) => {
      from = [event.offsetX, event.offsetY];
      moved = false;
      canvas.setPointerCapture(event.pointerId);
    };
    canvas.onpointermove = (event) => {
      if (!from) return this.hover(event, view.hit(event.offsetX, event.offsetY), view.run);
      const [dx, dy] = [event.offsetX - from[0], event.offsetY - from[1]];
      if (!moved && Math.hypot(dx, dy) < 4) return;
      moved = true;
      from = [event.offsetX, event.offsetY];
      view.panBy(dx, dy);
      this.refresh();
    };
    canvas.onpointerup = (event) => {
      if (from && !moved) this.select(view.hit(event.offsetX, event.offsetY));
      from = null;
    };
    canvas.onpointerleave = () => this.hideTip();
    canvas.addEventListener(
      "wheel",
      (event) => {
        event.preventDefault();
        view.zoomBy(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0016)), event.offsetX, event.offsetY);
        this.refresh();
      },
      { passive: false },
    );
    canvas.ondblclick = () => (view.fit(), this.refresh());
  }

  /** @param {HeatMap} heat */
  listenToHeat(heat) {
    this.scrub(heat.canvas, (x) => heat.moment(x));
    heat.canvas.addEventListener("pointermove", (event) => {
      const link = heat.link(event.offsetY);
      this.hover(event, link < 0 ? null : { kind: "link", id: link }, heat.run, heat.moment(event.offsetX));
    });
    heat.canvas.onpointerleave = () => this.hideTip();
    heat.canvas.addEventListener("click", (event) => {
      const link = heat.link(event.offsetY);
      if (link >= 0) this.select({ kind: "link", id: link });
    });
  }

  /**
   * Let dragging on a chart move the clock.
   * @param {HTMLCanvasElement} canvas @param {(x: number) => number} secondsAt
   */
  scrub(canvas, secondsAt) {
    canvas.onpointerdown = (event) => {
      canvas.setPointerCapture(event.pointerId);
      this.goto(secondsAt(event.offsetX));
    };
    const { signal } = this.ended;
    const move = (/** @type {PointerEvent} */ event) =>
      void (event.buttons && this.goto(secondsAt(event.offsetX)));
    canvas.addEventListener("pointermove", move, { signal });
  }

  hideTip() {
    $("tip").hidden = true;
  }
  /** @param {MouseEvent} event @param {Pick | null} hit @param {Run} run */
  hover(event, hit, run, seconds = this.seconds) {
    if (!hit) return this.hideTip();
    const tip = $("tip");
    tip.hidden = false;
    const words =
      hit.kind === "npu"
        ? [
            run.nodeName(hit.id),
            hit.id < run.npus ? `${percent(run.received(hit.id, seconds / run.tick))} received` : "",
          ]
        : [
            `link ${hit.id}: ${run.linkName(hit.id)}`,
            bandwidth(run.columns.link_bandwidth[hit.id]),
            run.fault(hit.id, seconds / run.tick)?.words ??
              `${percent(run.busy(hit.id, seconds / run.tick) / 255)} busy at ${moment(seconds, this.whole)}`,
          ];
    tip.textContent = words.filter(Boolean).join("\n");
    const x = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
    const y = Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8);
    tip.style.transform = `translate(${x}px, ${y}px)`;
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const at = element(event);
    const typing = at.matches("input:not([type=range]), select") || $("keys").open;
    if (event.key === "Escape" && !$("keys").open) return (this.select(null), at.blur?.());
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const big = event.shiftKey ? 0.1 : 0.01;
    /** @type {Record<string, () => void>} */
    const actions = {
      " ": () => this.play(!this.playing),
      ArrowRight: () => this.goto(this.seconds + big * this.whole),
      ArrowLeft: () => this.goto(this.seconds - big * this.whole),
      ".": () => this.step(true),
      ",": () => this.step(false),
      Home: () => this.goto(0),
      End: () => this.goto(this.whole),
      "+": () => this.zoom(1.25),
      "=": () => this.zoom(1.25),
      "-": () => this.zoom(0.8),
      0: () => this.zoom(0),
      w: () => this.pan(0, 60),
      a: () => this.pan(60, 0),
      s: () => this.pan(0, -60),
      d: () => this.pan(-60, 0),
      "[": () => this.setSpeed(this.speed - 1),
      "]": () => this.setSpeed(this.speed + 1),
      n: () => this.cycle("npu", 1),
      N: () => this.cycle("npu", -1),
      l: () => this.cycle("link", 1),
      L: () => this.cycle("link", -1),
      c: () => this.cycle("chunk", 1),
      C: () => this.cycle("chunk", -1),
      p: () => this.showPath(!this.path),
      t: () => (toggle(), this.look()),
      f: () => $("find").focus(),
      "?": () => $("keys").showModal(),
    };
    const action = actions[event.key];
    if (!action || (event.key === " " && at.matches("button"))) return;
    event.preventDefault();
    action();
  }

  /** A click on a button of the panel. @param {HTMLElement | null} button */
  follow(button) {
    if (button?.dataset.seconds) this.goto(Number(button.dataset.seconds));
    else if (button?.dataset.ring) {
      const ring = Number(button.dataset.ring);
      this.ring = this.ring === ring ? -1 : ring;
      this.refresh();
    }
    else if (button?.dataset.kind)
      this.select({ kind: /** @type {Kind} */ (button.dataset.kind), id: Number(button.dataset.id) });
  }

  /** What a text means, if there is such a thing. @param {string} text */
  meaning(text) {
    const pick = this.runs[0].named(text);
    const known = pick && this.runs.some((one) => pick.id < this.countOf(one, pick.kind));
    return known ? pick : null;
  }
  /** Selects as soon as a name is complete. @param {string} text */
  finding(text) {
    $("find").setCustomValidity("");
    const run = this.runs[0];
    const pick = run.facts.names.length ? this.meaning(text) : null;
    if (pick && pick.kind !== "chunk" && /[a-z]/i.test(text)) this.select(pick);
  }
  /** @param {string} text */
  find(text) {
    const pick = this.meaning(text);
    const help = "npu 3, switch 1, link 12, chunk 40, a name, or the ends of a link such as 0-1";
    $("find").setCustomValidity(pick || !text ? "" : help);
    $("find").reportValidity();
    if (pick) this.select(pick);
  }
  /** What `find` understands as this selection. @param {Pick} pick */
  words({ kind, id }) {
    const { npus } = this.runs[0];
    return kind === "npu" && id >= npus ? `switch ${id - npus}` : `${kind} ${id}`;
  }
  /** @param {Run} run @param {Kind} kind */
  countOf(run, kind) {
    return { npu: run.facts.nodes, link: run.links, chunk: run.chunks }[kind];
  }
  /** @param {Kind} kind @param {number} by */
  cycle(kind, by) {
    const step = kind === "chunk" ? by * this.runs[0].facts.every : by;
    const all = Math.max(...this.runs.map((run) => this.countOf(run, kind)));
    if (!all) return;
    const now = this.pick?.kind === kind ? this.pick.id + step : step > 0 ? 0 : all - 1;
    this.select({ kind, id: ((now % all) + all) % all });
  }

  // --- state

  /** @param {number} seconds */
  goto(seconds) {
    this.seconds = Math.min(Math.max(seconds, 0), this.whole);
    this.refresh();
  }
  /** @param {boolean} forth */
  step(forth) {
    this.play(false);
    const moments = this.runs.map((run) => run.neighbour(this.seconds / run.tick, forth) * run.tick);
    this.goto(
      forth
        ? Math.min(...moments.filter((m) => m > this.seconds), this.whole)
        : Math.max(...moments.filter((m) => m < this.seconds), 0),
    );
  }
  /** @param {boolean} on */
  play(on) {
    if (on === this.playing) return;
    this.playing = on;
    if (on && this.seconds >= this.whole) this.seconds = 0;
    $("play").textContent = on ? "❚❚" : "▶";
    $("play").setAttribute("aria-label", on ? "pause" : "play");
    let last = performance.now();
    /** @param {number} now */
    const frame = (now) => {
      if (!this.playing) return;
      this.seconds += ((now - last) / 1000) * SPEEDS[this.speed] * (this.whole / DURATION);
      last = now;
      if (this.seconds >= this.whole) {
        this.seconds = this.whole;
        this.play(false);
      }
      this.draw();
      requestAnimationFrame(frame);
    };
    if (on) requestAnimationFrame(frame);
    this.refresh();
  }
  /** @param {number} speed */
  setSpeed(speed) {
    this.speed = Math.min(Math.max(speed, 0), SPEEDS.length - 1);
    $("speed").value = `${this.speed}`;
  }
  /** @param {boolean} on */
  showPath(on) {
    this.path = on;
    $("path").setAttribute("aria-pressed", `${on}`);
    if (on) this.select(null);
    this.refresh();
  }
  /** @param {Pick | null} pick */
  select(pick) {
    this.pick = pick;
    $("clear").hidden = !pick;
    $("panel").scrollTop = 0;
    if (pick && document.activeElement !== $("find")) $("find").value = this.words(pick);
    if (!pick) $("find").value = "";
    this.say(pick);
    this.refresh();
  }
  /** For those who hear the page: the selection in one line. @param {Pick | null} pick */
  say(pick) {
    const run = this.runs[0];
    const known = pick && pick.id < this.countOf(run, pick.kind);
    const name = {
      npu: run.nodeName.bind(run),
      link: (/** @type {number} */ id) => `link ${id}, ${run.linkName(id)}`,
      chunk: (/** @type {number} */ id) => `chunk ${id}`,
    };
    $("said").textContent = known ? `${name[pick.kind](pick.id)} selected` : pick ? "" : "nothing selected";
  }
  /** @param {number} factor */
  zoom(factor) {
    for (const view of this.views) factor ? view.zoomBy(factor) : view.fit();
    this.refresh();
  }
  /** @param {number} dx @param {number} dy */
  pan(dx, dy) {
    for (const view of this.views) view.panBy(dx, dy);
    this.refresh();
  }
  look() {
    this.colours = colours();
    /** @type {HTMLElement} */ (document.querySelector(".ramp")).style.background =
      `linear-gradient(90deg, ${this.colours.css.filter((_, i) => i % 32 === 0).join(",")})`;
    this.refresh();
  }

  // --- drawing

  refresh() {
    this.waiting ??= requestAnimationFrame(() => {
      this.waiting = undefined;
      this.draw();
    });
  }
  draw() {
    const look = { colours: this.colours, path: this.path, rings: this.view.rings, ring: this.ring };
    this.stack();
    this.views.forEach((view) =>
      view.draw(Math.min(this.seconds / view.run.tick, view.run.end), this.pick, look),
    );
    if (!this.view.rings) {
      this.heats.forEach((heat) => heat.draw(this.seconds, this.pick, look));
      this.progress.draw(this.seconds, this.pick, look);
      this.histogram.draw(this.seconds, look);
    }
    $("slider").value = `${Math.round((this.seconds / this.whole) * STEPS)}`;
    $("slider").setAttribute("aria-valuetext", moment(this.seconds, this.whole));
    $("now").textContent = `${moment(this.seconds, this.whole)} of ${moment(this.whole, this.whole)}`;
    const hidden = this.views.reduce((sum, view) => sum + view.dotsHidden, 0);
    $("dots").textContent = hidden
      ? `${count(hidden)} of the moving chunks are not drawn; zoom in to see them.`
      : "";
    this.drawPanel(look);
  }

  /** Put two networks above each other if that makes them larger. */
  stack() {
    if (this.views.length < 2) return;
    const { clientWidth: wide, clientHeight: high } = $("networks");
    /** @param {number} w @param {number} h */
    const least = (w, h) => Math.min(...this.views.map((view) => view.scaleFor(w, h - CAPTION).least));
    document.body.classList.toggle("stacked", least(wide, high / 2) > 1.2 * least(wide / 2, high));
  }

  /**
   * Rebuild the panel rarely, so that its buttons do not vanish under the pointer.
   * @param {Look} look
   */
  drawPanel(look) {
    const now = this.playing ? Math.floor(performance.now() / 250) : this.seconds;
    const key = `${this.pick?.kind} ${this.pick?.id} ${this.path} ${this.ring} ${now}`;
    if (key !== this.panelKey) {
      this.panelKey = key;
      const focused = document.activeElement?.closest?.("#panel") ? document.activeElement.outerHTML : null;
      $("panel").innerHTML = this.panelText();
      if (focused) [...$("panel").querySelectorAll("button")].find((b) => b.outerHTML === focused)?.focus();
    }
    this.runs.forEach((run, k) => {
      const canvas = canvasAt(`[data-panel="${k}"] canvas.queue`);
      if (canvas) drawQueue(canvas, run, Number(canvas.dataset.link), this.seconds / run.tick, look);
    });
  }

  /** The panel's HTML. */
  panelText() {
    if (this.view.rings) return ringList(this.runs[0], this.view, this.ring);
    if (this.runs.length > 1 && !this.pick && !this.path) return compare(this.runs);
    return this.runs
      .map((run, k) => {
        const name = this.tag(k) && `<p class="which">${this.tag(k)} ${escaped(run.facts.name)}</p>`;
        const words = inspect(run, this.pick, this.seconds / run.tick, this.path);
        return `${name}<div data-panel="${k}">${words}</div>`;
      })
      .join("");
  }
}
