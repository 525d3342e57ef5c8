"""The other commands from Python: ``recommend``, ``compare`` and ``audit``, over their own code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spec_bench.api.jobs import build_overrides
from spec_bench.api.pairs import LoadedPair
from spec_bench.audit import AUDITED, USUAL
from spec_bench.system.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Recommended:
    """Which decoder to use."""

    decoder: str  # its name; ``ar``, plain decoding, if no other one is surely faster
    spec: str  # of its tree
    speedup: float  # over plain decoding, on fresh prompts; 1 for plain decoding itself
    speedup_low: float | None  # lower end of its 95% interval; None where there is none
    speedup_high: float | None
    text: str  # the answer in three lines: what, why, and the command that uses it
    # A row each, the best first: decoder, spec, prompts, whether they were fresh, tokens a call and
    # speed-up with their ends, of the last stage that it came to; why it, or one of its
    # prompts, failed, if it did.
    candidates: pd.DataFrame = field(repr=False)

    @property
    def cell(self) -> str:
        """``DECODER:SPEC``, as ``pair.decode`` and ``cells=[...]`` take it."""
        return self.decoder if self.spec in ("", "-") else f"{self.decoder}:{self.spec}"


@dataclass(frozen=True, eq=False)
class Compared:
    """What changed from one results folder to another."""

    sentence: str  # what it comes to
    regressed: bool  # whether a number got worse, or a cell failed that had not
    # A row for each number of each cell: before, after, the change with its 95% interval (a share
    # where ``relative``), corrected p, verdict; regressions first.
    changes: pd.DataFrame = field(repr=False)
    differing: pd.DataFrame = field(repr=False)  # settings, machines, versions that differ
    text: str = field(repr=False)  # all of it in Markdown, as the command prints it

    def _repr_markdown_(self) -> str:
        return self.text


@dataclass(frozen=True, eq=False)
class Audited:
    """What was checked."""

    passed: bool  # whether every claim held
    # A row for each check: subject, check, result, and passed, None where something is measured and
    # nothing claimed.
    lines: pd.DataFrame = field(repr=False)


def recommend(
    *overrides: str,
    texts: Iterable[Any] | None = None,
    references: Iterable[Any] | None = None,
    pair: str | LoadedPair | None = None,
    **settings: Any,
) -> Recommended:
    """Looks for the fastest decoder for a pair, a task and this machine; takes minutes.

    Arguments as for ``run``: ``prompts`` and ``confirm={best: 3, prompts: 30}`` say on how many
    prompts, ``cells`` among which decoders; ``texts`` must be enough for both stages.
    """
    import pandas as pd

    from spec_bench.jobs.app import build_job_settings
    from spec_bench.jobs.config.compose import compose_config
    from spec_bench.recommend.recommend import format_command
    from spec_bench.recommend.recommend import recommend as look

    if texts is not None and "prompts" not in settings:
        settings = {"prompts": 15, **settings}
    words = build_overrides(overrides, settings, texts, pair, references)
    found = look(build_job_settings(compose_config(["experiment=recommend", *words])))
    shown = [word for word in words if word != "sink=quiet"]
    decoder, spec = found.cell
    rate: list[Any] = [1.0, None, None]
    if decoder != "ar":
        rows = found.candidates
        best = rows[(rows.decoder == decoder) & (rows.spec == spec)].iloc[0]
        ends = [best[name] for name in ("speedup", "speedup_low", "speedup_high")]
        rate = [None if pd.isna(each) else float(each) for each in ends]
    text = "\n".join(filter(None, [*found.answer(), format_command(found, shown)]))
    value, low, high = rate
    return Recommended(decoder, spec, value, low, high, text, found.candidates)


def compare(
    before: str | Path, after: str | Path, *, alpha: float = 0.05, margin: float = 0.03
) -> Compared:
    """Sets one results folder or ``results.csv`` against another, prompt by prompt.

    ``alpha`` is the chance of any false alarm among all numbers, ``margin`` the share by which a
    speed-up may change and still count as the same. Raises ValueError: no rows, no cell on both
    sides, or a share that is none.
    """
    import pandas as pd

    from spec_bench.report.compare import markdown
    from spec_bench.report.comparison import compare as build

    for side in (before, after):
        if not isinstance(side, str | Path):
            raise UsageError(f"compare takes results folders, got {type(side).__name__}")
    comparison = build(Path(before), Path(after), alpha, margin)
    lines = [
        {
            "cell": each.cell,
            "number": each.column.name,
            "before": each.before,
            "after": each.after,
            "change": each.shift and each.shift.value,
            "change_low": each.shift and each.shift.low,
            "change_high": each.shift and each.shift.high,
            "relative": each.relative,
            "p": each.p,
            "prompts": each.prompts,
            "verdict": each.verdict,
            "why": each.why,
        }
        for each in comparison.judged
    ]
    return Compared(
        comparison.sentence,
        comparison.regressed,
        pd.DataFrame(lines),
        pd.DataFrame(comparison.differing),
        markdown(comparison),
    )


def audit(
    *,
    parts: Sequence[str] | None = None,
    target: str | None = None,
    draft: str | None = None,
    prompts: str | Path | Sequence[str] = (),
    max_new_tokens: int = 64,
    samples: int = 10_000,
    seed: int = 0,
    decoders: str | Sequence[str] = USUAL,
) -> Audited:
    """Proves losslessness, as ``spec-bench audit``; all parts take about an hour.

    Args:
        parts: ``rules`` and ``decoders`` and ``beams`` by enumeration, ``approximations``, of which
            nothing is claimed. None: all of them, or with a target the pair alone.
        target: folder or hub id of a target whose greedy answers are checked too.
        draft: of its draft.
        prompts: texts that these decode, or a file of prompts in any form that ``run`` takes.
        max_new_tokens: limit on each of their answers.
        samples: continuations per chi-square.
        seed: of everything drawn.
        decoders: of the pair, such as ``sd:3,rsd_s:4x3`` or a list; ``all``: every tree.
    """
    import pandas as pd

    from spec_bench.audit import command_line
    from spec_bench.audit.catalogue import audit_parts
    from spec_bench.jobs.config.model_files import model_path
    from spec_bench.tasks import read_own

    if parts is None:
        parts = AUDITED if target is None else ()
    named = [parts] if isinstance(parts, str) else list(parts)
    if wrong := [each for each in named if each not in AUDITED]:
        raise UsageError(f"parts are {', '.join(AUDITED)}, got {wrong[0]!r}")
    if (target is None) != (draft is None) or (target is not None) != bool(prompts):
        raise UsageError("target, draft and prompts go together")
    more: Iterable[Any] = ()
    if target is not None and draft is not None:
        paths = model_path(target), model_path(draft)
        asked = read_own(str(prompts)) if isinstance(prompts, str | Path) else list(prompts)
        several = decoders if isinstance(decoders, str) else ",".join(decoders)
        more = command_line.audit_pair(*paths, asked, max_new_tokens, several)
    lines = [*audit_parts(command_line.list_parts(named, samples, seed)), *more]
    passed = all(line.passed is not False for line in lines)
    return Audited(passed, pd.DataFrame([vars(line) for line in lines]))
