/** The state that a component shows: the page's, or that of the pane around it. */
import { getContext, setContext } from "svelte";
import { address, beside, type Address } from "./address.svelte";
import { open, openBeside, type Open } from "./open.svelte";

interface Here {
  address: Address;
  open: Open;
}

const KEY = Symbol("pane");

/** Call it while a component is set up. */
export function here(): Here {
  return getContext<Here>(KEY) ?? { address, open };
}

/** Everything in this component shows this state. */
export function show(state: Here): Here {
  return setContext(KEY, state);
}

/** Everything in this component shows the second pane of a comparison. */
export function showSecond(): Here {
  return show({ address: beside, open: openBeside });
}
