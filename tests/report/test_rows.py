"""What a row says is what holds: its seeds, its repeats, its engine and its records."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import sacrebleu

from spec_bench.jobs.store.store import CellStore
from spec_bench.metrics.intervals import rate_ratio_interval, ratio_interval
from spec_bench.metrics.quality import Bleu
from spec_bench.records import cell_folder, parquet
from spec_bench.records.types import ENGINE, Generation, StepRecord, parse_reasons
from spec_bench.report.claims import check_claims
from spec_bench.report.claims.contrast import compute_difference
from spec_bench.report.data.counts import (
    RecordReader,
    read_or_pack_records,
    read_provenance,
    read_repeats,
)
from spec_bench.report.data.rows import clear_past_times_and_energy, read_results_file
from spec_bench.report.data.seeds import pool_seeds
from spec_bench.report.page.build import build_page
from spec_bench.report.summary import write_report_and_print_answers
from spec_bench.report.tables.render import format_table_markdown
from spec_bench.system import files
from spec_bench.vocabulary import columns
from tests.cells import result
from tests.commands import compare, verify
from tests.commands import report as main
from tests.report.rows import EMBEDDED, around, frame, only, record, row, write
from tests.report.shown import table
from tests.said import naming

FIRST = [[1, 2], [0, 1], [2, 2], [1, 1], [1, 0], [1, 2]]
SECOND = [[2, 2], [2, 1], [3, 2], [2, 3], [2, 2], [3, 2]]


def table_of(folder, *rows):
    return write(folder, "mine", *rows) / "mine" / "results.csv"


def seeds(*cells, **same):
    """The same cell with seeds 0, 1, ..."""
    made = [row("sd", "2", **{**EMBEDDED, **same, **cell}) for cell in cells]
    return [{**cell, "seed": seed, "run_id": f"sd-{seed}"} for seed, cell in enumerate(made)]


def test_without_records_the_mean_of_all_seeds_is_shown():
    rates = ({"token_rate": around(49, 1.0)}, {"token_rate": around(51, 1.0)})
    (found,) = pool_seeds(frame(*seeds(*rates, prompts=12))).to_dict("records")
    assert (found["token_rate"], found["seed"], found["seeds"]) == (50.0, 0, "0,1")
    assert (found["run_id"], found["prompts"]) == ("sd-0,sd-1", 12)
    assert (found["token_rate_low"], found["token_rate_high"]) == (48.0, 52.0)


def test_without_records_seeds_have_the_means_of_their_ends_and_times_the_outermost(tmp_path):
    ends = {0: (0.19, 0.17, 0.23), 1: (0.21, 0.2, 0.24)}
    cells = [row("sd", "3", seed=s, prompts=30, rouge2=e, speedup=e) for s, e in ends.items()]
    (found,) = pool_seeds(frame(*cells), RecordReader(tmp_path / "results.csv")).to_dict("records")
    for name, expected in (("rouge2", (0.2, 0.185, 0.235)), ("speedup", (0.2, 0.17, 0.24))):
        pooled = [found[f"{name}{end}"] for end in ("", "_low", "_high")]
        assert pooled == pytest.approx(expected)


@pytest.mark.parametrize(
    ("ends", "sure"),
    [
        (((1.63, 1.44, 1.84), (1.40, 1.30, 1.50)), True),
        (((0.95, 0.9, 0.99), (1.2, 1.1, 1.3)), False),
    ],
)
def test_seeds_that_are_each_surely_faster_are_so_together_and_others_ask_for_seeds(
    ends, sure, tmp_path
):
    cells = seeds(*({"speedup": each} for each in ends), prompts=6)
    base = [
        row("ar", **{**EMBEDDED, "prompts": 6}, speedup=1.0, seed=s, run_id=f"ar-{s}")
        for s in (0, 1)
    ]
    file = table_of(tmp_path, *base, *cells)
    for seed, (speed, _, _) in enumerate(ends):
        record(file, f"sd-{seed}", FIRST, rate=10 * speed)
        record(file, f"ar-{seed}", [[0] * 4] * 6, depth=0, rate=10)
    _, both = pool_seeds(read_results_file(file), RecordReader(file)).to_dict("records")
    assert both["speedup_low"] == pytest.approx(min(low for _, low, _ in ends))
    assert both["speedup_high"] == pytest.approx(max(high for _, _, high in ends))
    page = build_page(file)
    assert ("surely faster" in page) == sure
    assert ("more seeds may decide" in page) == (not sure)


def pooled_with_baseline(tmp_path, cells, **facts):
    """Rows of plain decoding and of ``cells`` of two seeds, with records, after pooling."""
    own = {**EMBEDDED, **facts, "token_rate": 1.0, "speedup": 1.0}
    base = [row("ar", **own, seed=seed, run_id=f"ar-{seed}") for seed in (0, 1)]
    file = table_of(tmp_path, *base, *cells)
    for seed, counts in enumerate((FIRST, SECOND)):
        record(file, f"sd-{seed}", counts, depth=3, rate=10 + seed / 2)
        record(file, f"ar-{seed}", [[0] * 4] * 6, depth=0, rate=10)
    return pool_seeds(read_results_file(file), RecordReader(file)).to_dict("records")


@pytest.mark.parametrize("device", ["cpu", "server"])  # a server's requests have own clocks
def test_seeds_of_prompts_that_share_a_clock_have_no_interval_of_their_rates(device, tmp_path):
    own = {"batch_size": 6, "device": device}
    cells = seeds(*[{"token_rate": rate, "speedup": rate} for rate in (9.0, 9.5)], **own)
    _, chain = pooled_with_baseline(tmp_path, cells, **own)
    has_ends = [pd.notna(chain[f"{name}_low"]) for name in ("token_rate", "speedup")]
    assert has_ends == [device == "server"] * 2


def test_records_are_pooled_over_seeds_and_prompts_with_prompts_as_blocks(tmp_path):
    wrong = ("block_efficiency", "token_rate", "speedup")
    cells = seeds(dict.fromkeys(wrong, 9.0), dict.fromkeys(wrong, 9.5), mbsu=9.0)
    base, chain = pooled_with_baseline(tmp_path, cells)
    emitted = [[sum(counts) + 2 for counts in seed] for seed in (FIRST, SECOND)]
    # What a prompt's calls bring is no property of a seed's job: its seeds are more of its calls.
    taus = ratio_interval([sum(each) for each in zip(*emitted, strict=True)], [4.0] * 6)
    assert 1.0 < taus.low < 3.0 < taus.high
    assert taus.value == pytest.approx(sum(map(sum, emitted)) / 24)
    seconds = [[n / rate for n in seed] for seed, rate in zip(emitted, (10, 10.5), strict=True)]
    gain = rate_ratio_interval(emitted, seconds, [[4.0] * 6] * 2, [[0.4] * 6] * 2)
    for name, ends in (
        ("block_efficiency", (taus.value, taus.low, 3.0)),  # of a chain of two
        ("speedup", (gain.value, gain.low, gain.high)),
    ):
        assert [chain[f"{name}{end}"] for end in ("", "_low", "_high")] == pytest.approx(ends)
    assert base["speedup"] == pytest.approx(1.0)


def test_a_seed_that_failed_is_left_out_and_said():
    cells = seeds({"token_rate": 40.0}, {"token_rate": 60.0}, {"status": "failed", "reason": "X"})
    (found,) = pool_seeds(frame(*cells)).to_dict("records")
    assert (found["token_rate"], found["seeds"]) == (50.0, "0,1")
    assert found["reason"] == "seed: 2 failed and left out"
    (alone,) = pool_seeds(frame(cells[0], cells[2])).to_dict("records")
    assert (alone["token_rate"], alone["seeds"]) == (40.0, "0")


@pytest.mark.parametrize(("name", "values"), [("file", ("a.csv", "b.csv")), ("batch_size", (1, 4))])
def test_one_seed_is_left_as_it_is_and_seeds_of_two_files_or_settings_are_not_pooled(name, values):
    rows = frame(*seeds({"token_rate": 40.0}), row("ar", **EMBEDDED))
    assert pool_seeds(rows) is rows
    assert len(pool_seeds(frame(*seeds(*({name: value} for value in values))))) == 2


def test_tables_say_that_seeds_are_pooled(tmp_path):
    rates = ({"block_efficiency": around(2.0, 0.1)}, {"block_efficiency": around(2.2, 0.1)})
    write(tmp_path, "rsd-exp1", *({**cell, "pair": "llama2_7b"} for cell in seeds(*rates)))
    text = format_table_markdown(table("rsd/1", tmp_path))
    assert "| 2 | SD | 2 | 2.166 | 2.100 [" in text
    assert "seed 0, 1," in text and "- Seeds are pooled" in text
    write_report_and_print_answers(tmp_path / "rsd-exp1" / "results.csv", tmp_path)
    text = (tmp_path / "table.md").read_text()
    assert text.count("| sd | 2 |") == 1
    assert "seeds 0, 1" in text and "Seeds are pooled" in text


def test_a_claim_is_checked_on_the_seeds_that_both_cells_have(tmp_path):
    file, cells = tmp_path / "rsd-exp1" / "results.csv", []
    sides = (("spectr", "3x3", range(3)), ("sd", "3", range(2)))
    for name, spec, seed in ((*side, seed) for *side, seeds in sides for seed in seeds):
        own = {**EMBEDDED, "seed": seed, "run_id": f"{name}-{seed}", "block_efficiency": 2.0}
        cells.append(row(name, spec, **own))
        record(file, own["run_id"], SECOND if name == "spectr" else FIRST)
    check = only(check_claims("rsd", frame(*cells), file), "spectr > sd", "length 3")
    gap = (sum(map(sum, SECOND)) - sum(map(sum, FIRST))) / 12
    assert check.evidence.startswith(f"{gap:+.3f} [")
    assert check.verdict == "holds"


def repeated(results, run_id, paces):
    """Writes a cell whose repeats take so many times the first one's seconds."""
    record(results, run_id, [[1, 2], [0, 3], [2, 2], [1, 1], [3, 0], [2, 1], [0, 1], [1, 3]])
    path = results.parent.parent / "runs" / run_id / "generations.jsonl"
    lines = cell_folder.read_generations_skipping_damaged(path)
    every = [
        replace(line, repeat=repeat, decode_s=line.decode_s * pace)
        for repeat, pace in enumerate(paces)
        for line in lines
    ]
    cell_folder.rewrite_generations(path, every)


