/** A roving tabindex: a group of buttons is one tab stop, and the arrow keys move within it. */

const WAYS: Record<string, [x: number, y: number]> = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] };
const BUTTONS = "button:not(:disabled)";

/** For {@attach}: makes the buttons of an element one group. */
export function roving(group: HTMLElement): () => void {
  let stop: HTMLElement | undefined; // the tab stop

  const all = () => [...group.querySelectorAll<HTMLElement>(BUTTONS)];
  function set(next: HTMLElement | undefined) {
    stop = next;
    for (const one of group.querySelectorAll<HTMLElement>("button")) one.tabIndex = one === stop ? 0 : -1;
  }
  /** The last focused; else the selected; else the first. */
  function settle() {
    const each = all();
    set(stop && each.includes(stop) ? stop : (each.find((one) => one.matches("[aria-pressed=true], [aria-current]")) ?? each[0]));
  }
  function reached(event: FocusEvent) {
    const button = (event.target as HTMLElement).closest<HTMLElement>("button");
    if (button) set(button);
  }
  function onkeydown(event: KeyboardEvent) {
    const way = WAYS[event.key];
    const here = (event.target as HTMLElement).closest<HTMLElement>("button");
    if (!way || !here || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation(); // some views handle the arrow keys themselves
    const next = nearest(here, all(), way);
    next?.focus();
    next?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  settle();
  const watch = new MutationObserver(settle);
  watch.observe(group, { childList: true, subtree: true, attributes: true, attributeFilter: ["disabled"] });
  group.addEventListener("focusin", reached);
  group.addEventListener("keydown", onkeydown);
  return () => {
    watch.disconnect();
    group.removeEventListener("focusin", reached);
    group.removeEventListener("keydown", onkeydown);
  };
}

/** The nearest in that direction; where there is none, the next in order, so that a row continues in the row below. */
function nearest(from: HTMLElement, all: HTMLElement[], [right, down]: [number, number]): HTMLElement | undefined {
  const here = from.getBoundingClientRect();
  let best: HTMLElement | undefined;
  let least = Infinity;
  for (const other of all) {
    const box = other.getBoundingClientRect();
    const [x, y] = [box.left - here.left, box.top - here.top];
    const along = x * right + y * down;
    const aside = Math.abs(x * down) + Math.abs(y * right);
    if (along > 4 && along + 3 * aside < least && (down || aside < 20)) [best, least] = [other, along + 3 * aside];
  }
  return best ?? all[all.indexOf(from) + right + down];
}
