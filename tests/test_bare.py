"""The machine and the GPU's scripts run beside torch, transformers and pydantic alone."""

import csv
import math
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from scripts.gpu import phases_figure
from tests.bare import absent_modules
from tests.committed import committed_files
from tests.said import naming

ROOT = Path(__file__).resolve().parents[1]
GPU = ROOT / "scripts" / "gpu"
CODE = """
import importlib, pkgutil, sys

ABSENT = {"hydra", "omegaconf", "pandas", "jinja2", "wandb", "datasets", "matplotlib"}

sys.modules.update(dict.fromkeys(ABSENT))  # as if they were not installed
for layer in ("core", "engine", "draft", "tree", "verify", "decode"):
    package = importlib.import_module(f"spec_bench.{layer}")
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)

import spec_bench.train.training_heads  # as scripts/gpu/heads.py does
from spec_bench.decode.config import read_decoder, apply_tree_shorthand
chain = {
    "name": "sd",
    "drafter": {"kind": "language_model"},
    "tree": {"policy": "chain"},
    "verifier": {"rule": "recursive_rejection", "replacement": False},
}
print(read_decoder(apply_tree_shorthand(chain, 3)).spec)
"""


def run(folder, *command):
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    words = [sys.executable, str(ROOT / "tests" / "bare.py"), *map(str, command)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def rows_in(file):
    with file.open() as stream:
        return list(csv.DictReader(stream))


def test_all_of_the_machine_imports_and_reads_settings_without_them():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "3"


def parts(out):
    return runpy.run_path(str(GPU / "bench.py"))["parts"](out)


PARTS = {name: tiny for name, (_, tiny) in parts(ROOT).items() if tiny}
JOBS = [name for name, tiny in PARTS.items() if tiny[0] == "-m"]  # of spec-bench itself
REHEARSED = [name for name in PARTS if name not in JOBS]


@pytest.mark.slow
@pytest.mark.parametrize("name", REHEARSED)
def test_a_part_runs_without_any_package_but_torch_transformers_and_pydantic(name, tmp_path):
    script, *given = parts(tmp_path)[name][1]
    run(tmp_path, ROOT / "scripts" / script, *given)
    written = list(tmp_path.glob("*.csv"))
    assert written and all(map(rows_in, written))


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_a_job_of_the_first_call_runs_and_its_rows_say_simulated(name, tmp_path):
    main = runpy.run_path(str(GPU / "bench.py"))["main"]
    assert main([name, "--tiny", "--out", str(tmp_path)]) == 0
    (table,) = (tmp_path / "jobs").glob("*/results.csv")
    rows = rows_in(table)
    unlike = [row["decoder"] for row in rows if row["lossless"] != "simulated"]
    assert unlike == ["ar", "hf_generate"][: 1 + (name == "qwen-coder")]
    assert len(rows) == {"printed-exp1": 33, "printed-exp2": 41, "qwen-coder": 10}[name]


def test_without_the_environment_the_first_call_asks_none_of_its_jobs(tmp_path):
    assert JOBS == ["printed-exp1", "qwen-coder", "printed-exp2"]
    listed = run(tmp_path, GPU / "bench.py")
    assert "speed-static" in listed
    assert not [name for name in JOBS if name in listed]


def test_what_torch_requires_is_kept_and_what_only_the_environment_has_is_not():
    absent = absent_modules()
    assert {"hydra", "omegaconf", "pandas", "matplotlib", "scipy"} <= absent
    assert not {"torch", "transformers", "pydantic", "numpy", "yaml", "tokenizers"} & absent


def test_the_tree_that_the_benchmarks_need_is_under_60_mib():
    files = [ROOT / name for name in committed_files()]
    assert sum(file.stat().st_size for file in files if file.is_file()) < 60 * 2**20


def verdicts(folder):
    return list(runpy.run_path(str(GPU / "bench.py"))["verdicts"](folder))


def test_verdicts_name_wrong_answers_refusals_and_recordings_that_are_no_gain(tmp_path):
    head = "device,decoder,spec,token_rate,refused\n"
    (tmp_path / "random-x-static.csv").write_text(
        head + "H200,ar,-,100,\nH200,sd,3,90,\nH200,mcsd,2-1,50,token 7 is 12\n"
    )
    (tmp_path / "random-x-none.csv").write_text(head + "H200,ar,-,80,\nH200,sd,3,95,\n")
    (tmp_path / "gpu-correct.csv").write_text(
        "device,dtype,compile,batch,decoder,wrong,p_value,failed\nH200,bfloat16,static,4,rsd_s,2,,\n"
        "H200,bfloat16,static,4,sd,,,out of memory\n"
    )
    assert verdicts(tmp_path) == [
        "WRONG: rsd_s (bfloat16, static, batch 4): 2",
        "FAILED: sd (bfloat16, static, batch 4): out of memory",
        "REFUSED: 1 of 3 rows of random-x-static.csv, first mcsd: token 7 is 12",
        "SLOWER: 1 of 3 rows of random-x-static.csv than without recording",
    ]


def test_without_anything_wrong_there_is_no_verdict(tmp_path):
    (tmp_path / "random-x-static.csv").write_text(
        "device,decoder,spec,token_rate,refused\nH200,ar,-,100,\n"
    )
    assert verdicts(tmp_path) == []


def test_an_iterations_times_are_kept_where_nothing_can_be_profiled(tmp_path, monkeypatch):
    measure = runpy.run_path(str(GPU / "phases.py"))["time_iterations"]
    monkeypatch.setitem(measure.__globals__, "kernels_of", lambda run, device: [])
    plan = {"7b": [("float32", "static", 0.3, 20, ("ar", "sd:2"))]}
    monkeypatch.setitem(measure.__globals__, "PLAN", plan)
    assert measure("7b", tmp_path, torch.device("cpu"), True, math.inf) == (True, True)
    rows = rows_in(tmp_path / "gpu-phases.csv")
    assert [(row["cell"], row["kernels"]) for row in rows] == [("ar", "0"), ("sd:2", "0")]
    assert all(float(row["replay_ms"]) > 0 for row in rows)


def test_the_picture_of_phases_has_what_lies_between_kernels_and_the_memorys_limit(tmp_path):
    (tmp_path / "gpu-phases.csv").write_text(
        "pair,dtype,compile,cell,replay_ms,phase,ms,device\n"
        "7b,bfloat16,static,sd:5,10,draft,4,H100\n7b,bfloat16,static,sd:5,10,target,5,H100\n"
    )
    (tmp_path / "gpu-reference.csv").write_text(
        "sizes,dtype,compile,tokens,ms,weights_gb_s\nllama2_7b,bfloat16,eager,1,8,1500\n"
    )
    (tmp_path / "gpu-probe.csv").write_text('what,value\n"bandwidth of a sum, GB/s",3000\n')
    figure = phases_figure.draw(tmp_path, None)
    (axes,) = figure.axes
    widths = [patch.get_width() for patch in axes.patches]
    assert widths == [4, 0, 5, 0, 0, 1]  # the last one lies between kernels
    lines = {line.get_label(): line.get_xdata()[0] for line in axes.lines}
    assert lines == {"torch alone, eager": 8, "the memory": 4}
    phases_figure.main([str(tmp_path), "--before", str(tmp_path)])
    assert (tmp_path / "gpu-phases.png").stat().st_size > 1000


def test_every_decoder_that_a_gpu_is_to_try_can_be_built():
    found = runpy.run_path(str(GPU / "correct.py"))
    pair, asked = found["embedded_pair"](), found["embedded_requests"](1, 4)
    built = found["Bench"](found["Setting"]("float32", "none", 1), pair, asked).decoders
    assert len(built(found["names"]())) > 30


def test_a_probe_that_fails_ends_the_first_call(tmp_path):
    command = [sys.executable, str(GPU / "bench.py"), "first", "--out", str(tmp_path)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    assert "no GPU" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("FAILED: probe (status 2")
    assert "no verdict against it" not in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["probe.log"]


def test_a_part_that_dies_is_named_and_the_others_run(tmp_path, monkeypatch, capfd):
    (tmp_path / "dead.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "well.py").write_text("print('measured')\n")
    main = runpy.run_path(str(GPU / "bench.py"))["main"]
    planted = {name: ([str(tmp_path / f"{name}.py")], []) for name in ("dead", "well")}
    monkeypatch.setitem(main.__globals__, "parts", lambda out: planted)
    out = tmp_path / "out"
    assert main(["all", "--out", str(out)]) == 1
    said = capfd.readouterr().out
    assert "measured" in said
    assert said.splitlines()[-1].startswith("FAILED: dead (status 3")
    assert main(["all", "--out", str(out), "--minutes", "0"]) == 1
    assert "NOT RUN: dead" in capfd.readouterr().out.splitlines()[-1]
    (tmp_path / "dead.py").write_text("")
    assert main(["all", "--out", str(out)]) == 0
    assert capfd.readouterr().out.splitlines()[-1] == "no verdict against it"


def pair_rows(folder, *arguments):
    """The rows of a pair's table, and what was printed."""
    output = folder / "table.csv"
    said = run(folder, GPU / "random_pair.py", "--tiny", "--output", output, *arguments)
    return rows_in(output), said


@pytest.mark.slow
def test_the_33_rows_of_each_table_stand_beside_the_papers_and_the_memory(tmp_path):
    rows, printed = pair_rows(tmp_path, "--new-tokens", "64")
    assert len(rows) == 66
    llama, opt = rows[:33], rows[33:]
    assert [row["lossless"] for row in llama] == ["exact", *["simulated"] * 32]
    assert {(row["target"], row["table"]) for row in llama} == {("random:llama_tiny", "1")}
    assert {(row["target"], row["table"]) for row in opt} == {("random:opt_tiny", "16")}
    rates = [table[0]["paper_token_rate_a100"] for table in (llama, opt)]
    assert rates == ["37.269", "42.367"]
    assert float(llama[0]["speedup"]) == float(llama[0]["block_efficiency"]) == 1
    ours = sum(float(row["block_efficiency"]) for row in rows)
    papers = sum(float(row["paper_block_efficiency"]) for row in rows)
    # 66 rows of some 25 calls each: the sum's standard deviation is below 2 percent.
    assert ours == pytest.approx(papers, rel=0.08)
    # AR: roots behind 15 to 78 tokens, 46.5 on average, with 1024 bytes of keys and values each;
    # 460,032 bytes of weights; the root's embedding, keys and values; 512 logits.
    expected = 460_032 + 256 + 1024 + 46.5 * 1024 + 512 * 4
    assert float(llama[0]["bytes_per_iteration"]) == pytest.approx(expected, abs=1)
    for row in rows:
        numbers = {name: float(value or "nan") for name, value in row.items() if "_ms" in name}
        assert float(row["bandwidth_gb_s"]) > 0
        assert float(row["attained"]) == pytest.approx(
            numbers["memory_bound_ms"] / numbers["iteration_ms"], rel=1e-4
        )
        assert float(row["attained_mbsu"]) == pytest.approx(
            float(row["speedup"]) / float(row["mbsu"]), rel=1e-4
        )
        assert row["status"] == "complete"
    assert "attained" in printed


def test_a_pair_that_does_not_fit_is_a_row_with_a_reason_and_no_numbers(tmp_path):
    rows, printed = pair_rows(tmp_path, "--targets", "opt_66b", "--memory-gib", "1")
    reason = "245.3 GiB of weights do not fit into 1.0 GiB"
    named = {"target": "random:opt_66b", "draft": "random:opt_125m"}
    assert rows == [named | {"status": "failed", "reason": reason}]
    assert "random:opt_66b with random:opt_125m: 245.3 GiB of weights" in printed


def test_a_target_without_a_published_table_needs_one_named(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))  # the script adds to it
    script = runpy.run_path(str(GPU / "random_pair.py"))
    with pytest.raises(ValueError, match=naming("'vicuna_7b'", "--draft", "--table")):
        script["run"](script["parse"](["--tiny", "--targets", "vicuna_7b"]))
    named = script["parse"](["--tiny", "--draft", "llama_68m", "--table", "7"])
    options = script["pair_options"](named, "vicuna_7b")
    assert (options.target, options.draft, options.table) == ("vicuna_7b", "llama_68m", 7)


@pytest.mark.slow
def test_training_and_batches_of_heads_say_what_is_simulated(tmp_path):
    run(tmp_path, GPU / "heads.py", "--tiny", "--output", tmp_path)
    (training,) = rows_in(tmp_path / "heads-training.csv")
    assert float(training["tokens_per_s"]) > 0
    assert 0 < float(training["last_loss"]) < 20
    rows = rows_in(tmp_path / "heads-batches.csv")
    assert {row["batch_size"] for row in rows} == {"1", "3"}
    lossless = {row["decoder"]: row["lossless"] for row in rows}
    assert lossless.pop("ar -") == "exact"
    assert set(lossless.values()) == {"simulated"}
    merged, apart = (
        next(float(r["nodes_per_call"]) for r in rows if r["decoder"] == name)
        for name in ("redrafter 8x5", "redrafter 8x5 apart")
    )
    assert merged < apart == 40
