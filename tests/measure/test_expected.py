"""What an iteration should take on a GPU, by literal numbers and by the published pairs."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts.bench.expected import HOST_S, Stretch, bound_s, iteration_s
from spec_bench.measure.bound import GPUS, known_gpu

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
H200, A100 = GPUS["H200"], GPUS["A100"]
# Llama-2-7B token by token: 225 matrices among 1,414 launches, 13.48 GB of weights.
AR = [Stretch(1357, 1357 - 225, 13.48e9), Stretch(57, 57)]
REPLAYED = [Stretch(1, 1357 - 225, 13.48e9), Stretch(57, 57)]


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", list(sys.path))  # a script adds to it

    def load(name: str) -> dict[str, Any]:
        return runpy.run_path(str(SCRIPTS / name))

    return load


def test_a_fast_gpu_waits_for_the_host_and_a_slow_one_for_its_memory() -> None:
    assert 1e3 * iteration_s(AR, H200) == pytest.approx(1414 * 6e-3, rel=1e-3)
    memory_ms = 13.48 / 2.0
    assert 1e3 * iteration_s(AR, A100) == pytest.approx(memory_ms + 2.2e-3 * 1189, rel=0.01)
    assert 1e3 * bound_s(AR, A100) == pytest.approx(memory_ms)


def test_a_replayed_pass_takes_what_its_kernels_and_bytes_take() -> None:
    expected_ms = 13.48 / 4.8 + 2.2e-3 * 1132
    assert 1e3 * iteration_s(REPLAYED[:1], H200) == pytest.approx(expected_ms, rel=1e-6)
    assert iteration_s(REPLAYED, H200) < iteration_s(AR, H200)


def test_a_stretch_is_not_over_before_its_last_launch_nor_begun_before_the_one_before() -> None:
    gpu = H200
    assert iteration_s([Stretch(10, 0)], gpu) == pytest.approx(10 * HOST_S)
    busy = Stretch(1, 0, gpu.bytes_per_s)  # a second
    assert iteration_s([busy, busy], gpu) == pytest.approx(2, rel=1e-4)
    assert iteration_s([busy, Stretch(10, 0)], gpu) == pytest.approx(1, rel=1e-3)


def test_a_gpu_is_known_by_what_the_driver_calls_it() -> None:
    assert known_gpu("NVIDIA H200") == H200
    assert known_gpu("NVIDIA A100-SXM4-80GB") == A100
    assert known_gpu("NVIDIA H100 80GB HBM3") == GPUS["H100"]
    assert known_gpu("NVIDIA RTX A6000") == GPUS["A6000"]
    assert known_gpu("NVIDIA L40S") is None  # another card
    assert known_gpu("cpu") is None


@pytest.mark.slow
def test_launches_that_are_expected_are_those_that_a_simulated_gpu_counts(scripts: Any) -> None:
    counting = scripts("bench/count_launches.py")
    for name, spec, law in (("ar", "-", ("1", "1")), ("sd", "3", ("1", "0.95"))):
        kept = counting["outside"]()[name, spec, law]
        now = counting["count_outside"](name, spec, law)
        assert (now.levels, now.draft_passes) == (kept.levels, kept.draft_passes)
        for part in ("sampling", "verify", "rest"):
            # Beyond a tenth `make plan-gpu WITH=--again` is due.
            assert getattr(kept, part) == pytest.approx(getattr(now, part), rel=0.1, abs=4)
    llama = counting["count_pass"]("llama")
    kept_pass = scripts("bench/launches_table.py")["pass_launches"]()["llama"]
    assert kept_pass.layer == pytest.approx(llama.layer, rel=0.1)


def test_a_plan_has_every_pair_that_prints_a_speed_and_its_numbers_hang_together(
    scripts: Any,
) -> None:
    plan = scripts("gpu/plan.py")
    row = next(
        each
        for each in plan["cells"]("rsd")
        if (each["target"], each["decoder"], each["spec"]) == ("Llama-2-7B", "sd", "2")
    )
    line = plan["planned"]("rsd", row, (A100, H200))
    assert line["read_gb"] == pytest.approx(13.5 + 2 * 0.164 + 0.3, abs=0.35)
    for gpu in ("A100", "H200"):
        assert line[f"{gpu}_bound_ms"] < line[f"{gpu}_replayed_ms"] <= line[f"{gpu}_eager_ms"]
        rate = 1e3 * float(row["block_efficiency"]) / line[f"{gpu}_eager_ms"]
        assert line[f"{gpu}_eager_tokens_s"] == pytest.approx(rate)
    assert line["A100_eager_tokens_s"] > float(row["token_rate"])  # the paper's code launched more
    assert line["paper_gpu"] == "A100"
    pairs = {(each["target"], each["draft"]) for each in plan["cells"]("rsd")}
    assert len(pairs) == 12


def test_launches_of_every_cell_that_a_paper_prints_are_counted(scripts: Any) -> None:
    counting = scripts("bench/count_launches.py")
    missing = set(counting["printed"]()) - set(counting["outside"]())
    assert not missing, "make plan-gpu is due"


def test_an_eagle_head_is_as_large_as_the_paper_says_and_read_once_a_level(scripts: Any) -> None:
    plan = scripts("gpu/plan.py")
    config = plan["random_config"]("random:vicuna_7b")
    borrowed = 32000 * 4096  # the target's last layer
    assert plan["eagle_parameters"]("eagle", config) - borrowed == pytest.approx(0.24e9, rel=0.02)
    one, six = (plan["head_bytes"]("eagle2", "vicuna_7b", depth) for depth in (1, 6))
    assert six == 6 * one


def test_a_printed_row_stands_beside_the_machine_that_it_was_measured_on(scripts: Any) -> None:
    plan = scripts("gpu/plan.py")
    cells = list(plan["cells"]("eagle"))
    machines = {(row["table"], plan["machine"]("eagle", row)) for row in cells}
    assert ("3", "A100") in machines
    assert ("1", "") in machines  # a figure that names none
    decoders = {row["decoder"] for row in cells if row["target"] == "Vicuna-13B"}
    assert decoders == {"eagle", "eagle2", "eagle3"}


def test_names_of_papers_are_names_of_architectures(scripts: Any) -> None:
    name = scripts("gpu/plan.py")["architecture_of"]
    assert name("Llama-2-Chat-7B") == "llama2_7b"
    assert name("LLaMA2-13B-chat") == "llama2_13b"
    assert name("Llama-2-115M") == "llama_115m"
    assert name("OPT-iml-30B") == "opt_30b"
    assert name("Vicuna-33B") == "vicuna_33b"
