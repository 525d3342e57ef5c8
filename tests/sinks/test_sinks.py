"""What a job shows and writes: its table on the console, sinks by name, and past rows of a file."""

import io
import re
import sys
import time
from dataclasses import replace

import pytest
from rich.console import Console

from spec_bench.records.sampling import SamplingSettings
from spec_bench.records.types import CellResult, Generation, Reason, StepRecord
from spec_bench.sinks import console
from spec_bench.sinks.console import ProgressBar, print_results
from spec_bench.sinks.rows import (
    STATE_COLUMNS,
    find_superseded_ids,
    merge_results_csv,
    result_to_row,
    write_results_csv,
)
from spec_bench.sinks.sink import build_sinks, parse_sink_settings, sink
from spec_bench.system.files import read_csv
from tests.cells import result

SHOWN = {  # the score's head, what a cell has, and what is shown of it
    "EM": ({"exact_match": (0.5, 0.4, 0.6), "f1": (0.75,), "perplexity": (1.5,)}, "0.50"),
    "F1": ({"f1": (0.98, 0.8, 1.0), "token_rate_end_to_end": (99.0,)}, "0.98"),
    "rouge_rouge2": ({"rouge_rouge2": (0.25, 0.2, 0.3)}, "0.25"),  # a module's
    "PPL": ({"perplexity": (1.5,), "peak_memory_bytes": (4096.0,)}, "1.50"),
}


def shown(*results, width=80, answers=()):
    console = Console(file=io.StringIO(), width=width)
    print_results(results, answers, "all columns: results.csv", console)
    return console.file.getvalue()


@pytest.mark.parametrize("head", SHOWN)
def test_the_tables_last_column_is_the_tasks_first_score_whoever_computed_it(head):
    scores, number = SHOWN[head]
    metrics = {
        f"{name}{end}": value
        for name, values in scores.items()
        for end, value in zip(("", "_low", "_high"), values, strict=False)
    }
    text = shown(result(metrics=metrics, task="spider"))
    assert text.split()[:5] == ["decoder", head, "sd", "3", number]
    assert ("in the file, too: F1" in " ".join(text.split())) == (head == "EM")


def test_a_row_that_is_not_exact_is_marked():
    marks = ("exact", "approximate", "simulated")
    text = shown(*(replace(result(run_id=each), lossless=each) for each in marks))
    assert [f"({each})" in text for each in marks] == [False, True, True]


def test_of_a_large_sweep_the_fastest_rows_of_each_task_are_shown_and_all_are_counted():
    tasks = ["tides"] * 99 + ["quay"] * 99
    text = shown(*(
        result(task=task, spec=str(place), run_id=str(place), metrics={"token_rate": float(place)})
        for place, task in enumerate(tasks, 1)
    ))  # fmt: skip
    lines = [line.split() for line in text.splitlines()]
    specs = {task: [int(line[2]) for line in lines if line[:1] == [task]] for task in set(tasks)}
    assert specs == {"tides": [*range(99, 69, -1)], "quay": [*range(198, 168, -1)]}
    assert "60 of 198 rows: the fastest of each task and setting, by speed-up" in text


def test_the_fastest_rows_of_several_sessions_are_those_of_the_largest_speedups():
    numbers = ({"token_rate": 100.0 - k, "speedup": 1.0 + k} for k in range(61))
    text = shown(*(result(metrics=n, spec=str(k), run_id=str(k)) for k, n in enumerate(numbers)))
    assert re.findall(r"^sd (\d+)", text, re.M)[:2] == ["60", "59"]


@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_answer_comes_first_and_no_line_of_the_table_is_wider_than_eighty_columns(width):
    numbers = {"block_efficiency": 12.345, "token_rate": 12345.6, "exact_match": 0.25}
    numbers |= {"speedup": 11.5, "speedup_low": 10.25, "speedup_high": 12.75}
    slow = result(metrics=numbers, decoder="lookup_or_draft", spec="2-2-2-1-1-1")
    text = shown(slow, width=width, answers=["Use it.", "word " * 40])
    lines = text.splitlines()
    assert lines[0] == "Use it." and lines[-1] == "all columns: results.csv"
    heads, line = lines[-4:-2]
    assert heads.split() == ["decoder", "tokens/call", "tokens/s", "speed-up", "EM"]
    told = "lookup_or_draft 2-2-2-1-1-1 12.35 12346 11.50 [10.25, 12.75] 0.25"
    assert line.split() == told.split()
    assert len(line) <= 80


def test_joules_are_shown_where_they_were_measured_and_before_any_score():
    numbers = {"block_efficiency": 2.5, "token_rate": 345.6, "speedup": 1.5, "exact_match": 0.25}
    assert "J/token" not in shown(result(metrics=numbers))
    text = shown(result(metrics={**numbers, "energy_j_per_token": 0.231}), width=60)
    heads, line, *_ = text.strip().splitlines()
    assert heads.split() == ["decoder", "tokens/call", "tokens/s", "speed-up", "J/token", "EM"]
    assert line.split()[-2:] == ["0.23", "0.25"]


