"""The fastest decoder is named only where it is surely faster, with the command that runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spec_bench.jobs.config.cells import BASELINE
from spec_bench.metrics.interval import Interval
from spec_bench.recommend.answer import Recommendation, answer_of
from spec_bench.recommend.command import main
from spec_bench.recommend.page import write_page
from spec_bench.recommend.recommend import best_of
from spec_bench.recommend.timing import faster
from spec_bench.records.types import CellResult
from tests.cells import facts


def row(
    decoder: str, low: float | None, speedup: float | None, status: Any = "complete"
) -> CellResult:
    known = {"speedup": speedup, "speedup_low": low, "speedup_high": speedup, "prompts": 30}
    return CellResult(decoder, facts(decoder=decoder), status, metrics=known)


def test_plain_decoding_wins_where_nothing_is_surely_faster() -> None:
    plain = row(BASELINE, None, 1.0)
    assert best_of([plain, row("sd", 0.97, 1.4), row("rsd_s", 0.9, 1.1)]) is plain
    sure = row("rsd_c", 1.05, 1.2)
    assert best_of([plain, row("sd", 0.97, 1.4), sure]) is sure
    assert (
        best_of([plain, row("sd", None, None, "failed"), row("spectr", 1.1, 1.3)]).facts.decoder
        == "spectr"
    )


def test_the_best_of_many_must_be_surer_to_be_faster_than_one_alone() -> None:
    plain, lucky = row(BASELINE, None, 1.0), row("sd", 1.02, 1.2)
    assert best_of([plain, lucky]) is lucky
    assert best_of([plain, lucky, *[row("rsd_s", 0.9, 1.1)] * 20]) is plain


def test_plain_decoding_is_the_answer_only_where_it_is_shown_to_be_no_slower() -> None:
    plain = row(BASELINE, None, 1.0)
    maybe = answer_of(Recommendation((), (plain, row("sd", 0.9, 1.3)), plain), [])
    assert maybe[0] == "cannot decide yet"
    assert maybe[1].startswith("sd 3 looks faster, 1.30× [0.90 to 1.30]; try confirm")
    slower = answer_of(Recommendation((), (plain, row("sd", 0.6, 0.8)), plain), [])
    assert slower[:1] == ["AR"] and "reaches 0.80× [0.60 to 0.80] of its speed" in slower[1]


def test_the_command_names_one_decoder_whatever_was_asked_for() -> None:
    best = row("rsd_c", 1.05, 1.2)
    asked = ["task=xsum", "decoder=sd", "spec=3", "decoder.tree.depth=2", "prompts=4"]
    *_, command = answer_of(Recommendation((), (row(BASELINE, None, 1.0), best), best), asked)
    assert command == f"spec-bench task=xsum decoder=rsd_c spec={best.facts.spec}"


def test_a_pair_is_looked_through_and_the_answer_is_a_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["prompts=2", "confirm.prompts=2", "generation.max_new_tokens=8", "engine.threads=1"]
    cells = "cells=[sd:2,block:2,rsd_c:2-1,rsd_s:2x2]"
    told = ["task=xsum", *small, cells, f"results={tmp_path}", "hydra/job_logging=none"]
    status, found = main(told)
    assert status == 0 and found is not None
    said = capsys.readouterr().out
    for decoder, how in (("sd 2", "forecast"), ("block 2", "forecast"), ("rsd_s 2x2", "counted")):
        (line,) = (each for each in said.splitlines() if each.startswith(f"{decoder} "))
        assert how in line
    (told,) = (each for each in said.splitlines() if "counted, not forecast: " in each)
    assert told.startswith("rsd_s 2x2: ") and "stochastic_beam" in told
    best, faster, command = said.splitlines()[-3:]
    assert (
        best == "cannot decide yet"
        and "; try confirm.prompts=20; 1 measured on 2 fresh prompts" in faster
    )
    assert command.startswith("spec-bench task=xsum") and command.endswith("decoder=ar")
    page = write_page(found).read_text()
    assert page.count("<img ") == 2 and best in page and "counted: a " in page


def test_a_target_alone_is_told_what_to_use_and_what_a_draft_would_need(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["prompts=2", "confirm.prompts=2", "generation.max_new_tokens=8", "engine.threads=1"]
    told = ["task=xsum", *small, "cells=[sd:2,prompt_lookup,hf_prompt_lookup,medusa]"]
    target = ["pair.target=embedded:target", f"results={tmp_path}", "hydra/job_logging=none"]
    status, found = main([*told, *target])
    said, steps = capsys.readouterr()
    assert status == 0 and found is not None
    tried = [line.split()[0] for line in said.splitlines() if " counted" in line and "[" in line]
    assert "prompt_lookup" in tried and not {"sd", "medusa"} & {*tried}
    assert "A draft pays if" in said and "3 of 3: " in steps
    assert "pair.target=embedded:target" in said.splitlines()[-1]


def test_a_best_row_names_those_it_is_tied_with() -> None:
    plain, best, near = (row(BASELINE, None, 1.0), row("sd", 1.5, 1.6), row("rsd_s", 1.4, 1.5))
    answer = Recommendation((), (plain, best, near), best, ties=(near,))
    assert answer_of(answer, [])[1].endswith(f"tied with rsd_s {near.facts.spec}")


def test_noise_of_tokens_and_of_seconds_widens_a_forecast_speedup() -> None:
    steady = faster(Interval(3.0, 2.0, 4.5), [2.0, 2.0], [3.0, 3.0])
    assert (steady.value, steady.low, steady.high) == pytest.approx((2.0, 2 / 1.5, 3.0))
    noisy = faster(Interval(3.0, 2.0, 4.5), [2.0, 2.0], [2.0, 3.0, 4.0])
    assert noisy.low is not None and steady.low is not None and noisy.low < steady.low


def test_what_cannot_be_right_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in ("confirm=null", "task=nowhere", "pair=none", "budget=1"):
        assert main(["task=xsum", wrong]) == (2, None)
    complaints = capsys.readouterr().err.splitlines()
    assert (
        complaints[0] == "spec_bench: recommend wants fresh prompts: set confirm={prompts: NUMBER}"
    )
    assert len(complaints) == 4
    for told, line in zip(
        ("'nowhere'", "'none'", "2 to 256 nodes, got 1"), complaints[1:], strict=True
    ):
        assert told in line
