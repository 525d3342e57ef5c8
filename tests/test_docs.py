"""READMEs and the manual: links lead somewhere, commands exist, each page begins with one."""

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas
import pytest

from tests.printed import BLOCK

ROOT = Path(__file__).resolve().parents[1]
MANUAL = sorted((ROOT / "docs").glob("*.md"))
FOLDERS = ("conf", "experiments", "spec_bench", "tests")
READMES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.md"))]
EXTENDING = (ROOT / "docs/extending.md").read_text("utf-8")
PAGES = [*MANUAL, *sorted(ROOT.glob("*.md")), *READMES]


def name_of(path):
    return str(path.relative_to(ROOT))


def prose(path):
    return BLOCK.sub("", path.read_text("utf-8"))


def headings(path):
    """As they stand behind a # in a link."""
    found = re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).strip().replace(" ", "-") for each in found}


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_links_lead_to_files_and_headings_that_are_there(path):
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(path)):
        if link.startswith("http"):
            continue
        place, _, heading = link.partition("#")
        target = path.parent / place if place else path
        assert target.exists(), link
        assert not heading or heading in headings(target), link
        assert target.suffix not in (".html", ".pdf", ".tex"), "not in git"


def test_the_rule_that_is_printed_is_one_that_an_installed_package_has():
    rule = ROOT / "tests/extension/more_decoders/first_only.py"
    assert rule.read_text("utf-8").strip() in EXTENDING


CHECK = """
from spec_bench.audit.catalogue import WARM, iter_audit_cases
from spec_bench.audit.decoders import enumerate_decoder_error

cases = [case for case in iter_audit_cases("exact") if case.name.startswith("fork 2x2")]
error, outcomes = enumerate_decoder_error(cases[0].config, WARM)
assert error < 1e-12 and outcomes > 100
from spec_bench.metrics.quality import compute_score_columns
columns, _ = compute_score_columns("shared_words", ["a", "b"] * 3, [["a c"], ["b"]] * 3)
assert columns["shared_words"].value == 0.75
"""


def test_the_policy_that_is_printed_is_lossless_and_the_score_scores():
    printed = "".join(re.findall(r"```python\n([^`]*@(?:policy|SCORES)\([^`]*)", EXTENDING))
    subprocess.run(
        [sys.executable, "-W", "error::FutureWarning", "-c", printed + CHECK], check=True
    )


def test_functions_and_classes_that_stand_beside_a_file_are_in_it():
    pattern = r"`(?:\w+\.)?(\w+)`,?\s\(?\[[\w/.]+\]\(([\w/]+\.py)\)"
    beside = re.findall(pattern, (ROOT / "spec_bench/README.md").read_text("utf-8"))
    assert len(beside) > 40
    for name, path in beside:
        code = (ROOT / "spec_bench" / path).read_text("utf-8")
        assert re.search(rf"(def|class) {name}\b", code), name


@functools.cache
def make_targets():
    """Names and patterns (``rsd-%``) of what make can make."""
    asked = ["make", "--print-data-base", "--question", "--no-builtin-rules", "help"]
    rules = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True).stdout
    return set(re.findall(r"^([\w%-]+):(?!=)", rules, re.MULTILINE))


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_scripts_and_make_targets_that_are_named_exist(path):
    text = path.read_text("utf-8")
    for script in re.findall(r"(?:python3? |`)(scripts/[\w/]+\.(?:py|sh))", text):
        assert (ROOT / script).is_file(), script
    for target in re.findall(r"(?:^|`)make ([a-z][\w-]*)", text, re.MULTILINE):
        assert {target, f"{target.partition('-')[0]}-%"} & make_targets(), target
    old = path.name != "CHANGELOG.md" and re.search(r"python -m spec_bench(?![\w.])", text)
    assert not old, "printed as the installed script"


def test_help_names_some_twenty_targets_and_all_of_them_exist():
    lines = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True).stdout
    named = re.findall(r"make ([a-z][\w-]*)", lines)
    assert len({*named}) <= 30 and "quickstart" in named
    assert {name for name in named if name not in make_targets()} <= {"rsd-exp1"}


