"""A GPU whose driver cannot start CUDA is not chosen, and named in one line."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from spec_bench.engine import loading, model_spec
from spec_bench.engine.model_spec import ModelSpec
from spec_bench.jobs.config import engine_settings
from spec_bench.jobs.config.engine_settings import EngineSettings, placed

ROOT = Path(__file__).resolve().parents[2]
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
DRIVER = (
    "int cuDriverGetVersion(int *to) {{ *to = {}; return 0; }} int cuInit(int f) {{ return {}; }}"
)
OLD = (
    "The NVIDIA driver on your system is too old (found version 12040). Please update your GPU "
    "driver by downloading and installing a new version\nAlternatively, install another PyTorch."
)


@pytest.fixture
def torch_for_cuda_13(monkeypatch):
    """As where a driver is there, NVML sees its GPU, and torch was built for CUDA 13.0."""
    monkeypatch.setattr(model_spec, "_DRIVERS", ("/dev/null",))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    for asked in (model_spec.cuda_fault, engine_settings._warn):
        asked.cache_clear()
    yield monkeypatch
    model_spec.cuda_fault.cache_clear()


@pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")
@pytest.mark.parametrize(
    ("version", "status", "chosen", "says"),
    [
        (13000, 0, "cuda", ""),
        (13020, 0, "cuda", ""),
        (12040, 0, "cpu", r"12\.4.*13\.0.*TORCH_INDEX="),
        (13000, 999, "cpu", "cuInit.*999"),
    ],
)
def test_auto_is_a_gpu_only_where_its_driver_starts_torchs_cuda(
    version, status, chosen, says, tmp_path,
    torch_for_cuda_13, caplog):  # fmt: skip
    (tmp_path / "driver.c").write_text(DRIVER.format(version, status))
    library = tmp_path / "libcuda.so.1"
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", library, tmp_path / "driver.c"], check=True)
    torch_for_cuda_13.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert placed(EngineSettings("auto", "float32"), "org/model").device == chosen
    assert re.search(says, caplog.text) if says else not caplog.text
    if not says:
        assert ModelSpec("org/model", device="cuda:0").device == "cuda:0"
        return
    with pytest.raises(ValueError, match=says) as caught:
        ModelSpec("org/model", device="cuda:0")
    assert "'cuda:0'" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "says"), [(OLD, r"12\.4.*13\.0.*TORCH_INDEX="), ("CUDA error: 802", "802")]
)
def test_cuda_that_does_not_start_where_a_model_loads_is_one_line(error, says, torch_for_cuda_13):
    def start():
        raise RuntimeError(error)

    torch_for_cuda_13.setattr(model_spec, "sees_cuda", lambda: True)
    torch_for_cuda_13.setattr(torch.cuda, "_lazy_init", start)
    spec = ModelSpec("random:llama_tiny", device="cuda")
    with pytest.raises(ValueError, match=says) as caught:
        loading.load_model(spec)
    assert "'cuda'" in str(caught.value) and "\n" not in str(caught.value)


def test_an_embedded_pair_asks_no_driver(torch_for_cuda_13):
    torch_for_cuda_13.setattr(model_spec, "_ASK", "print(12040, 0)")
    assert placed(EngineSettings("auto", "float32"), "embedded:target").device == "cpu"
    assert model_spec.cuda_fault.cache_info().misses == 0


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_the_environment_takes_torch_from_the_index_that_is_named(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)

    def said(*more):
        command = ["make", "-n", "-B", "env", *more]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        return [line for line in done.stdout.splitlines() if "^torch==" in line]

    (plain,), (named,) = said(), said("TORCH_INDEX=file:///wheels")
    assert "--index-url" not in plain
    assert "--force-reinstall --index-url file:///wheels " in named
