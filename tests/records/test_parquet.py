"""Records come back from their file as they were, but for the ids of tokens."""

import os
from dataclasses import fields, replace
from random import Random

import pandas as pd
import pyarrow as pa
import pytest

from spec_bench.records import parquet
from spec_bench.records.parquet import FIELDS, UNKNOWN_TOKEN
from spec_bench.records.types import Generation, ServerChunks, StepRecord
from tests.said import naming, one_line

CHAIN = (StepRecord(3, 3, 2, 3), StepRecord(3, 3, 0, 1))
BEAMS = (StepRecord(4, 2, 1, 2, widths=(3, 2)), StepRecord(4, 2, 0, 1, widths=(1,)))
PLAIN = Generation("q/0", (5, 6, 7, 8), "stop", CHAIN, 0.1, 1 / 3, 0.1, 0.2)
METERED = replace(
    PLAIN,
    **{"prompt_id": "ü, \n", "tokens": (1, 2, 3), "finish": "length", "steps": BEAMS},
    **{"energy_j": 2.5, "energy_note": "busy", "latency_s": 0.5},
    **{"log_likelihood": -float("inf"), "load_average": 0.5, "repeat": 1},
)
ORIGIN = {"cpu": "a", "torch": {"threads": 1, "devices": []}, "command": ["/home/me/x"]}


def back(path, *parts):
    """What is read of cells that were written together."""
    parquet.write_records(path, parquet.concat_records(parts))
    return parquet.read_records(path)


def without_ids(generation):
    return replace(generation, tokens=(UNKNOWN_TOKEN,) * len(generation.tokens))


def test_every_field_of_a_generation_and_of_a_step_has_a_column():
    names = {each.name for each in FIELDS}
    steps = {f"step_{each.name}" for each in fields(StepRecord)}
    own = {each.name for each in fields(Generation)} - {"steps", "delivery"}
    served = {f"served_{each.name}" for each in fields(ServerChunks)} - {"served_seconds"}
    assert names - {"run_id"} == own | steps | served | {"served_s"}


def test_records_come_back_in_their_order(tmp_path):
    cells = {"b": [METERED, PLAIN], "a": [PLAIN], "none": []}
    parts = [parquet.pack_generations(run_id, done, ORIGIN) for run_id, done in cells.items()]
    found = back(tmp_path / "r", *parts)
    assert found.run_ids == ["b", "a", "none"]
    for run_id, done in cells.items():
        assert found.get_generations(run_id) == [without_ids(each) for each in done]
    assert found.get_generations("other") == []


def test_scores_come_back_for_the_cells_and_prompts_that_have_them(tmp_path):
    again = replace(PLAIN, repeat=1)
    rouge = {"rouge2": {"q/0": 0.5, "ü, \n": 0.0}}
    scored = parquet.pack_generations("a", [PLAIN, replace(METERED, repeat=0), again], None, rouge)
    other = parquet.pack_generations("b", [PLAIN], None, {"f1": {"q/0": 1.0}})
    found = back(tmp_path / "r", parquet.pack_generations("c", [PLAIN], None), scored, other)
    assert found.get_scores("a") == rouge
    assert found.get_scores("b") == {"f1": {"q/0": 1.0}}
    assert found.get_scores("c") == {}
    means = pd.read_parquet(tmp_path / "r").groupby("run_id").score_rouge2.mean()
    assert means["a"] == 0.25
    assert [each.repeat for each in found.get_generations("a")] == [0, 0, 1]


def test_the_numbers_that_make_a_score_come_back_for_each_prompt(tmp_path):
    bleu = {"q/0": (3, 2, 1), "ü, \n": (0, 0, 2)}
    scored = parquet.pack_generations(
        "a", [PLAIN, METERED], None, {"bleu": bleu, "f1": {"q/0": 0.5}}
    )
    found = back(tmp_path / "r", parquet.pack_generations("b", [PLAIN], None), scored)
    assert found.get_scores("a") == {
        "f1": {"q/0": 0.5},
        "bleu": {"q/0": [3, 2, 1]},
    }  # not of repeats
    assert found.get_scores("b") == {}


def test_later_timings_of_a_baseline_are_none_of_its_own_lines(tmp_path):
    later = [replace(PLAIN, decode_s=9.0, session="later"), replace(PLAIN, session="last")]
    scores = {"f1": {"q/0": 0.5}}
    base = parquet.pack_generations("base", [PLAIN], ORIGIN, scores, later)
    found = back(tmp_path / "r", base, parquet.pack_generations("cell", [METERED], ORIGIN))
    assert found.run_ids == ["base", "cell"]
    assert found.get_generations("base") == [without_ids(PLAIN)]
    assert found.get_generations("base/again") == [without_ids(each) for each in later]
    assert found.get_generations("cell/again") == []
    assert found.get_scores("base") == scores
    # A mean by run id, as anybody would take it, does not mix them.
    seconds = pd.read_parquet(tmp_path / "r").groupby("run_id").decode_s.mean()
    assert seconds["base"] == PLAIN.decode_s != seconds["base/again"]
    parquet.write_records(tmp_path / "chosen", found.select_cells(found.run_ids))
    assert (tmp_path / "chosen").read_bytes() == (tmp_path / "r").read_bytes()


