"""What an experiment comes to, in a sentence, and what a report on a table ends with."""

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
    """What the report on a results file ends with, of the groups that some runs are in.

    Args:
        table: the results file.
        runs: run ids.
    """
    rows = pooled(read_results(table), Records(table))
    own = rows.run_id.map(lambda found: not {*runs}.isdisjoint(str(found).split(",")))
    groups = [group for group in groups_of(rows) if own[group.rows.index].any()]
    return [found.sentence for found in headlines(groups)]


def headlines(groups: Sequence[Group]) -> list[Headline]:
    """Those of the groups that have one."""
    return [found for group in groups if (found := headline(group))]


def answer(found: Sequence[Headline]) -> str:
    """What an experiment comes to, in one sentence; "" where no group has a headline.

    Args:
        found: its groups' headlines.
    """
    if len(found) < 2:
        return "".join(each.sentence for each in found)
    pairs = len({each.pair for each in found}) > 1
    decoders = Counter(each.decoder for each in found).most_common(_NAMED)
    said = [
        _used(name, [each for each in found if each.decoder == name], pairs) for name, _ in decoders
    ]
    rest = len(found) - sum(count for _, count in decoders)
    said += [f"another one on {rest} more"] if rest else []
    tied = [f"{own} of {of}" for own, of in dict.fromkeys(each.tied for each in found) if own > 1]
    text = f"Use {'; '.join(said)}"
    if not tied:
        return f"{text}."
    some = f"{', '.join(tied[:_NAMED])}{' and more' if len(tied) > _NAMED else ''}"
    simplest = f"named is the simplest within {CLOSE:.0%} of the best"
    return f"{text} (ties: {some} cells are not told apart; {simplest})."


def _used(name: str, found: Sequence[Headline], pairs: bool) -> str:
    """On which tasks a decoder is to be used, and with what gain."""
    titles = [
        f"{_short(each.task)} ({each.pair})" if pairs else _short(each.task) for each in found
    ]
    tasks = Counter(title.partition(", ")[0] for title in titles)
    several = len(titles) > len(tasks)
    places = [f"{task} ({n} settings)" if n > 1 else task for task, n in tasks.items()]
    named = places if several else titles
    where = ", ".join(named[:_NAMED])
    where += f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    values = list(dict.fromkeys(each.value for each in sorted(found, key=lambda each: each.value)))
    gain = "" if name == "AR" else f": {' to '.join(dict.fromkeys((values[0], values[-1])))}"
    return f"{name} on {where}{gain}"


def _short(title: str) -> str:
    """A group's title without what the stages of a search differ in."""
    return ", ".join(each for each in title.split(", ") if not each.startswith(_OF_STAGES))
