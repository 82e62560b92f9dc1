/** The component of each view, by the name that the server gives it. */
import type { Component } from "svelte";
import Ablation from "./Ablation.svelte";
import Agent from "./Agent.svelte";
import Alignment from "./Alignment.svelte";
import Beam from "./Beam.svelte";
import Blocks from "./Blocks.svelte";
import Caption from "./Caption.svelte";
import Classifier from "./Classifier.svelte";
import Dialogue from "./Dialogue.svelte";
import Fill from "./Fill.svelte";
import Glimpses from "./Glimpses.svelte";
import Grid from "./Grid.svelte";
import Heads from "./Heads.svelte";
import Home from "./Home.svelte";
import Hops from "./Hops.svelte";
import Image from "./Image.svelte";
import Lens from "./Lens.svelte";
import Map from "./Map.svelte";
import Next from "./Next.svelte";
import Paragraph from "./Paragraph.svelte";
import Positions from "./Positions.svelte";
import Reconstruct from "./Reconstruct.svelte";
import Recurrent from "./Recurrent.svelte";
import Run from "./Run.svelte";
import Source from "./Source.svelte";
import Steps from "./Steps.svelte";

export const VIEWS: Record<string, Component> = {
  home: Home,
  heads: Heads,
  grid: Grid,
  blocks: Blocks,
  alignment: Alignment,
  beam: Beam,
  next: Next,
  fill: Fill,
  classifier: Classifier,
  lens: Lens,
  map: Map,
  ablation: Ablation,
  recurrent: Recurrent,
  reconstruct: Reconstruct,
  image: Image,
  caption: Caption,
  paragraph: Paragraph,
  glimpses: Glimpses,
  hops: Hops,
  dialogue: Dialogue,
  agent: Agent,
  positions: Positions,
  run: Run,
  source: Source,
  steps: Steps,
};
