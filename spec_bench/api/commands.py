"""The commands ``recommend``, ``compare`` and ``audit`` as Python functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spec_bench.api.jobs import build_overrides_and_save_prompts
from spec_bench.api.pairs import LoadedPair
from spec_bench.audit import AUDIT_PARTS, DEFAULT_DECODERS
from spec_bench.system.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Recommendation:
    """The recommended decoder."""

    decoder: str  # its name; ``ar``, plain decoding, if no other one is surely faster
    spec: str  # its tree
    speedup: float  # over plain decoding, on fresh prompts; 1 for plain decoding itself
    speedup_low: float | None  # lower end of its 95% interval, if there is one
    speedup_high: float | None
    text: str  # three lines: the decoder, the reason, and the command that uses it
    # A row per candidate, the best first, each of its last stage: decoder, spec, prompts, whether
    # they were fresh, tokens per call and speed-up with their intervals, and a failure's reason.
    candidates: pd.DataFrame = field(repr=False)

    @property
    def cell(self) -> str:
        """``DECODER:SPEC``, as ``pair.decode`` and ``cells=[...]`` take it."""
        return self.decoder if self.spec in ("", "-") else f"{self.decoder}:{self.spec}"


@dataclass(frozen=True, eq=False)
class ComparisonReport:
    """Changes from one results folder to another."""

    sentence: str  # the summary
    regressed: bool  # whether a number got worse, or a cell failed that had not
    # A row for each number of each cell: before, after, the change with its 95% interval (a share
    # if ``relative``), corrected p, verdict; regressions first.
    changes: pd.DataFrame = field(repr=False)
    differing: pd.DataFrame = field(repr=False)  # settings, machines, versions that differ
    text: str = field(repr=False)  # the command's output in Markdown

    def _repr_markdown_(self) -> str:
        return self.text


@dataclass(frozen=True, eq=False)
class AuditReport:
    """Results of an audit."""

    passed: bool  # whether every claim held
    # A row for each check: subject, check, result, and passed; None if the check only measures.
    lines: pd.DataFrame = field(repr=False)


def recommend(
    *overrides: str,
    texts: Iterable[Any] | None = None,
    references: Iterable[Any] | None = None,
    pair: str | LoadedPair | None = None,
    **settings: Any,
) -> Recommendation:
    """Searches the fastest decoder for a pair, a task and this machine; takes minutes.

    Takes ``run``'s arguments. ``prompts`` and ``confirm={best: 3, prompts: 30}`` set the numbers of
    prompts, ``cells`` the candidates; own prompts must be enough for both stages.
    """
    import pandas as pd

    from spec_bench.jobs.app import build_unpinned_settings
    from spec_bench.jobs.config.compose import compose_config
    from spec_bench.recommend.recommend import format_command, search_fastest_decoder

    if texts is not None and "prompts" not in settings:
        settings = {"prompts": 15, **settings}
    words = build_overrides_and_save_prompts(overrides, settings, texts, pair, references)
    result = search_fastest_decoder(
        build_unpinned_settings(compose_config(["experiment=recommend", *words]))
    )
    own_words = [word for word in words if word != "sink=quiet"]
    decoder, spec = result.cell
    rate: list[Any] = [1.0, None, None]
    if decoder != "ar":
        rows = result.candidates
        best = rows[(rows.decoder == decoder) & (rows.spec == spec)].iloc[0]
        ends = [best[name] for name in ("speedup", "speedup_low", "speedup_high")]
        rate = [None if pd.isna(number) else float(number) for number in ends]
    text = "\n".join(filter(None, [*result.format_answer(), format_command(result, own_words)]))
    value, low, high = rate
    return Recommendation(decoder, spec, value, low, high, text, result.candidates)


def compare(
    before: str | Path,
    after: str | Path,
    *,
    alpha: float = 0.05,
    margin: float = 0.03,
) -> ComparisonReport:
    """Compares two results folders or ``results.csv``, prompt by prompt.

    ``alpha`` is the chance of any false alarm among all numbers, ``margin`` the share by which a
    speed-up may change and still count as the same. Raises UsageError if there are no rows or no
    common cell, or if ``alpha`` or ``margin`` is no share.
    """
    import pandas as pd

    from spec_bench.report.compare import format_comparison_markdown
    from spec_bench.report.comparison import compare_results as build

    for side in (before, after):
        if not isinstance(side, str | Path):
            raise UsageError(f"compare takes results folders, got {type(side).__name__}")
    comparison = build(Path(before), Path(after), alpha, margin)
    lines = [
        {
            "cell": change.cell,
            "number": change.column.name,
            "before": change.before,
            "after": change.after,
            "change": change.shift and change.shift.value,
            "change_low": change.shift and change.shift.low,
            "change_high": change.shift and change.shift.high,
            "relative": change.is_relative,
            "p": change.p_value,
            "prompts": change.prompts,
            "verdict": change.verdict,
            "why": change.why,
        }
        for change in comparison.changes
    ]
    return ComparisonReport(
        comparison.sentence,
        comparison.regressed,
        pd.DataFrame(lines),
        pd.DataFrame(comparison.differing),
        format_comparison_markdown(comparison),
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
    decoders: str | Sequence[str] = DEFAULT_DECODERS,
) -> AuditReport:
    """Proves losslessness, as ``spec-bench check decoders``; all parts take about an hour.

    Args:
        parts: ``rules``, ``decoders`` and ``beams`` by enumeration; ``approximations``, without
            claims. None: all of them, or with a target the pair alone.
        target: folder or hub id of a target, to check its greedy answers too.
        draft: folder or hub id of its draft.
        prompts: texts for the pair, or a file of prompts in any form that ``run`` takes.
        max_new_tokens: limit on each answer of the pair.
        samples: continuations per chi-square test.
        seed: seed of all draws.
        decoders: decoders to check on the pair, such as ``sd:3,rsd_s:4x3`` or a list; ``all``:
            every tree.
    """
    import pandas as pd

    from spec_bench.audit import command_line
    from spec_bench.audit.catalogue import run_parts_with_progress
    from spec_bench.jobs.config.model_files import resolve_or_convert_model
    from spec_bench.tasks import build_task_from_files

    if parts is None:
        parts = AUDIT_PARTS if target is None else ()
    part_names = [parts] if isinstance(parts, str) else list(parts)
    if wrong := [name for name in part_names if name not in AUDIT_PARTS]:
        raise UsageError(f"parts are {', '.join(AUDIT_PARTS)}, got {wrong[0]!r}")
    if (target is None) != (draft is None) or (target is not None) != bool(prompts):
        raise UsageError("target, draft and prompts go together")
    pair_lines: Iterable[Any] = ()
    if target is not None and draft is not None:
        paths = resolve_or_convert_model(target), resolve_or_convert_model(draft)
        texts = (
            build_task_from_files(str(prompts))
            if isinstance(prompts, str | Path)
            else list(prompts)
        )
        decoder_names = decoders if isinstance(decoders, str) else ",".join(decoders)
        pair_lines = command_line.audit_pair(*paths, texts, max_new_tokens, decoder_names)
    lines = [
        *run_parts_with_progress(command_line.list_parts_of_groups(part_names, samples, seed)),
        *pair_lines,
    ]
    has_passed = all(line.passed is not False for line in lines)
    return AuditReport(has_passed, pd.DataFrame([vars(line) for line in lines]))
