"""What the report prints and writes about the committed experiments, as texts by name."""

import functools
import html
import re
import shutil
from pathlib import Path

from .workspace import must, run

REPORT = "spec_bench.report"
FORMATS = ("markdown", "csv", "latex", "html")
MEASURED = "results/embedded"
STATES = {"unmeasured": ("--results", "nothing")}
STATES["measured"] = ("--results", MEASURED, "--pair", "embedded")
_ITEM = re.compile(r"^\s+(table|figure) (\S+/\d+)\s", re.MULTILINE)
_MARKUP = re.compile(r"<(style|script)\b.*?</\1>|<!--.*?-->|<[^>]*>", re.DOTALL)
_STYLE = re.compile(r"<style>.*?</style>", re.DOTALL)
_QUOTES = {"&#39;": "&#x27;", "&#34;": "&quot;"}
_ROWS = ("results.csv", "screening.csv")
_WRITTEN = (".md", ".csv")
_MADE = (*_WRITTEN, ".tex", ".html", ".png", ".pdf")


@functools.cache
def items(kind):
    """Every table or figure that the report lists, as ``rsd/7``."""
    listed = _ITEM.findall(must(REPORT, "list", "--results", "nothing"))
    return tuple(name for found, name in listed if found == kind)


def papers():
    """The papers of the listed figures and tables."""
    return sorted({name.partition("/")[0] for name in (*items("table"), *items("figure"))})


def printed_names():
    """Every text of ``printed``: tables in all formats without and with measurements, lists."""
    tables = [f"{n} {f} {s}" for n in items("table") for f in FORMATS for s in STATES]
    lists = [f"list {paper} {state}" for paper in papers() for state in STATES]
    return [*tables, *lists, "quickstart markdown measured"]


def printed(names):
    """The texts of these names."""
    found = {}
    for name in names:
        first, second, state = name.split(" ")
        if first == "list":
            found[name] = must(REPORT, "list", second, *STATES[state][:2])
        elif first == "quickstart":  # the committed table was made from records, too
            must(REPORT, "results/quickstart/results.csv")
            found[name] = Path("results/quickstart/table.md").read_text(encoding="utf-8")
        else:
            text = must(REPORT, "table", first, "--format", second, *STATES[state])
            found[name] = _plain(text) if second == "html" else text
    return found


def _plain(text):
    """HTML without style sheet and blank lines, quotation marks escaped in one of the two ways."""
    text = _STYLE.sub("", text)
    for one, other in _QUOTES.items():
        text = text.replace(one, other)
    return "\n".join(line for line in text.splitlines() if line.strip())


def write_all(names=()):
    """Everything that ``report all`` writes, into this folder's results."""
    must(REPORT, "all", *names, "--results", MEASURED)


def write_quickstart():
    """The plain table, figure and page of the quickstart."""
    must(REPORT, "results/quickstart/results.csv")
    must(REPORT, "page", "quickstart", "--results", "results")


def written():
    """The papers' tables that lie below ``results`` now, by path."""
    paths = sorted(path for path in Path(MEASURED).rglob("*") if path.suffix in _WRITTEN)
    return {str(path): path.read_text(encoding="utf-8") for path in paths}


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
    found = {paper: _claims("checks", paper, "--results", MEASURED) for paper in papers()}
    for folder in sorted(path.parent for path in Path(MEASURED).glob("*/results.csv")):
        alone = Path("alone")
        shutil.rmtree(alone, ignore_errors=True)
        shutil.copytree(folder, alone / folder.name)
        paper = folder.name.partition("-")[0]
        if paper in papers():
            found[folder.name] = _claims("checks", paper, "--results", str(alone))
    found["quickstart"] = _claims("results/quickstart/results.csv")
    return found


def _claims(*arguments):
    said = run(REPORT, *arguments)
    lines = [re.sub(r"\s{2,}", " | ", line.strip()) for line in said.out.splitlines()]
    # Sorted: which check stands first is the report's choice.
    shown = sorted(line for line in (*lines, *said.err.splitlines()) if line)
    return [f"status {said.status}", *shown]


def pages():
    """What lies below ``results`` now and is not in git: each page's visible text, and LaTeX."""
    found = {str(path): _visible(path) for path in sorted(Path("results").rglob("*.html"))}
    latex = {str(path): path.read_text(encoding="utf-8") for path in Path("results").rglob("*.tex")}
    return found | dict(sorted(latex.items()))


def _visible(path):
    text = html.unescape(_MARKUP.sub("\n", path.read_text(encoding="utf-8")))
    return "\n".join(line.strip() for line in text.splitlines() if line.strip()) + "\n"
