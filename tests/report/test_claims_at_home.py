"""Every claim on its own paper's printed numbers holds there, or experiments/errata.md has it."""

import functools
import re

import pytest

from spec_bench.report.claims import check_claims
from spec_bench.report.claims.contrast import compute_difference
from spec_bench.report.claims.verdict import HOLDS
from spec_bench.report.data.counts import RecordReader
from spec_bench.report.data.printed import read_printed_rows
from spec_bench.report.papers.paper import load_paper
from spec_bench.system import files
from tests.commands import report as main
from tests.said import naming

PRINTED = RecordReader(None)
PAPERS = ("rsd", "mcsd", "redrafter", "dsbd", "eagle", "today")
CLAIMS = [f"{name}/{each.function.__name__}" for name in PAPERS for each in load_paper(name).claims]
PAGE = (files.get_data_folder("experiments") / "errata.md").read_text("utf-8")
UNPRINTED = PAGE.partition("## Claims that no printed number")[2].partition("\n## ")[0]
LISTED = dict(re.findall(r"^\| `(\w+/\w+)` \| ([^|]+) \|", PAGE, re.MULTILINE))
"""Claim -> at how many places it holds of how many, or that nothing is printed."""
LISTED |= dict.fromkeys(re.findall(r"`(\w+/\w+)`", UNPRINTED), "nothing printed")


@functools.cache
def printed(paper):
    return read_printed_rows(load_paper(paper))


@functools.cache
def at_home(paper):
    """A paper's checks on its own numbers, by claim."""
    names = [each.function.__name__ for each in load_paper(paper).claims]
    found = {f"{paper}/{name}": [] for name in names}
    for check in check_claims(paper, printed(paper), PRINTED):
        found[f"{paper}/{names[check.number]}"].append(check)
    return found


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_claim_holds_on_its_papers_numbers_or_the_errata_say_where_it_does_not(claim):
    checks = at_home(claim.partition("/")[0])[claim]
    held = sum(check.verdict == HOLDS for check in checks)
    known = f"{held} of {len(checks)}" if checks else "nothing printed"
    assert LISTED.get(claim, known) == known
    assert (claim in LISTED) == (not checks or held < len(checks))


def test_the_errata_list_no_claim_that_there_is_not():
    assert {*LISTED} <= {*CLAIMS}


def of(paper, **wanted):
    rows = printed(paper)
    for name, value in wanted.items():
        rows = rows[rows[name] == value]
    return rows


def test_printed_cells_have_the_names_units_and_laws_of_measured_ones():
    row = of("dsbd", task="squad", decoder="dsbd_one_cache", pair="llama2_13b_68m").iloc[0]
    assert (row.exact_match, row.experiment) == (0.86, "dsbd-one-cache")
    assert (row.spec, row.lossless, row.harness) == ("not printed", "exact_beam", "Table 1")
    # Table 2 names no target: that of its text. Of a speed-up alone the rate is in AR's.
    warm = of("redrafter", temperature=0.9, pair="vicuna_7b")
    assert warm.token_rate.tolist() == [3.43, 3.49]
    assert warm.lossless.tolist() == ["exact", "approximate"]
    lost = of("rsd", harness="Table 15", decoder="rsd_s")
    assert lost[lost.block_efficiency.isna()].spec.tolist() == ["6x5", "12x5"]


def test_plain_decoding_of_no_draft_stands_beside_its_tables():
    plain = of("dsbd", decoder="ar")
    assert plain.pair.tolist() == ["llama2_13b_68m", "opt_13b"] * 2


def sides(*taus):
    cell = {"decoder": "sd", "spec": "2", "run_id": "printed"}
    return [{**cell, "block_efficiency": tau} for tau in taus]


@pytest.mark.parametrize(("ours", "verdict"), [(2.01, (0, 1)), (2.0, (1, 1)), (1.99, (1, 0))])
def test_a_printed_number_is_what_it_is_and_equal_ones_decide_nothing(ours, verdict):
    left, right = sides(ours, 2.0)
    gap = compute_difference([[((left,), (right,))]], "block_efficiency", PRINTED)
    assert str(gap) == f"{ours - 2.0:+.3f} (no interval: as printed)"
    found = gap.above()
    assert found == verdict


def test_checks_of_printed_numbers_are_printed_without_chance(capsys):
    assert main(["claims", "dsbd", "--printed"]) == 0
    said = capsys.readouterr().out
    assert "as printed" in said and "Holm" not in said and "corrected" not in said
    assert main(["claims", "beyond", "--printed"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(naming("beyond", "reference.csv"), line)


def test_a_claim_about_named_pairs_and_tasks_is_asked_of_these_alone():
    low = at_home("rsd")["rsd/chains_at_low_budgets"]
    wheres = {(check.pair, check.where.partition(",")[0]) for check in low}
    assert wheres == {("llama2_70b", "xsum"), ("llama2_chat_70b", "dolly")}
