"""The golden net: what the package must go on printing, drawing and decoding.

Kinds, each a dictionary of values by name:

* ``files``: the tables that ``report all`` writes for the committed experiments; held against the
  committed files, byte by byte
* ``pixels``: the figures it draws, against the committed PNGs (mean absolute difference)
* ``figures``: the data, labels, limits, ticks and legends of every figure, of ``report all`` and of
  ``report figure`` for each figure there is
* ``checks``: claims, places, evidence and verdicts of each paper and experiment
* ``run_ids``: of composed jobs over all groups of settings and all recipes
* ``tokens``: tokens, accepted counts and repeatable columns of every decoder on the embedded pair

It goes through the command lines and the files they write, so that it outlives what is inside;
only ``run_ids`` needs a function (see ``cells``). What is recorded lies in ``data``. ``check.py``
checks and records; a wanted difference is recorded again, with its reason in the commit message.

Tokens, counts and ids are pinned as they are. Numbers that hang on the last digits of a float32
pass (``_OF_PASSES``) have room for another processor's matrix products, or another library's. Such
products may tip a near tie between two tokens, too; of those recorded none was seen to.
"""

import functools
import gzip
import json
import math
from pathlib import Path

from . import cells, figures, report
from .workspace import COMMITTED, run

DATA = Path(__file__).resolve().parent / "data"
_CLOSE = 1e-7  # relative: a sum in another order is no difference
# A logit of some 20 in float32 is known to about 1e-5, so a mean log-probability is, and perplexity
# relatively; 5e-7 was seen between processors. Tables print its second digit.
_OF_PASSES = {"perplexity": 1e-4, "perplexity_by_prompt": 1e-4}


@functools.cache
def _drawn():
    """All that one run of everything gives: written tables and figures."""
    here = Path.cwd()
    report.remove_written()
    with figures.watched(here) as seen:
        report.write_all()
        report.write_quickstart()
        files = report.written()
        found = {
            str(path): figures.pixel_difference(path, committed)
            for path in sorted(Path("results").rglob("*.png"))
            if (committed := COMMITTED.parent / path).is_file()
        }
        for name in report.items("figure"):
            if refused := draw_figure(name):
                seen[name] = refused
    return {"files": files, "pixels": found, "figures": seen}


def draw_figure(name):
    """Draws a figure of a paper from the embedded pair's rows; why it cannot be drawn, or ""."""
    folder = f"drawn/{name.replace('/', '-')}"
    said = run(*report.REPORT, "figure", name, "--results", report.MEASURED, "--out", folder)
    return said.err if said.status else ""


KINDS = {
    "files": lambda: _drawn()["files"],
    "pixels": lambda: _drawn()["pixels"],
    "figures": lambda: _drawn()["figures"],
    "checks": report.checks,
    "run_ids": lambda: cells.run_ids(cells.COMMANDS),
    "tokens": cells.all_decoded,
}
"""Each kind's values."""

COMMITTED_KINDS = ("files", "pixels")  # held against the committed results, not against records
PACKED = ("checks", "figures", "tokens")  # compressed: they are long and nobody reads them


def expected(kind):
    if kind == "files":
        return {
            str(path.relative_to(COMMITTED.parent)): path.read_text("utf-8")
            for path in sorted((COMMITTED / "embedded").rglob("*"))
            if path.suffix in (".md", ".csv")
        }
    if kind == "pixels":
        return {
            str(path.relative_to(COMMITTED.parent)): 0.0
            for folder in ("embedded", "quickstart")
            for path in sorted((COMMITTED / folder).rglob("*.png"))
        }
    if kind in PACKED:
        return dict(json.loads(gzip.decompress((DATA / f"{kind}.json.gz").read_bytes())))
    return dict(json.loads((DATA / f"{kind}.json").read_text("utf-8")))


def save(kind, values, folder):
    """Writes a kind's records, the same values to the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    if kind in PACKED:
        path = folder / f"{kind}.json.gz"
        text = json.dumps(values, sort_keys=True, separators=(",", ":"))
        path.write_bytes(gzip.compress(text.encode(), mtime=0))
    else:
        path = folder / f"{kind}.json"
        path.write_text(json.dumps(values, indent=0, sort_keys=True) + "\n", encoding="utf-8")
    return path


def differing(kind, wanted, found):
    """The names of the values that differ or that are no longer there."""

    def same(one, other):
        if kind == "pixels":
            return other <= figures.PIXEL_TOLERANCE
        return next(differences(one, other), None) is None

    return [name for name in wanted if name not in found or not same(wanted[name], found[name])]


def differences(wanted, found, where=""):
    """Where two values differ, a line each."""
    column, _, place = where.rpartition(".")[2].partition("[")
    if column in _OF_PASSES and not place:
        wanted, found = _numbers(wanted), _numbers(found)
    if isinstance(wanted, dict) and isinstance(found, dict):
        for key in sorted({*wanted, *found}):
            yield from differences(wanted.get(key), found.get(key), f"{where}.{key}")
    elif isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        for index, (one, other) in enumerate(zip(wanted, found, strict=True)):
            yield from differences(one, other, f"{where}[{index}]")
    elif isinstance(wanted, float | int) and isinstance(found, float | int):
        close = _OF_PASSES.get(column, _CLOSE)
        if not math.isclose(wanted, found, rel_tol=close, abs_tol=close):
            yield f"{where or 'value'}: {wanted!r} -> {found!r}"
    elif wanted != found:
        yield f"{where or 'value'}: {_cut(wanted)} -> {_cut(found)}"


def _numbers(value):
    """A list of numbers by depth as it stands in a cell, or the value itself."""
    return json.loads(value) if isinstance(value, str) and value.startswith("[") else value


def _cut(value):
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}..."
