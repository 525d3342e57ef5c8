"""The audit's parts are chosen by name, and fail alone."""

import pytest

from spec_bench.audit import command_line
from spec_bench.audit.__main__ import load
from spec_bench.audit.parts import Line, Part, audited, chosen
from tests.said import naming


def fine():
    yield Line("sd", "enumeration", "error 0", True)


def broken():
    raise RuntimeError("no\nhead")


PARTS = [Part("rule: k_seq", broken), Part("sd", fine)]


def test_a_fault_is_the_failure_of_its_part_and_the_others_go_on():
    lines = list(audited(PARTS))
    assert [(each.subject, each.passed) for each in lines] == [("rule: k_seq", False), ("sd", True)]
    assert lines[0].result == "RuntimeError: no head"


def test_a_pattern_fits_the_name_with_or_without_its_kind():
    assert chosen(PARTS, "k_*") == chosen(PARTS, "rule: *") == PARTS[:1]
    assert chosen(PARTS, None) == PARTS


def test_a_pattern_that_fits_nothing_names_what_is_near():
    with pytest.raises(ValueError, match=naming("--only", "'k_sek'", "k_seq")):
        chosen(PARTS, "k_sek")


def test_a_failing_part_ends_with_status_1(monkeypatch, capsys):
    monkeypatch.setattr(command_line, "rule_parts", lambda: iter(PARTS))
    for name in ("decoder_parts", "approximate_parts", "beam_parts"):
        monkeypatch.setattr(command_line, name, lambda *_: iter(()))
    assert load([])() == 1
    assert "1 of 2 checks passed" in capsys.readouterr().out
