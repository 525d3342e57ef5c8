"""Two results folders: what got worse is found, what did not is left alone."""

import re

import numpy as np
import pandas as pd
import pytest

from spec_bench.__main__ import main as program
from spec_bench.metrics.interval import Interval
from spec_bench.metrics.p_values import adjust_by_holm, two_sided_p_value
from spec_bench.metrics.resampling import bootstrap_interval
from spec_bench.records import parquet
from spec_bench.records.types import ENGINE, Generation, StepRecord
from spec_bench.report.compare import format_change_cells, format_comparison_markdown
from spec_bench.report.comparison import NumberChange, compare_results, judge_and_sort_changes
from spec_bench.system import files
from spec_bench.vocabulary.columns import get_column
from tests.commands import compare as main
from tests.report.rows import EMBEDDED, row, write
from tests.said import naming

CELLS = {"sd": 1.4, "spectr": 1.2, "rsd_s": 1.6}
PROMPTS, NOISE = 60, 0.03


def run(folder, seed, slowed=0.0, machine=1.0, scored=True, repeats=1, stalled=0.0, **facts):
    """A noisy run, a share of timings stalled, ``rsd_s`` slowed; ``facts`` are columns."""
    facts |= {"machine": "another"} if machine < 1 else {}
    noise, answers = np.random.default_rng(seed), np.random.default_rng(0)
    lengths = answers.integers(6, 12, PROMPTS)
    parts, rows = [], []
    for decoder, speed in {"ar": 1.0, **CELLS}.items():
        rate = 50 * speed * machine * (1 - slowed * (decoder == "rsd_s"))
        own = 1 if decoder == "ar" else 2
        took = lengths / rate * np.exp(NOISE * noise.standard_normal((repeats, PROMPTS)))
        took *= np.where(stalled > noise.random(took.shape), 5, 1) if stalled else 1
        done = []
        for (number, place), seconds in np.ndenumerate(took):
            length = int(lengths[place])
            steps = (StepRecord(3, 3, own - 1, own),) * (length // own)
            made = (str(place), tuple(range(length)), "length", steps)
            done.append(Generation(*made, 0.0, float(seconds), 0.0, 0.0, repeat=number))
        scores = {"rouge2": {each.prompt_id: len(each.tokens) / 12 for each in done}}
        parts.append(parquet.pack_generations(decoder, done, None, scores if scored else None))
        measured = {"speedup": speed, "block_efficiency": float(own), "rouge2": 0.5}
        measured["repeats"] = repeats
        cell = {**EMBEDDED, "run_id": decoder, **measured, **facts}
        cell |= {} if scored else {"rouge2": None}
        rows.append(row(decoder, "-" if own == 1 else "3", **cell))
    write(folder, "mine", *rows)
    parquet.write_records(
        files.get_records_file(folder / "mine" / files.RESULTS), parquet.concat_records(parts)
    )
    return folder


def worse(found):
    return [(each.cell.split()[0], each.column.name) for each in found.select_changes("regression")]


def test_holm_multiplies_the_smallest_by_all_and_never_falls():
    assert adjust_by_holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert adjust_by_holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert adjust_by_holm([]) == []


@pytest.mark.parametrize("prompts", [5, 30])
def test_a_p_value_is_below_5_percent_where_the_interval_leaves_0_out(prompts):
    rng = np.random.default_rng(prompts)
    sides = set()
    for shift in np.linspace(-0.2, 0.2, 9):
        columns = np.exp(rng.standard_normal((2, prompts)) * 0.1 + [[0.0], [shift]])
        found = bootstrap_interval(lambda sums: np.log(sums[1] / sums[0]), columns)
        p = two_sided_p_value(found)
        assert (p < 0.05) == (found.low > 0 or found.high < 0)
        assert two_sided_p_value(found, margin=0.3) == 1.0
        sides.add(p < 0.05)
    assert sides == {True, False}


def changed(found):
    return bool(found.select_changes("regression") or found.select_changes("improvement"))


def test_a_loss_of_5_percent_is_found_and_nothing_is_found_where_nothing_changed(tmp_path):
    found, alarms = 0, 0
    for trial in range(10):
        folder = tmp_path / str(trial)
        before = run(folder / "before", 3 * trial, scored=False)
        slower = run(folder / "slow", 3 * trial + 1, 0.05, machine=0.7, scored=False)
        same = run(folder / "same", 3 * trial + 2, machine=0.7, scored=False)
        found += worse(compare_results(before, slower)) == [("rsd_s", "speedup")]
        alarms += changed(compare_results(before, same))
    assert found >= 9 and alarms <= 1


def test_stalls_in_some_of_three_repeats_neither_hide_a_loss_of_10_percent_nor_make_one(tmp_path):
    times = {"scored": False, "repeats": 3, "stalled": 0.02}
    before = run(tmp_path / "before", 0, **times)
    slower, same = run(tmp_path / "slow", 1, 0.1, **times), run(tmp_path / "same", 2, **times)
    assert not changed(compare_results(before, same))
    lost = compare_results(before, slower)
    assert worse(lost) == [("rsd_s", "speedup")]
    assert lost.select_changes("regression")[0].shift.value == pytest.approx(-0.1, abs=0.03)


def test_a_stalled_cell_is_not_judged_unless_the_median_of_three_repeats_is(tmp_path):
    stalled = {"reason": "speedup: stalled: 1 of 60 windows, median says 1.2", "scored": False}
    for repeats, judged in ((1, False), (3, True)):
        told = {**stalled, "repeats": repeats}
        before = run(tmp_path / f"a{repeats}", 0, **told)
        found = compare_results(before, run(tmp_path / f"b{repeats}", 1, 0.2, **told))
        assert (worse(found) == [("rsd_s", "speedup")]) == judged
        assert any("stalled" in each.why for each in found.select_changes("not judged")) != judged


def test_what_is_the_same_on_every_prompt_is_identical_and_no_test(tmp_path):
    once = run(tmp_path / "a", 0)
    found = compare_results(once, run(tmp_path / "b", 1))
    assert (
        len(found.select_changes("identical")) == 4 + 3
    )  # ROUGE-2 of all, block efficiency but of AR
    assert len(found.select_changes("no change shown")) == 3 + 1  # speed-ups, plain decoding's rate
    assert not found.regressed and not found.differing and not found.has_only_identical_numbers
    assert compare_results(once, once).sentence.startswith("These are the same runs")


def test_regressions_come_first_and_the_exit_status_says_so(tmp_path, capsys):
    before, after = run(tmp_path / "a", 0), run(tmp_path / "b", 1, 0.15, dtype="bfloat16")
    out = tmp_path / "out"
    assert main([str(before), str(after), "--out", str(out)]) == 1
    said = capsys.readouterr().out
    first = next(line for line in said.splitlines() if line.startswith("| rsd_s"))
    assert re.search(r"\| 1\.(59|60|61) \| 1\.3[567] \| -1[456]", first)
    assert first.endswith("regression |") and "| ≤0.001 |" in first
    assert "| dtype | not stated | bfloat16 | 4 |" in said
    page = (out / "compare.html").read_text("utf-8")
    assert page.index("Regression (1)") < page.index("No change shown (3)")
    assert (out / "compare.md").read_text("utf-8") in said
    assert main([str(after), str(before)]) == 0
    assert "improvement" in capsys.readouterr().out


def slow_baseline(folder, rate, prompts, **facts):
    """Plain decoding at a rate, and a decoder that lost little by little of it."""
    parts, rows = [], []
    for decoder, speed in (("ar", rate), ("sd", 2 * rate**0.5)):
        done = [
            Generation(str(n), (1,) * 10, "length", (StepRecord(3, 3, 1, 2),) * 5, 0.0, s, 0.0, 0.0)
            for n, s in enumerate(10 / speed * np.roll(np.linspace(1, 1.02, prompts), int(speed)))
        ]
        parts.append(parquet.pack_generations(decoder, done, None))
        measured = {"token_rate": speed, "speedup": speed / rate, "prompts": prompts}
        rows.append(row(decoder, "-", **{**EMBEDDED, "run_id": decoder, **measured, **facts}))
    write(folder, "mine", *rows)
    parquet.write_records(
        files.get_records_file(folder / "mine" / files.RESULTS), parquet.concat_records(parts)
    )
    return str(folder)


@pytest.mark.parametrize(("prompts", "said"), [(12, "≤0.001"), (3, "less than half")])
def test_plain_decoding_that_got_slower_is_a_regression_with_both_rates(
    prompts, said, tmp_path, capsys
):
    fast, slow = (slow_baseline(tmp_path / str(r), r, prompts) for r in (341.0, 9.9))
    assert main([fast, slow]) == 1
    (line,) = (e for e in capsys.readouterr().out.splitlines() if e.startswith("| ar -"))
    assert "| 338 | 10 |" in line and said in line and "regression" in line


def test_a_fifth_of_plain_decoding_or_another_machine_is_no_regression(tmp_path, capsys):
    before, after = (slow_baseline(tmp_path / str(r), r, 12) for r in (100.0, 85.0))
    other = slow_baseline(tmp_path / "other", 10.0, 12, machine="another")
    assert main([before, after]) == 0 == main([before, other])
    assert "| 100 | 10 |" in capsys.readouterr().out


def test_nothing_compared_is_no_success_unless_that_is_allowed(tmp_path, capsys):
    sides = [str(slow_baseline(tmp_path / d, 50.0, 12, prompts_digest=d)) for d in "ab"]
    assert main(sides) == 2
    assert "--allow-empty" in capsys.readouterr().err
    assert main([*sides, "--allow-empty"]) == 0


def test_two_decoders_of_one_folder_are_compared(tmp_path, capsys):
    folder = str(run(tmp_path / "a", 0))
    assert main([folder, "--cells", "sd:3,ar"]) == 0
    said = capsys.readouterr().out
    assert "sd:3 > ar in token rate" in said and "holds" in said
    assert main([folder, "--cells", "sd:3"]) == 2
    assert main([folder, "--cells", "sd:9,ar"]) == 2
    assert "no task in" in capsys.readouterr().err


def test_rows_of_an_earlier_engine_are_compared_by_their_records_up_to_the_margin(tmp_path):
    before, after = run(tmp_path / "a", 0, engine=0), run(tmp_path / "b", 1, 0.15)
    found = compare_results(before, after)
    assert worse(found) == [("rsd_s", "speedup")]
    assert ("engine", "0", str(ENGINE)) in [each[:3] for each in found.differing]
    assert not compare_results(before, after, margin=0.25).regressed


def test_a_cell_that_fails_now_is_a_regression_and_a_missing_one_is_named(tmp_path, capsys):
    dead = row("sd", "3", status="failed", reason="OutOfMemoryError: 3 GiB")
    before = write(tmp_path / "a", "m", row("sd", "3"), row("spectr", "3"))
    assert main([str(before), str(write(tmp_path / "b", "m", dead))]) == 1
    said = capsys.readouterr().out
    assert "OutOfMemoryError: 3 GiB" in said
    assert "Cells before alone: spectr 3, xsum, llama2_7b" in said


def test_other_prompts_and_rows_without_records_are_not_judged(tmp_path):
    before = run(tmp_path / "a", 0, prompts_digest="1234")
    after = run(tmp_path / "b", 1, 0.5, prompts_digest="5678")
    assert {each.why for each in compare_results(before, after).changes} == {"other prompts"}
    before = run(tmp_path / "c", 0, token_ids_digest="12", prompts_digest="1")
    after = run(tmp_path / "d", 1, 0.6, token_ids_digest="34", prompts_digest="1", machine=0.3)
    compared = compare_results(before, after)
    assert {each.why for each in compared.changes} == {"other token ids of the same texts"}
    assert not compared.regressed and compared.compared_number_count == 0
    assert "no number could be compared" in compared.sentence
    text = format_comparison_markdown(compared)
    assert "another token ids" in compared.sentence and "other token ids of the same" in text
    sides = [write(tmp_path / str(v), "m", row("sd", "3", speedup=v)) for v in (2.0, 1.0)]
    (found,) = compare_results(*sides).changes
    assert found.verdict == "not judged" and "no records" in found.why


def test_settings_that_tell_the_cells_of_a_side_apart_must_agree(tmp_path):
    both = [row("sd", "3", temperature=0.0), row("sd", "3", temperature=1.0)]
    found = compare_results(
        write(tmp_path / "a", "m", *both), write(tmp_path / "b", "m", *both[1:])
    )
    assert (
        found.one_sided_cells == [("before", ["sd 3, xsum, llama2_7b, temperature 0"])]
        and not found.differing
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["none", "none"], ("'none'",)),
        (["a", "b"], ("'sd 3, xsum, llama2_7b'", "'sd 3, dolly, llama2_7b'")),
        (["a", "a", "--margin", "2"], ("margin", "2.0")),
    ],
)
def test_what_cannot_be_compared_is_one_line(arguments, said, tmp_path, monkeypatch, capsys):
    for name, task in (("a", "xsum"), ("b", "dolly")):
        write(tmp_path / name, "m", row("sd", "3", task=task))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["spec_bench", "compare", *arguments])
    with pytest.raises(SystemExit) as status:
        program()
    assert status.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(naming(*said), line)


