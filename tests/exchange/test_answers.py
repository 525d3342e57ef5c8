"""Answer files, ours and other harnesses', and speed-up and tokens per call by category."""

import json
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest

from spec_bench.exchange.read import read_answer_file
from spec_bench.jobs.store.store import CellStore
from spec_bench.records.types import Generation, StepRecord
from spec_bench.report.claims import check_general_claims
from spec_bench.report.comparison import compare_results
from spec_bench.report.data.categories import (
    OTHERS,
    UNKNOWN,
    compute_speedup_and_tau_by_category,
    group_prompts_by_category,
)
from spec_bench.report.data.counts import RecordReader
from spec_bench.report.data.rows import group_rows, read_results_file
from spec_bench.report.data.seeds import pool_seeds
from spec_bench.report.page.results_table import iter_category_tables
from spec_bench.report.summary import iter_category_tables_markdown
from spec_bench.system import files
from tests.commands import answers as write_ours
from tests.commands import report as main
from tests.question_files import written
from tests.report.rows import EMBEDDED, MT_BENCH, frame, record, row, write
from tests.said import naming

KINDS = ("writing", "coding", "translation", "rag")


def asked(number, accepted, rate, rng):
    """One question; of MT-bench's two turns."""
    category = KINDS[number % 4]
    for name in (f"{number}/0", f"{number}/1") if category in KINDS[:2] else (f"{number}",):
        counts = rng.integers(0, accepted + 1, 6 + number).tolist()
        steps = tuple(StepRecord(3, 3, count, count + 1) for count in counts)
        tokens = tuple(rng.integers(3, 200, sum(counts) + len(counts)).tolist())
        took = len(tokens) / rate * float(np.exp(0.05 * rng.standard_normal()))
        one = Generation(name, tokens, "length", steps, 0.1, took, 0.0, 0.0, latency_s=took + 0.1)
        yield replace(one, category=category, session="s")


@pytest.fixture
def ours(tmp_path):
    """A run of ours with plain decoding and another one, with token ids."""
    rng, config = np.random.default_rng(3), {"pair": {"target": "embedded:target"}}
    for decoder, accepted, rate in (("ar", 0, 10.0), ("sd", 3, 23.0)):
        store = CellStore(tmp_path, decoder)
        store.write_settings(config, {"cpu": "one"})
        store.append_generations(each for n in range(12) for each in asked(n, accepted, rate, rng))
    facts = {**EMBEDDED, "task": "spec_bench"}
    cells = [row(name, spec, run_id=name, **facts) for name, spec in (("ar", "-"), ("sd", "3"))]
    write(tmp_path, "own", *cells)
    return tmp_path / "own" / files.RESULTS


def read(base, other, harness, results, *more):
    """The table that the command makes of answer files."""
    given = ["answers", str(other), "--baseline", str(base), "--harness", harness, *more]
    assert main([*given, "--name", "read", "--results", str(results)]) == 0
    return results / "read" / files.RESULTS


def test_what_we_write_and_read_back_has_the_same_numbers(ours):
    assert write_ours([str(ours)]) == 0
    folder = ours.parent / "answers" / "run_1"
    table = read(folder / "ar.jsonl", folder / "sd-3.jsonl", "ours", ours.parents[1])
    back, records, again = read_results_file(table), RecordReader(ours), RecordReader(table)
    assert back.harness.tolist() == ["ours", "ours"]
    names = ("block_efficiency", "token_rate", "token_rate_end_to_end")
    for (one, two), name in product(zip(("ar", "sd"), back.run_id, strict=True), names):
        first, second = (
            records.sum_counts_over_repeats({"run_id": one}, name),
            again.sum_counts_over_repeats({"run_id": two}, name),
        )
        sums = [np.sum([*each.values()], axis=0) for each in (first, second)]
        assert sums[1] == pytest.approx(sums[0], rel=1e-12) and sums[0].all()
    (own,), (mine,) = group_rows(read_results_file(ours)), group_rows(back)
    _, (_, first) = compute_speedup_and_tau_by_category(
        own, group_prompts_by_category(own, records), records
    )
    _, (_, second) = compute_speedup_and_tau_by_category(
        mine, group_prompts_by_category(mine, again), again
    )
    for kind in ("multi-turn conversation", "translation", "rag"):
        one, other = first["speedup"][kind].value, second["speedup"][kind].value
        assert other == pytest.approx(one, rel=1e-12)
        assert second["block_efficiency"][kind].value == first["block_efficiency"][kind].value
    speed, _ = iter_category_tables_markdown([own], records)  # Spec-Bench's own table
    head = "| decoder | spec | multi-turn conversation (12) | translation (3) | rag (3) |"
    assert f"{head} mean accepted tokens | overall |" in speed


