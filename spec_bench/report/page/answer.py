"""The conclusion of an experiment in a sentence, and the last lines of a report on a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

from spec_bench.report.data.counts import Records
from spec_bench.report.data.rows import Group, groups_of, read_results
from spec_bench.report.data.seeds import pooled
from spec_bench.report.page.headline import CLOSE, Headline, headline

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
    decoders = Counter(each.decoder for each in lines).most_common(_NAMED)
    uses = [
        _used(name, [each for each in lines if each.decoder == name], pairs) for name, _ in decoders
    ]
    rest = len(lines) - sum(count for _, count in decoders)
    uses += [f"another one on {rest} more"] if rest else []
    tied = [f"{n} of {of}" for n, of in dict.fromkeys(each.tied for each in lines) if n > 1]
    text = f"Use {'; '.join(uses)}"
    if not tied:
        return f"{text}."
    some = f"{', '.join(tied[:_NAMED])}{' and more' if len(tied) > _NAMED else ''}"
    simplest = f"named is the simplest within {CLOSE:.0%} of the best"
    return f"{text} (ties: {some} cells are not told apart; {simplest})."


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
    gain = "" if name == "AR" else f": {' to '.join(dict.fromkeys((values[0], values[-1])))}"
    return f"{name} on {where}{gain}"


def _short(title: str) -> str:
    """A group's title without the settings in which the stages of a search differ."""
    return ", ".join(each for each in title.split(", ") if not each.startswith(_OF_STAGES))