def test_an_interval_without_0_that_shows_no_change_says_what_does_not():
    def change(p, *shift):
        return NumberChange("sd 3", get_column("speedup"), 1.5, 1.3, True, Interval(*shift), p, 20)

    lost = change(0.03, -0.126, -0.232, -0.005)
    said = [
        format_change_cells(each)[-1]
        for each in judge_and_sort_changes([lost, change(0.5, 0.0, -0.1, 0.1)], 0.05)
    ]
    assert sorted(said) == [
        "no change shown",
        "no change shown: its own interval leaves out 0, but not among so many numbers",
    ]
    (alone,) = judge_and_sort_changes([change(0.08, -0.05, -0.09, -0.01)], 0.05)
    assert "not the margin" in format_change_cells(alone)[-1]


def test_a_change_without_an_interval_says_why():
    even = NumberChange(
        "sd 3", get_column("speedup"), 2, 1, True, Interval(-0.5, -0.5, -0.5), 0.001, 20
    )
    *_, interval, _, verdict = format_change_cells(judge_and_sort_changes([even], 0.05)[0])
    assert (interval, verdict) == ("", "regression: the same change on every prompt")


BUSY = {"reason": "speedup: disturbed: threads waited for a core 72% of the time"}


def test_of_a_disturbed_run_the_headline_and_the_status_tell_the_same(tmp_path, capsys):
    sides = [str(run(tmp_path / str(seed), seed, **BUSY)) for seed in (0, 1)]
    assert main(sides) == 2
    said = capsys.readouterr()
    why = "speeds are not judged, disturbed"
    assert f"**{why}; 0 regressions" in said.out and why in said.err
    assert said.out.count("Not judged:") == 1


