/** A tree drawn from left to right, one column per step, in as few rows as its longest column; no two lines cross. */

/** The row of each node: a first child stands beside its parent, and its siblings below it, where there is room. */
export function rowsOf(columns: number[][], parent: ArrayLike<number>): Map<number, number> {
  const most = Math.max(1, ...columns.map((column) => column.length));
  const found = new Map<number, number>([[-1, 0]]);
  for (const column of columns) {
    const nodes = [...column].sort((a, b) => found.get(parent[a])! - found.get(parent[b])! || a - b);
    let free = 0;
    nodes.forEach((node, place) => {
      const row = Math.min(Math.max(free, found.get(parent[node])!), most - nodes.length + place);
      found.set(node, row);
      free = row + 1;
    });
  }
  return found;
}

/** The nodes from the first step to one of them. */
export function pathTo(node: number, parent: ArrayLike<number>): number[] {
  const path: number[] = [];
  for (let at = node; at >= 0; at = parent[at]) path.unshift(at);
  return path;
}