def test_a_score_whose_cells_are_gone_leaves_no_column(tmp_path):
    scored = parquet.pack_generations("a", [PLAIN], None, {"rouge2": {"q/0": 0.5}})
    both = parquet.concat_records([scored, parquet.pack_generations("b", [PLAIN], None)])
    parquet.write_records(tmp_path / "one", both.select_cells("b"))
    parquet.write_records(tmp_path / "other", parquet.pack_generations("b", [PLAIN], None))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


def test_the_origin_is_kept_without_the_paths_of_the_command(tmp_path):
    kept = back(tmp_path / "r", parquet.pack_generations("a", [], ORIGIN)).origins["a"]
    assert kept == {name: value for name, value in ORIGIN.items() if name != "command"}
    assert b"/home/me" not in (tmp_path / "r").read_bytes()


def test_the_same_records_give_the_same_bytes_however_they_came_together(tmp_path):
    parts = [parquet.pack_generations(name, [PLAIN, METERED], ORIGIN) for name in "ab"]
    for number, part in enumerate(parts):
        parquet.write_records(tmp_path / f"{number}", part)
    parquet.write_records(tmp_path / "once", parquet.concat_records(parts))
    read = [parquet.read_records(tmp_path / f"{number}") for number in range(2)]
    parquet.write_records(tmp_path / "read", parquet.concat_records(read))
    parquet.write_records(tmp_path / "chosen", parquet.concat_records(read).select_cells("ab"))
    once = (tmp_path / "once").read_bytes()
    assert once == (tmp_path / "read").read_bytes() == (tmp_path / "chosen").read_bytes()


def test_a_file_from_before_there_was_a_field_is_read_without_it(tmp_path, monkeypatch):
    new = ("repeat", "energy_note", "load_average")
    with monkeypatch.context() as before:
        before.setattr(parquet, "FIELDS", [each for each in FIELDS if each.name not in new])
        parquet.write_records(
            tmp_path / "r", parquet.pack_generations("a", [replace(METERED, repeat=0)], None)
        )
    (found,) = parquet.read_records(tmp_path / "r").get_generations("a")
    assert found == without_ids(replace(METERED, repeat=0, energy_note="", load_average=None))


def altered(path, bit):
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def test_no_flipped_bit_is_taken_for_a_record(tmp_path):
    path = tmp_path / "records.parquet"
    parquet.write_records(
        path, parquet.pack_generations("a", [PLAIN, METERED], ORIGIN, {"f1": {"q/0": 0.5}})
    )
    whole, seeded = path.read_bytes(), Random(0)
    for bit in sorted(seeded.sample(range(8 * len(whole)), 100)):
        altered(path, bit)
        with one_line(naming(path)):
            parquet.read_records(path)
        path.write_bytes(whole)
    assert parquet.read_records(path).get_scores("a") == {"f1": {"q/0": 0.5}}


LFS = b"version https://git-lfs.github.com/spec/v1\n"


@pytest.mark.parametrize(
    "content", ["folder", "dangling link", "pipe", "frame", b"", b"PAR1", LFS, b"<<<<<<< HEAD\n"]
)
def test_another_file_and_what_is_no_file_are_named(content, tmp_path):
    path = tmp_path / "records.parquet"
    if content == "folder":
        path.mkdir()
    elif content == "pipe":
        os.mkfifo(path)
    elif content == "dangling link":
        path.symlink_to(tmp_path / "gone")
    elif content == "frame":
        pd.DataFrame({"run_id": ["a"]}).to_parquet(path)
    else:
        path.write_bytes(content)
    with one_line(naming(path)):
        parquet.read_records(path)


def test_a_category_is_a_column_only_where_some_prompt_has_one(tmp_path):
    kinds = [replace(PLAIN, category="qa"), replace(PLAIN, prompt_id="b")]
    for name, done in (("with", kinds), ("without", [PLAIN])):
        parquet.write_records(tmp_path / name, parquet.pack_generations("a", done, None))
    assert parquet.read_records(tmp_path / "with").get_generations("a") == [
        without_ids(each) for each in kinds
    ]
    assert parquet.read_records(tmp_path / "without").get_generations("a") == [without_ids(PLAIN)]
    assert "category" in pd.read_parquet(tmp_path / "with")
    assert "category" not in pd.read_parquet(tmp_path / "without")


def test_older_lines_and_files_name_their_session_by_its_former_name(tmp_path):
    line = replace(PLAIN, session="s").to_json()
    line |= {"sitting": line.pop("session"), "energy_check_j": None}
    assert Generation.from_json(line).session == "s"
    lines = parquet._add_missing_columns(pa.table({"run_id": ["a"], "sitting": ["s"]}))
    assert lines["session"].to_pylist() == ["s"] and "sitting" not in lines.column_names