def test_a_difference_knows_that_whole_repeats_differ(tmp_path):
    results = table_of(tmp_path, row("sd", "3", run_id="a"))
    repeated(results, "steady", [1.0, 1.0, 1.0])
    repeated(results, "uneven", [0.8, 1.3, 0.9])
    steady, uneven = (row("sd", "3", run_id=name) for name in ("steady", "uneven"))
    found = compute_difference([[((uneven,), (steady,))]], "token_rate", RecordReader(results))
    assert found.value == pytest.approx(0.0, abs=1e-6)
    assert found.ends_on_value_scale[0] < -0.1 and found.ends_on_value_scale[1] > 0.1


TIMED = {"token_rate": (80.0, 75.0, 85.0), "speedup": (1.8, 1.7, 1.9)}
COUNTED = {"block_efficiency": (2.5, 2.4, 2.6), "rouge2": (0.3, 0.2, 0.4)}


def cells(**values):
    return [row(*cell, **EMBEDDED, **TIMED, **COUNTED, **values) for cell in (("ar",), ("sd", "3"))]


def test_times_of_another_engine_are_empty_with_their_reason_and_counts_stay():
    rows = clear_past_times_and_energy(frame(*cells(engine=ENGINE - 1)))
    assert rows[["token_rate", "speedup", "speedup_low"]].isna().all(axis=None)
    assert list(rows.block_efficiency) == [2.5, 2.5]
    assert list(rows.rouge2_high) == [0.4, 0.4]
    (reason,) = parse_reasons(rows.reason[1])
    assert (reason.column, reason.text) == ("speedup", f"timed by an earlier engine, now {ENGINE}")
    own = frame(*cells(engine=ENGINE))
    pd.testing.assert_frame_equal(clear_past_times_and_energy(own), own)
    noted = clear_past_times_and_energy(
        frame(row("sd", "3", engine=0, reason="bleu: no reference"))
    )
    assert [reason.column for reason in parse_reasons(noted.reason[0])] == ["bleu", "speedup"]


