"""A cell's numbers on hand-made generations that can be counted on fingers, and its row of them."""

import csv
import json
from dataclasses import replace
from math import exp
from pathlib import Path

import numpy as np
import pytest

from spec_bench.metrics import SCORES, CellRecords, metric, summarise
from spec_bench.metrics.acceptance_lengths import compute_acceptance_lengths
from spec_bench.metrics.calls import (
    compute_tokens_per_call_by_context_length,
    conditional_acceptance_by_depth,
    mbsu,
)
from spec_bench.metrics.efficiency import match_baseline
from spec_bench.metrics.interval import FEW_CLOCKS, Interval
from spec_bench.metrics.metric import pool_repeats
from spec_bench.metrics.quality import get_non_ratio_statistic
from spec_bench.metrics.stalls import (
    describe_deciding_stalls,
    describe_disturbance,
    flag_windows_over_cell_median,
)
from spec_bench.records.types import Generation, ServerChunks, StepRecord
from spec_bench.vocabulary import columns
from spec_bench.vocabulary.published import FILE, pivot_numbers, read_published_numbers
from tests.commands import report as main
from tests.said import naming

ROOT = Path(__file__).parents[2]


def made(prompt, steps, **more):
    """A generation of all that these steps deliver."""
    times = {"prefill_s": 0.5, "decode_s": 2.0, "draft_s": 0.25, "target_s": 0.5} | more
    tokens = times.pop("tokens", sum(step.delivered for step in steps))
    return Generation(prompt, tuple(range(tokens)), "length", tuple(steps), **times)


def generation(prompt="p", accepted=(), decode_s=2.0, *, depth=3, tokens=99, nodes=3, **more):
    """A generation with one target call for each entry of ``accepted``, cut at ``tokens``."""
    steps, left = [], tokens
    for a in accepted:
        steps.append(StepRecord(nodes, depth, a, min(a + 1, left)))
        left -= steps[-1].delivered
    return made(prompt, steps, decode_s=decode_s, **more)


def of(*accepted, **more):
    return generation("p", accepted, **more)


def value(name, *generations, **more):
    return metric[name].value(CellRecords(generations, **more))


PLAIN, WALKS = of(0, 0, depth=0, nodes=0), of(0, 1, 1, 2, depth=2)
SHALLOW = (of(2, depth=2), of(1, depth=1))


@pytest.mark.parametrize(
    ("name", "cell", "expected"),
    [
        ("block_efficiency", (of(3), of(0, 0, 0)), (4 + 3) / 4),  # no mean of means, which is 2.5
        ("block_efficiency", (PLAIN,), 1.0),
        ("block_efficiency", (of(3, tokens=2),), 4.0),  # tokens that were not delivered count
        ("delivered_tokens", (of(3, tokens=2),), 2),
        ("acceptance_rate", (WALKS,), (3 + 1) / (4 + 3)),
        ("acceptance_rate", SHALLOW, 1.0),
        ("acceptance_rate", (PLAIN,), None),
        ("token_rate", (of(3, tokens=3),), 1.5),
        ("token_rate_end_to_end", (of(3, tokens=3),), 3 / 2.5),
        ("token_rate", (of(1, decode_s=0.0),), None),
        ("host_overhead", (of(decode_s=4.0, draft_s=1.0, target_s=2.0),), 0.25),
        ("energy_j_per_token", (of(1, energy_j=6.0), of(0, energy_j=3.0)), 3.0),
        ("energy_j_per_token", (of(1, energy_j=6.0), of(1)), None),
    ],
)
def test_a_number_is_as_defined(name, cell, expected):
    assert value(name, *cell) == expected


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ((WALKS,), (3 / 4, 1 / 3)),  # depth 1 is left by 3 of 4 walks, depth 2 by 1 of those 3
        (SHALLOW, (1.0, 1.0)),
        ((of(0),), (0.0, None, None)),
        ((PLAIN,), ()),
    ],
)
def test_acceptance_rate_by_depth_conditions_on_reaching_the_depth(cell, expected):
    assert conditional_acceptance_by_depth(cell) == expected


def test_speedup_matches_prompts_by_id_and_not_by_position():
    cell = [generation("a", (9,), 1.0), generation("b", (29,), 3.0)]
    base = [generation("b", (29,), 6.0), generation("a", (9,), 2.0)]
    assert value("speedup", *cell, baseline=base) == 2.0
    assert [each.prompt_id for each in match_baseline(cell, base)] == ["a", "b"]


