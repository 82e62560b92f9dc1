/** Whether a picture of the figure is being made: a view that draws only what is in the window then draws all. */
let on = $state(false);

export const picturing = {
  get on(): boolean {
    return on;
  },
  set on(now: boolean) {
    on = now;
  },
};
