"""A sweep that was killed and resumed gives the report of an undisturbed one."""

import csv
import io
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest

from spec_bench.report.cli.command_line import main as report
from spec_bench.vocabulary import columns
from tests.jobs.test_command_line import main
from tests.warm import Command

TASKS, CELLS, PROMPTS = 2, 33, 2
SWEEP = (
    *("-m", "rsd=exp1", "pair=embedded", "task=xsum,wmt18_deen", "results=results"),
    *(f"prompts={PROMPTS}", "warmup=0", "generation.max_new_tokens=6"),
    *("sink=quiet", "engine.threads=1"),
)
TIMED = columns.of_kind("time", "energy")
TIMES = tuple(text for each in TIMED for text in (each.title, each.name.replace("_", " ")))


class Tables(HTMLParser):
    """Tables of a page as rows of texts, a heading over several columns once for each.

    Without the summary of verdicts, which counts those about times too.
    """

    def __init__(self):
        super().__init__()
        self.rows = []
        self._span = 1
        self._summary = False

    def handle_starttag(self, tag, attrs):
        if tag == "table":
            self._summary = dict(attrs).get("class") == "summary"
        elif self._summary:
            return
        elif tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self._span = int(dict(attrs).get("colspan") or 1)
            self.rows[-1] += [""] * self._span

    def handle_data(self, data):
        if self.rows and self.rows[-1] and not self._summary:
            self.rows[-1][-self._span :] = [text + data for text in self.rows[-1][-self._span :]]

    def handle_endtag(self, tag):
        if tag == "table":
            self.rows.append([])


def killed_in_the_middle(folder):
    """Starts the sweep in a process of its own, kills it -9; the prompts it had finished."""
    folder.mkdir()
    process = Command("spec_bench", SWEEP, folder)
    try:
        deadline = time.monotonic() + 240
        while finished(folder) < TASKS * CELLS * PROMPTS // 3:
            assert process.poll() is None, "it ended before it could be killed"
            assert time.monotonic() < deadline, "it never came so far"
            time.sleep(0.02)
    finally:
        process.kill()
    return finished(folder)


def finished(folder):
    """Whole lines of all records."""
    files = folder.glob("results/runs/*/generations.jsonl")
    return sum(path.read_bytes().count(b"\n") for path in files)


def texts(folder, monkeypatch):
    """What the report writes, by file name."""
    monkeypatch.chdir(folder)
    suffixes = {"markdown": "md", "csv": "csv", "html": "html"}
    for number in (1, 2):
        for form, suffix in suffixes.items():
            name = ["table", f"rsd/{number}", "--pair", "embedded", "--format", form]
            assert report([*name, "--output", f"report/rsd-{number}.{suffix}"]) == 0
    assert report(["page", "rsd-exp1", "--output", "report/page.html"]) == 0
    return {path.name: path.read_text() for path in sorted(Path("report").iterdir())}


def without_times(rows):
    """Rows without columns that measure time or claims about it; a blank row ends a table."""
    kept, timed, head = [], set(), True
    for row in rows:
        if head:
            timed = {i for i, text in enumerate(row) if text.replace("_", " ").startswith(TIMES)}
        head = not row
        if not any(f"in {name}" in text for text in row[:1] for name in TIMES):
            kept.append([text for i, text in enumerate(row) if i not in timed])
    return kept


def comparable(name, text):
    """A report's tables without times."""
    if name.endswith("csv"):
        return without_times(list(csv.reader(io.StringIO(text))))
    if name.endswith("md"):
        return without_times([line.split(" | ") for line in text.splitlines() if "|" in line])
    parser = Tables()
    parser.feed(text)
    return without_times(parser.rows)


@pytest.mark.slow
def test_a_sweep_that_was_killed_and_resumed_gives_the_same_report(tmp_path, monkeypatch):
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    before = killed_in_the_middle(killed)
    assert 0 < before < TASKS * CELLS * PROMPTS
    for folder in (killed, whole):
        folder.mkdir(exist_ok=True)
        monkeypatch.chdir(folder)
        assert main(monkeypatch, *SWEEP) == 0
        # A prompt that the kill left to one of cell and baseline alone is timed for both again.
        assert TASKS * CELLS * PROMPTS <= finished(folder) <= TASKS * CELLS * PROMPTS + 2 * CELLS
    ours, theirs = texts(killed, monkeypatch), texts(whole, monkeypatch)
    assert list(ours) == list(theirs)
    for name, text in ours.items():
        rows = comparable(name, text)
        assert len(rows) > CELLS and max(len(row) for row in rows) > 4
        assert rows == comparable(name, theirs[name]), name
    assert "None: every cell of the recipe is measured" in ours["page.html"]