@pytest.mark.parametrize("page", ["docs/results.md", "results/README.md"])
def test_the_lines_of_pandas_run_on_an_experiment_in_git(page, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    text = (ROOT / page).read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names = {"pandas": pandas}
    exec("".join(blocks).replace("NAME", "embedded/mcsd-ablation"), names)
    if "lines" in names:
        assert len(names["lines"]) == len(names["records"]) > 0
        assert {"decoder", "prompt_id", "step_accepted"} <= set(names["lines"])
        tau, mbsu, *ends = re.findall(r"[0-9.]+", capsys.readouterr().out)[:5]
        row = f"| RSD-S | 2x3 | {tau} | {mbsu} | 12.8 | {ends[0]} [{ends[1]}, {ends[2]}] |"
        assert row in (ROOT / "README.md").read_text("utf-8")
    else:
        table = pandas.read_csv("results/embedded/mcsd-ablation/results.csv").set_index("run_id")
        assert names["rates"].to_dict() == pytest.approx(table.token_rate.to_dict())


@pytest.mark.parametrize("path", MANUAL, ids=name_of)
def test_a_page_begins_with_its_command(path):
    lines = path.read_text("utf-8").splitlines()
    assert lines[0].startswith("# ") and lines[1] == ""
    assert lines[2].startswith("|" if path.name == "README.md" else "```")


def test_the_manuals_index_names_every_page():
    index = (ROOT / "docs/README.md").read_text("utf-8")
    assert {path.name for path in MANUAL} == {"README.md", *re.findall(r"\(([\w-]+\.md)\)", index)}


@pytest.mark.parametrize(("name", "most"), [("README.md", 110), ("conf/README.md", 40)])
def test_a_readme_stays_short(name, most):
    assert len((ROOT / name).read_text("utf-8").splitlines()) <= most


def test_the_readmes_lines_fit_a_screen():
    lines = (ROOT / "README.md").read_text("utf-8").splitlines()
    assert [line for line in lines if len(line) > 120] == []


def test_the_readmes_table_has_rows_of_the_committed_ones():
    text = (ROOT / "README.md").read_text("utf-8")
    rows = pandas.read_csv(ROOT / "results/qwen_coder/results.csv")
    wanted = []
    for row in rows.itertuples():
        speed = f"{row.speedup:.2f}"
        if row.decoder != "ar":
            speed += f" [{row.speedup_low:.2f}, {row.speedup_high:.2f}]"
        numbers = f"{row.block_efficiency:.2f} | {row.mbsu:.2f} | {row.token_rate:.1f} | {speed}"
        wanted.append(f"{row.spec} | {numbers} |")
    found = [line.split(" | ", 1)[1] for line in text.splitlines() if line.count(" | ") == 5]
    shown = {line for line in found if line[-3].isdigit() or "]" in line}
    assert len(shown) == 6 and shown <= {*wanted}


def test_every_message_that_the_faq_explains_is_one_that_the_code_says():
    said = "".join(path.read_text("utf-8") for path in (ROOT / "spec_bench").rglob("*.py"))
    said = re.sub(r'"\s*\n\s*f?"', "", said)  # texts over several lines
    page = (ROOT / "docs/faq.md").read_text("utf-8")
    messages = re.findall(r"^\| `(.*?)` \|", page, re.MULTILINE)
    parts = [part.strip() for message in messages for part in message.split("...")]
    assert len(messages) == 5
    assert [part for part in parts if part not in said] == []


def test_the_environment_is_entered_before_the_first_command_that_needs_it():
    enter = "source .venv/bin/activate"
    readme = (ROOT / "README.md").read_text("utf-8")
    assert readme.index(enter) < readme.index("\nspec-bench ")
    assert enter in (ROOT / "docs/README.md").read_text("utf-8")
    told = ["make", "--no-print-directory", "--dry-run", "quickstart"]
    made = subprocess.run(told, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    script = (ROOT / "scripts/family/smollm2.py").read_text("utf-8")
    for last in (made.strip().splitlines()[-1], script.split("print(")[-1]):
        assert enter in last and "spec-bench " in last


@pytest.fixture
def checkout(tmp_path):
    """A copy to break."""
    left_out = (".git", ".venv", "outputs", "runs", "*.safetensors", "*.parquet", "__pycache__")
    ignore = shutil.ignore_patterns(*left_out)
    return shutil.copytree(ROOT, tmp_path / "checkout", ignore=ignore)


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("mkdocs"), reason="the site needs mkdocs")
def test_the_site_is_built_from_the_pages_loads_nothing_from_elsewhere_and_has_no_broken_link(
    checkout,
):
    command = [sys.executable, "-m", "mkdocs", "build", "-f", "scripts/docs/mkdocs.yml"]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    how = {"cwd": checkout, "capture_output": True, "text": True, "env": env}
    done = subprocess.run(command, **how)
    assert done.returncode == 0, done.stderr
    site = checkout / "outputs/docs/site"
    pages = {path.stem for path in (site / "docs").glob("*.html")}
    assert {path.stem for path in MANUAL} - {"README"} <= pages
    text = "".join(path.read_text("utf-8") for path in site.rglob("*.html"))
    assert "spec_bench.api.pairs.load_pair" in text
    assert not re.search(r"<(?:script|link|img)[^>]*(?:src|href)=\W?https?:", text)
    (checkout / "docs/faq.md").write_text("# Why?\n\n[Because](decoders.md#of-that).\n")
    broken = subprocess.run(command, **how)
    assert broken.returncode and "#of-that" in broken.stderr
