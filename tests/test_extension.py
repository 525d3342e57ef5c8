"""A package of another author, not installed: all it adds runs; none of our files knows of it."""

import csv
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests import warm

HERE = Path(__file__).resolve().parent / "extension"
OURS = HERE.parents[1]
KINDS = {".py", ".yaml", ".jsonl", ".csv", ".toml"}
ENTRY_POINTS = ("rules", "policies", "drafters", "metrics", "configs", "sinks", "meters")
DECODERS = ["ar", "sd", "comb", "comb_first", "bigram"]

AUDIT = """
from spec_bench.audit.catalogue import WARM, iter_audit_cases
from spec_bench.audit.decoders import enumerate_decoder_error
from spec_bench.audit.rules import TOLERANCE, enumerate_rule_error, iter_rule_cases
from spec_bench.tree.base import policy
from spec_bench.verify.base import rule
from spec_bench.verify.walk import Verdict
from tests.tree import laws
from tests.tree.definitions import DEFINITIONS

assert {*policy} == {*DEFINITIONS}
(tree,) = policy["comb"].audit_cases()
defined = laws.defined(DEFINITIONS["comb"], tree, WARM)
assert len(defined) > 10
assert laws.distance(laws.grown(tree, WARM), defined) <= TOLERANCE

def residual_of_nothing(p, q, tokens, valid):
    return Verdict(rule["first_only"].function(p, q, tokens, valid).acceptance, p)

rule("first_only_wrong", siblings=("iid", "without_replacement"))(residual_of_nothing)
own = [case for case in iter_rule_cases() if "first_only" in case.name]
errors = {case.name: enumerate_rule_error(case).largest for case in own}
right = {name: error for name, error in errors.items() if "wrong" not in name}
wrong = {name: error for name, error in errors.items() if "wrong" in name}
assert len(right) == len(wrong) == 2, errors
assert max(right.values()) <= TOLERANCE, right
assert min(wrong.values()) > 1e-3, wrong

found = [case for case in iter_audit_cases("exact") if "comb 2x2" in case.name]
for drafter in ("", "bigram: "):
    own = [case for case in found if case.name.startswith(drafter + "comb")]
    for rule_said in ("recursive_rejection", "first_only", "first_only_wrong"):
        (case,) = [case for case in own if case.config.verifier.name == rule_said]
        error, outcomes = enumerate_decoder_error(case.config, WARM)
        assert outcomes > 10
        assert (error <= TOLERANCE) == ("wrong" not in rule_said), (case.name, error)
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A machine on which the package is installed."""
    project = tomllib.loads((HERE / "pyproject.toml").read_text("utf-8"))["project"]
    site = tmp_path_factory.mktemp("site")
    info = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    about = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(about)
    groups = project["entry-points"].items()
    lines = [[f"[{group}]", *(f"{k} = {v}" for k, v in own.items())] for group, own in groups]
    (info / "entry_points.txt").write_text("\n".join(line for own in lines for line in own) + "\n")
    paths = [OURS, HERE, site, *filter(None, [os.environ.get("PYTHONPATH")])]
    threads = {"OMP_NUM_THREADS": "1"}
    return {**os.environ, **threads, "PYTHONPATH": os.pathsep.join(map(str, paths))}


def test_its_guide_names_every_file_and_every_kind_of_entry_point():
    guide = (HERE / "README.md").read_text("utf-8")
    linked = set(re.findall(r"\]\(([^)#]+)\)", guide))
    assert all((HERE / each).exists() for each in linked)
    own = {path.relative_to(HERE).as_posix() for path in HERE.rglob("*") if path.suffix in KINDS}
    assert own <= linked
    sources = "".join(path.read_text("utf-8") for path in (OURS / "spec_bench").rglob("*.py"))
    for name in (f"spec_bench.{kind}" for kind in ENTRY_POINTS):
        assert f'"{name}"' in sources and f"`{name}`" in guide


@pytest.fixture(scope="module")
def measured(environment, tmp_path_factory):
    """The paper's recipe on the package's task, with the embedded pair."""
    folder = tmp_path_factory.mktemp("measured")
    job = ("comb=teeth", "task=riddles", "prompts=5", "sink.progress=false")
    status, _, said = warm.Command("spec_bench", job, folder, environment).finish()
    assert status == 0, said
    return folder


def test_policy_rule_drafter_task_and_metric_fill_rows(measured):
    with (measured / "results/comb-teeth/results.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["decoder"] for row in rows] == DECODERS
    for row in rows:
        assert (row["task"], row["status"], row["lossless"]) == ("riddles", "complete", "exact")
        low, value, high = (row[f"wasted_nodes{end}"] for end in ("_low", "", "_high"))
        nodes, tau = float(row["nodes_per_call"]), float(row["block_efficiency"])
        assert float(value) == pytest.approx(nodes - (tau - 1))
        if row["decoder"] == "ar":  # prompts do not differ, and nothing says how far they could
            assert (low, high) == ("", "")
        else:
            assert float(low) <= float(value) <= float(high)
    assert {row["decoder"]: row["draft"] for row in rows}["bigram"] == ""
    assert {row["decoder"]: row["spec"] for row in rows}["comb"] == "3x3"


def test_its_papers_table_figure_claim_and_page_are_made(environment, measured):
    requests = (
        *("list comb", "table comb/1 --pair embedded", "figure comb/1 --out drawn"),
        *("checks comb", "page comb-teeth"),
    )
    calls = "; ".join(f"assert main({request.split()!r}) in (0, None)" for request in requests)
    code = f"from tests.commands import report as main; {calls}"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=measured, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    claim = "comb > sd in block efficiency, trees of one depth"
    for part in ("| riddles | SD | 3 | 1.90 |", claim, "| Comb | 3x3 |"):
        assert part in done.stdout
    assert sorted(path.suffix for path in (measured / "drawn").iterdir()) == [".pdf", ".png"]
    page = (measured / "results" / "comb-teeth" / "page.html").read_text("utf-8")
    shown = ("Comb, first child", "--comb_first: #009E73;", "wasted nodes", "Teeth never hurt.")
    assert all(part in page for part in shown)


def test_its_rule_is_audited_and_a_wrong_version_is_caught(environment, tmp_path):
    (tmp_path / "audit_of_first_only.py").write_text(AUDIT, encoding="utf-8")
    path = {"PYTHONPATH": os.pathsep.join([str(tmp_path), environment["PYTHONPATH"]])}
    audit = warm.Command("audit_of_first_only", [], tmp_path, environment | path)
    status, _, said = audit.finish()
    assert status == 0, said


@pytest.mark.slow
def test_a_wheel_of_it_holds_its_configs_its_rows_and_its_paper(tmp_path):
    shutil.copytree(HERE, tmp_path / "source")
    built = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    done = subprocess.run([*built, "-w", ".", "./source"], cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stderr
    with ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
    package = (path for path in (HERE / "more_decoders").rglob("*") if path.suffix in KINDS)
    assert {path.relative_to(HERE).as_posix() for path in package} <= names