@pytest.mark.parametrize(
    ("cell", "baseline", "named"),
    [
        ("abc", "a", ["baseline", "b, c"]),
        ("a", "ab", ["cell: b"]),
        ("aa", "a", ["twice in the cell", "a"]),
    ],
)
def test_a_baseline_of_other_prompts_is_refused_by_name(cell, baseline, named):
    with pytest.raises(ValueError, match=naming(*named)):
        value("speedup", *map(generation, cell), baseline=[generation(name) for name in baseline])


RSD = ROOT / "experiments" / "rsd"
PRINTED = pivot_numbers(read_published_numbers(RSD / FILE))


def draft_calls(spec):
    """L of a spec: 3 -> 3, 4x3 (four paths or beams of length 3) -> 3, 2-2-1 -> 3 levels."""
    return len(spec.split("-")) if "-" in spec else int(spec.split("x")[-1])


def test_mbsu_reproduces_all_1914_checkable_rows_of_the_rsd_paper_within_0_002():
    with (RSD / "speed_ratio.csv").open(newline="", encoding="utf-8") as stream:
        ratio = {(r["target"], r["draft"]): float(r["r"]) for r in csv.DictReader(stream)}
    plain = [row for row in PRINTED if row["decoder"] == "ar"]
    assert [(row["block_efficiency"], row["mbsu"]) for row in plain] == [("1.000", "1.000")] * 54
    errors = []
    for row in PRINTED:
        if row not in plain and (tau := row["block_efficiency"]) and row["mbsu"]:
            r = ratio[row["target"], row["draft"]]
            errors.append(float(row["mbsu"]) - mbsu(float(tau), draft_calls(row["spec"]), r))
    assert len(errors) == 1914
    assert max(map(abs, errors)) < 0.002
    assert mbsu(1.7, 0, 0.0) == 1.7


CELL = [generation("a", (3, 1), 1.0), generation("b", (0, 2), 1.0)]
BASELINE = [generation("b", (0,) * 4, 2.0), generation("a", (0,) * 6, 3.0)]
DRAFT = {"draft_calls": 3, "parameter_ratio": 0.1}


def numbers(cell=CELL, scores=(), **more):
    return summarise(CellRecords(cell, **more), scores).row


def test_every_registered_metric_fills_its_columns_and_no_other():
    wanted = [name for each in metric.values() for name in each.column.names]
    assert sorted(numbers()) == sorted([*wanted, "quality_signature"])
    assert set(wanted) <= set(columns.define_all_column_names())
    assert set(SCORES) <= {each.name for each in columns.list_columns_of_kind("score")}
    for each in columns.list_columns_of_kind("efficiency", "score"):
        again = each.name.endswith("_stream")  # from another source, to hold the first against
        assert each.interval or each.holds == "text" or again, each.name


def test_columns_hold_the_numbers_of_the_definitions():
    row = numbers(baseline=BASELINE, **DRAFT)
    expected = {
        "prompts": 2, "target_calls": 4, "delivered_tokens": 10, "block_efficiency": 2.5,
        "mbsu": 2.5 / 1.3, "token_rate": 5.0, "token_rate_end_to_end": 10 / 3, "prefill_s": 1.0,
        "decode_s": 2.0, "draft_s": 0.5, "target_s": 1.0, "speedup": 5.0 / 2.0,
        "speedup_end_to_end": (10 / 3) / (10 / 6),  # half a second of prefill each
        "host_overhead": 0.25, "nodes_per_call": 3.0, "nodes_per_call_p50": 3.0,
        "draft_calls": 3, "parameter_ratio": 0.1,
    }  # fmt: skip
    assert {name: row[name] for name in expected} == pytest.approx(expected)
    assert json.loads(row["acceptance_rate_by_depth"]) == [3 / 4, 2 / 3, 1 / 2]
    assert json.loads(json.dumps(row)) == row
    ends = [name for each in columns.COLUMNS for name in each.names[1:] if name in row]
    assert "speedup_low" in ends and {row[name] for name in ends} == {None}  # of two prompts


def test_ends_of_the_intervals_enclose_the_value():
    cell = [generation(str(i), (3, i % 3), 1.0) for i in range(6)]
    baseline = [generation(str(i), (0,) * (5 + i % 3), 3.0 + i) for i in range(6)]
    row = numbers(cell, baseline=baseline, **DRAFT)
    for name in ("block_efficiency", "mbsu", "speedup"):
        assert row[f"{name}_low"] < row[name] < row[f"{name}_high"]


