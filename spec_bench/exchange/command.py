"""``python -m spec_bench.report answers``: files in, an experiment and two definitions out."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from spec_bench.exchange.rates import Rates, Recount, rates
from spec_bench.exchange.read import AnswerFile, read_answers, read_categories
from spec_bench.exchange.rows import About, System, write_rows
from spec_bench.report.tables.render import markdown_table
from spec_bench.system import files

HEADS = (
    *("questions of", "number", "mean accepted tokens"),
    *(
        "speed-up, mean of per-question rates (Spec-Bench's, prefill included)",
        "speed-up, ratio of sums (ours, prefill included)",
    ),
)


def read_in(options: Namespace) -> None:
    """Reads the files, writes the experiment, prints every decoder's table.

    Raises:
        ValueError: a file cannot be used, or two would be the same row.
    """
    categories = read_categories(options.questions) if options.questions else None
    given = [System(path.stem, read_answers(path, categories)) for path in options.files]
    names = [system.decoder for system in given]
    if len(set(names)) < len(names) or "ar" in names:
        raise ValueError(f"files need names of their own, and none is 'ar', got {names}")
    base = read_answers(options.baseline, categories) if options.baseline else None
    systems = [System("ar", base), *given] if base else given
    table = files.results_file(options.results, options.name)
    about = About(options.harness, options.task, options.pair, options.temperature)
    write_rows(table, systems, about)
    print(f"rows: {table}")
    recount = tokenizer(options.tokenizer) if options.tokenizer else None
    for system in systems:
        if system.file.failed:
            print(f"{system.decoder}: left out as failed: {', '.join(system.file.failed)}")
    for system in given if base else ():
        assert base is not None
        print(f"\n### {system.decoder}\n\n{_table(system.file, base, recount)}")


def _table(file: AnswerFile, base: AnswerFile, recount: Recount | None) -> str:
    return markdown_table(list(HEADS), map(_line, rates(file, base, recount)), labels=1)


def _line(each: Rates) -> Sequence[str]:
    numbers = (each.tokens, each.theirs, each.ours)
    return [
        *(each.name, str(each.questions)),
        *("" if number is None else f"{number:.3f}" for number in numbers),
    ]


def tokenizer(path: Path) -> Recount:
    """Counts a text's tokens by a ``tokenizer.json`` as Spec-Bench does: all that it gives but one.

    Raises:
        ValueError: it is none.
    """
    from tokenizers import Tokenizer

    try:
        counter = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more specific
        raise ValueError(f"{str(path)!r} is no tokenizer: {error}") from error
    return lambda text: len(counter.encode(text).ids) - 1
