"""RSD's Figure 1: the four rules on two Bernoulli candidates, exactly."""

import csv

import pytest
from scipy.optimize import brentq

from spec_bench.report.papers.paper import import_paper_code
from spec_bench.settings.configs import get_experiments_dir

bernoulli = import_paper_code(get_experiments_dir() / "rsd", "bernoulli")
RULES, TOLERANCE, closed_form = bernoulli.RULES, bernoulli.TOLERANCE, bernoulli.closed_form


@pytest.mark.parametrize(
    ("p", "q", "multi_round", "otm"),
    [
        (0.5, 0.5, 1.0, 1.0),
        (0.9, 0.1, 0.28, 0.29),
        (0.1, 0.9, 0.28, 0.29),
        (0.5, 1.0, 0.75, 0.75),  # a draft of two tokens, a target of one
        (0.6, 0.4, 0.88, 1.0),
    ],
)
def test_the_rules_accept_what_the_closed_forms_say(p, q, multi_round, otm):
    wanted = {"multi_round": multi_round, "otm": otm, "recursive_rejection": 1.0}
    assert {name: RULES[name](p, q) for name in wanted} == pytest.approx(wanted, abs=TOLERANCE)
    assert {name: closed_form(name, p, q) for name in wanted} == pytest.approx(wanted)


@pytest.mark.parametrize(("p", "q"), [(0.1, 0.9), (0.2, 0.7), (0.55, 0.2), (0.5, 0.05)])
def test_k_seq_accepts_what_the_root_of_its_equation_gives(p, q):
    def beta(rho):
        return min(p, q / rho) + min(1 - p, (1 - q) / rho)

    rho = brentq(lambda rho: 1 - (1 - beta(rho)) ** 2 - rho * beta(rho), 1, 2, xtol=1e-14)
    # The rule's own search stops at 1024^-2 and errs towards accepting less.
    assert RULES["k_seq"](p, q) == pytest.approx(1 - (1 - beta(rho)) ** 2, abs=1e-6)


def test_the_rules_are_ordered_on_the_whole_grid():
    for row in bernoulli.grid(9):
        assert row["multi_round"] <= row["k_seq"] + 1e-6
        assert row["k_seq"] <= row["otm"] + TOLERANCE
        assert row["otm"] <= row["recursive_rejection"] + TOLERANCE


def test_a_value_that_misses_its_closed_form_is_an_error(monkeypatch):
    monkeypatch.setitem(RULES, "otm", lambda p, q: bernoulli.optimal_transport(p, q) - 1e-8)
    with pytest.raises(RuntimeError, match="otm at p = 0"):
        bernoulli.grid(3)


def test_the_command_writes_one_line_per_point(tmp_path):
    path = tmp_path / "new" / "acceptance.csv"
    assert bernoulli.main(["--out", str(path), "--points", "3"]) == 0
    with path.open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 9
    assert list(rows[0]) == ["p", "q", *RULES]
    middle = next(row for row in rows if (row["p"], row["q"]) == ("0.5", "1"))
    assert float(middle["otm"]) == pytest.approx(0.75)


def test_a_grid_without_a_square_is_one_line_and_status_2(capsys):
    assert bernoulli.main(["--points", "1"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
