"""The true-size speed table, rehearsed on tiny models; its imports stay within torch's world."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "gpu_random_pair.py"
REFUSE = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"hydra", "omegaconf", "sacrebleu", "rouge_score"}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Refuse())
sys.argv = sys.argv[1:]
import runpy

runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
def test_the_33_rows_of_a_table_run_without_hydra_and_stand_beside_the_papers(
    tmp_path: Path,
) -> None:
    output = tmp_path / "table.csv"
    command = [sys.executable, "-c", REFUSE, str(SCRIPT), "--tiny", "--new-tokens", "64"]
    done = subprocess.run(
        [*command, "--output", str(output)], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    with output.open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 33
    assert [row["lossless"] for row in rows] == ["exact", *["simulated"] * 32]
    assert rows[0]["paper_token_rate_a100"] == "37.269"
    assert float(rows[0]["speedup"]) == float(rows[0]["block_efficiency"]) == 1
    ours = sum(float(row["block_efficiency"]) for row in rows)
    papers = sum(float(row["paper_block_efficiency"]) for row in rows)
    # 33 rows of some 20 calls each: the sum's standard deviation is below 2 percent.
    assert ours == pytest.approx(papers, rel=0.08)
