"""What stands behind a row is the same from the raw runs as from the file that is committed."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import sacrebleu

import spec_bench.report
from spec_bench.jobs.store.store import CellStore
from spec_bench.metrics.quality import Bleu
from spec_bench.records import parquet
from spec_bench.records.types import Generation, StepRecord
from spec_bench.report.claims.contrast import Contrast, difference
from spec_bench.report.cli.command_line import main
from spec_bench.report.comparison import main as compare
from spec_bench.report.data.counts import Records
from spec_bench.report.data.records import origin_of, repeats_of, scores_of
from spec_bench.system import files
from tests.cells import result
from tests.report.rows import row, write
from tests.said import naming

REPORT = Path(spec_bench.report.__file__).parent
ORIGIN = {"cpu": "a processor", "versions": {}, "torch": {"threads": 1, "devices": []}}


def window(prompt, repeat, seconds):
    steps = (StepRecord(2, 2, 1, 2), StepRecord(2, 2, 0, 1))
    return Generation(prompt, (1, 2, 3), "length", steps, 0.1, seconds, 0.1, 0.2, repeat=repeat)


DONE = [
    *(window("a", 0, 1.0), window("b", 0, 2.0)),
    *(window("a", 1, 1.5), window("b", 1, 2.5)),
    window("a", 2, 9.0),  # a job was killed in this repeat
]
SCORES = {"rouge2": {"a": 0.5, "b": 0.0}}


@pytest.fixture(params=["runs", "records"])
def results(request, tmp_path):
    """A table with one cell, whose records lie in its folder or beside the table."""
    table = files.results_file(tmp_path, "mine")
    write(tmp_path, "mine", row("sd", "2", run_id="cell"))
    if request.param == "runs":
        store = CellStore(tmp_path, "cell")
        store.describe({}, {"cpu": "an earlier one"})
        store.describe({}, ORIGIN)
        store.append(DONE)
        store.keep_scores(SCORES)
    else:
        parquet.write(files.records_file(table), parquet.pack("cell", DONE, ORIGIN, SCORES))
    return table


def test_every_whole_repeat_is_read_and_times_are_summed_over_them(results):
    seconds = [[each.decode_s for each in done.values()] for done in repeats_of(results, "cell")]
    assert seconds == [[1.0, 2.0], [1.5, 2.5]]
    known, cell = Records(results), {"run_id": "cell"}
    assert known.counts(cell, "token_rate") == {"a": (6.0, 2.5), "b": (6.0, 4.5)}
    assert known.counts(cell, "block_efficiency") == {"a": (3.0, 2.0), "b": (3.0, 2.0)}
    assert (scores_of(results, "cell"), origin_of(results, "cell")) == (SCORES, ORIGIN)
    assert repeats_of(results, "other") == []
    assert (scores_of(results, "other"), origin_of(results, "other")) == ({}, None)


def scored(folder, metric, scores):
    """A table whose cells have these scores of each prompt, and how two of them differ."""
    table, parts = files.results_file(folder, "mine"), []
    for name, own in scores.items():
        named = {f"{number}": each for number, each in enumerate(own)}
        done = [window(prompt, 0, 1.0) for prompt in named]
        parts.append(parquet.pack(name, done, None, {metric: named}))
    parquet.write(files.records_file(table), parquet.joined(parts))

    def gap(one, other, **how):
        sides = ((row("sd", "2", run_id=name, seed=0),) for name in (one, other))
        return difference([[Contrast(*sides)]], metric, Records(table), **how)

    return gap


def test_a_difference_of_scores_is_paired_by_prompt(tmp_path):
    better = [0.3 + 0.05 * number for number in range(12)]
    gap = scored(tmp_path, "rouge2", {"good": better, "fair": [each - 0.1 for each in better]})
    found, ratio = gap("good", "fair"), gap("good", "fair", relative=True)
    assert found.value == pytest.approx(0.1)
    low, high = found.ends  # of each alone the interval is 0.2 wide
    assert 0.05 < low < 0.1 < high < 0.15
    assert ratio.value == pytest.approx(0.575 / 0.475 - 1)
    assert 0 < ratio.ends[0] < ratio.value


def test_a_difference_of_corpus_scores_is_paired_by_prompt(tmp_path):
    golds = [f"the {word} boat came back over the wide grey sea" for word in "abcdefghijkl"]
    fair = [gold.replace("grey", "blue") if place % 3 else gold for place, gold in enumerate(golds)]
    poor = [text.replace("over", "under") for text in fair]
    both = [Bleu().score(texts, [[gold] for gold in golds]) for texts in (fair, poor)]
    parts = {"fair": both[0].parts, "poor": both[1].parts, "same": both[0].parts}
    gap = scored(tmp_path, "bleu", parts)
    found, equal = gap("fair", "poor"), gap("fair", "same")
    exact = [sacrebleu.corpus_bleu(texts, [golds]).score / 100 for texts in (fair, poor)]
    assert not found.relative and found.value == pytest.approx(exact[0] - exact[1])
    low, high = found.ends
    assert 0 < low < found.value < high
    # As independent of each other both cells' scores would say less of how much they differ.
    widths = [own.high - own.low for own in both]
    assert high - low < (widths[0] ** 2 + widths[1] ** 2) ** 0.5
    assert equal.value == 0.0
    assert -0.25 < equal.ends[0] == -equal.ends[1] < 0  # not sure to be equal on all texts


@pytest.mark.parametrize("source", ["runs", "records"])
def test_a_cell_added_later_is_paired_with_the_baselines_timing_of_its_sitting(source, tmp_path):
    """Seconds of the first sitting, twice as slow, are none of the difference."""
    table = files.results_file(tmp_path, "mine")
    prompts = [f"{number}" for number in range(6)]

    def timed(sitting, seconds):
        return [replace(window(prompt, 0, seconds), sitting=sitting) for prompt in prompts]

    parts = []
    for name, done, again in (
        ("base", timed("first", 4.0), timed("later", 2.0)),
        ("added", timed("later", 1.0), []),
    ):
        parts.append(parquet.pack(name, done, ORIGIN, None, again))
        if source == "runs":
            store = CellStore(tmp_path, name)
            store.describe({}, ORIGIN)
            store.append(done)
            if again:
                store.append(again, "later")
    if source == "records":
        parquet.write(files.records_file(table), parquet.joined(parts))
    base, added = (row("ar", run_id="base", seed=0), row("sd", "2", run_id="added", seed=0))
    pair = [[Contrast((added,), (base,))]]
    found = difference(pair, "token_rate", Records(table))
    assert (found.value, *found.ends) == pytest.approx((1.0, 1.0, 1.0))
    assert difference(pair, "block_efficiency", Records(table)).value == 0.0
    assert Records(table).counts(base, "token_rate") == dict.fromkeys(prompts, (3.0, 4.0))


def test_records_that_are_written_again_are_read_again(tmp_path):
    table = files.results_file(tmp_path, "mine")
    for seconds in (1.0, 2.0):
        one = replace(DONE[0], decode_s=seconds)
        parquet.write(files.records_file(table), parquet.pack("cell", [one], None))
        assert repeats_of(table, "cell")[0]["a"].decode_s == seconds


READERS = {
    "report": lambda table: main([str(table)]),
    "records": lambda table: main(["records", "--results", str(table.parents[1])]),
    "sweep": lambda table: main(["sweep", str(table)]),
    "compare": lambda table: compare([str(table), str(table)]),
}


@pytest.mark.parametrize("reader", READERS)
def test_records_that_cannot_be_read_are_one_line_and_status_2(reader, tmp_path, capsys):
    table = files.results_file(tmp_path, "mine")
    write(tmp_path, "mine", row("ar", run_id="base"), row("sd", "2", run_id="cell", rouge2=0.25))
    files.records_file(table).write_text("<<<<<<< HEAD\n")
    assert READERS[reader](table) == 2
    said = capsys.readouterr().err
    assert re.match(naming(files.RECORDS), said) and len(said.splitlines()) == 1


def test_records_of_an_earlier_version_are_sealed_by_the_command_that_is_named(tmp_path, capsys):
    table = files.results_file(tmp_path, "mine")
    write(tmp_path, "mine", row("sd", "2", run_id="cell"))
    parquet.write(files.records_file(table), parquet.pack("cell", DONE, ORIGIN))
    lines = parquet.read(files.records_file(table)).lines
    path = files.records_file(table)
    path.write_bytes(path.read_bytes().replace(b"sha256:", b"sha255:"))
    assert main(["sweep", str(table)]) == 2
    named = re.search(r"spec_bench\.report (.*)", capsys.readouterr().err)
    assert named and main(named[1].split()) == 0
    assert parquet.read(files.records_file(table)).lines.equals(lines)
    assert main(["sweep", str(table)]) == 0


@pytest.mark.parametrize("scores", ['{"rouge2": {"a": 0.9, "b": 0.0}}', "{}", "-5", None])
def test_scores_that_a_cells_result_was_not_made_with_are_one_line_and_status_2(
    scores, tmp_path, capsys
):
    write(tmp_path, "mine", row("sd", "2", run_id="cell"))
    store = CellStore(tmp_path, "cell")
    store.describe({}, ORIGIN)
    store.append(DONE)
    store.keep_scores(SCORES)
    store.finish(result("cell"), "job")
    assert main(["sweep", "mine", "--results", str(tmp_path)]) == 0
    path = store.folder / files.SCORES
    path.unlink() if scores is None else path.write_text(scores)
    assert main(["sweep", "mine", "--results", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert re.match(naming(path, "again"), said) and len(said.splitlines()) == 1


def test_the_command_says_how_much_the_records_hold_and_whose_are_missing(tmp_path, capsys):
    write(tmp_path, "mine", row("sd", "2", run_id="cell"), row("sd", "3", run_id="lost"))
    write(tmp_path, "other", row("sd", "2"))
    table = files.results_file(tmp_path, "mine")
    parquet.write(files.records_file(table), parquet.pack("cell", DONE, ORIGIN))
    assert main(["records", "--results", str(tmp_path)]) == 0
    mine, other = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"mine: 5 lines of 1 cells, \d+ KiB; none of lost", mine)
    assert other == "other: no records.parquet"


def test_nothing_else_in_the_report_opens_raw_runs():
    raw = re.compile(r"GENERATIONS|PROVENANCE|CONFIG\b|run_folder")
    paths = [path for path in REPORT.rglob("*.py") if raw.search(path.read_text("utf-8"))]
    assert paths == [REPORT / "data" / "records.py"]
