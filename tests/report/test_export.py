"""The long format: every number of a row comes out of its lines again."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from spec_bench.records import parquet
from spec_bench.records.types import Generation, StepRecord
from spec_bench.report.cli.command_line import main
from spec_bench.report.export import export
from spec_bench.system import files
from tests.report.rows import row, write

STEPS = (StepRecord(3, 3, 2, 3), StepRecord(3, 3, 0, 1), StepRecord(2, 2, 2, 2))


def done(prompt: str, repeat: int = 0, steps: tuple[StepRecord, ...] = STEPS) -> Generation:
    return Generation(
        *(prompt, (1,) * 6, "stop", steps, 0.5, 2.0, 0.25, 1.0), repeat=repeat, category="qa"
    )


@pytest.fixture
def table(tmp_path: Path) -> Path:
    file = tmp_path / "own" / files.RESULTS
    write(tmp_path, "own", row("sd", "3", run_id="cell"), row("rsd_s", "2x2", run_id="bare"))
    own = [done("=a"), done("b", steps=STEPS[:1]), done("=a", 1), done("b", 1)]
    scores = {"rouge2": {"=a": 0.5, "b": 0.25}, "bleu": {"=a": (1.0, 2.0), "b": (0.0, 2.0)}}
    parquet.write(files.records_file(file), parquet.pack("cell", own, None, scores))
    return file


def test_a_line_has_its_counts_by_depth_and_its_scores(table: Path) -> None:
    found = export(table)
    assert found.without == ("bare",)
    first = found.lines.iloc[0]
    said = (first.decoder, first.prompt_id, first["repeat"], first.category, first.tokens)
    assert said == ("sd", "=a", 0, "qa", 6)
    assert (first.target_calls, first.emitted_tokens, first.nodes, first.draft_calls) == (
        3,
        7,
        8,
        8,
    )
    by_depth = [(first[f"reached_{d}"], first[f"accepted_{d}"]) for d in (1, 2, 3)]
    assert by_depth == [(3, 2), (2, 2), (1, 0)]
    assert first.score_rouge2 == 0.5 and "score_bleu" not in found.lines
    assert found.lines.score_rouge2.isna().tolist() == [False, False, True, True]


def test_every_column_is_in_the_dictionary(table: Path) -> None:
    found = export(table)
    assert found.dictionary.column.tolist() == found.lines.columns.tolist()
    assert (found.dictionary.definition.str.len() > 0).all()
    assert not found.lines.columns.duplicated().any()


def test_parquet_and_csv_hold_the_same_and_are_the_same_again(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "two"):
        assert main(["export", str(table), "--output", str(tmp_path / name)]) == 0
    assert "bare" in capsys.readouterr().out
    both = [sorted((tmp_path / name).iterdir()) for name in ("one", "two")]
    assert [path.name for path in both[0]] == ["dictionary.csv", "long.csv", "long.parquet"]
    for one, other in zip(*both, strict=True):
        assert one.read_bytes() == other.read_bytes()
    frame = pd.read_parquet(tmp_path / "one" / "long.parquet")
    lines = files.read_csv(tmp_path / "one" / "long.csv")
    assert [line["prompt_id"] for line in lines] == frame.prompt_id.tolist()
    assert [float(line["decode_s"]) for line in lines] == frame.decode_s.tolist()


def test_a_table_without_records_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "own", row("sd", "3"))
    assert main(["export", str(tmp_path / "own" / files.RESULTS)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "own/results.csv" in line
