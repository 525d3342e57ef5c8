"""The same sweep through every launcher gives the same CSV but for times, also after a kill."""

import importlib.util
import os
import signal
import time
from pathlib import Path

import pytest

from tests.jobs.test_command_line import main, without_times
from tests.jobs.tiny import eagle_heads, make_family, make_task, overrides, rows_of
from tests.warm import Command

# A tree that draws, one of another form in every iteration, a rule of whole paths, EAGLE's heads.
DECODERS = ("rsd_s:2x2", "dyspec:2x2@3", "traversal:2-1", "eagle2:2x2@3", "eagle_rsd_s:2x2")
LAUNCHERS = {
    "workers": ("hydra/launcher=workers", "hydra.launcher.n_jobs=2"),
    "processes": ("hydra/launcher=processes",),
    "ray_cluster": ("hydra/launcher=ray_cluster", "+hydra.launcher.ray.init.num_cpus=2"),
}
PLUGINS = {
    "workers": "hydra_plugins.hydra_joblib_launcher",
    "processes": "hydra_plugins.hydra_submitit_launcher",
    "ray_cluster": "hydra_plugins.hydra_ray_launcher",
}


def launcher(name, *marks):
    """A parameter that is skipped where the launcher's plugin is not installed."""
    try:
        missing = importlib.util.find_spec(PLUGINS[name]) is None
    except ModuleNotFoundError:
        missing = True
    return pytest.param(
        name, marks=[*marks, pytest.mark.skipif(missing, reason=f"no {PLUGINS[name]}")]
    )


@pytest.fixture(scope="module")
def long_family(tmp_path_factory):
    """The tiny family with a task that takes some seconds."""
    folder = tmp_path_factory.mktemp("long")
    make_family(folder)
    make_task(folder, rows=24)
    return folder


def sweep(family, results, *more):
    tree = [] if any(each.startswith("cells=") for each in more) else ["spec=2x2"]
    return ["-m", *overrides(family, results, "seed=0,1", "warmup=0", *tree), *more]


def start(arguments, folder):
    """``python -m spec_bench`` in a process of its own."""
    return Command("spec_bench", arguments, folder, {"RAY_AUTH_MODE": "disabled"})


def finish(command):
    """The exit status and what was said on stderr."""
    status, _, said = command.finish()
    return status, said


def decoding(results):
    """A process that holds a cell of which some prompts, but not all, are on disk."""
    begun = {
        path.parent / ".lock"
        for path in results.glob("runs/*/generations.jsonl")
        if not (path.parent / "result.json").exists()
    }
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if Path(os.readlink(link)) in begun:
                return int(link.parts[2])
        except OSError:
            continue
    return None


def wait_for(look, process):
    deadline = time.monotonic() + 120
    while (found := look()) is None:
        assert process.poll() is None, finish(process)
        assert time.monotonic() < deadline, "it never decoded"
        time.sleep(0.01)
    return found


@pytest.mark.parametrize(
    "name", [launcher("workers"), launcher("processes"), launcher("ray_cluster", pytest.mark.slow)]
)
def test_a_sweep_through_a_launcher_gives_the_rows_of_the_basic_one(
    name, family, tmp_path, monkeypatch
):
    few = ("prompts=2", f"cells=[{','.join(DECODERS)}]", *eagle_heads(family))
    assert main(monkeypatch, *sweep(family, tmp_path / "basic", *few)) == 0
    # Relative folders mean the user's folder in every worker.
    status, said = finish(start(sweep(family, Path("results"), *few, *LAUNCHERS[name]), tmp_path))
    assert status == 0, said
    ours, theirs = rows_of(tmp_path / "results"), rows_of(tmp_path / "basic")
    assert [(row["decoder"], row["seed"]) for row in ours] == [
        (decoder.partition(":")[0], seed) for seed in "01" for decoder in ("ar", *DECODERS)
    ]
    assert without_times(ours) == without_times(theirs)


@pytest.mark.parametrize(
    "name",
    [
        launcher("workers", pytest.mark.slow),
        launcher("processes", pytest.mark.slow),
        launcher("ray_cluster", pytest.mark.slow),
    ],
)
def test_a_worker_killed_in_the_middle_costs_its_cell_only_and_a_rerun_finishes_it(
    name, long_family, tmp_path, monkeypatch
):
    killed = tmp_path / "killed"
    arguments = sweep(long_family, killed, "prompts=24", *LAUNCHERS[name])
    process = start(arguments, tmp_path)
    try:
        os.kill(wait_for(lambda: decoding(killed), process), signal.SIGKILL)
        status, said = finish(process)
    finally:
        process.kill()
    if name == "ray_cluster":
        assert status == 0, said  # Ray gives the job to another worker
    else:
        assert status == 1, said
        assert "a worker was lost" in said and "Traceback" not in said
        before = {path: path.read_bytes() for path in killed.glob("runs/*/generations.jsonl")}
        assert before
        status, said = finish(start(arguments, tmp_path))
        assert status == 0, said
        for path, lines in before.items():
            assert path.read_bytes().startswith(lines[: lines.rfind(b"\n") + 1])
    assert main(monkeypatch, *sweep(long_family, tmp_path / "whole", "prompts=24")) == 0
    assert without_times(rows_of(killed)) == without_times(rows_of(tmp_path / "whole"))


@pytest.mark.parametrize("name", [launcher("workers"), launcher("processes", pytest.mark.slow)])
def test_a_wrong_setting_is_one_line_and_status_2_in_a_worker_too(name, family, tmp_path):
    arguments = sweep(family, tmp_path / "results", "generation.max_new_tokens=400")
    given = [each for each in arguments if each != "generation.max_new_tokens=12"]
    given = [each.replace("seed=0,1", "seed=0") for each in given]  # one worker says it all
    status, said = finish(start([*given, *LAUNCHERS[name]], tmp_path))
    lines = [line for line in said.splitlines() if line.startswith("spec_bench:")]
    assert status == 2, said
    assert len(lines) == 1 and "positions" in lines[0]
    assert "Traceback" not in said


def test_jobs_that_share_a_baseline_decode_it_once(family, tmp_path):
    """Two jobs at once: no deadlock, and no prompt of the shared cell twice."""
    results = tmp_path / "results"
    jobs = [
        start(overrides(family, results, f"cells=[{cell}]", "prompts=4"), tmp_path)
        for cell in ("sd:3", "rsd_s:2x2")
    ]
    assert [finish(job)[0] for job in jobs] == [0, 0]
    rows = rows_of(results)
    assert sorted(row["decoder"] for row in rows) == ["ar", "rsd_s", "sd"]
    for row in rows:
        lines = (results / "runs" / row["run_id"] / "generations.jsonl").read_text().splitlines()
        assert len(lines) == 4
