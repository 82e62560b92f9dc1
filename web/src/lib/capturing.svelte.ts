/** Whether the figure is being saved: a view that draws only what is visible then draws everything. */
let on = $state(false);

export const capturing = {
  get on(): boolean {
    return on;
  },
  set on(now: boolean) {
    on = now;
  },
};