def test_two_disturbed_decoders_of_one_folder_are_not_judged_and_no_success(tmp_path, capsys):
    folder = str(run(tmp_path / "a", 0, **BUSY))
    assert main([folder, "--cells", "rsd_s:3,sd:3"]) == 2
    said = " ".join(capsys.readouterr().out.split())
    assert "in token rate" in said and "not judged" in said and "72% of the time" in said
    assert main([folder, "--cells", "rsd_s:3,sd:3", "--allow-empty"]) == 0


def test_the_status_of_two_decoders_is_1_where_a_claim_is_refuted_and_2_where_none_is_decided(
    tmp_path, capsys
):
    folder = str(run(tmp_path / "a", 0))
    assert main([folder, "--cells", "sd:3,rsd_s:3"]) == 1
    disturbed = run(tmp_path / "b", 0)
    path = disturbed / "mine" / files.RESULTS
    rows = pd.read_csv(path)
    rows["reason"] = rows.decoder.map({"rsd_s": BUSY["reason"]})
    rows.to_csv(path, index=False)
    assert main([str(disturbed), "--cells", "rsd_s:3,ar"]) == 0  # what is judged holds
    assert "not judged" in capsys.readouterr().out
    assert main([str(disturbed), "--cells", "rsd_s:3,sd:3"]) == 2
    assert "rsd_s:3,sd:3 holds or is refuted" in capsys.readouterr().err


