/** Outlines the element of the view that a step points at, also when the view draws it again. */
export function showSpot(name: string): () => void {
  const selector = name === "figure" ? "[data-figure]" : `main [data-testid="${CSS.escape(name)}"]`;
  let marked: HTMLElement | null = null;
  let due = 0;

  function mark(): void {
    due = 0;
    const found = name ? document.querySelector<HTMLElement>(selector) : null;
    if (found === marked && found?.isConnected) return;
    if (marked) delete marked.dataset.spot;
    marked = found;
    if (!marked) return;
    marked.dataset.spot = "";
    const { top, bottom } = marked.getBoundingClientRect();
    if (top > innerHeight || bottom < 0) marked.scrollIntoView({ block: "center" });
  }

  const observer = new MutationObserver(() => (due ||= requestAnimationFrame(mark)));
  observer.observe(document.querySelector("main")!, { childList: true, subtree: true });
  mark();
  return () => {
    observer.disconnect();
    cancelAnimationFrame(due);
    if (marked) delete marked.dataset.spot;
  };
}
