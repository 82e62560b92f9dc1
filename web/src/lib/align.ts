/**
 * Which tokens of two sequences correspond: place by place where both are as long and as many are equal in this way, so that
 * a replaced token stands for the other; else the longest common subsequence.
 */
export function aligned(a: string[], b: string[]): [number, number][] {
  const wide = b.length + 1;
  const best = new Uint16Array((a.length + 1) * wide); // of what is left from each pair of places on
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--)
      best[i * wide + j] = a[i] === b[j] ? best[(i + 1) * wide + j + 1] + 1 : Math.max(best[(i + 1) * wide + j], best[i * wide + j + 1]);
  if (a.length === b.length && a.filter((one, place) => one === b[place]).length === best[0]) return a.map((_, place) => [place, place]);
  const found: [number, number][] = [];
  for (let [i, j] = [0, 0]; i < a.length && j < b.length; ) {
    if (a[i] === b[j]) found.push([i++, j++]);
    else if (best[(i + 1) * wide + j] >= best[i * wide + j + 1]) i++;
    else j++;
  }
  return found;
}
