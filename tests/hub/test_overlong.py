"""A prompt that is too long for a model on the hub is refused before its weights are asked for."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.hub.commands import ROOT
from tests.hub.server import serving
from tests.jobs.tiny import make_family
from tests.said import naming


@pytest.mark.slow
def test_a_long_article_is_refused_by_tokenizer_and_configs_of_a_hub_without_weights(tmp_path):
    make_family(tmp_path / "family")
    for name in ("target", "draft"):
        to = tmp_path / "hub" / "models" / "someone" / name
        shutil.copytree(tmp_path / "family" / name, to)
        (to / "model.safetensors").unlink()
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"id": "7", "document": "rain " * 400, "summary": "rain"}) + "\n")
    with serving(tmp_path / "hub") as url:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        hub = {"HF_ENDPOINT": url, "HF_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
        words = ["pair.target=someone/target", "pair.draft=someone/draft", "task=xsum", "spec=4x3",
                 "task.source.kind=local", f"task.source.path={rows}"]  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-m", "spec_bench", *words],
            env={**kept, **hub, "OMP_NUM_THREADS": "1"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    assert done.returncode == 2, done.stderr
    said = naming("'7'", "someone/", 256, "task.overlong=skip", "task.overlong=truncate")

    assert re.search(said, done.stderr.splitlines()[-1])
