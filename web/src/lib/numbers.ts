/** How numbers are written, on the whole page: with a true minus sign, and never a zero below nothing. */

/** A number as people read it: four digits that count, or a power of ten. */
export function told(value: number, digits = 4): string {
  if (!Number.isFinite(value)) return beyond(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e6)) return minus(value.toExponential(2));
  return minus(String(Number(value.toPrecision(digits)) || 0));
}

/** A number as it is compared with those beside it: as many digits after the point as they have. */
export function fixed(value: number, digits: number): string {
  if (!Number.isFinite(value)) return beyond(value);
  const written = Math.abs(value).toFixed(digits);
  return (value < 0 && Number(written) !== 0 ? "−" : "") + written;
}

const NOISE = 5e-7; // of numbers about one, in the precision that models compute in

/** A change, with its sign: with as many digits after the point, or with four that count. What is rounding is none. */
export function change(value: number, digits?: number): string {
  const written = digits !== undefined ? fixed(value, digits) : told(Math.abs(value) < NOISE ? 0 : value);
  return (value > 0 && Number(written) !== 0 ? "+" : "") + written;
}

/** A probability with three digits after the point; what is too small for them is not nothing. */
export function share(value: number): string {
  return value > 0 && value < 0.0005 ? "<0.001" : fixed(value, 3);
}

/** A share of a whole in no more room than 100.0 % takes. */
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