def test_no_call_is_said_to_bring_more_than_the_whole_tree_and_one():
    row = numbers([generation(str(i), (3, 3, 3, 3 - i % 2), 1.0) for i in range(6)], **DRAFT)
    assert 3.5 < row["block_efficiency"] < row["block_efficiency_high"] <= 4
    assert row["mbsu_high"] == pytest.approx(row["block_efficiency_high"] / 1.3)
    assert row["acceptance_rate_high"] <= 1


def test_ends_that_leave_a_factor_of_more_than_ten_are_left_out():
    row = numbers([generation(str(i), (3,), 10.0 ** (i % 3)) for i in range(6)])
    assert row["token_rate"] == pytest.approx(24 / 222)
    assert row["token_rate_low"] is row["token_rate_high"] is None


def test_the_interval_of_a_speedup_pairs_prompts_by_id_whatever_their_order():
    baseline = [generation(str(i), (0,) * 6, 3.0 * (1.0 + i)) for i in range(9)]
    row = numbers(baseline, baseline=baseline)
    assert (row["speedup"], row["speedup_low"]) == (1.0, 1.0)
    cell = [generation(str(i), (3, 1), (1.0 + i) * (1 + 1e-7 * (i % 3))) for i in range(9)]
    for order in (baseline, baseline[::-1]):
        row = numbers(cell, baseline=order)
        assert row["speedup"] == pytest.approx(3.0)
        # As far as tokens per call, in which no prompt here differs.
        share = row["block_efficiency_low"] / row["block_efficiency"]
        assert row["speedup_low"] == pytest.approx(3.0 * share)


def test_what_was_not_measured_is_empty():
    row = numbers()
    names = [name for name in row if name.endswith(("_p90", "_source"))]
    assert len(names) == 5
    for name in ("speedup", "mbsu", "energy_j_per_token", "quality_signature", *names):
        assert row[name] is None


TEXTS = {"b": "no storm at all", "a": "The boat came back!"}
GOLDS = {"a": ["the boat came back"], "b": ["a storm"]}


def test_scores_are_filled_by_prompt_id_and_signed_and_what_each_prompt_adds_is_told():
    cell = CellRecords(CELL, texts=TEXTS, references=GOLDS)
    found = summarise(cell, ["exact_match", "f1", "bleu"])
    counts = found.scores.pop("bleu")  # matches and totals by order, both lengths
    assert counts == {"a": (3, 2, 1, 0, 5, 4, 3, 2, 5, 4), "b": (1, 0, 0, 0, 4, 3, 2, 1, 4, 2)}
    sums = np.array(list(counts.values()), float).sum(axis=0)[:, None]
    (again,) = get_non_ratio_statistic("bleu", 10)(sums)
    assert again == found.row["bleu"] > 0
    assert found.scores == {"exact_match": {"a": 1.0, "b": 0.0}, "f1": {"a": 1.0, "b": 0.4}}
    assert found.row["f1"] == 0.7
    assert "rouge2" not in found.row
    assert "; sacrebleu" in found.row["quality_signature"]
    bare = CellRecords(CELL, texts=TEXTS, references=GOLDS | {"b": []})
    found = summarise(bare, ["rouge2", "f1"])
    assert (found.row["rouge2"], found.scores["rouge2"]) == (1.0, {"a": 1.0})
    assert found.scores["f1"] == {"a": 1.0, "b": 0.0}  # where none is an answer, too
    assert "|scored: 1 of 2 answers; f1" in found.row["quality_signature"]


@pytest.mark.parametrize(
    ("cell", "texts", "message"),
    [(CELL, {"a": "x"}, "no texts for prompts: b"), ([], TEXTS, "without generations")],
)
def test_a_cell_that_has_no_row_is_refused(cell, texts, message):
    with pytest.raises(ValueError, match=message):
        numbers(cell, texts=texts, references=GOLDS, scores=["exact_match"])


PROMPTS = 12


