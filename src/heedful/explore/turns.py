"""What a dialogue model keeps of each utterance: gates of the state of the dialogue, attention, likelihoods.

B histories, U utterances, T tokens of the reply, S tokens of a source, K candidates, V vocabulary, C units of the
state of the dialogue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from heedful.blocks.taps import watch
from heedful.data.tokenizers.tokenizer import TrainedTokenizer
from heedful.explore.capabilities import Aligns
from heedful.explore.inspect import concatenate_steps
from heedful.explore.views.recurrent import Recurrence, recurrences
from heedful.tasks.dialogue.predictor import DialogueModel
from heedful.tasks.dialogue.reading import History, Joined

TURNS = "turns."  # beginning of the names of layers that read the vectors of the utterances
FORGETFUL = ("forget", "keep")  # gates by which a state is multiplied


def layer_of_turns(predictor: DialogueModel) -> Recurrence | None:
    """The last recurrent layer over the turns; None for a model that reads all utterances as one source."""
    found = [each for each in recurrences(predictor.model) if each.name.startswith(TURNS)]
    return found[-1] if found else None


def turns_read(predictor: DialogueModel, history: History) -> int:
    """The number of utterances that are read, from the last one back."""
    if not isinstance(predictor.reading, Joined):
        return len(history.utterances)
    left, count = len(predictor.reading.source(history)), 0
    for ids in reversed(history.utterances):
        left -= len(ids)
        count += left >= 0
    return count


def left_out(history: History, place: int) -> History:
    """A history without one utterance."""
    said, speakers = history
    return History([*said[:place], *said[place + 1 :]], [*speakers[:place], *speakers[place + 1 :]])


def token_logs(predictor: DialogueModel, histories: Sequence[History], ids: Sequence[int]) -> Tensor:
    """The log-probabilities (B, T, V) of all tokens at each position of a reply, under each history."""
    state = predictor.reading.start(predictor.model, histories, predictor.device)
    tokens = torch.tensor([TrainedTokenizer.bos, *ids[:-1]], device=predictor.device).expand(len(histories), -1)
    logits, _ = predictor.model(tokens, state)  # (B, T, V)
    return logits[..., : predictor.tokenizer.vocab].float().log_softmax(-1).cpu()


def scores(predictor: DialogueModel, histories: Sequence[History], ids: Sequence[int]) -> Tensor:
    """The log-probability (B, T) of each token of a reply under each history."""
    return at_ids(token_logs(predictor, histories, ids), ids)


def at_ids(logs: Tensor, ids: Sequence[int]) -> Tensor:
    """The log-probabilities (B, T) of these tokens among those of all (B, T, V)."""
    wanted = torch.tensor(ids).expand(len(logs), -1)  # (B, T)
    return logs.gather(-1, wanted[..., None])[..., 0]


def candidates(predictor: DialogueModel, history: History, ids: Sequence[int], top: int) -> dict[str, Tensor]:
    """The log-probability (T,) of each token of a reply, and the most probable tokens there, (T, K)."""
    logs = token_logs(predictor, [history], ids)  # (1, T, V)
    best = logs[0].topk(min(top, logs.shape[-1]))
    return {"logs": at_ids(logs, ids)[0], "chances": best.values.exp(), "ids": best.indices}


def kept_of_turns(predictor: DialogueModel, history: History, ids: Sequence[int]) -> dict[str, Tensor]:
    """What a model has of each utterance when it replies.

    Of a recurrent layer over the turns: each `gate NAME` (U, C); `change` (U,), |c_n - c_(n-1)| / sqrt(C); and `kept`
    (U,), the mean over the units of the product of all later forget gates. Of attention: its weights (T, U).
    """
    with watch(predictor.model) as seen:
        token_logs(predictor, [history], ids)
    found: dict[str, Tensor] = {}
    if (layer := layer_of_turns(predictor)) is not None:
        gates = {gate: concatenate_steps(seen.all[layer.tap(gate)]).cpu() for gate in layer.gates}  # (U, C)
        found |= {f"gate {gate}": values for gate, values in gates.items()}
        states = gates["hidden"]  # (U, C)
        found["change"] = states.diff(dim=0, prepend=torch.zeros_like(states[:1])).square().mean(-1).sqrt()
        for gate in set(FORGETFUL) & gates.keys():
            later = torch.cat([gates[gate][1:], torch.ones_like(states[:1])])  # (U, C)
            found["kept"] = later.flip(0).cumprod(0).flip(0).mean(-1)
    if (weights := attention(predictor, seen.all)) is not None:
        found["attention"] = weights if layer is not None else by_turn(predictor, history, weights)
    return found


def attention(predictor: DialogueModel, seen: Mapping[str, Any]) -> Tensor | None:
    """The weights (T, S) of what the decoder attends to, the mean of its layers and heads; None without attention."""
    pattern = predictor.model.alignment if isinstance(predictor.model, Aligns) else ""
    layers = [
        concatenate_steps(parts).float().cpu().mean(0) for name, parts in seen.items() if fnmatchcase(name, pattern)
    ]
    return torch.stack(layers).mean(0) if layers else None


def by_turn(predictor: DialogueModel, history: History, weights: Tensor) -> Tensor:
    """The weights (T, U) of the utterances, from those of their tokens (T, S); 0 of those that are not read."""
    read = turns_read(predictor, history)
    sizes = [len(ids) for ids in history.utterances[len(history.utterances) - read :]]
    sums = [part.sum(-1) for part in weights.split(sizes, -1)]
    return torch.stack([*[torch.zeros(len(weights))] * (len(history.utterances) - read), *sums], -1)
