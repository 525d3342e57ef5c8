"""What a user types: one line and exit status 2 for what cannot be right, no traceback."""

import errno
import random
import sys
import time
from pathlib import Path

import pytest

from spec_bench.jobs import app
from spec_bench.jobs.job.session import CellRun
from spec_bench.jobs.store.store import CellStore
from tests.jobs.tiny import overrides, rows_of, tokens_of
from tests.warm import Command

TIMES = (
    *("token_rate", "speedup", "host_overhead", "latency_s"),
    *("prefill_s", "decode_s", "draft_s", "target_s"),
    *("load_average", "clock_mhz", "stalls", "bandwidth_bytes_per_s"),
)


def main(monkeypatch, *arguments):
    """``python -m spec_bench`` in this process, its log left to pytest."""
    monkeypatch.setattr(sys, "argv", ["spec_bench", *arguments, "hydra/job_logging=none"])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    with pytest.raises(SystemExit) as stopped:
        app.main()
    return int(stopped.value.code or 0)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ("decoder=rsd_x", "rsd_x"),
        ("task=xsun", "xsun"),
        ("spec=4", "'4'"),
        ("spec=4xx", "4xx"),
        ("cells=[rsd_z:4x3]", "rsd_z"),
        ("cells=[sd:2-2]", "2-2"),
        ("cells=sd", "cells"),
        ("generation.temperature=-1", "temperature"),
        ("generation.temperature=hot", "hot"),
        ("generation.top_p=0", "top_p"),
        ("generation.max_new_tokens=0", "max_new_tokens"),
        ("engine.batch_size=0", "batch_size"),
        ("engine.dtype=float12", "float12"),
        ("engine.device=tpux", "tpux"),
        ("prompts=-3", "prompts"),
        ("decoder.verifier.rule=k_seq", "k_seq"),
        ("decoder.tree.policy=forest", "forest"),
        ("nonsense=1", "nonsense"),
        ("pair.draft=./no/such/folder", "no/such/folder"),
        ("pair.target=embedded:none", "embedded:none"),
        ("task.source.path=/no/such.jsonl", "/no/such.jsonl"),
        ("energy.meter=sundial", "sundial"),
        ("generation.max_new_tokens=400", "positions"),
    ],
)
def test_a_wrong_setting_is_one_line_and_status_2(
    family, tmp_path, monkeypatch, capfd, wrong, named
):
    given = [o for o in overrides(family, tmp_path) if o.split("=")[0] != wrong.split("=")[0]]
    assert main(monkeypatch, *given, wrong) == 2
    lines = [line for line in capfd.readouterr().err.splitlines() if "spec_bench:" in line]
    assert len(lines) == 1
    assert named in lines[0]
    assert not (tmp_path / "default").exists()


def test_the_status_says_that_a_cell_failed(family, tmp_path, monkeypatch):
    def failing(*arguments):
        raise RuntimeError("no")

    monkeypatch.setattr("spec_bench.decode.config.DecoderConfig.build", failing)
    assert main(monkeypatch, *overrides(family, tmp_path)) == 1


def test_a_sweep_merges_into_one_csv_and_leaves_no_litter(family, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    caplog.set_level("INFO")
    swept = ["-m", *overrides(family, Path("results"), "seed=0,1", "spec=2x2", "prompts=2")]
    assert main(monkeypatch, *swept) == 0
    assert main(monkeypatch, *swept) == 0
    rows = rows_of(tmp_path / "results")
    expected = [(name, seed) for seed in "01" for name in ("ar", "rsd_s")]
    assert [(row["decoder"], row["seed"]) for row in rows] == expected
    assert [path.name for path in tmp_path.iterdir()] == ["results"]
    assert "reusing" in caplog.text


def _kill_at_random(family, results, cells, seed):
    """Starts the job in a process of its own and kills it -9 while it decodes."""
    arguments = overrides(family, results, cells)
    process = Command("spec_bench", arguments, results.parent)
    try:
        deadline = time.monotonic() + 90
        while not list(results.glob("runs/*/generations.jsonl")):
            assert process.poll() is None, "it ended before it decoded"
            assert time.monotonic() < deadline, "it never decoded"
            time.sleep(0.005)
        time.sleep(random.Random(seed).uniform(0, 0.8))
    finally:
        process.kill()


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))]
)
def test_after_kill_9_a_rerun_equals_an_undisturbed_run_but_for_times(
    run_job, family, tmp_path, seed
):
    cells = "cells=[sd:3,spectr:2x2,rsd_c:2-1,rsd_s:2x2]"
    expected = run_job(cells, results=tmp_path / "whole")
    killed = tmp_path / "killed"
    _kill_at_random(family, killed, cells, seed)
    before = {path: path.read_bytes() for path in killed.glob("runs/*/generations.jsonl")}
    run_job(cells, results=killed)
    for path, lines in before.items():
        whole_lines = lines[: lines.rfind(b"\n") + 1]
        assert path.read_bytes().startswith(whole_lines), "a finished prompt was decoded again"
    for result in expected:
        assert tokens_of(killed, result.run_id) == tokens_of(tmp_path / "whole", result.run_id)
        assert CellStore(killed, result.run_id).complete()
    assert without_times(rows_of(killed)) == without_times(rows_of(tmp_path / "whole"))


def without_times(rows):
    return [
        {name: value for name, value in row.items() if not name.startswith(TIMES)} for row in rows
    ]


@pytest.mark.parametrize(
    ("results", "named"), [("/proc/none", "/proc/none"), ("results", "line 1"), ("grid", "trees")]
)
def test_what_could_not_be_written_or_counted_is_said_before_decoding(
    family, tmp_path, monkeypatch, capsys, results, named
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("spec_bench.jobs.job.job.run_job", lambda _: pytest.fail("it decoded"))
    table = tmp_path / "results" / "default" / "results.csv"
    table.parent.mkdir(parents=True)
    table.write_text("pair;run_id\np;1\n")
    grid = "cells=[{grid: {decoder: rsd_c, factors: [1,2,3,4], most: 9, depths: [99], order: any}}]"
    more = [grid] if results == "grid" else []
    assert main(monkeypatch, *overrides(family, Path(results), *more)) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and named in said[0]


def test_a_disk_that_is_full_in_the_middle_is_one_line(family, tmp_path, capsys, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(CellStore, "append", full)
    monkeypatch.setattr(CellRun, "fail", full)
    assert main(monkeypatch, *overrides(family, tmp_path)) == 1
    said = capsys.readouterr().err.splitlines()
    (line,) = [each for each in said if each.strip() and "Loading" not in each]
    assert "No space left" in line
