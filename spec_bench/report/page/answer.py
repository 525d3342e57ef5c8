"""The conclusion of an experiment in a sentence, and the last lines of a report on a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

from spec_bench.report.data.counts import Records
from spec_bench.report.data.rows import Group, groups_of, read_results
from spec_bench.report.data.seeds import pooled
from spec_bench.report.page.headline import Headline, headline

_NAMED = 3  # decoders, tasks and counts that one sentence names
_OF_STAGES = ("stage ", "prompts ")


def sentences(table: Path, runs: Collection[str]) -> list[str]:
    """The last lines of the report on a results file, of the groups that some runs are in.

    Args:
        table: the results file.
        runs: run ids.
    """
    rows = pooled(read_results(table), Records(table))
    of_runs = rows.run_id.map(lambda ids: not {*runs}.isdisjoint(str(ids).split(",")))
    groups = [group for group in groups_of(rows) if of_runs[group.rows.index].any()]
    return [ids.sentence for ids in headlines(groups)]


def headlines(groups: Sequence[Group]) -> list[Headline]:
    """Those of the groups that have one."""
    return [line for group in groups if (line := headline(group))]


def answer(lines: Sequence[Headline]) -> str:
    """The conclusion of an experiment, in one sentence; "" where no group has a headline.

    Args:
        lines: its groups' headlines.
    """
    if len(lines) < 2:
        return "".join(each.sentence for each in lines)
    pairs = len({each.pair for each in lines}) > 1
    open_ones = {each.decoder for each in lines if not each.code}
    decoders = Counter(each.decoder for each in lines).most_common(_NAMED)
    decoders.sort(key=lambda each: each[0] in open_ones)
    uses = [
        _used(name, [each for each in lines if each.decoder == name], pairs) for name, _ in decoders
    ]
    rest = len(lines) - sum(count for _, count in decoders)
    uses += [f"others on {rest} more"] if rest else []
    text = f"{'' if decoders[0][0] in open_ones else 'use '}{'; '.join(uses)}"
    ties = sum(each.tied[0] > 1 for each in lines)
    tied = f" (tied with others on {ties} of {len(lines)})" if ties else ""
    return f"{text[0].upper()}{text[1:]}{tied}."


def _used(name: str, lines: Sequence[Headline], pairs: bool) -> str:
    """The tasks on which to use a decoder, with its gain."""
    titles = [
        f"{_short(each.task)} ({each.pair})" if pairs else _short(each.task) for each in lines
    ]
    tasks = Counter(title.partition(", ")[0] for title in titles)
    several = len(titles) > len(tasks)
    places = [f"{task} ({n} settings)" if n > 1 else task for task, n in tasks.items()]
    named = places if several else titles
    where = ", ".join(named[:_NAMED])
    where += f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    values = list(dict.fromkeys(each.value for each in sorted(lines, key=lambda each: each.value)))
    gain = (
        ""
        if lines[0].code in ("", "ar")
        else f": {' to '.join(dict.fromkeys((values[0], values[-1])))}"
    )
    return f"{name} on {where}{gain}"


def _short(title: str) -> str:
    """A group's title without the settings in which the stages of a search differ."""
    return ", ".join(each for each in title.split(", ") if not each.startswith(_OF_STAGES))
