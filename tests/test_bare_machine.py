"""The machine runs beside a bare torch and transformers: no settings library, no data frames."""

import subprocess
import sys

CODE = """
import importlib, pkgutil, sys

ABSENT = {"hydra", "omegaconf", "pydantic", "pandas", "jinja2", "wandb", "datasets", "matplotlib"}

sys.modules.update(dict.fromkeys(ABSENT))  # as if they were not installed
for layer in ("core", "engine", "draft", "tree", "verify", "decode"):
    package = importlib.import_module(f"spec_bench.{layer}")
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)

from spec_bench.decode.config import resolve_spec
from spec_bench.decode.config import read_decoder
chain = {
    "name": "sd",
    "drafter": {"kind": "language_model"},
    "tree": {"policy": "chain"},
    "verifier": {"rule": "recursive_rejection", "replacement": False},
}
print(read_decoder(resolve_spec(chain, 3)).spec)
"""


def test_all_of_the_machine_imports_and_reads_settings_without_them():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "3"
