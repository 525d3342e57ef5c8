"""Where jobs run: which GPUs a worker takes, launchers, processes of a split target, threads."""

import importlib.util
import json
import logging
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins

from spec_bench.decode.decoder import Decoder
from spec_bench.engine.loading import ModelSpec
from spec_bench.jobs.config.application import SweepConfigs
from spec_bench.jobs.config.compose import register_config_plugins
from spec_bench.jobs.config.pair import EngineSettings, PairSettings
from spec_bench.jobs.store.store import CellStore
from spec_bench.jobs.sweep import launch
from spec_bench.jobs.sweep.launch import (
    OFFERED_VARIABLE,
    VISIBLE_VARIABLE,
    GpuReservation,
    count_gpus_for_weights,
    count_gpus_of_job,
    list_visible_gpus,
    register_launcher_resolvers,
)
from spec_bench.jobs.sweep.sweep import Sweep
from spec_bench.jobs.sweep.watch import SweepNotes
from spec_bench.jobs.work import models
from spec_bench.jobs.work.metering import find_torch_gpu_indices
from spec_bench.settings.configs import get_conf_dir
from spec_bench.sinks.sink import SinkSettings
from tests import warm
from tests.jobs.tiny import eagle_heads, main, make_task, overrides, rows_of, tokens_of, untimed
from tests.said import naming, one_line
from tests.warm import Command, until

CUDA = EngineSettings(device="cuda", dtype="bfloat16", gpu_memory_gib=80)


def hold(folder, devices, pipe):
    """A worker: claims, says what it has, and keeps it until it is told to end."""
    claim = GpuReservation(folder)  # its locks live as long as it does
    pipe.send(claim.claim(devices, 1, wait=True))
    pipe.recv()


def test_each_of_two_workers_takes_a_device_of_its_own_and_a_kill_frees_it(tmp_path):
    workers, pipes = [], []  # a worker ends with its pipe

    def worker():
        pipe, theirs = multiprocessing.Pipe()
        process = warm.process(hold, tmp_path, ["0", "1"], theirs)
        process.start()
        workers.append(process)
        pipes.append(pipe)
        return pipe

    def held(pipe):
        assert pipe.poll(60)
        return pipe.recv()

    try:
        first, second = map(held, [worker(), worker()])
        assert sorted([first, second]) == [("0",), ("1",)]
        with pytest.raises(ValueError, match=naming("1 of 2 GPUs")):
            GpuReservation(tmp_path).claim(["0", "1"], 1, wait=False)
        third = worker()
        assert not third.poll(1), "a device was given twice"
        workers[0].kill()
        assert held(third) == first
    finally:
        for process in workers:
            process.kill()
            process.join()


def test_devices_are_claimed_all_or_none_and_kept_for_the_next_job_of_the_same_size(tmp_path):
    folder = tmp_path / "claims"
    one, two = GpuReservation(folder), GpuReservation(folder)
    for _ in range(2):
        assert one.claim(["a", "b", "c"], 2, wait=False) == ("a", "b")
    assert folder.stat().st_mode & 0o777 == 0o700
    with pytest.raises(ValueError, match=naming("2 of 3")):
        two.claim(["a", "b", "c"], 2, wait=False)
    assert two.claim(["a", "b", "c"], 1, wait=False) == ("c",)
    with pytest.raises(ValueError, match="needs 1"):
        one.claim(["a", "b", "c"], 1, wait=False)
    with pytest.raises(ValueError, match=naming("3 GPUs", "2")):
        GpuReservation(folder).claim(["a", "b"], 3, wait=True)
    one.release()
    assert GpuReservation(folder).claim(["a", "b"], 2, wait=False) == ("a", "b")


def test_an_index_and_a_uuid_of_one_gpu_are_one_lock(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "_query_gpus", lambda *_: [["0", "GPU-aa11"], ["1", "GPU-bb22"]])
    one, two = GpuReservation(tmp_path), GpuReservation(tmp_path)
    assert one.claim(["1", "0"], 1, wait=False) == ("1",)
    with pytest.raises(ValueError, match="are free"):
        two.claim(["GPU-bb"], 1, wait=False)
    assert two.claim(["GPU-bb22", "GPU-aa"], 1, wait=False) == ("GPU-aa",)


