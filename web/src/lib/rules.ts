/**
 * Temperature, top-k and top-p applied to logits, in this order and in the same precision as `decode/rules.py`; and the
 * sampled token for a uniform random number, as `decode/search.py` chooses it.
 */

export interface RuleResult {
  /** The probability of each token; 0, where a rule removed it. */
  p: Float64Array;
  /** The number of tokens left. */
  left: number;
  /** In nats. */
  entropy: number;
}

export interface Rules {
  temperature: number;
  topK?: number;
  topP?: number;
}

/** The tokens by decreasing logit; those that are never generated come last. */
export function ordered(logits: ArrayLike<number>, never: ArrayLike<number>): Int32Array {
  const allowed = Float32Array.from(logits);
  for (const token of Array.from(never)) allowed[token] = -Infinity;
  return Int32Array.from(logits, (_, token) => token).sort((a, b) => (allowed[a] === allowed[b] ? a - b : allowed[b] - allowed[a]));
}

export function largest(logits: ArrayLike<number>): number {
  let best = 0;
  for (let token = 1; token < logits.length; token++) if (logits[token] > logits[best]) best = token;
  return best;
}

export function applyRules(logits: ArrayLike<number>, order: Int32Array, never: ArrayLike<number>, rules: Rules): RuleResult {
  const temperature = Math.fround(rules.temperature);
  const x = Float32Array.from(logits, (value) => value / temperature);
  for (const token of Array.from(never)) x[token] = -Infinity;
  if (rules.topK !== undefined) {
    const least = x[order[Math.min(rules.topK, order.length) - 1]];
    for (let token = 0; token < x.length; token++) if (x[token] < least) x[token] = -Infinity;
  }
  if (rules.topP !== undefined) {
    const p = softmax(x);
    const mass = Math.fround(rules.topP);
    let sum = 0;
    for (const token of order) {
      const share = Math.fround(p[token]);
      sum += share;
      if (Math.fround(Math.fround(sum) - share) >= mass) x[token] = -Infinity; // those before it already hold the mass
    }
  }
  const p = softmax(x);
  let left = 0;
  let entropy = 0;
  for (let token = 0; token < x.length; token++) {
    if (x[token] > -Infinity) left++;
    if (p[token] > 0) entropy -= p[token] * Math.log(p[token]);
  }
  return { p, left, entropy };
}

function softmax(x: Float32Array): Float64Array {
  let top = -Infinity;
  for (const value of x) if (value > top) top = value;
  const p = Float64Array.from(x, (value) => Math.exp(value - top));
  let sum = 0;
  for (const value of p) sum += value;
  for (let token = 0; token < p.length; token++) p[token] /= sum;
  return p;
}

/** The token whose interval of the cumulative distribution holds a number from 0 to 1. */
export function drawn(p: Float64Array, luck: number): number {
  let sum = 0;
  for (const share of p) sum += share;
  const point = luck * sum;
  let mass = 0;
  for (let token = 0; token < p.length; token++) {
    mass += p[token];
    if (mass > point) return token;
  }
  return p.length - 1;
}