def test_a_sweep_names_every_row_in_eighty_columns():
    numbers = {"block_efficiency": 2.5, "token_rate": 345.6, "speedup": 1.5}
    numbers |= {"speedup_low": 1.25, "speedup_high": 1.75}
    told = [("llama2_chat_7b", "humaneval", "lookup_or_draft", "2-2-2-1"), ("p", "xsum", "sd", "3")]
    rows = [
        result(
            metrics=numbers,
            pair=pair,
            task=task,
            decoder=decoder,
            spec=spec,
            sampling=SamplingSettings(temperature),
        )
        for (pair, task, decoder, spec), temperature in zip(told, (0.0, 1.0), strict=True)
    ]
    text = shown(*rows, width=80)
    assert "…" not in text and all(len(line) <= 80 for line in text.splitlines())
    assert text.count("1.50 [1.25, 1.75]") == 2
    starts = [each.start() for each in re.finditer(r"\S+", text.strip("\n").splitlines()[0])]
    columns = zip(starts, [*starts[1:], None], strict=True)
    cells = {
        "".join(line[start:end].strip() for line in text.splitlines()) for start, end in columns
    }
    for name in (*told[0][:3], "temp", "decoder"):
        assert any(name in cell for cell in cells), (name, text)


def test_rows_of_one_tree_are_told_apart_and_a_stalled_one_is_marked_with_its_reason():
    reasons = (Reason("speedup", "stalled: 1 of 12 windows; median says 0.81"),)
    slow = replace(result(metrics={"speedup": 1.35}), reasons=reasons)
    rows = result(metrics={"speedup": 1.5}, tree_attention=False)
    text = shown(slow, rows, result(metrics={"speedup": 1.4}))
    lines = [re.split(" {2,}", line) for line in text.splitlines()[2:5]]
    names = ["sd 3, stalled", "sd 3, paths as rows", "sd 3"]
    assert lines == list(map(list, zip(names, ("1.35", "1.50", "1.40"), strict=True)))
    assert "\nsd 3: stalled: 1 of 12 windows, median says 0.81\n" in text


@pytest.mark.parametrize(("width", "kept"), [(42, 1), (200, 4)])
def test_scores_of_ones_own_never_cut_the_main_numbers(width, kept):
    numbers = {"block_efficiency": 2.0, "token_rate": 50.0, "exact_match": 0.25}
    for name in ("mine_first", "mine_second", "your_first"):
        numbers |= {name: 0.5, f"{name}_low": 0.4, f"{name}_high": 0.6}
    text = shown(result(metrics=numbers), width=width)
    assert "sd 3" in text and "2.00" in text and "50.00" in text and "…" not in text
    own = ["mine_first", "your_first", "mine_second", "EM"]
    heads, more = text.strip().splitlines()[0].split(), " ".join(text.split())
    assert [each for each in own if each in heads] == own[:kept]
    assert kept == 4 or f"in the file, too: {', '.join(own[kept:])}" in more


def done(prompt_id, steps):
    made = (StepRecord(2, 2, 1, 2),) * steps
    return Generation(prompt_id, (7,) * (2 * steps), "length", made, 0.1, 0.5, 0.1, 0.2)