def test_runs_with_cells_of_their_own_are_not_the_same_runs(tmp_path, capsys):
    before = run(tmp_path / "a", 0)
    after = run(tmp_path / "b", 0)
    assert compare_results(before, after).has_only_identical_numbers
    table = after / "mine" / files.RESULTS
    text = table.read_text("utf-8")
    table.write_text(text.replace("spectr,3", "mine,3"), encoding="utf-8")
    assert not compare_results(before, after).has_only_identical_numbers
    assert main([str(before), str(after)]) == 0
    said = capsys.readouterr().out
    assert "Cells after alone: mine 3" in said
    assert said.index("alone: spectr") < said.index("0 regressions")


def test_sides_of_other_pairs_are_told_to_be_given_one_pair(tmp_path, capsys):
    sides = [str(run(tmp_path / name, 0, pair=name)) for name in ("mine", "yours")]
    assert main(sides) == 2
    assert "the same --pair" in capsys.readouterr().err


def test_another_model_on_each_side_is_said_in_the_first_sentence(tmp_path):
    sides = [run(tmp_path / str(n), n, target_digest=each) for n, each in enumerate(("1a", "2b"))]
    compared = compare_results(*sides)
    assert "another target digest" in compared.sentence
    text = format_comparison_markdown(compared)
    assert text.index("target digest | 1a | 2b") < text.index("before you believe one")
    before = run(tmp_path / "before", 0)
    assert "another" not in compare_results(before, sides[1]).sentence


def test_other_code_of_an_own_metric_is_a_difference(tmp_path):
    sides = [
        run(tmp_path / name, 0, quality_signature=f"m evaluate:0.4|local|code:{code}; f1 v1")
        for name, code in (("one", "0a" * 4), ("same", "0a" * 4), ("other", "f" * 8))
    ]
    same, other = (compare_results(sides[0], side).differing for side in sides[1:])
    assert [(each.name, each.before, each.after) for each in other if each not in same] == [
        ("code of own metrics", "0a" * 4, "f" * 8)
    ]


def test_answer_files_are_told_to_be_read_first(tmp_path, capsys):
    (tmp_path / "answers.jsonl").write_text("{}")
    assert main([str(tmp_path / "answers.jsonl"), str(tmp_path)]) == 2
    assert "spec-bench report answers" in capsys.readouterr().err
