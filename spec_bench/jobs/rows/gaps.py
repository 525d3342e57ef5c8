"""Acceptance beside the most that any rule could accept, from a sample of a cell's iterations.

Done once all cells are timed: some iterations of each cell are picked, their contexts (the prompt
and the answer so far) are restored, and one iteration is run from each with separate draws. What
its rule was given determines the bound (``decode.gap``). All of it is off the clock, and no token,
draw or timing of the cell depends on it.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from spec_bench.decode.config import AnyDecoder
from spec_bench.decode.decoder import Decoder
from spec_bench.decode.gap import Visit, bounds_of, law_of, levels_bounded, watch, why_no_bound
from spec_bench.decode.generate import GenerateDecoder
from spec_bench.jobs.config.cells import BASELINE
from spec_bench.jobs.config.settings import JobSettings
from spec_bench.jobs.work.cell_run import CellRun, VisitedNode
from spec_bench.jobs.work.prompts import Prompts
from spec_bench.jobs.work.session import Session
from spec_bench.records.reasons import Reason
from spec_bench.records.types import Generation, Request
from spec_bench.settings.fields import one_line
from spec_bench.tree.base import GrownTree
from spec_bench.vocabulary.columns import ENDS

log = logging.getLogger(__name__)
COLUMN = "acceptance_bound"
RATE = "acceptance_rate"
_VARY = "trees have another form in every call, where a path ends is no rejection"
_CUT = ("block_efficiency", "mbsu", RATE)
_DROPPED = (
    "transformers drops what it accepts behind an answer's end; see tokens delivered per call"
)
_NUMBERS = 2**20  # most nodes of a level times tokens of the vocabulary
_STEP = 0.5


def look_at_nodes(session: Session) -> None:
    """Samples the nodes of cells that have decoded all, in every process of a split model."""
    settings = session.settings
    for run in session.pending:
        if run.decoder is None or not settings.bound_iterations or run.cell.name == BASELINE:
            continue
        why = why_no_bound(run.cell.config)
        if why is None:
            try:
                run.nodes = _nodes(settings, run, run.decoder, session.prompts)
                run.store.keep_nodes([vars(node) for node in run.nodes])
            except Exception as error:
                log.exception("%s: its nodes could not be looked at", run.cell.title)
                why = f"{type(error).__name__}: {one_line(error, 200)}"
        run.no_nodes = why


def columns_of(nodes: Sequence[VisitedNode]) -> dict[str, Any]:
    """The columns, lists by depth; none without nodes."""
    by_depth = {node.depth: [n for n in nodes if n.depth == node.depth] for node in nodes}
    levels = [by_depth.get(depth, []) for depth in range(1, max(by_depth, default=0) + 1)]
    if not levels:
        return {}
    return {
        COLUMN: json.dumps([_mean([node.bound for node in level]) for level in levels]),
        "acceptance_gap": json.dumps(
            [_mean([node.bound - node.accepted for node in level]) for level in levels]
        ),
        "acceptance_nodes": json.dumps([len(level) for level in levels]),
    }


def rates_left_out(decoder: AnyDecoder) -> dict[str, Any]:
    """The rates of acceptance as empty cells, for a decoder whose records do not tell them.

    A record says how deep a call's tree was and how much of it was accepted. In a tree that the
    draft reshapes every time a path may end above the deepest level: reaching its end is no
    rejection, and whether that happened is not recorded. transformers drops what it accepts behind
    an answer's end, which our block efficiency counts.
    """
    left = [RATE] if _vary(decoder) else [*_CUT] if _cuts(decoder) else []
    ends = [f"{name}{end}" for name in left for end in ("", *ENDS)]
    return dict.fromkeys([*ends, *[f"{RATE}_by_depth"] * bool(left)])


def reasons_of(run: CellRun, decoder: AnyDecoder) -> list[Reason]:
    """Why a cell has no bound, or no acceptance rate."""
    reasons = [Reason(RATE, _VARY)] if _vary(decoder) else []
    reasons += [Reason(name, _DROPPED) for name in _CUT] if _cuts(decoder) else []
    return [*reasons, Reason(COLUMN, run.no_nodes)] if run.no_nodes else reasons


def _vary(decoder: AnyDecoder) -> bool:
    return isinstance(decoder, Decoder) and decoder.policy.varies


def _cuts(decoder: AnyDecoder) -> bool:
    return isinstance(decoder, GenerateDecoder) and decoder.aid.tokens > 0


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), 4) if values else None


@torch.inference_mode()
def _nodes(
    settings: JobSettings, run: CellRun, decoder: Any, prompts: Prompts
) -> tuple[VisitedNode, ...]:
    """The nodes of a sample of iterations."""
    assert isinstance(decoder, Decoder)
    config = run.cell.config
    assert isinstance(config.tree, GrownTree)
    requests = prompts.resolved(prompts.requests, run.done[0])
    answers = [run.done[0][request.prompt_id] for request in requests]
    most = min(settings.bound_iterations, max(1, _NUMBERS // decoder.target.vocab_size))
    rule, walk = decoder.rule, decoder.walk
    visits = watch(decoder, most)
    kept: list[Visit] = []
    try:
        for context in contexts(requests, answers, most, settings.seed):
            (row,) = decoder.begin([context], settings.seed)
            decoder.step([row])
            # On a GPU a walk continues below its end; such nodes mean nothing.
            kept += [visit for visit in visits if visit.level <= row.steps[0].accepted]
            visits.clear()
    finally:
        decoder.rule, decoder.walk = rule, walk
    law, nodes = law_of(config, settings.sampling), []
    for level in range(levels_bounded(config)):
        of_level = [visit for visit in kept if visit.level == level]
        bounds = bounds_of(of_level, law, _STEP) if of_level else []
        nodes += [
            VisitedNode(level + 1, v.accepted, b) for v, b in zip(of_level, bounds, strict=True)
        ]
    return tuple(nodes)


def contexts(
    requests: Sequence[Request], answers: Sequence[Generation], most: int, seed: int
) -> list[Request]:
    """What a sample of iterations started from; all iterations of the cell are equally likely."""
    starts = [
        (request, answer.tokens[:start], place)
        for request, answer in zip(requests, answers, strict=True)
        for place, start in enumerate(_starts(answer))
    ]
    picked = random.Random(f"nodes {seed}").sample(starts, min(most, len(starts)))
    return [
        replace(
            request,
            prompt_id=f"{request.prompt_id}, nodes of iteration {place}",
            prompt_ids=request.prompt_ids + answered,
            max_new_tokens=request.max_new_tokens - len(answered),
        )
        for request, answered, place in picked
    ]


def _starts(answer: Generation) -> list[int]:
    """How many tokens were delivered before each target call."""
    starts, before = [], 0
    for step in answer.steps:
        starts.append(before)
        before += step.delivered
    return starts
