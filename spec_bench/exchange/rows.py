"""``python -m spec_bench.report answers``: answer files as rows and records of a results folder.

Tables, pages, intervals, categories and ``compare`` work on them as on ours. Their column
``harness`` keeps them apart from rows that this program measured.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spec_bench.exchange.read import AnswerFile, read_answers, read_categories
from spec_bench.metrics import CellRecords
from spec_bench.metrics.summary import summarise
from spec_bench.records import parquet
from spec_bench.records.types import ENGINE
from spec_bench.system import files
from spec_bench.vocabulary import columns

_WHOLE = (
    "token_rate: of whole requests, prefill included, as the harness times it; "
    "speedup: one after the other, not timed in turn"
)
_UNTIMED, _UNCOUNTED = ("draft_s", "target_s"), ("nodes_per_call", "host_overhead")
_IN_TURN = "speedup: as timed by this program, read from answer files"
_UNKNOWN = "; acceptance_rate: only the number of target calls is known"
_DEPTH = "; acceptance_rate: of trees as deep as the most tokens that a call accepted"


@dataclass(frozen=True)
class System:
    """A decoder's file."""

    decoder: str  # what its row is called; ``ar`` is the baseline
    file: AnswerFile


@dataclass(frozen=True)
class About:
    """What the files do not say."""

    harness: str  # whose they are
    task: str  # the questions' name
    pair: str = ""  # the models' name; "": as the first file names its model
    temperature: float = 0.0  # of the target's distribution


def read_in(options: Namespace) -> None:
    """Reads the command line's files and writes the experiment.

    Raises:
        ValueError: a file cannot be used, or two would be the same row.
    """
    categories = read_categories(options.questions) if options.questions else None
    given = [System(path.stem, read_answers(path, categories)) for path in options.files]
    names = [system.decoder for system in given]
    if len(set(names)) < len(names) or "ar" in names:
        raise ValueError(f"files need names of their own, and none is 'ar', got {names}")
    if options.baseline:
        given.insert(0, System("ar", read_answers(options.baseline, categories)))
    table = files.results_file(options.results, options.name)
    write_rows(
        table, given, About(options.harness, options.task, options.pair, options.temperature)
    )
    print(f"rows: {table}")
    for system in given:
        if system.file.failed:
            print(f"{system.decoder}: left out as failed: {', '.join(system.file.failed)}")


def write_rows(table: Path, systems: Sequence[System], about: About) -> None:
    """Writes ``results.csv`` and ``records.parquet`` of the baseline, if there is one, and the
    others; only questions that all of them answered count.

    Raises:
        ValueError: no question was answered by all.
    """
    asked = [[each.question for each in system.file.answers] for system in systems]
    common = [name for name in asked[0] if all(name in questions for questions in asked)]
    if not common:
        raise ValueError("no question was answered in all files")
    kept = set(common)
    done = [
        [each for each in system.file.generations("") if each.prompt_id in kept]
        for system in systems
    ]
    base = next((each for each, s in zip(done, systems, strict=True) if s.decoder == "ar"), None)
    rows, parts = [], []
    for system, generations in zip(systems, done, strict=True):
        lines = [[each.prompt_id, len(each.tokens), each.decode_s] for each in generations]
        run_id = files.digest([about.harness, about.task, system.decoder, system.file.model, lines])
        numbers = summarise(CellRecords(generations, base))
        facts = _facts(system, about, about.pair or systems[0].file.model, run_id)
        nothing = dict.fromkeys(_unknown(numbers, system.file))
        rows.append({**facts, **numbers, **nothing})
        parts.append(parquet.pack(run_id, generations, None))
    names = columns.ordered(name for row in rows for name in row)
    written = [{k: "" if v is None else v for k, v in row.items()} for row in rows]
    files.write_csv(table, written, names)
    parquet.write(files.records_file(table), parquet.joined(parts))


def _facts(system: System, about: About, pair: str, run_id: str) -> dict[str, Any]:
    """What the row is."""
    known = system.file.each_known
    plain = system.decoder == "ar"
    reason = _IN_TURN if system.file.split else _WHOLE
    more = _DEPTH if known else _UNKNOWN
    return {
        **{"pair": pair, "target": pair, "draft": "", "task": about.task},
        **{
            "decoder": system.decoder,
            "spec": "-",
            "temperature": about.temperature,
            "top_k": 0,
            "top_p": 1.0,
        },
        **{"seed": 0, "batch_size": 1, "tree_attention": "true", "harness": about.harness},
        **{"lossless": "", "status": "complete", "run_id": run_id, "baseline": ""},
        # Their times are this machine's or another's, but not an older engine's of ours.
        "engine": ENGINE,
        "reason": f"pair: answers of {system.file.model}; {reason}{'' if plain else more}",
    }


def _unknown(numbers: dict[str, Any], file: AnswerFile) -> list[str]:
    """Columns of what the files do not tell."""
    stems = _UNTIMED if file.split else (*_UNTIMED, "prefill_s")
    stems = (*stems, *_UNCOUNTED) if file.each_known else (*stems, *_UNCOUNTED, "acceptance_rate")
    return [name for name in numbers if name.startswith(stems)]
