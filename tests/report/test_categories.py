"""Speed-up and tokens per target call by category of prompt."""

import pytest

from spec_bench.report.claims import check_generally
from spec_bench.report.cli.command_line import main
from spec_bench.report.data.categories import OTHERS, UNKNOWN, by_category, kinds_of
from spec_bench.report.data.counts import Records
from spec_bench.report.data.rows import groups_of
from spec_bench.report.data.seeds import pooled
from spec_bench.report.page.build import build_page
from spec_bench.report.plain import categories_markdown
from tests.report.rows import MT_BENCH, frame, record, row, write

KINDS = ["qa", "math"] * 8
ALL, NONE = [3, 3, 3], [0, 0, 0]
ROWS = (
    row("ar", "-", **MT_BENCH, run_id="ar", speedup=(1.0, 1.0, 1.0), token_rate=1.0),
    row("sd", "3", **MT_BENCH, run_id="sd", speedup=(1.5, 1.4, 1.6), block_efficiency=2.5),
)


@pytest.fixture
def results(tmp_path):
    """Plain decoding at 1 token/s; another one twice as fast, right about math alone."""
    file = tmp_path / "results" / "own" / "results.csv"
    record(file, "ar", [[0] * 5] * 16, depth=0, rate=1.0, sitting="a", categories=KINDS)
    accepted = [NONE if kind == "qa" else ALL for kind in KINDS]
    record(file, "sd", accepted, rate=2.0, sitting="a", categories=KINDS)
    return file


def numbers(results, column):
    """By decoder, of each category."""
    (group,), records = groups_of(frame(*ROWS)), Records(results)
    return {
        cell.row["decoder"]: {kind: each.value for kind, each in cell.of(column).items() if each}
        for cell in by_category(group, kinds_of(group, records), records)
    }


def test_each_category_has_the_ratios_of_its_own_prompts(results):
    assert numbers(results, "speedup") == {"ar": {}, "sd": {"qa": 2.0, "math": 2.0}}
    taus = {"ar": {"qa": 1.0, "math": 1.0}, "sd": {"qa": 1.0, "math": 4.0}}
    assert numbers(results, "block_efficiency") == taus


def test_a_handful_of_prompts_has_no_interval_over_prompts_however_many_seeds(results):
    cells, kinds = [], ["a"] * 4 + ["b"] * 5
    for seed in (0, 1):
        for (decoder, spec), accepted in {("ar", "-"): [0] * 4, ("sd", "3"): [3, seed]}.items():
            run = f"{decoder}-{seed}"
            depth, rate = (0, 1.0) if decoder == "ar" else (3, 2.0 + 0.1 * seed)
            each = [accepted] * len(kinds)
            record(results, run, each, depth=depth, rate=rate, sitting="a", categories=kinds)
            cells.append({**row(decoder, spec, **MT_BENCH, run_id=run), "seed": seed})
    records = Records(results)
    (group,) = groups_of(pooled(frame(*cells), records))
    _, chain = by_category(group, kinds_of(group, records), records)
    for column in ("speedup", "block_efficiency"):
        four, five = (chain.of(column)[name] for name in ("a", "b"))
        assert (four.low, four.high) == (None, None)
        assert five.low is not None and five.low < five.value


def test_what_was_not_timed_in_turn_has_tokens_and_no_speedup(results):
    record(results, "sd", [ALL] * 16, rate=2.0, sitting="b", categories=KINDS)
    assert numbers(results, "speedup")["sd"] == {}
    assert numbers(results, "block_efficiency")["sd"] == {"qa": 4.0, "math": 4.0}


def test_many_categories_share_a_last_column_and_none_has_its_own(results):
    many = ["big"] * 2 + [f"{n}" for n in range(30)] + [""]
    record(results, "ar", [[0]] * 33, depth=0, categories=many)
    (group,) = groups_of(frame(*ROWS[:1]))
    kinds = kinds_of(group, Records(results))
    assert ([*kinds][-1], len(kinds), sum(map(len, kinds.values()))) == (OTHERS, 25, 33)
    record(results, "ar", [[0]] * 3, depth=0, categories=["", "qa", ""])
    assert [*kinds_of(group, Records(results))] == ["qa", UNKNOWN]
    record(results, "ar", [[0]] * 2, depth=0)
    assert kinds_of(group, Records(results)) == {}


def test_table_and_verdicts_say_what_each_category_says(results):
    checks = check_generally(frame(*ROWS), results)
    assert [(c.where, c.verdict) for c in checks if "category" in c.where] == [
        ("mt_bench, category qa", "holds"),
        ("mt_bench, category math", "holds"),
    ]
    assert checks[-1].evidence.startswith("+100.0% [")
    assert checks[-1].evidence.endswith("against ar's token rate, on 8 prompts")
    speed, tokens = categories_markdown(groups_of(frame(*ROWS)), Records(results))
    assert "| decoder | spec | qa (8) | math (8) | overall |" in speed
    assert "| sd | 3 | 2.00 | 2.00 | 1.50 [1.40, 1.60] |" in speed
    assert "| sd | 3 | 1.00 | 4.00 | 2.50 |" in tokens


@pytest.mark.slow  # draws
def test_the_reports_of_a_results_file_have_its_categories(results):
    write(results.parents[1], "own", *ROWS)
    assert main([str(results)]) == 0
    assert "qa (8)" in (results.parent / "table.md").read_text(encoding="utf-8")
    page = build_page(results)
    assert '<section id="categories">' in page and "tokens per target call" in page