def test_no_column_of_time_or_energy_of_a_past_engine_keeps_a_number():
    names = [n for each in columns.list_columns_of_kind("time", "energy") for n in each.names]
    rows = frame({**row("sd", "3", engine=0), **dict.fromkeys(names, 1.0)})
    assert len(names) > 10
    assert clear_past_times_and_energy(rows)[names].isna().all(axis=None)


def test_a_file_without_the_column_is_of_an_engine_before_there_was_one(tmp_path):
    old = [{k: v for k, v in cell.items() if k != "engine"} for cell in cells()]
    rows = read_results_file(table_of(tmp_path, *old))
    assert rows.token_rate.isna().all()
    assert list(rows.block_efficiency) == [2.5, 2.5]


def test_a_page_says_how_many_cells_are_archived_or_of_an_earlier_engine(tmp_path):
    file = table_of(tmp_path, *cells(engine=0))
    frame(*cells()).to_csv(file.with_name("archive.csv"), index=False)
    page = build_page(file)
    assert "cells timed by an earlier engine: no times" in page
    assert "cells of past weights, data or engines, archived" in page


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
    table = files.get_results_file(tmp_path, "mine")
    write(tmp_path, "mine", row("sd", "2", run_id="cell"))
    if request.param == "runs":
        store = CellStore(tmp_path, "cell")
        store.write_settings({}, {"cpu": "an earlier one"})
        store.write_settings({}, ORIGIN)
        store.append_generations(DONE)
        store.write_result(result("cell"), "job", SCORES)
    else:
        parquet.write_records(
            files.get_records_file(table), parquet.pack_generations("cell", DONE, ORIGIN, SCORES)
        )
    return table


