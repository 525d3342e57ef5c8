"""Which GPUs a worker takes, and how many a pair needs; on a machine without any."""

import multiprocessing
import os
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hydra import compose, initialize_config_dir

from spec_bench.jobs.config.compose import register
from spec_bench.jobs.config.pair import EngineSettings, PairSettings
from spec_bench.jobs.sweep import devices, launch
from spec_bench.jobs.sweep.devices import OFFERED, VISIBLE, Claim, visible_devices
from spec_bench.jobs.sweep.launch import gpus_needed, gpus_of_job, register_resolvers
from spec_bench.jobs.work.metering import ordinals
from spec_bench.settings.configs import conf_dir
from tests import warm
from tests.said import naming

CUDA = EngineSettings(device="cuda", dtype="bfloat16", gpu_memory_gib=80)


def hold(folder, devices, count, pipe):
    """A worker: claims, says what it has, and keeps it until it is told to end."""
    claim = Claim(folder)  # its locks live as long as it does
    pipe.send(claim.take(devices, count, wait=True))
    pipe.recv()


class Worker:
    """``hold`` in a process of its own."""

    def __init__(self, folder, devices, count=1):
        self.pipe, theirs = multiprocessing.Pipe()
        self.process = warm.process(hold, folder, devices, count, theirs)
        self.process.start()

    def devices(self):
        assert self.pipe.poll(60)
        return self.pipe.recv()

    def kill(self):
        self.process.kill()
        self.process.join()


def test_each_of_two_workers_takes_a_device_of_its_own_and_a_kill_frees_it(tmp_path):
    workers = [Worker(tmp_path, ["0", "1"]) for _ in range(2)]
    third = None
    try:
        held = [worker.devices() for worker in workers]
        assert sorted(held) == [("0",), ("1",)]
        with pytest.raises(ValueError, match=naming("1 of 2 GPUs")):
            Claim(tmp_path).take(["0", "1"], 1, wait=False)
        third = Worker(tmp_path, ["0", "1"])
        assert not third.pipe.poll(1), "a device was given twice"
        workers[0].kill()
        assert third.devices() == held[0]
    finally:
        for worker in [*workers, third]:
            if worker is not None:
                worker.kill()


def test_devices_are_claimed_all_or_none(tmp_path):
    one, two = Claim(tmp_path), Claim(tmp_path)
    assert one.take(["a", "b", "c"], 2, wait=False) == ("a", "b")
    with pytest.raises(ValueError, match=naming("2 of 3")):
        two.take(["a", "b", "c"], 2, wait=False)
    assert Claim(tmp_path).take(["a", "b", "c"], 1, wait=False) == ("c",)


def test_a_worker_keeps_its_devices_for_the_next_job_of_the_same_size(tmp_path):
    claim = Claim(tmp_path)
    assert claim.take(["0", "1"], 1, wait=False) == ("0",)
    assert claim.take(["0", "1"], 1, wait=False) == ("0",)
    with pytest.raises(ValueError, match="needs 2"):
        claim.take(["0", "1"], 2, wait=False)
    claim.release()
    assert Claim(tmp_path).take(["0", "1"], 2, wait=False) == ("0", "1")


@pytest.mark.parametrize("name", ["choice.lock", "gpu-0.lock"])
def test_a_link_in_the_place_of_a_claim_empties_no_file(tmp_path, name):
    mine = tmp_path / "mine.txt"
    mine.write_text("of value")
    (tmp_path / name).symlink_to(mine)
    with pytest.raises(ValueError, match=naming(str(tmp_path / name))) as caught:
        Claim(tmp_path).take(["0"], 1, wait=False)
    assert "\n" not in str(caught.value)
    assert mine.read_text() == "of value"


def test_a_claim_leaves_what_its_file_holds(tmp_path):
    (tmp_path / "gpu-0.lock").write_text("of value")
    Claim(tmp_path).take(["0"], 1, wait=False)
    assert (tmp_path / "gpu-0.lock").read_text() == "of value"


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
    with pytest.raises(ValueError, match=naming(str(folder))) as caught:
        Claim(folder).take(["0"], 1, wait=False)
    assert "\n" not in str(caught.value)


def test_a_folder_of_claims_is_made_for_its_user_alone(tmp_path):
    Claim(tmp_path / "claims").take(["0"], 1, wait=False)
    assert (tmp_path / "claims").stat().st_mode & 0o777 == 0o700


def test_more_devices_than_there_are_is_said_at_once(tmp_path):
    with pytest.raises(ValueError, match=naming("3 GPUs", "2")):
        Claim(tmp_path).take(["0", "1"], 3, wait=True)


def test_what_the_user_offers_wins_over_what_a_launcher_sets():
    assert visible_devices({VISIBLE: "2, 3"}) == ["2", "3"]
    assert visible_devices({VISIBLE: "", OFFERED: "2,3"}) == ["2", "3"]
    assert visible_devices({VISIBLE: "0,1", OFFERED: ""}) == []


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
    assert gpus_needed(parameters, bytes_each, memory_gib) == gpus


def test_a_spread_target_is_counted_and_any_other_takes_one_gpu():
    pair = PairSettings(target="random:llama2_70b", draft="random:llama_115m", dtype="float16")
    spread = replace(pair, target_device_map="auto")
    assert gpus_of_job(spread, CUDA) == 2
    assert gpus_of_job(spread, replace(CUDA, gpu_memory_gib=40)) == 4
    assert gpus_of_job(pair, CUDA) == 1
    assert gpus_of_job(pair, replace(CUDA, device="cpu")) == 0


def test_an_unknown_size_of_a_spread_target_is_asked_for():
    pair = PairSettings(target="some/model", draft=None, target_device_map="auto")
    with pytest.raises(ValueError, match=naming("pair.target_parameters")):
        gpus_of_job(pair, CUDA)
    assert gpus_of_job(replace(pair, target_parameters=68_976_648_192), CUDA) == 2


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
    monkeypatch.setenv(VISIBLE, "0,1,2,3,4,5")
    register()
    register_resolvers()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        config = compose("config", overrides=list(given), return_hydra_config=True)
        assert config.hydra.launcher[asked] == expected


def test_an_index_and_a_uuid_of_one_gpu_are_one_lock(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "_ask", lambda field: ["0, GPU-aa11", "1, GPU-bb22"])
    one, two = Claim(tmp_path), Claim(tmp_path)
    assert one.take(["1", "0"], 1, wait=False) == ("1",)
    with pytest.raises(ValueError, match="are free"):
        two.take(["GPU-bb"], 1, wait=False)
    assert two.take(["GPU-bb22", "GPU-aa"], 1, wait=False) == ("GPU-aa",)


def metered(device, *maps, split=False):
    specs = [SimpleNamespace(device_map=each, tensor_parallel=split) for each in maps]
    settings = SimpleNamespace(device=device, pair=SimpleNamespace(specs=specs))
    return ordinals(settings)


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


@pytest.mark.parametrize(("jobs", "said"), [(2, "2 jobs"), (-1, "as many jobs"), (1, None)])
def test_jobs_that_run_at_the_same_time_are_said_to_disturb_each_other(monkeypatch, jobs, said):
    config = SimpleNamespace(launcher=SimpleNamespace(n_jobs=jobs), mode="MULTIRUN")
    monkeypatch.setattr(launch, "HydraConfig", SimpleNamespace(get=lambda: config))
    why = launch.disturbing()
    assert (why is None) == (said is None)
    if said is not None:
        assert why and why.startswith(said) and "hydra.launcher.n_jobs=1" in why