@pytest.mark.parametrize("name", ["choice.lock", "gpu-0.lock"])
def test_a_claim_empties_no_file_and_follows_no_link(tmp_path, name):
    mine, lock = tmp_path / "mine.txt", tmp_path / name
    mine.write_text("of value")
    lock.symlink_to(mine)
    with one_line(naming(str(lock))):
        GpuReservation(tmp_path).claim(["0"], 1, wait=False)
    lock.unlink()
    lock.write_text("of value")
    GpuReservation(tmp_path).claim(["0"], 1, wait=False)
    assert mine.read_text() == lock.read_text() == "of value"


@pytest.mark.parametrize("how", ["others write there", "a link", "a file"])
def test_claims_are_refused_in_a_folder_that_may_not_be_ours_alone(tmp_path, how):
    folder = tmp_path / "claims"
    if how == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "elsewhere")
    elif how == "a file":
        folder.touch()
    else:
        folder.mkdir()
        folder.chmod(0o777)
    with one_line(naming(str(folder))):
        GpuReservation(folder).claim(["0"], 1, wait=False)


def test_what_the_user_offers_wins_over_what_a_launcher_sets():
    assert list_visible_gpus({VISIBLE_VARIABLE: "2, 3"}) == ["2", "3"]
    assert list_visible_gpus({VISIBLE_VARIABLE: "", OFFERED_VARIABLE: "2,3"}) == ["2", "3"]
    assert list_visible_gpus({VISIBLE_VARIABLE: "0,1", OFFERED_VARIABLE: ""}) == []


@pytest.mark.parametrize(
    ("parameters", "bytes_each", "memory_gib", "gpus"),
    [
        (7_000_000_000, 2, 24, 1),
        (13_000_000_000, 2, 24, 2),
        (68_976_648_192, 2, 80, 2),
        (68_976_648_192, 2, 40, 4),
        (68_976_648_192, 4, 80, 4),
        (1, 2, 80, 1),
    ],
)
def test_gpus_are_weights_over_85_percent_of_a_gpu(parameters, bytes_each, memory_gib, gpus):
    assert count_gpus_for_weights(parameters, bytes_each, memory_gib) == gpus


def test_a_spread_target_is_counted_and_any_other_takes_one_gpu():
    pair = PairSettings(target="random:llama2_70b", draft="random:llama_115m", dtype="float16")
    spread = replace(pair, target_device_map="auto")
    assert count_gpus_of_job(spread, CUDA) == 2
    assert count_gpus_of_job(spread, replace(CUDA, gpu_memory_gib=40)) == 4
    assert count_gpus_of_job(pair, CUDA) == 1
    assert count_gpus_of_job(pair, replace(CUDA, device="cpu")) == 0
    unknown = PairSettings(target="some/model", draft=None, target_device_map="auto")
    with pytest.raises(ValueError, match=naming("pair.target_parameters")):
        count_gpus_of_job(unknown, CUDA)
    assert count_gpus_of_job(replace(unknown, target_parameters=68_976_648_192), CUDA) == 2


SPREAD = ("pair=llama2_70b", "engine=cuda", "engine.gpu_memory_gib=80")


@pytest.mark.parametrize(
    ("asked", "given", "expected"),
    [
        ("gpus_per_node", ("hydra/launcher=slurm", *SPREAD), 2),
        ("gpus_per_node", ("hydra/launcher=slurm", "pair=embedded"), None),
        ("n_jobs", ("hydra/launcher=workers", *SPREAD), 3),
        ("n_jobs", ("hydra/launcher=workers", "pair=embedded", "engine.threads=1"), os.cpu_count()),
    ],
)
def test_a_launchers_preset_asks_for_what_the_sweeps_largest_job_needs(
    monkeypatch, asked, given, expected
):
    monkeypatch.setenv(VISIBLE_VARIABLE, "0,1,2,3,4,5")
    register_config_plugins()
    with initialize_config_dir(str(get_conf_dir()), version_base="1.3"):
        register_launcher_resolvers(SweepConfigs(GlobalHydra.instance().config_loader()))
        config = compose("config", overrides=list(given), return_hydra_config=True)
        assert config.hydra.launcher[asked] == expected


