// Colours of the canvases, read from the style sheet, which defines both themes.
// The lightness of ramps is monotonic, so they work in grey, in print and for any colour vision.

/** @import { Colours } from "./types.d.ts" */

const RAMPS = {
  light: ["#cdd6df", "#b3d3ec", "#8fc3e8", "#4f9fd6", "#1f78b8", "#0b5592"],
  dark: ["#3d4a58", "#2c5a86", "#27699c", "#3f8cc4", "#74b5e0", "#a6d4f3"],
};

// Colours that differ in hue and lightness, on light and dark backgrounds.
const RINGS = ["#2a8fd0", "#e0701a", "#1aa57a", "#c56aa0", "#c99a14", "#7a6fd6", "#8a8f2a", "#b04060", "#3fa9b5", "#8c6a52"];

/** @param {string} colour */
function channels(colour) {
  return [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
}

/** 256 colours between the stops. @param {string[]} stops */
function ramp(stops) {
  return Array.from({ length: 256 }, (_, i) => {
    const at = (i / 255) * (stops.length - 1),
      k = Math.min(Math.floor(at), stops.length - 2);
    const a = channels(stops[k]),
      b = channels(stops[k + 1]);
    return a.map((value, c) => Math.round(value + (b[c] - value) * (at - k)));
  });
}

/** The colours of the current theme. @returns {Colours} */
export function colours() {
  const style = getComputedStyle(document.documentElement);
  const names = [
    "paper",
    "panel",
    "ink",
    "soft",
    "line",
    "copy",
    "reduce",
    "pick",
    "path",
    "fault",
    "a",
    "b",
    "node",
    "bar",
    "fill",
  ];
  /** @type {any} */
  const found = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  const shades = ramp(RAMPS[isDark() ? "dark" : "light"]);
  return { ...found, shades, css: shades.map((rgb) => `rgb(${rgb})`) };
}

export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

export function toggle() {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
}

/**
 * Resize a canvas to its box, in device pixels; drawing uses CSS pixels.
 * @param {HTMLCanvasElement} canvas
 */
export function fitted(canvas) {
  const { width, height } = canvas.getBoundingClientRect();
  const ratio = devicePixelRatio || 1;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) Object.assign(canvas, { width: w, height: h });
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return { context, width, height };
}

/** The colour of a ring, or of a category. @param {number} k */
export function ringColour(k) {
  return RINGS[k % RINGS.length];
}

/** The colour of text on a colour of ringColour: the one with more contrast. @param {string} colour */
export function inkOn(colour) {
  const [r, g, b] = channels(colour).map((value) => (value / 255) ** 2.2);
  return 0.21 * r + 0.72 * g + 0.07 * b > 0.2 ? "#10161c" : "#ffffff";
}
