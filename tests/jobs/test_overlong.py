"""Prompts longer than the models take: refused, cut inside the template, or left out."""

import json
import shutil

import pytest

from spec_bench.jobs.store.store import CellStore
from spec_bench.tasks import build_task
from spec_bench.tasks.example import CUT, cut, fitted
from tests.jobs.tiny import TEXTS, rows_of, tokens_of
from tests.said import naming
from tests.tasks.conftest import LetterTokenizer, config

CELLS = ("cells=[sd:3]", "warmup=0")
LENGTHS = (1, 30, 2, 40)  # the models take 256 tokens


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "long.jsonl"
    lines = [
        {"id": f"{n}", "document": " ".join(TEXTS[n] for _ in range(times)), "summary": "it did"}
        for n, times in enumerate(LENGTHS)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_by_default_an_overlong_prompt_is_refused_with_its_lengths_before_decoding(
    run_job, rows, tmp_path
):
    with pytest.raises(ValueError, match=naming("'1'", "positions", 256)):
        run_job(*CELLS, f"task.source.path={rows}")
    assert not list((tmp_path / "results").rglob("generations.jsonl"))


def test_the_refusal_names_the_ways_out_and_needs_no_weights(run_job, rows, family, tmp_path):
    for name in ("target", "draft"):
        shutil.copytree(
            family / name, tmp_path / name, ignore=shutil.ignore_patterns("*.safetens*")
        )
    pair = [f"pair.{name}={tmp_path / name}" for name in ("target", "draft")]
    ways = ("task.overlong=skip", "task.overlong=truncate", "generation.max_new_tokens")
    with pytest.raises(ValueError, match=naming("2 of 4 prompts", "positions", *ways)):
        run_job(*CELLS, f"task.source.path={rows}", *pair)


def test_a_limit_is_that_of_the_models_that_cells_use_less_their_deepest_tree(
    run_job, rows, family, tmp_path
):
    shutil.copytree(family / "draft", tmp_path / "draft")
    file = tmp_path / "draft" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"max_position_embeddings": 25}))
    short = (f"pair.draft={tmp_path / 'draft'}", "prompts=1", f"task.source.path={rows}")
    with pytest.raises(ValueError, match=naming("7 tree levels", str(tmp_path / "draft"), 25)):
        run_job("cells=[sd:3,sd:7]", *short)
    assert len(run_job("cells=[prompt_lookup]", *short)) == 2  # no draft, so no limit of its


@pytest.mark.parametrize(("how", "kept", "counts"), [
    ("truncate", ["0", "1", "2", "3"], ("2", "0")),
    ("skip", ["0", "2"], ("0", "2")),
])  # fmt: skip
@pytest.mark.parametrize("batch", [1, 3])
def test_they_are_cut_or_left_out_and_counted_also_after_a_kill(
    run_job, rows, tmp_path,
    how, kept, counts, batch):  # fmt: skip
    given = (
        *CELLS,
        f"task.source.path={rows}",
        f"task.overlong={how}",
        f"engine.batch_size={batch}",
    )
    results = run_job(*given)
    for row in rows_of(tmp_path / "results"):
        assert (row["prompts_truncated"], row["prompts_skipped"]) == counts
        assert row["prompts"] == f"{len(kept)}"
    whole = {each.run_id: tokens_of(tmp_path / "results", each.run_id) for each in results}
    for run_id, tokens in whole.items():
        assert list(tokens) == kept
        folder = CellStore(tmp_path / "results", run_id).folder
        lines = (folder / "generations.jsonl").read_text().splitlines(keepends=True)
        (folder / "generations.jsonl").write_text(lines[0])
    run_job(*given)
    assert {run_id: tokens_of(tmp_path / "results", run_id) for run_id in whole} == whole


def test_the_template_stays_whole_and_as_much_of_the_text_as_fits(rows):
    values = config("xsum", kind="local", path=str(rows))
    task, tokenizer = build_task(values), LetterTokenizer()
    example = task.examples()[1]
    for room in (90, 91, 300):
        short = fitted(example, room, task.cut_to, lambda each: len(task.encode(each, tokenizer)))
        text = task.prompt(short)
        assert text.startswith(f"Article: {TEXTS[1][:10]}") and text.endswith("\nSummary:")
        assert CUT in text and len(task.encode(short, tokenizer)) == room
    with pytest.raises(ValueError, match=naming("'1'", "room for 10")):
        fitted(example, 10, task.cut_to, lambda each: len(task.encode(each, tokenizer)))


def test_the_middle_of_a_text_is_cut_out():
    assert cut("abcdefgh", 3) == f"ab{CUT}h"
    assert cut("abcdefgh", 0) == CUT
    assert (cut("abc", 3), cut("abc", None), cut(7, 1)) == ("abc", "abc", 7)


def test_a_random_choice_of_rows_is_the_seeds_and_stages_share_none():
    first = build_task(config("xsum"))
    rows = {each.id: each for each in first.examples()}
    chosen = build_task({**config("xsum"), "sample": "random", "sample_seed": 3})
    again = build_task({**config("xsum"), "sample": "random", "sample_seed": 4})
    some = [each.id for each in chosen.examples(5)]
    assert (
        some == [each.id for each in chosen.examples(5)] != [each.id for each in again.examples(5)]
    )
    assert some != list(rows)[:5] and len(set(some)) == 5
    assert all(rows[each.id] == each for each in chosen.examples(5))
    assert not {each.id for each in chosen.examples(5, 5)} & set(some)
