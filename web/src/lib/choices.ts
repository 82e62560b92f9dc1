/** The names in the address for what is chosen in a text: a layer, a head, a token. */
export const CHOICES = ["look", "layer", "head", "heads", "token", "part", "example", "step", "place", "hidden", "aligned", "alignhead", "back", "tried"];
