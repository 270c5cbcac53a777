// Numbers as text for people.

/** Three significant digits, or more if the integer part has more. @param {number} value */
function short(value) {
  if (value === 0) return "0";
  const digits = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value)) + 1e-9));
  return value
    .toFixed(Math.min(digits, 3))
    .replace(/(\.\d*?)0+$/, "$1")
    .replace(/\.$/, "");
}

/** @param {number} value @param {[number, string][]} steps */
function scaled(value, steps) {
  const [factor, unit] = steps.find(([from]) => Math.abs(value) >= from * 0.9995) ?? steps[steps.length - 1];
  return `${short(value / factor)} ${unit}`;
}

/** @type {[number, string][]} */
const TIMES = [
  [1, "s"],
  [1e-3, "ms"],
  [1e-6, "us"],
  [1e-9, "ns"],
  [1e-12, "ps"],
];
/** @type {[number, string][]} */
const SIZES = [
  [1e12, "TB"],
  [1e9, "GB"],
  [1e6, "MB"],
  [1e3, "kB"],
  [1, "B"],
];

/** @param {number} seconds */
export const time = (seconds) => (seconds === 0 ? "0 s" : scaled(seconds, TIMES));
/** @type {[number, string][]} */
const BINARY_SIZES = [
  [2 ** 40, "TiB"],
  [2 ** 30, "GiB"],
  [2 ** 20, "MiB"],
  [2 ** 10, "KiB"],
];
/** A size, in KiB, MiB, … if that is a small whole number and the decimal size is not. @param {number} bytes */
export function size(bytes) {
  const whole = BINARY_SIZES.find(([unit]) => bytes % unit === 0 && bytes >= unit && bytes < 1000 * unit);
  return whole && bytes % 1000 ? `${bytes / whole[0]} ${whole[1]}` : scaled(bytes, SIZES);
}
/** @param {number} rate */
export const bandwidth = (rate) => (rate && isFinite(rate) ? `${scaled(rate, SIZES)}/s` : "–");
/** @param {number} share */
export const percent = (share) => `${(100 * share).toFixed(share > 0.9995 || share < 0.0005 ? 0 : 1)} %`;
/** @param {number} number */
export const count = (number) => number.toLocaleString("en-US");

/**
 * A moment, in the unit of the whole run, with enough digits to tell moments apart.
 * @param {number} seconds @param {number} whole
 */
export function moment(seconds, whole) {
  const [factor, unit] = TIMES.find(([from]) => whole >= from) ?? TIMES[TIMES.length - 1];
  const digits = whole / factor >= 100 ? 1 : whole / factor >= 10 ? 2 : 3;
  return `${(seconds / factor).toFixed(digits)} ${unit}`;
}

/** Numbers as ranges: 0–3, 7. @param {number[]} numbers in order @param {number} most ranges shown */
export function ranges(numbers, most = 12) {
  const parts = [];
  for (let i = 0; i < numbers.length;) {
    let j = i;
    while (j + 1 < numbers.length && numbers[j + 1] === numbers[j] + 1) j++;
    parts.push(j > i ? `${numbers[i]}–${numbers[j]}` : `${numbers[i]}`);
    i = j + 1;
  }
  if (parts.length <= most) return parts.join(", ") || "none";
  return `${parts.slice(0, most).join(", ")} and ${parts.length - most} more ranges`;
}

/** @type {Record<string, string>} */
const SIGNS = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };

/** Text for HTML. @param {string | number} text */
export function escaped(text) {
  return String(text).replace(/[&<>"]/g, (sign) => SIGNS[sign]);
}
