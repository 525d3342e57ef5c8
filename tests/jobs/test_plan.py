"""What a plan says of cells, hours and memory, and that it loads and changes nothing."""

import gc
import os
import re
from dataclasses import replace
from pathlib import Path

import datasets
import huggingface_hub
import pytest
import torch
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import OmegaConf

from spec_bench.core.host_device import clear_cached_constants
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import build_decoder, read_decoder
from spec_bench.engine.cache import CachePool
from spec_bench.engine.loading import ModelSpec, load_model
from spec_bench.jobs.config.application import SweepConfigs
from spec_bench.jobs.config.compose import register_config_plugins, strip_hydra
from spec_bench.jobs.config.model_files import ModelSize, read_model_size
from spec_bench.jobs.config.pair import EngineSettings, PairSettings
from spec_bench.jobs.sweep import launch, plan
from spec_bench.jobs.work.prompts import estimate_cache_slots
from spec_bench.records.types import Request
from spec_bench.settings.configs import get_conf_dir, read_yaml
from tests.cells import facts
from tests.families import decoder_names, decoder_settings, tiny_pair
from tests.heads import heads_of
from tests.jobs.tiny import cut, main, overrides

WANTED = facts(target="T", draft=("D",), task="xsum", decoder="rsd_s", spec="4x3", batch_size=1)
GIB = 2**30
ROOT = Path(__file__).resolve().parents[2]


def test_hours_are_of_all_gpus_of_a_job_and_graphs_are_part_of_what_must_fit():
    rate, four = plan.ExpectedRate(0.5, "measured"), plan.MemoryEstimate(60, 30, 4, 100)
    assert plan._estimate_hours(3, 600, rate, four) == 3 * 600 / 0.5 / 3600 * 4
    assert plan._estimate_hours(3, 600, rate, replace(four, gpus=0)) == 1.0  # on a CPU
    assert four.fits and replace(four, graph_bytes=10).fits
    assert replace(four, graph_bytes=11).fits is False


def row(target, draft, decoder, spec, rate, **more):
    told = {"target": target, "draft": draft, "decoder": decoder, "spec": spec}
    place = {"task": "xsum", "batch_size": 1, "device": "cuda"}
    return {**told, **place, "token_rate": rate, **more}


OWN, PLAIN = row("T", "D", "rsd_s", "4x3", 50.0), row("T", "", "ar", "-", 20.0)
OTHERS = [row("T", "D", "rsd_s", "4x3", rate, task="dolly") for rate in (1.0, 2.0, 9.0)]

BUSY = row("T", "D", "rsd_s", "4x3", 1.0, reason="speedup: disturbed: threads waited")


@pytest.mark.parametrize(
    ("measured", "rate"),
    [
        ([OWN, PLAIN], plan.ExpectedRate(50.0, "measured")),
        ([PLAIN], plan.ExpectedRate(20.0, "measured, as ar")),
        (OTHERS, plan.ExpectedRate(2.0, "measured on dolly")),  # of other tasks the median
        ([*OTHERS, OWN], plan.ExpectedRate(50.0, "measured")),
        ([BUSY], plan.ExpectedRate(1.0, "measured, of disturbed rows")),
        ([BUSY, OWN], plan.ExpectedRate(50.0, "measured")),  # of which no row was disturbed
        ([], None),
        ([row("other", "D", "rsd_s", "4x3", 1.0)], None),
        ([row("T", "other", "rsd_s", "4x3", 1.0)], None),
        ([row("T", "D", "rsd_s", "4x2", 1.0)], None),
        ([OWN | {"batch_size": 8}], None),
        ([OWN | {"device": "cpu"}], None),
    ],
)
def test_a_rate_is_of_the_same_tree_and_task_before_the_baselines(measured, rate):
    assert plan.estimate_rate_from_measured_rows(WANTED, "cuda", measured) == rate


