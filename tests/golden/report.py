"""What the report prints and writes about the committed experiments, as texts by name."""

import functools
import re
import shutil
from pathlib import Path

from .workspace import must, run

REPORT = "spec_bench", "report"
MEASURED = "results/embedded"
_ITEM = re.compile(r"^\s+(table|figure) (\S+/\d+)\s", re.MULTILINE)
_ROWS = ("results.csv", "screening.csv")
_WRITTEN = (".md", ".csv")
_MADE = (*_WRITTEN, ".tex", ".html", ".png", ".pdf")


@functools.cache
def items(kind):
    """Every table or figure that the report lists, as ``rsd/7``."""
    listed = _ITEM.findall(must(*REPORT, "list", "--results", "nothing"))
    return tuple(name for found, name in listed if found == kind)


def papers():
    return sorted({name.partition("/")[0] for name in (*items("table"), *items("figure"))})


def write_all(names=()):
    """Everything that ``report all`` writes, into this folder's results."""
    must(*REPORT, "all", *names, "--results", MEASURED)


def write_quickstart():
    """The plain table, figure and page of the quickstart."""
    must(*REPORT, "results/quickstart/results.csv")
    must(*REPORT, "page", "quickstart", "--results", "results")


def written():
    """The papers' tables that lie below ``results`` now, by path."""
    paths = sorted(path for path in Path(MEASURED).rglob("*") if path.suffix in _WRITTEN)
    return {str(path): path.read_text("utf-8") for path in paths}


def remove_written():
    """Removes the tables, figures and pages, so that what lies there afterwards is new."""
    for path in Path("results").rglob("*"):
        data = path.name in _ROWS or path.parent.name in ("rsd-fig1", "redrafter-heads")
        if path.suffix in _MADE and not data:
            path.unlink()


def checks():
    """Claims with place, evidence and verdict, of each paper, each experiment and the quickstart.

    One line per claim, its columns separated by ``|``.
    """
    found = {paper: _claims("check", "claims", paper, "--results", MEASURED) for paper in papers()}
    for folder in sorted(path.parent for path in Path(MEASURED).glob("*/results.csv")):
        alone = Path("alone")
        shutil.rmtree(alone, ignore_errors=True)
        shutil.copytree(folder, alone / folder.name)
        paper = folder.name.partition("-")[0]
        if paper in papers():
            found[folder.name] = _claims("check", "claims", paper, "--results", str(alone))
    found["quickstart"] = _claims("report", "results/quickstart/results.csv")
    return found


def _claims(*arguments):
    said = run("spec_bench", *arguments)
    lines = [re.sub(r"\s{2,}", " | ", line.strip()) for line in said.out.splitlines()]
    # Sorted: which check stands first is the report's choice.
    shown = sorted(line for line in (*lines, *said.err.splitlines()) if line)
    return [f"status {said.status}", *shown]
