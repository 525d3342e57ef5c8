"""From a results file to a table, a figure and checks."""

from __future__ import annotations

from pathlib import Path

import pytest

from spec_bench.decode.decoder import Decoder
from spec_bench.records import Generation, StepRecord
from spec_bench.report.__main__ import main
from spec_bench.report.orderings import _ordering
from tests.run.tiny import RunJob


def generation(prompt: int, accepted: list[int]) -> Generation:
    steps = tuple(StepRecord(3, 3, count, count + 1) for count in accepted)
    return Generation(str(prompt), (1,), "length", steps, 0.1, 1.0, 0.2, 0.5)


def test_a_results_file_becomes_a_table_and_a_figure(
    run_job: RunJob, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_job("cells=[sd:3,spectr:2x3,rsd_c:2-1-1,rsd_s:2x3]")
    run_job("cells=[sd:3]", "generation.temperature=0.5")
    results = tmp_path / "results" / "default"
    assert main([str(results / "results.csv")]) == 0
    table = (results / "table.md").read_text()
    assert "### xsum, temperature 1\n" in table
    assert "### xsum, temperature 0.5" in table
    for name in ("| ar | - |", "| sd | 3 |", "| spectr | 2x3 |", "| rsd_c |", "| rsd_s |"):
        assert name in table
    assert "rsd_s > rsd_c in block efficiency" in table
    assert (results / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert "figure.png" in capsys.readouterr().out


def test_a_failed_cell_stands_in_the_table_without_numbers(
    run_job: RunJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate = Decoder.generate

    def failing(self, *arguments):
        if self.name == "sd":
            raise RuntimeError("went wrong")
        return generate(self, *arguments)

    monkeypatch.setattr(Decoder, "generate", failing)
    run_job("cells=[sd:3,rsd_s:2x3]")
    results = tmp_path / "results" / "default"
    assert main([str(results / "results.csv")]) == 0
    line = next(
        line for line in (results / "table.md").read_text().splitlines() if "| sd |" in line
    )
    assert line.startswith("| sd | 3 | failed: RuntimeError: went wrong | ")
    assert not any(letter.isdigit() for letter in line.removeprefix("| sd | 3 |"))


def test_a_missing_results_file_is_one_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "no.csv")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        ([3, 3, 2], [1, 0, 1], "holds"),
        ([1, 0, 1], [3, 3, 2], "does not hold"),
    ],
)
def test_an_ordering_follows_the_paired_interval(
    ours: list[int], theirs: list[int], verdict: str
) -> None:
    pairs = [(generation(i, ours), generation(i, theirs)) for i in range(8)]
    assert _ordering("a", "b", "task", pairs).verdict == verdict


def test_an_ordering_that_differs_from_prompt_to_prompt_is_within_noise() -> None:
    pairs = [
        (generation(i, [3, i % 2 * 3, 1]), generation(i, [3, (1 - i % 2) * 3, 1])) for i in range(8)
    ]
    assert _ordering("a", "b", "task", pairs).verdict == "within noise"
