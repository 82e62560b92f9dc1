"""The dialogue view: replies and probabilities are those of the library, and the page shows them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from heedful.data.tokenizers.tokenizer import TrainedTokenizer
from heedful.errors import UserError
from heedful.explore.packets import unpack
from heedful.explore.subjects import Explorer
from heedful.explore.views import dialogue as view
from heedful.runs.load import read_recipe
from heedful.tasks.dialogue.predictor import DialogueModel
from tolerance import near

RUNS = Path(__file__).parents[1] / "golden" / "runs"
RUN, JOINED, TRANSFORMER = (RUNS / f"dialogue-{kind}" for kind in ("hred", "seq2seq", "transformer"))
OWN = ["the old cat sees the ball .", "a dog likes the stone .", "the small bird sees the leaf ."]


@pytest.fixture
def explorer(monkeypatch: pytest.MonkeyPatch) -> Explorer:
    monkeypatch.chdir(RUN)  # where the run's data are
    return Explorer([RUN, JOINED, TRANSFORMER])


def call_view(explorer: Explorer, run: Path = RUN, **settings: Any) -> tuple[Any, Any]:
    return unpack(explorer.answer("dialogue", "reply", {"model": run.name, **settings}))


def logs_of(
    model: DialogueModel, said: list[str], reply: list[int], speakers: list[int] | None = None
) -> NDArray[np.float32]:
    """The log-probability of each token of a reply, one forward pass after the other."""
    found, so_far = [], [TrainedTokenizer.bos]
    (history,) = model.histories([said])
    history = history._replace(speakers=speakers or history.speakers)
    for token in reply:
        state = model.reading.start(model.model, [history], model.device)
        logits, _ = model.model(torch.tensor([so_far]), state)
        found.append(float(logits[0, -1].detach().double().log_softmax(-1)[token]))
        so_far.append(token)
    return np.array(found, np.float32)


@pytest.mark.parametrize("run", [RUN, JOINED, TRANSFORMER])
def test_reply_is_that_of_the_library(explorer: Explorer, run: Path) -> None:
    model = DialogueModel.load(run)
    words, arrays = call_view(explorer, run, history="\n".join(OWN))
    expected = model.reply(OWN)
    assert words["own"] and words["turns"] == OWN and words["right"] is None
    assert words["reply"] == expected.text and words["pieces"] == model.tokenizer.pieces(expected.ids)
    assert arrays["reply logs"] == near(logs_of(model, OWN, expected.ids))
    for turn in range(len(OWN)):  # the others speak as before
        rest, speakers = (
            [*OWN[:turn], *OWN[turn + 1 :]],
            [one for place, one in enumerate([0, 1, 0, 1]) if place != turn],
        )
        assert arrays["without"][turn] == near(logs_of(model, rest, expected.ids, speakers))
        history = model.histories([rest])[0]._replace(speakers=speakers)
        assert words["replies"][turn] == model.search([history])[0][0].text


def test_gates_and_attention_of_turns(explorer: Explorer) -> None:
    model = DialogueModel.load(RUN)
    words, arrays = call_view(explorer, history="\n".join(OWN))
    assert [one["name"] for one in words["gates"]] == ["forget", "write", "candidate", "reveal", "cell", "hidden"]
    # The state after each utterance is that of the dialogue up to it, and forget gates multiply what was there.
    for count in (1, 2):
        _, part = call_view(explorer, history="\n".join(OWN[:count]))
        assert part["gate hidden"] == near(arrays["gate hidden"][:count])
    forget, hidden = arrays["gate forget"].astype(np.float64), arrays["gate hidden"].astype(np.float64)
    kept = [float(np.prod(forget[turn + 1 :], axis=0).mean()) for turn in range(3)]
    assert arrays["kept"] == near(np.array(kept, np.float32)) and kept[2] == 1
    before = np.vstack([0 * hidden[:1], hidden[:-1]])
    assert arrays["change"] == near(np.sqrt(np.square(hidden - before).mean(-1)).astype(np.float32))
    assert arrays["attention"].shape == (len(words["pieces"]), 3)
    assert arrays["attention"].sum(-1) == near(np.ones(len(words["pieces"]), np.float32))
    assert model.model.config.attention is not None


@pytest.mark.parametrize("run", [JOINED, TRANSFORMER])
def test_utterances_beyond_the_context_are_not_read(explorer: Explorer, run: Path) -> None:
    words, arrays = call_view(explorer, run)
    model = DialogueModel.load(run)
    ids = model.histories([words["turns"]])[0].utterances
    read = [len(ids) - count for count in range(len(ids)) if sum(map(len, ids[count:])) <= model.context]
    assert words["unread"] == len(ids) - max(read) > 0
    assert (arrays["attention"][:, : words["unread"]] == 0).all() and words["gates"] == [] and "kept" not in arrays
    assert arrays["attention"].sum(-1) == near(np.ones(len(words["pieces"]), np.float32))
    assert arrays["without"][0] == near(arrays["reply logs"])


def test_dialogues_of_the_data(explorer: Explorer) -> None:
    dialogues = read_recipe(RUN).data.read("test").dialogues
    words, arrays = call_view(explorer)
    known = dialogues[words["number"]]
    assert words["turns"] == list(known.utterances[:-1]) and words["right"] == known.utterances[-1]
    model = DialogueModel.load(RUN)
    wanted = [*model.tokenizer.ids([known.utterances[-1]])[0], TrainedTokenizer.eos]
    assert arrays["reference"] == near(logs_of(model, words["turns"], wanted))
    subject = explorer.subject(RUN.name)
    assert "dialogue" in subject.views and words["number"] == words["choices"][0]["number"]
    assert len(view.calls(subject, {"history": "a cat .", "number": "1"})) == 1 + len(words["choices"])
    alone, lonely = call_view(explorer, history="a cat sees a dog .")
    assert alone["replies"] == [] and "without" not in lonely
    for settings in ({"number": 10**6}, {"history": ""}, {"history": " \n "}, {"history": "a\n" * 41}):
        with pytest.raises(UserError):
            call_view(explorer, **settings)


def test_model_without_data_has_generated_dialogues(tmp_path: Path) -> None:
    DialogueModel.load(RUN).save(tmp_path / "folder")
    words, _ = unpack(Explorer([tmp_path / "folder"]).answer("dialogue", "reply", {"model": "folder"}))
    assert len(words["choices"]) == view.SHOWN and not words["own"]


def test_page_shows_the_reply_and_goes_on(browse: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(RUN)
    browsing = browse(RUN)
    page, explorer = browsing.go("dialogue"), browsing.explorer

    def compare(token: int = 0, without: int | None = None, **settings: Any) -> Any:
        words, arrays = call_view(explorer, **settings)
        page.locator(f"[data-testid=reply][data-text='{words['reply']}']").wait_for()
        page.get_by_text(f"{len(words['turns'])} utterances", exact=True).wait_for()
        page.locator('[data-figure][data-ready="true"]').wait_for()
        logs = arrays["reply logs"] if without is None else arrays["without"][without]
        for place, log in enumerate(logs):
            assert page.get_by_test_id(f"chance-{place}").inner_text() == f"{100 * np.exp(log):.1f} %"
        for turn in range(len(words["turns"])):
            assert page.get_by_test_id(f"kept-{turn}").inner_text() == f"{100 * arrays['kept'][turn]:.1f} %"
            assert page.get_by_test_id(f"weight-{turn}").inner_text() == f"{arrays['attention'][token, turn]:.2f}"
            effect = float(arrays["without"][turn].sum() - arrays["reply logs"].sum())
            assert float(page.get_by_test_id(f"without-{turn}").inner_text().replace("−", "-")) == round(effect, 2)
        return words

    words = compare()
    page.get_by_test_id("piece-1").click()
    compare(1)
    assert browsing.address["token"] == "1"
    page.get_by_test_id("without-2").click()
    page.get_by_test_id("other").get_by_text(words["replies"][2], exact=True).wait_for()
    compare(1, 2)
    page.get_by_test_id("said").fill("the cat sees a dog .")
    page.get_by_test_id("say").click()
    history = "\n".join([*words["turns"], words["reply"], "the cat sees a dog ."])
    page.get_by_text(f"{len(words['turns']) + 2} utterances", exact=True).wait_for()
    assert browsing.address["history"] == history and "without" not in browsing.address
    compare(history=history)
    page.get_by_test_id("history").fill("\n".join(OWN))
    compare(history="\n".join(OWN))
    page.get_by_test_id("choices").select_option(str(words["choices"][1]["number"]))
    compare(number=words["choices"][1]["number"])
    assert "history" not in browsing.address
