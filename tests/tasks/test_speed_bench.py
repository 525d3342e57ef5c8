"""SPEED-Bench's files: turns and categories, and no placeholder taken for a prompt."""

import json

import datasets
import pytest

from spec_bench.tasks import build_task
from tests.said import naming
from tests.tasks.conftest import config

# In the shape of the published files; the texts are ours.
ROWS = [
    {
        "question_id": f"q{place}", "category": category, "sub_category": "", "source": "made up",
        "src_id": str(place), "difficulty": "easy", "multiturn": len(turns) > 1, "turns": turns,
    }
    for place, (category, turns) in enumerate(
        [("coding", ["Sort a list."]), ("writing", ["Write a line.", "Now in verse."])]
    )
]  # fmt: skip


@pytest.mark.parametrize("name", ["test.parquet", "test.jsonl"])
def test_turns_and_categories_are_read(tmp_path, name):
    if name.endswith("parquet"):
        datasets.Dataset.from_list(ROWS).to_parquet(tmp_path / name)
    else:
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    examples = build_task(config("speed_bench", path=str(tmp_path / name))).examples()
    assert [each.turns for each in examples] == [
        ("Sort a list.",),
        ("Write a line.", "Now in verse."),
    ]
    assert [each.category for each in examples] == ["coding", "writing"]


def test_a_placeholder_is_refused_with_the_file_that_says_what_fetches_it(tmp_path):
    text = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"
    path = tmp_path / "test.jsonl"
    path.write_text(json.dumps(ROWS[0]) + "\n" + json.dumps({**ROWS[1], "turns": ["x", text]}))
    with pytest.raises(ValueError, match=naming("line 2", "conf/task/speed_bench.yaml")):
        build_task(config("speed_bench", path=str(path))).examples()