def peers(path, seed, rate, harness="spec_bench"):
    """A file of another harness, two turns each."""
    rng, said = np.random.default_rng(seed), []
    for number in range(30):
        tokens = [30 + number, 20]
        wall = [count / rate * float(np.exp(0.05 * rng.standard_normal())) for count in tokens]
        choice = {"index": 0, "turns": ["a", "b"], "new_tokens": tokens, "wall_time": wall}
        line = {"question_id": 80 + number, "model_id": "vicuna-7b", "choices": [choice]}
        if harness == "eagle":
            choice["idxs"] = [count // 2 - 1 for count in tokens]
        else:
            choice["accept_lengths"] = [2] * (sum(tokens) // 2) + [1] * (sum(tokens) % 2)
            line["category"] = KINDS[number % 4]
        said.append(line)
    return written(path, *said)


def test_three_repeats_of_one_system_do_not_beat_each_other(tmp_path):
    tables = []
    for repeat in range(3):
        folder = tmp_path / f"run_{repeat}"
        base = peers(folder / "vanilla.jsonl", 2 * repeat, 20.0)
        other = peers(folder / "eagle.jsonl", 2 * repeat + 1, 50.0)
        tables.append(read(base, other, "spec_bench", folder / "results").parent)
    for one, other in combinations(tables, 2):
        found = compare_results(one, other)
        same = [each.column.name for each in found.select_changes("no change shown")]
        assert sorted(same) == ["speedup", "token_rate"]
        assert not found.select_changes("regression") and not found.select_changes("improvement")


def test_the_speed_up_of_spec_benchs_own_script_stands_beside_ours(tmp_path, capsys):
    def answered(name, *seconds):
        choices = ({"turns": ["x"], "new_tokens": [100], "wall_time": [s]} for s in seconds)
        each = [{**choice, "accept_lengths": [2] * 50} for choice in choices]
        lines = ({"question_id": n, "model_id": name, "choices": [c]} for n, c in enumerate(each))
        return written(tmp_path / f"{name}.jsonl", *lines)

    table = read(answered("vanilla", 2.0, 4.0), answered("sps", 1.0, 4.0), "spec_bench", tmp_path)
    assert read_results_file(table).speedup[1] == pytest.approx(1.2)
    (line,) = (each for each in capsys.readouterr().out.splitlines() if each.startswith("sps: "))
    assert "1.20 by sums" in line and "1.67 as Spec-Bench's" in line


def test_files_with_idxs_know_the_number_of_calls_alone(tmp_path, capsys):
    kinds = [{"question_id": 80 + n, "category": KINDS[n % 4]} for n in range(30)]
    questions = written(tmp_path / "question.jsonl", *kinds)
    other = peers(tmp_path / "ea.jsonl", 1, 50.0, "eagle")
    base = peers(tmp_path / "base.jsonl", 0, 20.0, "eagle")
    rows = read_results_file(read(base, other, "eagle", tmp_path, "--questions", str(questions)))
    tokens = sum(30 + n + 20 for n in range(30))
    calls = sum((30 + n) // 2 + 10 for n in range(30))
    assert rows.block_efficiency[1] == pytest.approx(tokens / calls)
    assert rows.speedup[1] == pytest.approx(2.5, rel=0.1) and rows.speedup_low[1] > 2
    assert rows.token_rate.tolist() == pytest.approx([20, 50], rel=0.03)
    assert rows.acceptance_rate.isna().all()
    assert "only the number of target calls" in rows.reason[1]
    assert main(["page", "read", "--results", str(tmp_path)]) == 0
    text = (tmp_path / "read" / "page.html").read_text("utf-8")
    assert "another harness, read from its answer files: eagle" in text
    assert "(nan)" not in text and "lossless or not is not stated" in text


LINE = {"question_id": 1, "model_id": "m", "choices": [{"turns": ["a"], "new_tokens": [3]}]}


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({"wall_time": [0.0], "accept_lengths": [3]}, ("wall_time", "0.0")),
        ({"wall_time": [1.0]}, ("accept_lengths nor idxs",)),
        ({"wall_time": [1.0], "accept_lengths": [1] * 9}, ("new_tokens", "3", "9")),
        ({"wall_time": [1.0], "accept_lengths": [1]}, ("new_tokens", "3", "1")),
        ({"wall_time": [1.0], "accept_lengths": [3, 0]}, ("accept_lengths", "0")),
        ({"wall_time": [1.0], "idxs": [7]}, ("3 new_tokens", "8 target calls")),
        ({"wall_time": [1.0], "idxs": [0, 1]}, ("idxs is of 2 turns", "new_tokens of 1")),
        ({"wall_time": [1.0], "accept_lengths": [3], "turns": ["a", "b"]}, ("turns", "2", "1")),
    ],
)
def test_a_line_that_cannot_be_right_is_named(choice, said, tmp_path):
    path = tmp_path / "bad.jsonl"
    own = {**LINE, "choices": [{**LINE["choices"][0], **choice}]}
    path.write_text("\n" + json.dumps(own) + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=naming("bad.jsonl", "line 2", *said)):
        read_answer_file(path)


def test_a_question_that_is_there_twice_is_refused(tmp_path):
    path = peers(tmp_path / "a.jsonl", 0, 20.0)
    path.write_text(path.read_text("utf-8") * 2, encoding="utf-8")
    with pytest.raises(ValueError, match=naming("line 31", "80", "twice")):
        read_answer_file(path)


def test_of_several_choices_the_first_counts_and_a_baseline_of_another_model_is_said(
    tmp_path, capsys
):
    base, other = (peers(tmp_path / name, 0, 20.0) for name in ("base.jsonl", "eagle.jsonl"))
    lines = [json.loads(line) for line in other.read_text("utf-8").splitlines()]
    lines[3]["choices"] *= 2
    written(other, *({**line, "model_id": "vicuna-70b"} for line in lines))
    (plain, row) = read_results_file(read(base, other, "eagle", tmp_path)).itertuples()
    said = capsys.readouterr().out.splitlines()
    assert row.speedup == pytest.approx(1.0)
    (line,) = (e for e in said if "several choices" in e)
    assert line.startswith("eagle: ") and line.endswith(" 83")
    (line,) = (e for e in said if "by sums" in e)
    assert "vicuna-70b over vicuna-7b" in line and "vicuna-70b over vicuna-7b" in row.reason
    assert "model_id" not in plain.reason


def test_questions_that_one_file_alone_answers_are_named(tmp_path, capsys):
    base, other = (peers(tmp_path / name, 0, 20.0) for name in ("base.jsonl", "eagle.jsonl"))
    lines = other.read_text("utf-8").splitlines(keepends=True)
    other.write_text("".join(lines[:-2]), encoding="utf-8")
    assert read_results_file(read(base, other, "eagle", tmp_path)).prompts.tolist() == [28, 28]
    (line,) = (e for e in capsys.readouterr().out.splitlines() if "left out" in e)
    assert line.startswith("ar: ") and line.endswith("108, 109")


def test_a_turn_that_raised_is_left_out_and_not_counted_with_the_turn_before(tmp_path):
    path = peers(tmp_path / "a.jsonl", 0, 20.0)
    said = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    said[4]["choices"][0]["turns"][1] = "ERROR"
    found = read_answer_file(written(path, *said))
    assert found.failed_ids == ["84"] and len(found.generations) == 29


def test_without_its_runs_a_table_has_no_texts_to_write(tmp_path, capsys):
    write(tmp_path, "own", row("sd", "3", run_id="gone"))
    assert write_ours([str(tmp_path / "own" / files.RESULTS)]) == 2
    assert "gone" in capsys.readouterr().err


ASKED = ["qa", "math"] * 8
ALL, NONE = [3, 3, 3], [0, 0, 0]
ROWS = (
    row("ar", "-", **MT_BENCH, run_id="ar", speedup=(1.0, 1.0, 1.0), token_rate=1.0),
    row("sd", "3", **MT_BENCH, run_id="sd", speedup=(1.5, 1.4, 1.6), block_efficiency=2.5),
)


@pytest.fixture
def results(tmp_path):
    """Plain decoding at 1 token/s; another one twice as fast, right about math alone."""
    file = tmp_path / "results" / "own" / "results.csv"
    record(file, "ar", [[0] * 5] * 16, depth=0, rate=1.0, session="a", categories=ASKED)
    accepted = [NONE if kind == "qa" else ALL for kind in ASKED]
    record(file, "sd", accepted, rate=2.0, session="a", categories=ASKED)
    return file


def numbers(results, column):
    """By decoder, of each category."""
    (group,), records = group_rows(frame(*ROWS)), RecordReader(results)
    return {
        cell["decoder"]: {kind: each.value for kind, each in found[column].items()}
        for cell, found in compute_speedup_and_tau_by_category(
            group, group_prompts_by_category(group, records), records
        )
    }


def test_each_category_has_the_ratios_of_its_own_prompts(results):
    speeds = numbers(results, "speedup")
    assert speeds == {"ar": {}, "sd": pytest.approx({"qa": 2.0, "math": 2.0})}
    taus = {"ar": {"qa": 1.0, "math": 1.0}, "sd": {"qa": 1.0, "math": 4.0}}
    assert numbers(results, "block_efficiency") == taus


def test_a_handful_of_prompts_has_no_interval_over_prompts_however_many_seeds(results):
    cells, kinds = [], ["a"] * 4 + ["b"] * 5
    for seed in (0, 1):
        for (decoder, spec), accepted in {("ar", "-"): [0] * 4, ("sd", "3"): [3, seed]}.items():
            run = f"{decoder}-{seed}"
            depth, rate = (0, 1.0) if decoder == "ar" else (3, 2.0 + 0.1 * seed)
            each = [accepted] * len(kinds)
            record(results, run, each, depth=depth, rate=rate, session="a", categories=kinds)
            cells.append({**row(decoder, spec, **MT_BENCH, run_id=run), "seed": seed})
    records = RecordReader(results)
    (group,) = group_rows(pool_seeds(frame(*cells), records))
    _, (_, chain) = compute_speedup_and_tau_by_category(
        group, group_prompts_by_category(group, records), records
    )
    for column in ("speedup", "block_efficiency"):
        four, five = (chain[column][name] for name in ("a", "b"))
        assert (four.low, four.high) == (None, None)
        assert five.low is not None and five.low < five.value


def test_what_was_not_timed_in_turn_has_tokens_and_no_speedup(results):
    record(results, "sd", [ALL] * 16, rate=2.0, session="b", categories=ASKED)
    assert numbers(results, "speedup")["sd"] == {}
    assert numbers(results, "block_efficiency")["sd"] == {"qa": 4.0, "math": 4.0}


def test_many_categories_share_a_last_column_and_none_has_its_own(results):
    many = ["big"] * 2 + [f"{n}" for n in range(30)] + [""]
    record(results, "ar", [[0]] * 33, depth=0, categories=many)
    (group,) = group_rows(frame(*ROWS[:1]))
    kinds = group_prompts_by_category(group, RecordReader(results))
    assert ([*kinds][-1], len(kinds), sum(map(len, kinds.values()))) == (OTHERS, 25, 33)
    record(results, "ar", [[0]] * 3, depth=0, categories=["", "qa", ""])
    assert [*group_prompts_by_category(group, RecordReader(results))] == ["qa", UNKNOWN]
    record(results, "ar", [[0]] * 2, depth=0)
    assert group_prompts_by_category(group, RecordReader(results)) == {}


def test_a_categorys_speed_up_is_marked_as_disturbed_and_as_of_a_batch(results):
    rows = frame(*ROWS).assign(batch_size=4)
    rows.loc[1, "reason"] = "speedup: disturbed: other programs ran"
    (group,) = group_rows(rows)
    speed, tokens = iter_category_tables_markdown([group], RecordReader(results))
    assert "| sd (disturbed) | 3 |" in speed and "in batches of 4" in speed
    assert "| sd | 3 |" in tokens and "batch" not in tokens
    (title, table), (_, other) = iter_category_tables(group, RecordReader(results))
    assert "in batches of 4" in title
    assert table.lines[-1].marks[0][0].startswith("disturbed") and not other.lines[-1].marks


def test_table_and_verdicts_say_what_each_category_says(results):
    checks = check_general_claims(frame(*ROWS), results)
    assert [(c.where, c.verdict) for c in checks if "category" in c.where] == [
        ("mt_bench, category qa", "holds"),
        ("mt_bench, category math", "holds"),
    ]
    assert checks[-1].evidence.startswith(
        "+100.0% [+44.1%, +177.6%] against ar's token rate, on 8 prompts"
    )
    speed, tokens = iter_category_tables_markdown(group_rows(frame(*ROWS)), RecordReader(results))
    assert "| decoder | spec | qa (8) | math (8) | overall |" in speed
    assert "| sd | 3 | 2.00 [2.00, 3.42] | 2.00 [1.65, 2.00] | 1.50 [1.40, 1.60] |" in speed
    assert "| sd | 3 | 1.00 [1.00, 1.71] | 4.00 [3.29, 4.00] | 2.50 |" in tokens


def test_a_categorys_claim_is_not_judged_by_times_that_batches_mix(results):
    def judged(**facts):
        checks = check_general_claims(frame(*ROWS).assign(**facts), results)
        return [check for check in checks if "category" in check.where]

    assert {check.verdict for check in judged(batch_size=4)} == {"not judged"}
    assert all("in batches of 4" in check.evidence for check in judged(batch_size=4))
    assert judged(batch_size=4, device="server") == judged(batch_size=1)
