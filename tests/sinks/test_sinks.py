"""What a job shows and writes: its table on the console, sinks by name, and past rows of a file."""

import io

import pytest
from rich.console import Console

from spec_bench.records.types import CellResult, Generation, StepRecord
from spec_bench.sinks.console import Progress, print_table
from spec_bench.sinks.rows import STATE, merge_csv, row_of, superseded, write_csv
from spec_bench.sinks.sink import build_sinks, sink, sink_settings
from spec_bench.system.files import read_csv
from tests.cells import result

MANY = [f"module_score_number_{n}" for n in range(30)]
SHOWN = {  # the columns of scores, what a cell has, and how it stands there
    "PPL EM F1 EX": (
        {
            "exact_match": (0.5, 0.4, 0.6),
            "f1": (0.75, None, None),
            "execution_accuracy": (0.9, 0.8, 1.0),
            "execution_errors": (2.0,),
            "perplexity": (1.5, None),
        },
        "1.50 0.50 [0.40, 0.60] 0.75 0.90 [0.80, 1.00]",
    ),
    "F1": ({"f1": (0.98, 0.8, 1.0)}, "0.98 [0.80, 1.00]"),  # an interval that leans
    "rouge_rouge2": (  # a module's; other numbers are no columns
        {
            "token_rate_end_to_end": (99.0, 98.0, 100.0),
            "rouge_rouge2": (0.25, 0.2, 0.3),
            "peak_memory_bytes": (4096.0,),
        },
        "0.25 [0.20, 0.30]",
    ),
    " ".join(MANY): (dict.fromkeys(MANY, (0.5, 0.5)), " ".join(["0.50"] * 30)),  # none is cut
}


@pytest.mark.parametrize("heads", SHOWN)
def test_a_score_is_a_column_of_the_table_whoever_computed_it(heads):
    scores, numbers = SHOWN[heads]
    metrics = {
        f"{name}{end}": value
        for name, values in scores.items()
        for end, value in zip(("", "_low", "_high"), values, strict=False)
    }
    console = Console(file=io.StringIO(), width=200)
    print_table([result(metrics=metrics, task="spider")], console)
    told = f"task decoder spec {heads} spider sd 3 {numbers}"
    assert console.file.getvalue().split() == told.split()


def done(prompt_id, steps):
    made = (StepRecord(2, 2, 1, 2),) * steps
    return Generation(prompt_id, (7,) * (2 * steps), "length", made, 0.1, 0.5, 0.1, 0.2)


def test_the_bar_looks_at_what_a_cell_had_done_only_once(capsys):
    looked = []

    def before():
        for number in range(3):
            looked.append(number)
            yield done(f"{number}", 1)

    bar = Progress(9, enabled=True)
    for turn in range(4):
        bar.start("sd 3", "cell", before())
        bar.step(2, 6)
        bar.finish(1, [done(f"new {turn}", 2)])
        bar.start("ar -", "other", [])
        bar.finish(1)
    bar.start("sd 3", "cell", before())
    bar.step(1, 2)
    bar.close()
    assert looked == [0, 1, 2]
    # 3 calls before, 4 times 2 of its own, one now; two tokens each.
    assert "sd 3 tau=2.00" in capsys.readouterr().err


class Kept:
    def __init__(self, told, folder):
        self.told, self.folder = told, folder


def test_a_sink_of_another_package_is_built_from_its_own_part(tmp_path):
    sink("kept")(Kept)
    try:
        settings = sink_settings({"table": False, "kept": {"where": "here"}})
        (found,) = build_sinks(settings, tmp_path)
    finally:
        sink.forget("kept")
    assert (found.told, found.folder) == ({"where": "here"}, tmp_path)
    assert (settings.table, settings.progress) == (False, True)
    with pytest.raises(ValueError, match=r"sink\.kept"):
        sink_settings({"kept": {}})


def test_wandb_is_off_unless_it_is_asked_for(tmp_path):
    assert build_sinks(sink_settings({}), tmp_path) == []
    (found,) = build_sinks(sink_settings({"wandb": {"enabled": True}}), tmp_path)
    assert type(found).__name__ == "Wandb"


NOW = {
    "target_revision": "t1",
    "draft_revision": ("d1",),
    "tree_revision": "1",
    "data_revision": "c1",
    "prompts_digest": "p1",
    "engine": 2,
}
OTHER = {**dict.fromkeys(STATE, "past"), "draft_revision": ("past",), "engine": 1}
CHOSEN = {
    "temperature": 0.5,
    "top_p": 0.9,
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
    *(({column: OTHER[column]}, ENDED, {"old"}) for column in STATE),
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
    assert superseded([row_of(cell("old", **own)), row_of(cell("new"))], ended) == past


def test_a_failed_row_takes_no_place():
    failed = row_of(CellResult("new", cell("new").facts, "failed"))
    assert superseded([row_of(cell("old", engine=1)), failed], ENDED) == set()


def test_a_row_from_before_engines_had_numbers_is_superseded():
    new = row_of(cell("new", device="cpu", dtype="float32", data_source="embedded"))
    known = ("pair", "target", "draft", "task", "decoder", "spec", "temperature", "top_k", "top_p")
    also = ("seed", "batch_size", "tree_attention", "batching", "max_new_tokens")
    old = {name: new[name] for name in (*known, *also)} | {"run_id": "old"}
    assert superseded([old, new], {"new": 1.0}) == {"old"}
    assert superseded([{**old, "seed": 1}, new], {"new": 1.0}) == set()


def ids(path):
    return [row["run_id"] for row in read_csv(path)]


def test_rows_of_a_past_state_move_to_the_archive_and_come_back_with_their_state(tmp_path):
    table, archive = tmp_path / "results.csv", tmp_path / "archive.csv"
    first, second = cell("old", target_revision="t0"), cell("new")
    merge_csv(table, [first], ["old"], {"old": 1.0})
    before = read_csv(table)
    assert not archive.exists()
    for _ in range(2):
        merge_csv(table, [first, second], ["old", "new"], ENDED)
        assert (ids(table), ids(archive)) == (["new"], ["old"])
    assert read_csv(archive) == before
    merge_csv(table, [first, second], ["old", "new"], {"old": 3.0, "new": 2.0})
    assert (ids(table), ids(archive)) == (["old"], ["new"])


def test_an_archived_row_whose_cell_is_gone_from_the_runs_is_never_lost(tmp_path):
    table, archive = tmp_path / "results.csv", tmp_path / "archive.csv"
    write_csv(archive, [row_of(cell("older", engine=0))])
    write_csv(table, [row_of(cell("old", engine=1))])
    merge_csv(table, [cell("new")], ["new"], {"new": 1.0})
    assert (ids(archive), ids(table)) == (["older", "old"], ["new"])
