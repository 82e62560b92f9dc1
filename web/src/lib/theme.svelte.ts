/** Light or dark: the system's preference, until the user chooses. */
import { flushSync } from "svelte";
import { address } from "./address.svelte";
import { capturing } from "./capturing.svelte";

const asked = matchMedia("(prefers-color-scheme: dark)");
let machine = $state(asked.matches);
asked.addEventListener("change", () => (machine = asked.matches));

// Paper is white, and everything is drawn on it, not only what is in the window.
let printing = $state(false);
function print(now: boolean): void {
  flushSync(() => {
    printing = capturing.on = now;
  });
}
addEventListener("beforeprint", () => print(true));
addEventListener("afterprint", () => print(false));

export const theme = {
  get dark(): boolean {
    if (printing) return false;
    const said = address.text("theme");
    return said ? said === "dark" : machine;
  },
  turn(): void {
    address.set({ theme: theme.dark ? "light" : "dark" });
  },
};