@pytest.mark.parametrize("name", ["slurm", "submitit_slurm"])
def test_slurm_that_is_not_here_is_a_line_before_anything_is_submitted(
    name, family, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(monkeypatch, *sweep(family, tmp_path), f"hydra/launcher={name}") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "srun" in line and not [*tmp_path.iterdir()]


def test_a_launcher_of_one_job_alone_is_refused(family, tmp_path, monkeypatch, capsys):
    assert main(monkeypatch, *overrides(family, tmp_path), "hydra/launcher=joblib") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "hydra/launcher=joblib" in line and "-m" in line and not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("asked", "lacking", "extra"),
    [
        ("slurm", "submitit_slurm", "launchers"),
        ("submitit_local", "submitit_local", "launchers"),
        ("workers", "joblib", "launchers"),
        ("ray_cluster", "ray", "ray"),
        ("ray", "ray", "ray"),
    ],
)
def test_a_launcher_without_its_plug_in_is_a_line_with_the_package(
    asked, lacking, extra, family, tmp_path, monkeypatch, capsys
):
    Plugins.instance()  # which registers those that are installed
    monkeypatch.delitem(ConfigStore.instance().repo["hydra"]["launcher"], f"{lacking}.yaml", False)
    assert main(monkeypatch, *sweep(family, tmp_path), f"hydra/launcher={asked}") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"hydra/launcher={asked}" in line and "pip install" in line and f".[{extra}]" in line


def metered(device, *maps, split=False):
    specs = [SimpleNamespace(device_map=each, tensor_parallel=split) for each in maps]
    settings = SimpleNamespace(device=device, pair=SimpleNamespace(specs=specs))
    return find_torch_gpu_indices(settings)


def test_energy_is_of_the_gpus_that_a_job_decodes_on(monkeypatch):
    assert metered("cpu", None) is None
    assert metered("cuda", None, None) == (0,)
    assert metered("cuda:2", None) == (2,)
    assert metered("cuda", "auto", None) is None
    spread = (("lm_head", 3), ("model", 1))
    assert metered("cuda", spread) == (1, 3)
    assert metered("cuda", spread, None) == (0, 1, 3)
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert metered("cuda", None, None, split=True) == (0, 1, 2, 3)


# A tree that draws, one of another form in every iteration, a rule of whole paths, EAGLE's heads.
DECODERS = ("rsd_s:2x2", "dyspec:2x2@3", "traversal:2-1", "eagle2:2x2@3", "eagle_rsd_s:2x2")
LAUNCHERS = {
    "workers": "hydra.launcher.n_jobs=2",
    "ray_cluster": "+hydra.launcher.ray.init.num_cpus=2",
}
_MISSING = importlib.util.find_spec("ray") is None
RAY = [pytest.mark.skipif(_MISSING, reason="no ray"), pytest.mark.slow]
ADDRESS = "hydra.launcher.ray.init.address"
EACH = pytest.mark.parametrize("name", ["workers", pytest.param("ray_cluster", marks=RAY)])


def sweep(family, results, *more, launcher=None):
    words = [] if launcher is None else [f"hydra/launcher={launcher}", LAUNCHERS[launcher]]
    return ["-m", *overrides(family, results, "seed=0,1", "warmup=0"), *more, *words]


def start(arguments, folder):
    return Command("spec_bench", arguments, folder, {"RAY_AUTH_MODE": "disabled"})


def decoding(results):
    """A process that holds a cell of which some prompts, but not all, are on disk."""
    begun = {
        path.parent / ".lock"
        for path in results.glob("runs/*/generations.jsonl")
        if not CellStore(results, path.parent.name).load_result()
    }
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile, or is another user's
            for link in (process / "fd").iterdir():
                with suppress(OSError):
                    if Path(os.readlink(link)) in begun:
                        return int(process.name)
    return None


@EACH
def test_a_sweep_through_a_launcher_gives_the_rows_of_the_basic_one(
    name, family, tmp_path, monkeypatch
):
    few = ("prompts=2", f"cells=[{','.join(DECODERS)}]", *eagle_heads(family))
    assert main(monkeypatch, *sweep(family, tmp_path / "basic", *few)) == 0
    # Relative folders mean the user's folder in every worker.
    command = start(sweep(family, Path("results"), *few, launcher=name), tmp_path)
    status, _, said = command.finish()
    assert status == 0, said
    ours, theirs = rows_of(tmp_path / "results"), rows_of(tmp_path / "basic")
    assert [(row["decoder"], row["seed"]) for row in ours] == [
        (decoder.partition(":")[0], seed) for seed in "01" for decoder in ("ar", *DECODERS)
    ]
    assert untimed(ours) == untimed(theirs)