def test_a_rate_is_one_of_the_device_that_its_row_names(tmp_path):
    table = tmp_path / "old" / "results.csv"
    table.parent.mkdir()
    text = (ROOT / "results" / "quickstart" / "results.csv").read_text()
    table.write_text(text)  # measured on a CPU, without its cells' configs
    (first, *more) = plan._read_rows_with_rates(tmp_path)
    names = ("target", "task", "decoder", "spec")
    wanted = replace(WANTED, draft=(), **{name: first[name] for name in names})
    rate = plan.ExpectedRate(float(first["token_rate"]), "measured")
    assert plan.estimate_rate_from_measured_rows(wanted, "cpu", [first, *more]) == rate
    assert plan.estimate_rate_from_measured_rows(wanted, "cuda", [first, *more]) is None
    table.write_text(text.replace(",cpu,", ",,"))  # a table that does not say it
    assert plan._read_rows_with_rates.__wrapped__(tmp_path) == []


def test_the_jobs_of_a_sweep_have_the_configs_that_hydra_composes():
    register_config_plugins()
    with initialize_config_dir(str(get_conf_dir()), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        configs = SweepConfigs(loader)
        sweep = loader.load_configuration("config", ["spec=2,3"], RunMode.MULTIRUN)
        for words in (
            ["task=xsum", "seed=1", "spec='3'", "rsd=exp1", "task.sample_seed=4"],
            ["task=dolly", "seed=2", "decoder={name: mine}", "~decoder.tree", "budget=[6,14]"],
            ["task=xsum", "+task.more=1", "+new.key=[1,2]", "new.key=3", "~task.more", "seed=5"],
        ):
            ours = [configs.load_sweep_config(sweep, words) for _ in range(2)]  # anew, and kept
            theirs = loader.load_sweep_config(sweep, words)
            assert list(map(strip_hydra, ours)) == [strip_hydra(theirs)] * 2
            assert {each.hydra.overrides.task for each in ours} == {theirs.hydra.overrides.task}


def test_a_gpus_rate_that_was_not_measured_is_the_papers():
    known = replace(WANTED, pair="llama2_7b", decoder="ar", spec="-", task="xsum")
    rate = plan._find_published_rate(known)
    assert rate.source == "printed by rsd" and 37 < rate.tokens_per_s < 38
    assert plan._find_published_rate(replace(known, decoder="sd", spec="99")) is None
    assert plan._find_published_rate(replace(known, pair="embedded")) is None


def test_a_plan_ends_with_what_is_printed_beside_plain_decodings_measured_rows():
    known = facts(decoder="ar", pair="llama2_7b")
    memory = plan.MemoryEstimate(1, 1, 0, None)
    lines = ("XSum on llama2_7b: ...",)
    cells = [
        plan.PlannedCell(n, known, "complete", 1, 0, None, 0.0, memory, (), lines) for n in "ab"
    ]
    assert plan.format_totals(cells)[2:] == [*lines]


def test_sizes_come_from_a_config_or_from_the_stated_count():
    known = read_model_size("random:llama2_70b")
    assert known == ModelSize(68_976_648_192, 2 * 80 * 8 * 128, 4096, 32000)
    assert read_model_size("meta-llama/Llama-2-70b-hf", 68_976_648_192) == known
    assert read_model_size("some/model", 123) == ModelSize(123)
    assert read_model_size("some/model") == ModelSize(None)


def test_memory_is_weights_and_caches_against_the_gpus_that_the_job_gets():
    pair = PairSettings(target="random:llama2_7b", draft=None, dtype="float16")
    engine = EngineSettings(device="cuda", gpu_memory_gib=16)
    memory = plan.estimate_job_memory(pair, engine, slots_per_row=1024, rows=4)
    assert memory.weights_bytes == 2 * 6_738_415_616
    assert memory.cache_bytes == 4 * 1024 * 2 * 32 * 32 * 128 * 2
    assert (memory.gpus, memory.capacity_bytes) == (1, 16 * GIB)
    assert memory.fits is True
    assert plan.estimate_job_memory(pair, replace(engine, gpu_memory_gib=14), 1024, 4).fits is False
    assert (
        plan.estimate_job_memory(replace(pair, target="some/model"), engine, 1024, 4).fits is None
    )


def test_totals_say_what_is_there_what_it_takes_and_what_does_not_fit():
    memory = plan.MemoryEstimate(60 * GIB, GIB, 1, 40 * GIB)
    done, known, unknown = (
        plan.PlannedCell("a", facts(), state, 20, 20, None, hours, memory)
        for state, hours in (("complete", 0.0), ("missing", 1.5), ("missing", None))
    )
    first, second, third = plan.format_totals([done, known, unknown])
    assert first == "3 cells: 1 complete, 2 missing"
    assert second == "device hours: 1.50 at these rates and those of 1 cells of unknown rate"
    assert third.startswith("does not fit: p: 60.0 + 1.0 GiB on 1 GPUs of together 40 GiB")
    left = "device hours: unknown until one of the 1 cells is measured"
    assert plan.format_totals([done, unknown])[1] == left
    assert plan.format_totals([done])[1] == "device hours: 0.00 at these rates"


def test_totals_say_which_acceptance_cells_are_given():
    given = replace(WANTED, simulated_acceptance=(0.75, 0.5))
    memory = plan.MemoryEstimate(0, 0, 0, None)
    cells = [
        plan.PlannedCell(str(name), told, "missing", 1, 1, None, None, memory)
        for name, told in enumerate((WANTED, given))
    ]
    assert plan.format_totals(cells)[2].endswith("texts mean nothing: rsd_s 4x3 0.75,0.5")
    assert "simulated" not in str(plan.format_totals(cells[:1]))


def test_of_many_cells_one_that_stands_alone_in_its_line_is_named(capsys):
    cells = [
        plan.PlannedCell(str(n), facts(decoder="sd" if n else "ar"), "missing", 1, 1, None, None,
                         plan.MemoryEstimate(1, 1, 0, None), (f"budget={n % 2}",) if n else ())
        for n in range(63)
    ]  # fmt: skip
    plan.print_plan(cells)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert {"ar, 1 cell", "budget=0 31 cells", "budget=1 31 cells"} <= {*lines}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], ["here"]),
        (
            ["slurm", "partition=big"],
            [
                "cpus_per_task 4",
                "time limit 1440 minutes",
                "most 256 jobs at once",
                "partition big",
            ],
        ),
        (["slurm", "timeout_min=7", "mem_gb=3"], ["=slurm:", "mem_gb 3", "time limit 7 minutes"]),
        (["slurm", "setup=[module load cuda]"], ["setup ['module load cuda']"]),
        (["submitit_slurm", "gpus_per_node=2"], ["=submitit_slurm:", "gpus_per_node 2"]),
        (["submitit_local"], ["=submitit_local:", "time limit 60 minutes"]),
        (["joblib"], ["=joblib:", f"{os.cpu_count()} jobs at once"]),
        (["workers", "n_jobs=3"], ["=workers:", "3 jobs at once"]),
    ],
)
def test_a_plan_says_what_its_launcher_would_be_given(
    words, told, family, tmp_path, monkeypatch, capsys
):
    given = [
        f"hydra.launcher.{word}" if "=" in word else f"hydra/launcher={word}" for word in words
    ]
    monkeypatch.setattr(plan, "_estimate_hours", lambda *_: 0.05)
    swept = overrides(family, tmp_path, "spec=2x2", "seed=0,1", "plan=true")
    assert main(monkeypatch, "-m", *swept, *given) == 0
    *_, launched, longest = capsys.readouterr().out.splitlines()
    assert launched.startswith("would run 2 jobs ") and all(each in launched for each in told)
    assert longest.startswith("the longest job: 6.0 minutes at these rates")  # two cells of 3
    assert ("not the cluster's" in longest) == ("slurm" in launched.partition(":")[0])
    assert not any(each in launched for each in ("pre_dispatch", "mmap_mode", "batch_size"))


