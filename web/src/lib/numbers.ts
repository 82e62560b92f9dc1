/** Number formats of the whole page: a true minus sign, and no negative zero. */

/** Four significant digits, or a power of ten. */
export function format(value: number, digits = 4): string {
  if (!Number.isFinite(value)) return beyond(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e6)) return minus(value.toExponential(2));
  return minus(String(Number(value.toPrecision(digits)) || 0));
}

/** A number rounded to this many significant digits, for an address. */
export function rounded(value: number, digits: number): number {
  return Number(value.toPrecision(digits));
}

/** A fixed number of digits after the point, so that columns can be compared. */
export function fixed(value: number, digits: number): string {
  if (!Number.isFinite(value)) return beyond(value);
  const written = Math.abs(value).toFixed(digits);
  return (value < 0 && Number(written) !== 0 ? "−" : "") + written;
}

const NOISE = 5e-7; // relative precision of what models compute

/** A change with its sign, by digits after the point or four significant ones; rounding errors are 0. */
export function change(value: number, digits?: number): string {
  const written = digits !== undefined ? fixed(value, digits) : format(Math.abs(value) < NOISE ? 0 : value);
  return (value > 0 && Number(written) !== 0 ? "+" : "") + written;
}

/** A probability with three digits after the point, or < 0.001. */
export function share(value: number): string {
  return value > 0 && value < 0.0005 ? "<0.001" : fixed(value, 3);
}

/** A percentage no wider than 100.0 %. */
export function percent(value: number): string {
  if (value > 0 && value < 0.00005) return "<0.01 %";
  return `${fixed(100 * value, value > 0 && value < 0.0005 ? 2 : 1)} %`;
}

function beyond(value: number): string {
  return Number.isNaN(value) ? "–" : value < 0 ? "−∞" : "∞";
}

function minus(written: string): string {
  return written.replace(/-/g, "−");
}
