"""The true-size speed tables, rehearsed on tiny models; their imports stay within torch's world."""

import csv
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.gpu.random_pair import constant_acceptance
from tests.said import naming

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "gpu" / "random_pair.py"
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

# What transformers asks for, and does without, must look as if it were not installed.
HIDE = """
import sys

class Hide:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"rich", "pandas"}:
            return None
        return self.finder.find_spec(name, path, target)

sys.meta_path[:] = [Hide(finder) for finder in sys.meta_path]
"""


def rows_of(folder, *arguments):
    """The CSV's rows and what was printed, in a world without hydra, rich and pandas."""
    output = folder / "table.csv"
    command = [sys.executable, "-c", HIDE + REFUSE, str(SCRIPT), "--tiny", "--output", str(output)]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    with output.open() as stream:
        return list(csv.DictReader(stream)), done.stdout


@pytest.mark.slow
def test_the_33_rows_of_each_table_run_without_hydra_and_stand_beside_the_papers_and_the_memory(
    tmp_path,
):
    rows, printed = rows_of(tmp_path, "--new-tokens", "64")
    assert len(rows) == 66
    llama, opt = rows[:33], rows[33:]
    assert [row["lossless"] for row in llama] == ["exact", *["simulated"] * 32]
    assert {(row["target"], row["table"]) for row in llama} == {("random:llama_tiny", "1")}
    assert {(row["target"], row["table"]) for row in opt} == {("random:opt_tiny", "16")}
    assert (llama[0]["paper_token_rate_a100"], opt[0]["paper_token_rate_a100"]) == (
        "37.269",
        "42.367",
    )
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
    rows, printed = rows_of(tmp_path, "--targets", "opt_66b", "--memory-gib", "1")
    assert rows == [
        {
            "target": "random:opt_66b",
            "draft": "random:opt_125m",
            "status": "failed",
            "reason": "245.3 GiB of weights do not fit into 1.0 GiB",
        }
    ]
    assert "random:opt_66b with random:opt_125m: 245.3 GiB of weights" in printed


def test_a_target_without_a_published_table_needs_one_named(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))  # the script adds to it
    script = runpy.run_path(str(SCRIPT))
    with pytest.raises(ValueError, match=naming("'vicuna_7b'", "--draft", "--table")):
        script["run"](script["parse"](["--tiny", "--targets", "vicuna_7b"]))
    named = script["parse"](["--tiny", "--draft", "llama_68m", "--table", "7"])
    options = script["pair_options"](named, "vicuna_7b")
    assert (options.target, options.draft, options.table) == ("vicuna_7b", "llama_68m", 7)


@pytest.mark.parametrize("depth", [1, 2, 5, 30])
def test_the_acceptance_of_a_block_efficiency_inverts_the_geometric_sum(depth):
    for acceptance in (0.0, 0.37, 0.9, 1.0):
        tau = sum(acceptance**level for level in range(depth + 1))
        assert constant_acceptance(tau, depth) == pytest.approx(acceptance, abs=1e-12)


@pytest.mark.parametrize(("tau", "depth"), [(0.9, 3), (4.1, 3), (1.0, 0)])
def test_a_block_efficiency_that_no_acceptance_gives_is_refused(tau, depth):
    with pytest.raises(ValueError, match=f"depth {depth} has a block efficiency between 1 and"):
        constant_acceptance(tau, depth)