def test_every_whole_repeat_is_read_and_times_are_summed_over_them(results):
    seconds = [[each.decode_s for each in done.values()] for done in read_repeats(results, "cell")]
    assert seconds == [[1.0, 2.0], [1.5, 2.5]]
    known, cell = RecordReader(results), {"run_id": "cell", "seed": 0}
    assert known.sum_counts_over_repeats(cell, "token_rate") == {"a": (6.0, 2.5), "b": (6.0, 4.5)}
    assert known.sum_counts_over_repeats(cell, "block_efficiency") == {
        "a": (3.0, 2.0),
        "b": (3.0, 2.0),
    }
    assert list(known.get_counts_by_seed_and_repeat(cell, "token_rate")) == ["0", "0/1"]
    assert list(known.get_counts_by_seed_and_repeat(cell, "block_efficiency")) == ["0"]
    found = read_or_pack_records(results, "cell").get_scores("cell")
    assert (found, read_provenance(results, "cell")) == (SCORES, ORIGIN)
    assert read_repeats(results, "other") == []
    assert read_provenance(results, "other") is None


@pytest.mark.parametrize("last", ["", "another"])  # session of one prompt
def test_counts_of_cells_at_once_are_those_of_cell_by_cell(last, tmp_path, monkeypatch):
    table, parts = files.get_results_file(tmp_path, "mine"), []
    for number, run in enumerate(("a0", "a1", "b0", "b1")):
        done = [window(each, n, number + n + 1.0) for n in (0, 1) for each in ("x", "y")]
        done = [replace(w, session=last) if (run, w.prompt_id) == ("b1", "x") else w for w in done]
        parts.append(parquet.pack_generations(run, done, ORIGIN))
    parquet.write_records(files.get_records_file(table), parquet.concat_records(parts))
    rows = [{"run_id": f"{cell}0,{cell}1", "seeds": "0,1"} for cell in "ab"]
    asked = [
        (name, prompts, whole)
        for name in ("token_rate", "block_efficiency", "energy_per_token")
        for prompts, whole in ((None, False), (None, True), ("y", False), ("z", True))
    ]

    def counts():
        known = RecordReader(table)
        found = (
            known.make_table_getter(rows, of, sum_seeds=whole)(name) for name, of, whole in asked
        )
        return [None if each is None else each.tolist() for each in found]

    at_once = counts()
    assert np.shape(at_once[0]) == (2, 2, *((1, 1) if last else (4, 2)))
    monkeypatch.setattr(RecordReader, "_find_block", lambda *_: None)
    assert at_once == counts()


