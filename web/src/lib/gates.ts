/** What textbooks call the gates and states of recurrent layers. */
const TITLES: Record<string, string> = { forget: "forget gate", write: "input gate", reveal: "output gate", reset: "reset gate", keep: "update gate", candidate: "cell candidate", cell: "cell state", hidden: "hidden state" };

export function titleOfGate(name: string): string {
  return TITLES[name] ?? name;
}