def test_jobs_that_go_on_behind_an_interrupt_are_told_with_what_watches_them(tmp_path, capsys):
    results, left = tmp_path / "results", tmp_path / "%j"
    left.mkdir()
    notes, over = SweepNotes(results, "mine"), Sweep()
    notes.replace_job_list([(number, [f"seed={number}"]) for number in range(3)])
    with suppress(KeyboardInterrupt), notes.tracked_job(1, ["seed=1"]):
        raise KeyboardInterrupt
    over._submitit_folder = str(left)
    over._notes_and_sinks = {(str(results), "mine"): (notes, SinkSettings(table=False))}
    with notes.tracked_job(0, ["seed=0"]):
        assert list(over.finish_and_print_experiments()) == []
    said = capsys.readouterr().err
    assert re.search(naming("2 go on", f"watch mine --results {results}"), said)
    assert not left.exists()


@pytest.fixture
def cluster(tmp_path):
    """The address of a Ray cluster that runs here."""
    ray = str(Path(sys.executable).with_name("ray"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    folder = f"--temp-dir=/tmp/{tmp_path.parent.name}"  # a socket's path is short
    start = [ray, "start", "--head", "--num-cpus=2", "--include-dashboard=false", folder]
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0"}
    port = f"--port={address.partition(':')[2]}"
    subprocess.run([*start, port], check=True, env=environment, stdout=subprocess.DEVNULL)
    yield address
    subprocess.run([ray, "stop"], check=True, env=environment, stdout=subprocess.DEVNULL)


@pytest.mark.slow
@pytest.mark.skipif(_MISSING, reason="no ray")
def test_a_sweep_joins_a_running_ray_cluster(cluster, family, tmp_path, monkeypatch):
    few = ("prompts=2", "cells=[sd:3]")
    assert main(monkeypatch, *sweep(family, tmp_path / "basic", *few)) == 0
    joins = ("hydra/launcher=ray_cluster", f"{ADDRESS}={cluster}")
    status, _, said = start(sweep(family, Path("results"), *few, *joins), tmp_path).finish()
    assert status == 0, said
    assert untimed(rows_of(tmp_path / "results")) == untimed(rows_of(tmp_path / "basic"))


@pytest.mark.slow
@EACH
def test_a_worker_killed_in_the_middle_costs_its_cell_only_and_a_rerun_finishes_it(
    name, family, tmp_path, monkeypatch
):
    rows, killed = make_task(tmp_path, rows=24), tmp_path / "killed"  # some seconds
    given = ("prompts=24", "spec=2x2", f"task.source.path={rows}")
    arguments = sweep(family, killed, *given, launcher=name)
    process = start(arguments, tmp_path)
    try:
        worker = until(lambda: decoding(killed) or process.poll() is not None, 120)
        assert process.poll() is None, process.finish()
        os.kill(worker, signal.SIGKILL)
        status, _, said = process.finish()
    finally:
        process.kill()
    if name == "ray_cluster":
        assert status == 0, said  # Ray gives the job to another worker
    else:
        assert status == 1, said
        assert "a worker was lost" in said and "Traceback" not in said
        before = {path: path.read_bytes() for path in killed.glob("runs/*/generations.jsonl")}
        assert before
        status, _, said = start(arguments, tmp_path).finish()
        assert status == 0, said
        for path, lines in before.items():
            # But for a torn one, and the last, which no baseline may have been timed beside yet.
            kept = b"".join(lines.splitlines(keepends=True)[:-2])
            assert path.read_bytes().startswith(kept)
    assert main(monkeypatch, *sweep(family, tmp_path / "whole", *given)) == 0
    assert untimed(rows_of(killed), "reason") == untimed(rows_of(tmp_path / "whole"), "reason")


def test_a_wrong_setting_is_one_line_and_status_2_in_a_worker_too(family, tmp_path):
    arguments = sweep(family, tmp_path / "results", "spec=2x2", launcher="workers")
    wrong = {"generation.max_new_tokens=12": "generation.max_new_tokens=400"}
    one = {"seed=0,1": "seed=0"}  # one worker says it all
    status, _, said = start([(wrong | one).get(w, w) for w in arguments], tmp_path).finish()
    lines = [line for line in said.splitlines() if line.startswith("spec_bench:")]
    assert status == 2, said
    assert len(lines) == 1 and "positions" in lines[0]
    assert "Traceback" not in said


def test_jobs_that_share_a_baseline_decode_it_once(family, tmp_path):
    results = tmp_path / "results"
    jobs = [
        start(overrides(family, results, f"cells=[{cell}]", "prompts=4"), tmp_path)
        for cell in ("sd:3", "rsd_s:2x2")
    ]
    assert [job.finish()[0] for job in jobs] == [0, 0]
    rows = rows_of(results)
    assert sorted(row["decoder"] for row in rows) == ["ar", "rsd_s", "sd"]
    for row in rows:
        lines = (results / "runs" / row["run_id"] / "generations.jsonl").read_text().splitlines()
        assert len(lines) == 4


CELLS = "cells=[sd:3,rsd_s:3x2,dsbd:3x2@0.9]"


def by_decoder(results):
    return {
        f"{row['decoder']} {row['spec']}": tokens_of(results, row["run_id"])
        for row in rows_of(results)
    }


def through_torchrun(arguments, folder):
    """As a user starts it, in interpreters of their own."""
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "-m", "spec_bench"),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]