def test_a_plan_says_what_ray_would_be_given_and_nothing_of_its_config(monkeypatch):
    launch.register_launcher_resolvers(SweepConfigs(None))
    monkeypatch.setattr(launch, "_count_gpus_of_largest_job", lambda root, configs: 2)
    launcher = read_yaml(get_conf_dir() / "hydra" / "launcher" / "ray_cluster.yaml")
    del launcher["defaults"]
    launcher["ray"]["init"]["address"] = "auto"
    hydra = {"runtime": {"choices": {"hydra/launcher": "ray_cluster"}}, "launcher": launcher}
    config = OmegaConf.create({"hydra": hydra})
    told = launch.describe_launch(config, 2).partition(": ")[2]
    assert told == "address auto, num_cpus 1, num_gpus 2, retried 3 times"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["hydra/launcher=slurmm"], "did you mean hydra/launcher=slurm"),
        (["hydra/launcher=slurm", "hydra.launcher.timeout=3"], "hydra.launcher.timeout_min"),
        (["hydra/launcher=slurm", "hydra.launcher.gpus_per_node=-3"], "node must be >= 0, got -3"),
        (["hydra/launcher=slurm", "hydra.launcher.timeout_min=0"], "min must be >= 1, got 0"),
        (["hydra/launcher=joblib", "hydra.launcher.n_job=3"], "hydra.launcher.n_jobs"),
    ],
)
def test_a_plan_refuses_a_launcher_or_an_option_that_does_not_exist(
    words, told, family, tmp_path, monkeypatch, capsys
):
    swept = overrides(family, tmp_path, "spec=2x2", "seed=0,1", "plan=true")
    assert main(monkeypatch, "-m", *swept, *words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line


def test_a_plan_of_a_sweep_tells_complete_partial_and_missing_cells_and_loads_nothing(
    run_job, family, tmp_path, monkeypatch, capsys
):
    results = tmp_path / "results"
    done = run_job("spec=2x2", "seed=0")
    started = run_job("spec=2x2", "seed=1")[1]
    cut(results, started.run_id, 3)
    decoded = run_job("spec=2x1", "seed=0")[1]
    cut(results, decoded.run_id, 4)
    before = {path: path.stat().st_mtime_ns for path in (results / "runs").rglob("*.json*")}
    monkeypatch.setattr("spec_bench.jobs.work.models.load_models", None)
    swept = overrides(family, results, "spec=2x2", "seed=0,1,2", "plan=true")
    of_decoded = overrides(family, results, "spec=2x1", "seed=0", "plan=true")
    assert main(monkeypatch, *of_decoded) == 0
    assert re.search("rsd_s +2x1 +decoded ", capsys.readouterr().out)
    wrong = [*of_decoded, "task.metrics=[rouge9]"]
    assert main(monkeypatch, *wrong) == 2 and "rouge9" in capsys.readouterr().err
    assert main(monkeypatch, "-m", *swept, "hydra/launcher=slurm") == 0
    said = capsys.readouterr().out
    table = [line.split() for line in said.splitlines() if re.match("ar |rsd_s ", line)]
    states = {(line[0], line[2]): (line[3], line[4]) for line in table}
    assert states == {
        ("ar", "0"): ("complete", "0"),
        ("rsd_s", "0"): ("complete", "0"),
        ("ar", "1"): ("complete", "0"),
        ("rsd_s", "1"): ("partial", "1"),
        ("ar", "2"): ("missing", "4"),
        ("rsd_s", "2"): ("missing", "4"),
    }
    assert "6 cells: 3 complete, 2 missing, 1 partial" in said
    assert "unknown rate" not in said and len(done) == 2
    assert before == {path: path.stat().st_mtime_ns for path in (results / "runs").rglob("*.json*")}


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """No network, and nothing in the caches."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.mark.usefixtures("offline")
def test_without_the_data_a_plan_says_what_is_unknown_and_all_that_configs_tell(
    monkeypatch, capsys, tmp_path
):
    pair = ("pair=llama2_7b", "engine=cuda", "engine.gpu_memory_gib=80", f"results={tmp_path}")
    swept = ("-m", "rsd=exp1", "task=xsum,dolly", "length=2", "plan=true")
    assert main(monkeypatch, *swept, *pair) == 0
    said = capsys.readouterr().out
    lines = [line for line in said.splitlines() if line.startswith("xsum ")]
    said = " ".join(said.split())
    assert "state unknown, left 100 of 100" in said
    assert f"{2 * len(lines)} cells: {2 * len(lines)} unknown" in said
    assert "the data of xsum, dolly cannot be read here" in said
    # 2 bytes for each of 6.9 billion parameters; keys and values of the draft's 2048 positions.
    assert "12.9 + 1.1" in said and "fits yes" in said
    assert "printed by rsd on wmt18_deen, xsum" in said and " at these rates" in said
    many = ["-m", "rsd=exp1", "task=xsum,dolly", "plan=true", *pair]
    assert main(monkeypatch, *many) == 0
    counted = [line.split() for line in capsys.readouterr().out.splitlines() if "33 cells" in line]
    assert [line[0] for line in counted] == ["xsum", "dolly"]
    given = ("decoder=prompt_lookup", "plan=true", f"results={tmp_path}")
    assert main(monkeypatch, "pair.target=NOPE", *given) == 0
    assert "NOPE: a size is unknown" in capsys.readouterr().out
    given = ("pair=llama2_7b", "task=alpaca", "prompts=null", "plan=true", f"results={tmp_path}")
    assert main(monkeypatch, *given) == 2
    assert "prompts=N plans without the data" in capsys.readouterr().err


@pytest.mark.usefixtures("offline")
def test_a_sweep_is_planned_where_no_gpu_is_and_says_what_is_swept(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("spec_bench.engine.model_spec.is_cuda_usable", lambda: False)
    swept = ("engine=cuda", "generation.temperature=0.5,1", "seed=0,1", f"results={tmp_path}")
    assert main(monkeypatch, "-m", "plan=true", "decoder=sd", "spec=3", *swept) == 0
    said = capsys.readouterr().out
    named = [line.split()[3] for line in said.splitlines() if line.startswith("sd ")]
    assert named == [f"generation.temperature={t}" for t in ("0.5", "0.5", "1", "1")]
    swept = ("-m", "plan=true", "budget=6,14", "cells=[sd:3]", f"results={tmp_path}")
    capsys.readouterr()
    assert main(monkeypatch, *swept) == 0
    said, hints = capsys.readouterr()
    assert hints.count("'budget=[6,14]'") == 1
    lines = [line.split() for line in said.splitlines()]
    shared = [line for line in lines if line[:2] in (["ar", "-"], ["sd", "3"])]
    assert shared and not any("budget" in word for line in shared for word in line)
    assert {line[2] for line in lines if line[:1] == ["rsd_s"]} == {"budget=6", "budget=14"}


GREEDY = SamplingSettings(temperature=0)
# Each takes more slots than the one before, so that every cache is replaced four times.
GROWING = (("ar", None), ("sd", "2"), ("rsd_c", "3-1"), ("rsd_s", "3x3"), ("mcsd", "3-3-2"))
PROMPT, NEW, ROWS = 157, 3, 3


def live_bytes():
    """Of all tensors' memory on the CPU, each storage once."""
    gc.collect()
    storages = {}
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.Tensor) and thing.device.type == "cpu":
            storage = thing.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