def scored(folder, metric, scores):
    """A table whose cells have these scores of each prompt, and how two of them differ."""
    table, parts = files.get_results_file(folder, "mine"), []
    for name, own in scores.items():
        named = {f"{number}": each for number, each in enumerate(own)}
        done = [window(prompt, 0, 1.0) for prompt in named]
        parts.append(parquet.pack_generations(name, done, None, {metric: named}))
    parquet.write_records(files.get_records_file(table), parquet.concat_records(parts))

    def gap(one, other, **how):
        sides = ((row("sd", "2", run_id=name, seed=0),) for name in (one, other))
        return compute_difference([[tuple(sides)]], metric, RecordReader(table), **how)

    return gap


def test_a_difference_of_scores_is_paired_by_prompt(tmp_path):
    better = [0.3 + 0.05 * number for number in range(12)]
    gap = scored(tmp_path, "rouge2", {"good": better, "fair": [each - 0.1 for each in better]})
    found, ratio = gap("good", "fair"), gap("good", "fair", relative=True)
    assert found.value == pytest.approx(0.1)
    low, high = found.ends_on_value_scale  # of each alone the interval is 0.2 wide
    assert 0.05 < low < 0.1 < high < 0.15
    assert ratio.value == pytest.approx(0.575 / 0.475 - 1)
    assert 0 < ratio.ends_on_value_scale[0] < ratio.value


def test_a_difference_of_corpus_scores_is_paired_by_prompt(tmp_path):
    golds = [f"the {word} boat came back over the wide grey sea" for word in "abcdefghijkl"]
    fair = [gold.replace("grey", "blue") if place % 3 else gold for place, gold in enumerate(golds)]
    poor = [text.replace("over", "under") for text in fair]
    both = [Bleu().columns(texts, [[gold] for gold in golds])["bleu"] for texts in (fair, poor)]
    parts = {"fair": both[0].parts, "poor": both[1].parts, "same": both[0].parts}
    gap = scored(tmp_path, "bleu", parts)
    found, equal = gap("fair", "poor"), gap("fair", "same")
    exact = [sacrebleu.corpus_bleu(texts, [golds]).score / 100 for texts in (fair, poor)]
    assert not found.is_relative and found.value == pytest.approx(exact[0] - exact[1])
    low, high = found.ends_on_value_scale
    assert 0 < low < found.value < high
    # As independent of each other both cells' scores would say less of how much they differ.
    widths = [own.high - own.low for own in both]
    assert high - low < (widths[0] ** 2 + widths[1] ** 2) ** 0.5
    assert equal.value == 0.0
    assert (
        -0.25 < equal.ends_on_value_scale[0] == -equal.ends_on_value_scale[1] < 0
    )  # not sure to be equal on all texts


@pytest.mark.parametrize("source", ["runs", "records"])
def test_a_cell_added_later_is_paired_with_the_baselines_timing_of_its_session(source, tmp_path):
    table = files.get_results_file(tmp_path, "mine")
    prompts = [f"{number}" for number in range(6)]

    def timed(session, seconds):
        unlike = [seconds + 1e-7 * int(prompt) for prompt in prompts]
        done = [window(*each) for each in zip(prompts, [0] * len(prompts), unlike, strict=True)]
        return [replace(each, session=session) for each in done]

    parts = []
    for name, done, again in (
        ("base", timed("first", 4.0), timed("later", 2.0)),
        ("added", timed("later", 1.0), []),
    ):
        parts.append(parquet.pack_generations(name, done, ORIGIN, None, again))
        if source == "runs":
            store = CellStore(tmp_path, name)
            store.write_settings({}, ORIGIN)
            store.append_generations(done)
            if again:
                store.append_generations(again, "later")
    if source == "records":
        parquet.write_records(files.get_records_file(table), parquet.concat_records(parts))
    base, added = (row("ar", run_id="base", seed=0), row("sd", "2", run_id="added", seed=0))
    pair = [[((added,), (base,))]]
    found = compute_difference(pair, "token_rate", RecordReader(table))
    assert found.value == pytest.approx(1.0, rel=1e-5)
    assert (
        found.ends_on_value_scale[0] < 1.0 < found.ends_on_value_scale[1]
    )  # nothing was accepted on any prompt
    assert compute_difference(pair, "block_efficiency", RecordReader(table)).value == 0.0
    counts = RecordReader(table).sum_counts_over_repeats(base, "token_rate")
    assert [*counts] == prompts and [*counts.values()] == [pytest.approx((3.0, 4.0))] * 6


