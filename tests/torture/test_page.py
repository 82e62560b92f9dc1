"""The published page shows the recorded counts, which cover every property."""

from __future__ import annotations

import json

from torture.report import BEGIN, END, PAGE, PROPERTIES, RECORD, replaced, table


def test_page_shows_what_was_recorded() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page.count(BEGIN) == page.count(END) == 1
    assert page == replaced(page, table(json.loads(RECORD.read_text())))


def test_every_property_was_tested_often_enough_and_held() -> None:
    rows = {row["name"]: row for row in json.loads(RECORD.read_text())["rows"]}
    assert list(rows) == [about.name for about in PROPERTIES]
    assert [row["name"] for row in rows.values() if row["held"] != row["done"]] == []
    assert [about.name for about in PROPERTIES if rows[about.name]["done"] < about.full] == []


def test_row_of_the_table_is_a_row_of_the_record() -> None:
    record = json.loads(RECORD.read_text())
    record["rows"][0] |= {"done": 12345, "held": 12344}
    assert "| 12,345 | 12,344 |" in table(record)
    assert table(record) not in PAGE.read_text(encoding="utf-8")
