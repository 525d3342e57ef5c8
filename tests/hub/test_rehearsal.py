"""Printed commands on published pairs end in rows; tiny models lie in published kinds of files."""

import json
import os

import pytest

from spec_bench.report.papers.items import read_recipe_folder
from spec_bench.report.papers.paper import load_paper
from spec_bench.report.tables.measured import MeasuredRows
from spec_bench.report.tables.progress import compute_progress_by_pair
from spec_bench.system.files import get_results_file, read_csv
from spec_bench.tasks.source import EMBEDDED_SAMPLES
from tests import warm
from tests.hub.models import write_models
from tests.printed import TRAINED, appended, printed_commands

PAPERS = ("rsd", "mcsd", "dsbd", "redrafter", "beyond", "eagle", "today")
COUNT = int(os.environ.get("REHEARSED", "1"))  # commands of each paper; all by make rehearse


def test_every_table_prints_commands_and_each_is_collected_once():
    commands = printed_commands()
    texts = [command.text for command in commands]
    places = {place for command in commands for place in command.places}
    assert len(texts) == len(set(texts))
    assert {f"list {paper}" for paper in PAPERS} | {"docs/training.md", "refusal"} <= places
    assert {f"table rsd/{number}" for number in range(1, 55)} <= places


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What a user has at hand: chats, and heads that were trained."""
    folder = tmp_path_factory.mktemp("rehearsal")
    lines = (EMBEDDED_SAMPLES / "alpaca.jsonl").read_text("utf-8").splitlines()[:12]
    chats = [
        {
            "id": str(index),
            "conversations": [
                {"from": "human", "value": row["instruction"]},
                {"from": "gpt", "value": row["output"]},
            ],
        }
        for index, row in enumerate(map(json.loads, lines))
    ]
    (folder / "sharegpt.json").write_text(json.dumps(chats))
    train = next(c for c in printed_commands() if "name=redrafter_vicuna_7b_blocks4" in c.text)
    run(train, folder)
    assert any((folder / TRAINED).iterdir())
    return folder


def run(command, folder):
    first = command.first_job()
    write_models(first, folder / "models")
    words = [
        *first.arguments,
        *appended(first),
        *([] if first.trains else ["task.source.kind=embedded"]),
    ]
    given = (str(folder / "models"), first.module, *words)
    status, _, error = warm.run("tests.hub.models", *given, folder=folder)
    assert status == 0, f"{first.text}\n{error[-2000:]}"
    return first


@pytest.mark.parametrize("paper", PAPERS)
def test_commands_of_a_paper_end_in_rows_and_fill_its_tables(paper, folder):
    own = [
        each
        for each in printed_commands()
        if (each.recipe or "").startswith(f"{paper}=") and each.settings.get("plan") != "true"
    ]
    of_recipe = [each.recipe for each in own]
    turn = {id(each): of_recipe[:n].count(each.recipe) for n, each in enumerate(own)}
    for command in sorted(own, key=lambda each: turn[id(each)])[:COUNT]:
        first = run(command, folder)
        rows = read_csv(get_results_file(folder / "results", read_recipe_folder(first.recipe)))
        rows = [row for row in rows if row["pair"] == first.settings.get("pair", row["pair"])]
        assert {row["status"] for row in rows} == {"complete"}, command.text
        measured, whole = MeasuredRows.read_below(folder / "results"), load_paper(paper)
        items = [item for item in whole.items if first.recipe in item.recipes]
        assert any(
            each.measured_count
            for i in items
            for each in compute_progress_by_pair(whole, i, measured)
        )