HERE = {*decoder_names()} - {"served"}  # by a server


@pytest.mark.parametrize("name", sorted(HERE))
def test_a_decoders_room_follows_from_its_settings(name):
    settings, (target, draft) = decoder_settings(name), tiny_pair("llama")
    heads = heads_of(settings["drafter"], 32, target.vocab_size)
    drafts = [draft] if read_decoder(settings).drafts else []
    built = build_decoder(settings, target, drafts, GREEDY, heads=heads)
    assert estimate_cache_slots(read_decoder(settings), 17, 9) == built.count_slots_per_row(17, 9)


@pytest.mark.slow
def test_live_storages_of_five_growing_decoders_are_what_the_plan_says(family):
    pair = PairSettings(target=str(family / "target"), draft=str(family / "draft"))
    slots = max(
        estimate_cache_slots(read_decoder(decoder_settings(*each)), PROMPT, NEW) for each in GROWING
    )
    planned = plan.estimate_job_memory(pair, EngineSettings("cpu", "float32"), slots, ROWS)
    assert planned.weights_bytes and planned.cache_bytes
    clear_cached_constants()
    before = live_bytes()
    target, draft = (load_model(ModelSpec(path)) for path in (pair.target, str(pair.draft)))
    weights = live_bytes() - before
    assert weights == pytest.approx(planned.weights_bytes, rel=0.05)
    pool = CachePool()
    asked = [Request(str(row), tuple(range(3, 3 + PROMPT)), NEW) for row in range(ROWS)]
    seen = []
    for each in GROWING:
        given = decoder_settings(*each), target, [draft][: each[0] != "ar"]
        build_decoder(*given, GREEDY, ROWS, pool).generate(asked, seed=0)
        clear_cached_constants()  # what never changes stays, and is no cache's
        # Nor are the angles of positions, which a model keeps once it has run.
        angles = sum(each.plain._turns.nbytes for each in (target, *given[2]))
        seen.append(live_bytes() - before - weights - angles)
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(planned.cache_bytes, rel=0.05)