def through_its_variables(arguments, folder):
    """What torchrun tells its processes, told to forks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        told = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
        told |= {"MASTER_PORT": str(free.getsockname()[1])}
    ranks = [
        Command("spec_bench", arguments, folder, {**told, "RANK": rank, "LOCAL_RANK": rank})
        for rank in "01"
    ]
    for rank in ranks:
        status, _, said = rank.finish()
        assert status == 0, said[-3000:]


@pytest.mark.parametrize(
    "start", [through_its_variables, pytest.param(through_torchrun, marks=pytest.mark.slow)]
)
def test_two_processes_decode_what_one_does_and_one_of_them_writes(
    start, family, run_job, tmp_path
):
    run_job(CELLS)
    split = tmp_path / "split"
    for _ in range(2):  # the second time everything is there already
        start(overrides(family, split, CELLS, "engine.tensor_parallel=true"), tmp_path)
    together, apart = by_decoder(tmp_path / "results"), by_decoder(split)
    assert list(apart) == ["ar -", "sd 3", "rsd_s 3x2", "dsbd 3x2@0.9"]
    assert apart == together
    for row in rows_of(split):
        assert row["status"] == "complete"
        lines = (split / "runs" / row["run_id"] / "generations.jsonl").read_text().splitlines()
        assert (
            len(lines)
            == len(CellStore(split, row["run_id"]).load_first_repeat())
            == int(row["prompts"])
        )


@pytest.mark.parametrize(
    ("environment", "wanted", "message"),
    [
        ({}, {}, "needs several processes: start with torchrun"),
        ({"WORLD_SIZE": "2"}, {"device_map": "auto"}, "has a device map"),
        ({"WORLD_SIZE": "2"}, {"path": "random:llama_tiny"}, "has no weights"),
    ],
)
def test_what_cannot_be_split_is_refused(monkeypatch, environment, wanted, message):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        ModelSpec(**{"path": "somewhere", "tensor_parallel": True, **wanted})


@pytest.fixture
def threads():
    usual = torch.get_num_threads()
    torch.set_num_threads(2)
    yield torch.get_num_threads
    torch.set_num_threads(usual)


def pass_of(threads, one, many):
    return lambda: time.sleep(one if threads() == 1 else many)


@pytest.mark.parametrize(("one", "many", "found"), [(0.001, 0.006, 1), (0.006, 0.001, 2)])
def test_the_faster_number_of_threads_is_kept_as_long_as_passes_are_as_fast(
    tmp_path, threads, caplog, one, many, found
):
    kept, key = tmp_path / "runs" / "threads.json", "model, machine"
    count, seconds = models.time_and_choose_thread_count(kept, key, 2, pass_of(threads, one, many))
    assert (count, seconds) == (found, pytest.approx(0.001, rel=0.5))
    assert json.loads(kept.read_text()) == {key: [found, seconds]}
    assert threads() == 2  # timing left it
    near = pass_of(threads, *((0.0012, 0.0011) if found == 1 else (0.0011, 0.0012)))
    assert models.time_and_choose_thread_count(kept, key, 2, near) == (
        found,
        seconds,
    )  # though the other one is faster
    assert (
        models.time_and_choose_thread_count(kept, "another", 2, pass_of(threads, many, one))[0]
        == 3 - found
    )
    for times, best in (((one, many), found), ((many, one), 3 - found)):  # whatever was chosen last
        run_pass = pass_of(threads, *times)
        models.set_thread_count(
            None, "cpu", SimpleNamespace(module=lambda *_, run=run_pass, **__: run())
        )
        assert threads() == best
    assert not caplog.records


def test_threads_that_were_chosen_in_a_quiet_second_are_chosen_again_on_a_busy_machine(
    tmp_path, threads, caplog
):
    kept, key = tmp_path / "runs" / "threads.json", "model, machine"
    count, quiet = models.time_and_choose_thread_count(kept, key, 2, pass_of(threads, 0.003, 0.001))
    assert count == 2
    # Two threads that wait for each other's cores are slower than one; rates are far from quiet.
    assert models.time_and_choose_thread_count(kept, key, 2, pass_of(threads, 0.01, 0.04)) == (
        1,
        quiet,
    )
    assert "chosen again" in caplog.text and f"{quiet:.2g}" in caplog.text
    count, busy = json.loads(kept.read_text())[key]
    assert (count, busy) == (1, pytest.approx(0.01, rel=0.3))
    # And again in quiet, when it is twice as fast as on the busy machine.
    count, again = models.time_and_choose_thread_count(kept, key, 2, pass_of(threads, 0.003, 0.001))
    assert (count, again) == (2, pytest.approx(0.001, rel=0.5))
    kept.write_text(json.dumps({key: 2}))  # as earlier versions wrote it
    assert models.time_and_choose_thread_count(kept, key, 2, pass_of(threads, 0.003, 0.001))[0] == 2


def test_passes_after_decoding_say_how_much_slower_the_machine_has_become(threads, tmp_path):
    times = [0.002]
    target = SimpleNamespace(module=lambda *_, **__: time.sleep(times[0]))
    kept = tmp_path / "runs" / "threads.json", "model"
    slowdown = models.set_thread_count(None, "cpu", target, kept)
    times[0] = 0.02
    assert slowdown() == pytest.approx(10, rel=0.4) == slowdown()
    assert models.set_thread_count(1, "cpu", target, kept)() == 1.0  # nothing was chosen


def test_slow_passes_are_timed_once_each_and_no_longer():
    passes = []
    seconds = models.time_by_thread_count(2, lambda: (passes.append(1), time.sleep(0.3)))
    assert len(passes) == 4  # one to warm up, one to time, on one thread and on two
    assert set(seconds) == {1, 2}


def test_what_was_found_is_in_the_row_and_later_jobs_take_it(
    run_job, tmp_path, threads, monkeypatch
):
    probed = ("cells=[]", "decoder=sd", "spec=2")
    kept = tmp_path / "results" / "runs" / "threads.json"
    assert {result.facts.threads for result in run_job(*probed, "engine.threads=2")} == {2}
    assert not kept.exists()
    monkeypatch.setattr(models, "time_by_thread_count", lambda *_: {1: 0.001, 2: 0.0011})
    assert {result.facts.threads for result in run_job(*probed, "engine.threads=null")} == {1}
    ((key, (found, _)),) = json.loads(kept.read_text()).items()
    assert found == 1
    kept.write_text(json.dumps({key: [2, 0.001]}))
    torch.set_num_threads(2)
    again = run_job(*probed, "engine.threads=null", "seed=7")
    assert {result.facts.threads for result in again} == {2}


def test_capturing_for_longer_than_decoding_is_said(run_job, monkeypatch, caplog):
    prepare = Decoder.record_graphs

    def slowly(decoder, requests):
        time.sleep(2)
        prepare(decoder, requests)

    monkeypatch.setattr(Decoder, "record_graphs", slowly)
    small = ("cells=[]", "prompts=1", "generation.max_new_tokens=2")
    with caplog.at_level(logging.WARNING):
        run_job(*small)
        assert "engine.compile=none" not in caplog.text  # nothing was captured
        run_job(*small, "engine.compile=static")
    assert re.search(r"engine.compile=static took \d+ s before the first prompt", caplog.text)
