// Decodes the columns that Python packed: base64 of gzip of byte planes.

/** @import { Columns, Layout } from "./types.d.ts" */

/** @typedef {(typeof TYPES)[keyof typeof TYPES]} TypedArray */
const TYPES = { u8: Uint8Array, u32: Uint32Array, i32: Int32Array, f32: Float32Array, f64: Float64Array };

/**
 * @param {string} text base64
 * @param {Layout} layout
 * @returns {Promise<Columns>}
 */
export async function decode(text, layout) {
  const stream = new Blob([bytesOf(text)]).stream().pipeThrough(new DecompressionStream("gzip"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  /** @type {Record<string, ReturnType<typeof joined>>} */
  const columns = {};
  let at = 0;
  for (const [name, type, count, differences] of layout) {
    const size = TYPES[type].BYTES_PER_ELEMENT;
    columns[name] = joined(bytes.subarray(at, at + size * count), TYPES[type], count);
    if (differences) accumulate(columns[name]);
    at += size * count;
  }
  return /** @type {any} */ (columns); // the layout lists all of them
}

/** @param {string} text */
function bytesOf(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

/**
 * Join byte planes: the lowest bytes of all values come first, then the next ones, which compresses well.
 * @param {Uint8Array} planes @param {TypedArray} Type @param {number} count
 */
function joined(planes, Type, count) {
  const size = Type.BYTES_PER_ELEMENT;
  const bytes = new Uint8Array(count * size);
  for (let k = 0; k < size; k++) {
    for (let i = 0, from = k * count, to = k; i < count; i++, from++, to += size) bytes[to] = planes[from];
  }
  return new Type(bytes.buffer);
}

/** @param {ReturnType<typeof joined>} values */
function accumulate(values) {
  for (let i = 1; i < values.length; i++) values[i] += values[i - 1];
}
