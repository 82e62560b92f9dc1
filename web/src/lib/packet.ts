/** Packets of the server: a JSON header, and arrays as bytes. See `explore/packets.py`. */

export interface Grid {
  data: Float32Array | Uint8Array | Int32Array;
  shape: number[];
}

export interface Packet {
  words: any;
  arrays: Record<string, Grid>;
}

/** The value of each of the 65,536 half floats. */
let halves: Float32Array | undefined;

function halfTable(): Float32Array {
  if (halves) return halves;
  halves = new Float32Array(65536);
  for (let bits = 0; bits < 65536; bits++) {
    const sign = bits & 0x8000 ? -1 : 1;
    const exponent = (bits >> 10) & 31;
    const fraction = bits & 1023;
    if (exponent === 31) halves[bits] = fraction ? NaN : sign * Infinity;
    else if (exponent) halves[bits] = sign * 2 ** (exponent - 15) * (1 + fraction / 1024);
    else halves[bits] = sign * 2 ** -14 * (fraction / 1024);
  }
  return halves;
}

export function unpack(buffer: ArrayBuffer): Packet {
  const size = new DataView(buffer).getUint32(0, true);
  const { arrays: listed, ...words } = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, size)));
  const arrays: Record<string, Grid> = {};
  for (const { name, kind, shape, at } of listed) {
    const count = shape.reduce((product: number, side: number) => product * side, 1);
    arrays[name] = { data: numbers(buffer, 4 + size + at, kind, count), shape };
  }
  return { words, arrays };
}

function numbers(buffer: ArrayBuffer, at: number, kind: string, count: number): Grid["data"] {
  if (kind === "u1") return new Uint8Array(buffer, at, count);
  if (kind === "f4") return new Float32Array(buffer, at, count);
  if (kind === "i4") return new Int32Array(buffer, at, count);
  const table = halfTable();
  const bits = new Uint16Array(buffer, at, count);
  const found = new Float32Array(count);
  for (let place = 0; place < count; place++) found[place] = table[bits[place]];
  return found;
}
