/** Light or dark: the system's preference, until the user chooses. */
import { address } from "./address.svelte";

const asked = matchMedia("(prefers-color-scheme: dark)");
let machine = $state(asked.matches);
asked.addEventListener("change", () => (machine = asked.matches));

export const theme = {
  get dark(): boolean {
    const said = address.text("theme");
    return said ? said === "dark" : machine;
  },
  turn(): void {
    address.set({ theme: theme.dark ? "light" : "dark" });
  },
};