def test_records_that_are_written_again_are_read_again(tmp_path):
    table = files.get_results_file(tmp_path, "mine")
    for seconds in (1.0, 2.0):
        one = replace(DONE[0], decode_s=seconds)
        parquet.write_records(
            files.get_records_file(table), parquet.pack_generations("cell", [one], None)
        )
        assert read_repeats(table, "cell")[0]["a"].decode_s == seconds


READERS = {
    "report": lambda table: main([str(table)]),
    "verify": lambda table: verify([str(table.parents[1])]),
    "page": lambda table: main(["page", str(table)]),
    "compare": lambda table: compare([str(table), str(table)]),
}


@pytest.mark.parametrize("reader", READERS)
def test_records_that_cannot_be_read_are_one_line_and_status_2(reader, tmp_path, capsys):
    table = files.get_results_file(tmp_path, "mine")
    write(tmp_path, "mine", row("ar", run_id="base"), row("sd", "2", run_id="cell", rouge2=0.25))
    files.get_records_file(table).write_text("<<<<<<< HEAD\n")
    assert READERS[reader](table) == 2
    said = capsys.readouterr().err
    assert re.match(naming(files.RECORDS), said) and len(said.splitlines()) == 1


@pytest.mark.parametrize("wrong", [("0.5", "0.9"), ("{", "["), ('"check"', '"other"')])
def test_scores_that_a_result_was_not_made_with_are_one_line(wrong, tmp_path, capsys):
    write(tmp_path, "mine", row("sd", "2", run_id="cell"))
    store = CellStore(tmp_path, "cell")
    store.write_settings({}, ORIGIN)
    store.append_generations(DONE)
    store.write_result(result("cell"), "job", SCORES)
    assert main(["page", "mine", "--results", str(tmp_path)]) == 0
    path = store.folder / files.CELL
    path.write_text(path.read_text().replace(*wrong, 1))
    assert main(["page", "mine", "--results", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert re.match(naming(path, "again"), said) and len(said.splitlines()) == 1


def test_nothing_else_in_the_report_opens_raw_runs():
    raw = re.compile(r"GENERATIONS|files\.CELL|run_folder")
    folder = files.get_data_folder("report")
    paths = [path for path in folder.rglob("*.py") if raw.search(path.read_text("utf-8"))]
    assert paths == [folder / "data" / "counts.py"]


def test_labels_that_read_as_numbers_stay_texts(tmp_path):
    labels = {"pair": "1e3", "target": "500", "machine": "2", "prompts_digest": "012345"}
    rows = [row("sd", "3", **labels, task=task, stop_rule="007") for task in ("07", "7")]
    rows = [{**each, "run_id": each["task"]} for each in rows]
    found = read_results_file(table_of(tmp_path, *rows))
    assert list(found.task) == ["07", "7"] and list(found.run_id) == ["07", "7"]
    assert {name: found[name].iloc[0] for name in labels} == labels
    assert set(found.stop_rule) == {"007"}


def test_a_table_that_was_edited_after_its_records_is_refused(tmp_path, capsys):
    file = table_of(tmp_path, row("sd", "3", token_rate=around(338, 40)))
    digests = {file.name: files.hash_file(file)}
    parquet.write_records(files.get_records_file(file), parquet.concat_records([]), digests)
    assert read_results_file(file).token_rate.item() == 338
    file.write_text(file.read_text("utf-8").replace("338", "681"), "utf-8")
    assert main([str(file)]) == 2
    assert re.search(naming(str(file), "records.parquet"), capsys.readouterr().err)
