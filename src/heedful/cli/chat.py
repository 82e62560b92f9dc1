"""The command `chat`: talk to a dialogue model, line by line, or reply to a file of utterances."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

from heedful.cli.loading import load_as
from heedful.cli.output import json_line, say
from heedful.cli.reading import MAX_LINE, Line, stdin_lines
from heedful.data.formats.sources import lines
from heedful.decode.settings import ReplySettings
from heedful.errors import UserError
from heedful.tasks.dialogue.predictor import DialogueModel, Reply

RESET = "/reset"
PROMPT = "> "


@dataclass
class Conversation:
    """The utterances so far, the model that replies to them, and its settings; they are sampled if there are any."""

    model: DialogueModel
    beams: int | None = None
    sampling: ReplySettings | None = None
    utterances: list[str] = field(default_factory=list)
    replies: int = 0  # numbers the random replies

    def reply_to(self, *texts: str) -> Reply:
        """The reply to further utterances, which are forgotten if the model cannot read them."""
        history = [*self.utterances, *texts]
        if self.sampling is not None:
            found = self.model.sample_reply(history, self.sampling, first=self.replies)
        else:
            found = self.model.search(self.model.histories([history]), self.beams)[0][0]
        self.replies += 1
        self.utterances = [*history, found.text] if found.text.strip() else history
        return found

    def reset(self) -> None:
        """Start over, with no utterances."""
        self.utterances = []


def chat_command(
    run: Path, history: Path | None, beams: int | None, sampling: ReplySettings | None, as_json: bool
) -> None:
    """Reply to a file of utterances, or to each line of stdin, until it ends."""
    if sampling is not None and beams is not None:
        raise UserError("--sample cannot be combined with --beams", where="--sample", todo="leave one of them out")
    conversation = Conversation(load_as(DialogueModel, run), beams, sampling)
    if history is not None:
        texts = [text for text in lines(history, MAX_LINE) if text.strip()]
        if not texts:
            raise UserError("there is no utterance to reply to", where=str(history), expected="an utterance a line")
        show(conversation.reply_to(*texts), as_json)
        return
    typed = sys.stdin.isatty()
    if typed:
        sys.stderr.write(f"Type what you say; {RESET} starts over, Ctrl-D ends.\n")
    ask(typed)
    for line in stdin_lines(sys.stdin.buffer):
        try:
            answer(conversation, line, as_json)
        except UserError as error:
            if not typed:
                raise
            sys.stderr.write(f"error: {error}\n")  # the conversation goes on without this line
        ask(typed)


def ask(typed: bool) -> None:
    """The prompt of a terminal."""
    if typed:
        sys.stderr.write(PROMPT)
        sys.stderr.flush()


def answer(conversation: Conversation, line: Line, as_json: bool) -> None:
    """Print the reply to a line; an empty line for a blank one and for a reset, so that lines stay aligned."""
    if line.text.strip() == RESET:
        conversation.reset()
    if line.blank or line.text.strip() == RESET:
        say("null" if as_json else "")
        return
    show(conversation.reply_to(line.text), as_json)


def show(reply: Reply, as_json: bool) -> None:
    """Print a reply."""
    say(json_line(reply.to_dict()) if as_json else " ".join(reply.text.splitlines()))