def test_the_bar_looks_at_what_a_cell_had_done_only_once(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    looked = []

    def before():
        for number in range(3):
            looked.append(number)
            yield done(f"{number}", 1)

    bar = ProgressBar(9, enabled=True)
    for turn in range(4):
        bar.start_batch("sd 3", "cell", before())
        bar.add_counts(2, 6)
        bar.finish_batch(1, [done(f"new {turn}", 2)])
        bar.start_batch("ar -", "other", [])
        bar.finish_batch(1)
    bar.start_batch("sd 3", "cell", before())
    bar.add_counts(1, 2)
    bar.close()
    assert looked == [0, 1, 2]
    # 3 calls before, 4 times 2 of its own, one now; two tokens each.
    assert "sd 3 tau=2.00" in capsys.readouterr().err


def test_a_log_has_a_line_of_progress_now_and_then_and_none_of_a_short_job(capsys, monkeypatch):
    def decoded(prompts):
        bar = ProgressBar(2000, enabled=True)
        for number in range(prompts):
            bar.start_batch("sd 3", "cell", [])
            bar.add_counts(2, 6)
            bar.finish_batch(1, [done(f"{number}", 2)])
        bar.close()
        return capsys.readouterr().err.split("\n")[:-1]

    assert decoded(20) == []
    for name in ("mininterval", "delay"):
        monkeypatch.setitem(console._LOG_LINE_OPTIONS, name, 0.01)
    monkeypatch.setattr(ProgressBar, "add_counts", lambda *_: time.sleep(0.004))
    lines = decoded(20)
    assert 1 < len(lines) < 20
    assert re.match(r"\d+ of 2000 prompts, some [\d:]+ left", lines[0]), lines[0]


class Kept:
    def __init__(self, told, folder):
        self.told, self.folder = told, folder


def test_a_sink_of_another_package_is_built_from_its_own_part(tmp_path):
    sink("kept")(Kept)
    try:
        settings = parse_sink_settings({"table": False, "kept": {"where": "here"}})
        (found,) = build_sinks(settings, tmp_path)
    finally:
        sink.forget("kept")
    assert (found.told, found.folder) == ({"where": "here"}, tmp_path)
    assert (settings.table, settings.progress) == (False, True)
    with pytest.raises(ValueError, match=r"sink\.kept"):
        parse_sink_settings({"kept": {}})


def test_wandb_is_off_unless_it_is_asked_for(tmp_path):
    assert build_sinks(parse_sink_settings({}), tmp_path) == []
    (found,) = build_sinks(parse_sink_settings({"wandb": {"enabled": True}}), tmp_path)
    assert type(found).__name__ == "WandbSink"


NOW = {
    "target_revision": "t1",
    "draft_revision": ("d1",),
    "tree_revision": "1",
    "data_revision": "c1",
    "prompts_digest": "p1",
    "engine": 2,
}
OTHER = {**dict.fromkeys(STATE_COLUMNS, "past"), "draft_revision": ("past",), "engine": 1}
CHOSEN = {
    "sampling": SamplingSettings(0.5, top_p=0.9),
    "seed": 1,
    "batch_size": 8,
    "dtype": "float16",
    "compile": "dynamo",
    "threads": 2,
    "device": "NVIDIA H200",
    "data_file": "other.jsonl",
    "tree_attention": False,
    "spec": "4",
    "pair": "another",
}
ENDED = {"old": 1.0, "new": 2.0}


def cell(run_id, prompts=20, **more):
    return result(run_id, {"prompts": prompts}, **{**NOW, **more})


CASES = [  # what the old row has of its own, when which ended, and which rows are past
    *(({column: OTHER[column]}, ENDED, {"old"}) for column in STATE_COLUMNS),
    *(({**OTHER, column: CHOSEN[column]}, ENDED, set()) for column in CHOSEN),
    ({}, ENDED, set()),  # settings without a column differ
    ({"prompts": 5, "prompts_digest": "p0"}, ENDED, set()),  # another question
    ({"prompts": None, "prompts_digest": "p0"}, ENDED, {"old"}),
    # Whoever goes back to the weights of before has these for the present ones.
    ({"target_revision": "t0"}, {"old": 3.0, "new": 2.0}, {"new"}),
    ({"target_revision": "t0"}, {"new": 2.0}, {"old"}),
    ({"target_revision": "t0"}, {"old": 2.0, "new": 2.0}, set()),
]


@pytest.mark.parametrize(("own", "ended", "past"), CASES)
def test_a_row_of_another_state_is_superseded_by_the_newer_one(own, ended, past):
    assert (
        find_superseded_ids([result_to_row(cell("old", **own)), result_to_row(cell("new"))], ended)
        == past
    )


def test_a_failed_row_takes_no_place():
    failed = result_to_row(CellResult("new", cell("new").facts, "failed"))
    assert find_superseded_ids([result_to_row(cell("old", engine=1)), failed], ENDED) == set()


def ids(path):
    return [row["run_id"] for row in read_csv(path)]


def test_rows_of_a_past_state_move_to_the_archive_and_come_back_with_their_state(tmp_path):
    table, archive = tmp_path / "results.csv", tmp_path / "archive.csv"
    first, second = cell("old", target_revision="t0"), cell("new")
    merge_results_csv(table, [result_to_row(first)], ["old"], {"old": 1.0})
    before = read_csv(table)
    assert not archive.exists()
    for _ in range(2):
        merge_results_csv(table, map(result_to_row, (first, second)), ["old", "new"], ENDED)
        assert (ids(table), ids(archive)) == (["new"], ["old"])
    assert read_csv(archive) == before
    merge_results_csv(
        table, map(result_to_row, (first, second)), ["old", "new"], {"old": 3.0, "new": 2.0}
    )
    assert (ids(table), ids(archive)) == (["old"], ["new"])


def test_an_archived_row_whose_cell_is_gone_from_the_runs_is_never_lost(tmp_path):
    table, archive = tmp_path / "results.csv", tmp_path / "archive.csv"
    write_results_csv(archive, [result_to_row(cell("older", engine=0))])
    write_results_csv(table, [result_to_row(cell("old", engine=1))])
    merge_results_csv(table, [result_to_row(cell("new"))], ["new"], {"new": 1.0})
    assert (ids(archive), ids(table)) == (["older", "old"], ["new"])