def window(prompt, calls, seconds_per_call):
    """A window with 24 tokens; a prompt has its own pace."""
    seconds = calls * seconds_per_call * (1 + 0.02 * prompt)
    steps = [StepRecord(3, 3, 24 // calls - 1, 24 // calls)] * calls
    return made(str(prompt), steps, prefill_s=0.1, decode_s=seconds)


def windows(calls, seconds, stall_at=-1, times=60):
    return [window(p, calls, seconds * (times if p == stall_at else 1)) for p in range(PROMPTS)]


ALIKE = "too few independent or different prompts for"
WIDE = "ends over a factor of 10 apart for"
RATES = ("token_rate", "token_rate_end_to_end")
CALM, SHAKEN, BASE = windows(8, 0.02), windows(8, 0.02, stall_at=3), windows(24, 0.01)

ONE_CLOCK = [replace(each, decode_s=2.0) for each in CALM]


def test_a_window_far_beyond_the_median_per_call_is_stalled():
    flags = flag_windows_over_cell_median(
        [windows(8, 0.02, 3, times=5.5), windows(8, 0.02, 4, times=4.0)]
    )
    assert [sum(each) for each in flags] == [1, 0] and flags[0][3]
    assert not any(map(any, flag_windows_over_cell_median([[window(0, 8, 0.0)]])))


def test_one_stall_decides_the_ratio_of_sums_and_not_the_median():
    records = CellRecords(SHAKEN, BASE)
    row = summarise(records).row
    assert row["stalls"] == 1
    assert float(row["speedup"] or 0) < 0.5
    assert row["speedup_median"] == pytest.approx(1.5)
    assert describe_deciding_stalls(records) == "stalled: 1 of 12 windows; median says 1.50"
    other = CellRecords(CALM, windows(24, 0.01, stall_at=0))
    assert describe_deciding_stalls(other) == "stalled: 1 of 12 of the baseline's; median says 1.50"


@pytest.mark.parametrize(
    ("records", "blank", "reasons"),
    [
        (CellRecords(CALM[:4]), (), ["fewer than 5 prompts"]),
        (CellRecords(CALM), (), []),
        (CellRecords(CALM, BASE), (), [f"{ALIKE} speedup"]),  # the same ratio for each prompt
        (CellRecords(CALM, BASE), ("speedup",), []),
        (CellRecords(windows(8, 0.02, 3, 9999)), (), [f"{WIDE} {', '.join(RATES)}"]),
        (CellRecords(CALM, BASE, batched=True), (), [f"{ALIKE} speedup, speedup_median"]),
        (CellRecords(ONE_CLOCK, batched=True), (), [FEW_CLOCKS]),
    ],
)
def test_a_row_says_once_why_intervals_have_no_ends(records, blank, reasons):
    found = summarise(records)
    row = found.row | dict.fromkeys(blank)
    assert [*found.explain_missing_ends(records, row)] == reasons


def test_no_stall_or_one_within_the_interval_says_nothing():
    rng = np.random.default_rng(0)
    uneven = [window(p, 8, 0.02 * float(np.exp(rng.standard_normal() / 2))) for p in range(PROMPTS)]
    assert describe_deciding_stalls(CellRecords(CALM, BASE)) is None
    short = window(PROMPTS, 1, 0.15)
    records = CellRecords([*uneven, short], [*BASE, window(PROMPTS, 24, 0.01)])
    assert summarise(records).row["stalls"] == 1
    assert describe_deciding_stalls(records) is None


@pytest.mark.parametrize(
    ("ours", "plain", "slowdown", "found"),
    [
        ([0.0, 0.1, 0.1], [0.1] * 3, 1.9, ""),
        ([None] * 3, [None] * 3, 0.6, ""),  # of a system that does not tell, or of before
        # Weighed by seconds: (2 * 0.6 + 1) / (1 + 1 + 2 + 3) of the time.
        ([0.0, 0.0, 0.6], [1.0, 0.0, 0.0], 1.0, "disturbed: threads waited for a core 31.4%"),
        ([0.0] * 3, [0.9] * 3, 1.0, "disturbed: threads waited for a core 38.6%"),
        ([0.0] * 3, [0.0] * 3, 8.24, "disturbed: a pass took 8.2 times as long"),
        ([0.0] * 3, [0.0] * 3, 0.4, "disturbed: a pass took 0.4 times as long"),
    ],
)
def test_rates_are_disturbed_where_threads_wait_for_cores_or_passes_change_their_speed(
    ours, plain, slowdown, found
):
    cell, base = (
        [
            generation(f"{n}", [1], seconds, core_wait=share)
            for n, (seconds, share) in enumerate(each)
        ]
        for each in (zip([1.0, 1.0, 2.0], ours, strict=True), zip([1.0] * 3, plain, strict=True))
    )
    note = describe_disturbance(CellRecords(cell, baseline=base), slowdown)
    assert note.startswith(found) and bool(note) == bool(found)


def test_a_prompt_counts_with_the_median_of_its_repeats():
    cell = CellRecords(
        CALM, BASE, later_repeats=(SHAKEN, CALM), later_baseline_repeats=(BASE, BASE)
    )
    row = summarise(cell).row
    assert (row["stalls"], row["repeats"], row["prompts"]) == (1, 3, PROMPTS)
    assert row["speedup_median_low"] == pytest.approx(1.5)


def test_a_stalled_repeat_of_a_prompt_moves_no_median_and_joules_are_over_all_repeats():
    calm, slow = of(0, decode_s=1.0, energy_j=6.0), of(0, decode_s=9.0, energy_j=3.0)
    base = (of(0, decode_s=2.0),)
    more = {
        "later_repeats": ((slow,), (calm,)),
        "baseline": base,
        "later_baseline_repeats": (base, base),
    }
    assert value("speedup_median", calm, **more) == 2.0
    assert value("energy_j_per_token", calm, **more) == (6.0 + 3.0 + 6.0) / 3
    assert (pool_repeats([1.0, 4.0]), pool_repeats([1.0, None])) == (2.5, None)


def test_perplexity_by_prompt_is_of_each_prompts_mean_and_not_of_all_tokens():
    cell = of(0, log_likelihood=-2.0), of(2, log_likelihood=-3.0)
    assert value("perplexity_by_prompt", *cell) == pytest.approx(exp((2 / 1 + 3 / 3) / 2))
    assert value("perplexity", *cell) == pytest.approx(exp((2 + 3) / 4))


def test_repeats_that_differ_as_a_whole_widen_the_interval_of_a_rate():
    one, two = (
        summarise(CellRecords(CALM, later_repeats=a)).row for a in ((), (windows(8, 0.024),))
    )

    def width(row, name):
        return row[f"{name}_high"] - row[f"{name}_low"]

    assert two["token_rate"] == pytest.approx(one["token_rate"] / 1.1)
    for name in ("token_rate", "token_rate_end_to_end"):
        assert width(two, name) > 2 * width(one, name)
    assert width(two, "block_efficiency") == width(one, "block_efficiency")


def test_an_end_beyond_all_numbers_is_no_end():
    assert Interval(1.0, 0.0, 1e4).map(exp) == Interval(exp(1.0))
    assert Interval(1.0, 0.0, 2.0).map(exp) == Interval(exp(1.0), 1.0, exp(2.0))


def answer(name, seconds, tokens, **more):
    """An answer in chunks, each a call."""
    times = {"prefill_s": seconds[0], "decode_s": seconds[-1] - seconds[0]}
    came = {"latency_s": seconds[-1], "delivery": ServerChunks(seconds, tokens, **more)}
    steps = [StepRecord(n - 1, n - 1, n - 1, n) for n in tokens[1:]]
    return made(name, steps, tokens=sum(tokens), **times, **came)


SERVED = [
    answer("a", (0.1, 0.3, 0.4), (1, 3, 1)),
    answer("b", (0.2, 0.5), (1, 2), counted="requests"),
    answer("c", (0.3,), (1,)),
]


def test_a_servers_answers_have_percentiles_over_requests_and_its_first_chunk_is_no_call():
    row = summarise(CellRecords(SERVED)).row
    expected = {
        "ttft_s_p50": 0.2, "ttft_s_p99": 0.298, "latency_s_p50": 0.4, "latency_s_p90": 0.48,
        # a: 0.3 s for 4 tokens, b: 0.3 s for 2, c: none; gaps of 0.2, 0.1, 0.3
        "inter_token_s_p50": (0.075 + 0.15) / 2, "chunk_gap_s_p50": 0.2,
        "target_calls": 3, "block_efficiency": 6 / 3, "block_efficiency_stream": 6 / 3,
        "delivered_tokens": 9, "token_rate": 6 / 0.6,
    }  # fmt: skip
    assert {name: row[name] for name in expected} == pytest.approx(expected)
    assert row["block_efficiency_source"] == "requests: 1, stream: 2"
    assert value("block_efficiency_source", SERVED[0]) == "stream"


CUT = replace(answer("a", (0.1, 0.3), (1, 2)), steps=(StepRecord(4, 4, 3, 2),))


@pytest.mark.parametrize(
    ("generation", "expected"), [(CUT, (4.0, 2.0)), (of(1, 3, tokens=3), (3.0, 1.5))]
)
def test_tokens_cut_off_the_last_call_count_in_one_of_the_two_alone(generation, expected):
    row = summarise(CellRecords([generation])).row
    assert (row["block_efficiency"], row["block_efficiency_stream"]) == expected


def drafted(prompt, *steps):
    """Of calls (tokens drafted in a chain, accepted)."""
    return made(prompt, [StepRecord(n, n, accepted, accepted + 1) for n, accepted in steps])


# Five calls, one of them plain, one with a shorter draft.
ANSWERS = [drafted("a", (3, 3), (0, 0)), drafted("b", (3, 1)), drafted("c", (1, 1), (3, 0))]


def test_tools_divide_by_different_things():
    found = compute_acceptance_lengths(ANSWERS)
    assert found.ratio_of_sums == pytest.approx((4 + 1 + 2 + 2 + 1) / 5)
    assert found.vllm_mean_length == pytest.approx(1 + (3 + 1 + 1 + 0) / 4)
    assert found.draft_acceptance_rate == pytest.approx(5 / 10)
    assert found.acceptance_by_position == pytest.approx((3 / 4, 1 / 4, 1 / 4))
    assert found.joint_rates == pytest.approx((1.0, 3 / 5, 1 / 5, 1 / 5))
    assert found.conditional_rates == pytest.approx((3 / 5, 1 / 3, 1.0))
    found = compute_acceptance_lengths([drafted("a", (0, 0), (0, 0))])  # plain decoding
    assert (found.ratio_of_sums, found.vllm_mean_length, found.draft_acceptance_rate) == (
        1.0,
        None,
        None,
    )
    assert (found.acceptance_by_position, found.joint_rates, found.conditional_rates) == (
        (),
        (1.0,),
        (),
    )
    assert compute_acceptance_lengths([]).ratio_of_sums is None


def test_speed_benchs_average_is_over_all_calls_of_a_question_then_over_questions():
    turns = [
        drafted("81/0", (3, 3)),
        drafted("81/1", (3, 0), (3, 1), (3, 0)),
        drafted("82", (3, 1)),
        drafted("a/83", (3, 2)),
    ]
    # 81 emits 4, then 1, 2, 1: 2 a call, where its turns' means average 8/3; then 82's and 83's.
    assert compute_acceptance_lengths(turns, ids_have_turns=True).mean_of_means == pytest.approx(
        (2 + 2 + 3) / 3
    )
    # Without turns every prompt is a question, whatever its name: HumanEval/0, HumanEval/1.
    found = compute_acceptance_lengths([drafted("H/0", (3, 3)), drafted("H/1", (3, 1), (3, 1))])
    assert found.mean_of_means == pytest.approx((4 + 2) / 2)


def test_a_committed_tables_problems_are_questions_each_whatever_their_names_slashes(capsys):
    assert main(["lengths", str(ROOT / "results" / "smollm2" / "results.csv")]) == 0
    lookup = next(line for line in capsys.readouterr().out.splitlines() if "prompt_lookup" in line)
    assert "2.444" in lookup  # HumanEval/0, HumanEval/1, ... as one question: 1.884


def at(prompt, tokens, *delivered):
    steps = [StepRecord(4, 4, count - 1, count) for count in delivered]
    return made(prompt, steps, prompt_tokens=tokens)


def test_a_call_counts_where_it_begins():
    # After 6 tokens, 8 and 11: one call below 8, two up to 15; after 15 and 16 the next.
    found = compute_tokens_per_call_by_context_length(
        [at("a", 6, 2, 3, 4), at("b", 15, 1, 3), at("c", None, 2, 3)]
    )
    assert [(each.first, each.last) for each in found] == [(4, 7), (8, 15), (16, 31)]
    assert [(each.call_count, each.prompt_count) for each in found] == [(1, 1), (3, 2), (1, 1)]
    assert [each.delivered_per_call.value for each in found] == pytest.approx(
        [2, (3 + 4 + 1) / 3, 3]
    )
    assert found[0].delivered_per_call.low is None
    (stretch,) = compute_tokens_per_call_by_context_length(
        [at(str(i), 40, 1 + i % 3, 2) for i in range(12)]
    )
    assert (
        stretch.delivered_per_call.low
        < stretch.delivered_per_call.value
        < stretch.delivered_per_call.high
    )
