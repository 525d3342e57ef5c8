"""Speed-up and tokens per target call by category of prompt."""

import pytest

from spec_bench.report.claims import check_generally
from spec_bench.report.cli.command_line import main
from spec_bench.report.data.categories import OTHERS, UNKNOWN, by_category, kinds_of
from spec_bench.report.data.counts import Records
from spec_bench.report.data.rows import groups_of
from spec_bench.report.data.seeds import pooled
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


def numbers(results, rows):
    (group,), records = groups_of(rows), Records(results)
    kinds = kinds_of(group, records)
    found = by_category(group, kinds, records)
    return {
        str(cell.row["decoder"]): {
            kind: tuple(
                each.value if (each := cell.of(column).get(kind)) else 0.0
                for column in ("speedup", "block_efficiency")
            )
            for kind in kinds
        }
        for cell in found
    }


def test_each_category_has_the_ratios_of_its_own_prompts(results):
    assert numbers(results, frame(*ROWS)) == {
        "ar": {"qa": (0.0, 1.0), "math": (0.0, 1.0)},
        "sd": {"qa": (2.0, 1.0), "math": (2.0, 4.0)},
    }


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
    assert numbers(results, frame(*ROWS))["sd"] == {"qa": (0.0, 4.0), "math": (0.0, 4.0)}


def test_many_categories_share_a_last_column_and_none_has_its_own(results):
    many = ["big"] * 2 + [f"{n}" for n in range(30)] + [""]
    record(results, "ar", [[0]] * 33, depth=0, categories=many)
    (group,) = groups_of(frame(*ROWS[:1]))
    kinds = kinds_of(group, Records(results))
    assert [*kinds][-1] == OTHERS
    assert len(kinds) == 25
    assert sum(map(len, kinds.values())) == 33
    record(results, "ar", [[0]] * 3, depth=0, categories=["", "qa", ""])
    assert [*kinds_of(group, Records(results))] == ["qa", UNKNOWN]


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
    assert main(["page", str(results)]) == 0
    page = (results.parent / "page.html").read_text(encoding="utf-8")
    assert '<section id="categories">' in page
    assert "tokens per target call" in page


def test_without_categories_nothing_is_said_of_them(results):
    record(results, "ar", [[0]] * 2, depth=0)
    (group,) = groups_of(frame(*ROWS))
    assert kinds_of(group, Records(results)) == {}
