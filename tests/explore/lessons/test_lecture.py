"""A lecture page: all steps of a lesson with their views in one file, which needs no server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from heedful.explore.export import Export, page_of
from heedful.explore.inspect import TextInput
from heedful.explore.subjects import Explorer
from patience import until


def test_lecture_page_works_offline(chromium: Any, axe: str, minilm: Path, tmp_path: Path) -> None:
    explorer = Explorer([minilm])
    lesson = explorer.lesson("coreference")
    model = next(iter(explorer.subjects))
    file = tmp_path / "lecture.html"
    state = {"model": model, "lesson": "coreference/0", "all": "1"}
    file.write_text(page_of(explorer, Export(view="heads", state=state)), encoding="utf-8")
    with chromium.new_context(viewport={"width": 1440, "height": 900}, offline=True) as context:
        page, wrong = context.new_page(), []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.goto(file.as_uri())
        stations = page.locator('[data-testid^="station-"][data-answered="true"]')
        until(lambda: stations.count() == len(lesson.steps))
        until(lambda: page.locator('[data-figure][data-ready="true"]').count() == len(lesson.steps))
        station = page.get_by_test_id("station-3")  # one head alone: from "it" to "animal"
        trace = explorer.subject(model).trace(TextInput(text=station.get_by_test_id("text").input_value()))
        pieces = [one.piece for one in trace.reading.sides["text"]]
        weight = trace.weights(trace.attentions[0], 3)[1, pieces.index("it"), pieces.index("animal")]
        share = station.get_by_test_id(f"see-{pieces.index('animal')}")
        assert abs(float(share.get_attribute("data-share")) - float(weight)) < 1e-3
        station.get_by_test_id("layer").press("ArrowLeft")  # each view has a state of its own
        until(lambda: station.locator('[data-layer="2"][data-ready="true"]').count() == 1)
        assert page.get_by_test_id("station-1").locator('[data-layer="2"]').count() == 0
        asking = page.get_by_test_id("station-2")  # covered until there is a guess
        seen = "one => getComputedStyle(one).visibility"
        figure, count = asking.locator("[data-figure] > *").first, asking.locator(".patterns button .quiet").first
        assert (figure.evaluate(seen), count.evaluate(seen)) == ("hidden", "hidden")
        asking.get_by_role("button", name="animal").click()
        until(lambda: (figure.evaluate(seen), count.evaluate(seen)) == ("visible", "visible"))
        page.evaluate(axe)
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
        assert not [(one["id"], [node["html"] for node in one["nodes"]][:3]) for one in found]
        assert not wrong
