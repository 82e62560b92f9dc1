// The direction of a row of tokens, which begins at the right for Arabic, Persian or Hebrew.

const RIGHT_TO_LEFT = /[\p{Script=Arabic}\p{Script=Hebrew}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}]/gu;

/** "rtl" if most letters of these texts are written from right to left. */
export function direction(texts: readonly string[]): "rtl" | "ltr" {
  const all = texts.join("");
  const letters = all.match(/\p{L}/gu)?.length ?? 0;
  return 2 * (all.match(RIGHT_TO_LEFT)?.length ?? 0) > letters ? "rtl" : "ltr";
}
