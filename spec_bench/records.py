"""The plain dataclasses that pass between layers.

Knows nothing about torch, Hydra or transformers: every layer may import this module and it
imports none of them. A metric is a pure function of these records.

Vocabulary, used everywhere in the project:

* **target call** -- one forward pass of the target that verifies a tree (autoregressive: a root).
  The prompt's prefill is not one.
* **accepted** -- draft tokens that a target call confirmed. Each target call emits
  ``accepted + 1`` tokens: the accepted ones and one residual or bonus token.
* **residual token** -- drawn after all children of a node were rejected.
* **bonus token** -- drawn at a leaf where everything was accepted.
* **exact_beam** -- exact, but for the law of beam decoding and not that of single samples.
* **delivered** -- emitted tokens that lie before the end-of-sequence token's end and within the
  length limit; the end-of-sequence token itself is delivered.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

Lossless = Literal["exact", "exact_beam", "approximate", "simulated"]
Finish = Literal["stop", "length"]


@dataclass(frozen=True)
class Request:
    """One prompt to decode.

    Attributes:
        prompt_id: unique within a task; with the seed it determines the random generator.
        prompt_ids: token ids of the prompt, at least one.
        max_new_tokens: limit on delivered tokens.
        stop_ids: token ids that end the generation (delivered, then nothing more).
    """

    prompt_id: str
    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    stop_ids: tuple[int, ...] = ()


class SqlReference(str):
    """A reference answer in SQL, a text like any other, that knows what it is asked of.

    Attributes:
        database: the SQLite file.
    """

    database: Path

    def __new__(cls, sql: str, database: Path) -> SqlReference:
        """The text with its database."""
        reference = super().__new__(cls, sql)
        reference.database = database
        return reference


@dataclass(frozen=True)
class StepRecord:
    """What one target call did for one row.

    Attributes:
        nodes: tree nodes that were verified, the root not counted (autoregressive: 0).
        depth: levels of the tree = sequential draft calls.
        accepted: draft tokens accepted on the walk, 0..depth.
        delivered: tokens of this call that were delivered, at most ``accepted + 1``.
        widths: beams after each of the call's ``accepted + 1`` layers; empty where one sequence is
            decoded.
    """

    nodes: int
    depth: int
    accepted: int
    delivered: int
    widths: tuple[int, ...] = ()


@dataclass(frozen=True)
class Generation:
    """Everything measured while one prompt was decoded.

    Seconds are wall seconds with the device synchronised at both ends. Where several rows were
    decoded in one batch, each row carries its equal share of the batch's seconds, so that a sum
    over generations is the time that really passed.

    Attributes:
        prompt_id: the request's.
        tokens: delivered token ids, the end-of-sequence token included.
        finish: ``stop`` or ``length``.
        steps: one record a target call.
        prefill_s: seconds for the prompt's prefill, target and draft together.
        decode_s: seconds from the end of the prefill to the last token.
        draft_s: of ``decode_s``, seconds inside draft forward passes.
        target_s: of ``decode_s``, seconds inside target forward passes.
        energy_j: joules over the decode window, or None where nothing meters them.
        energy_check_j: the same by the meter's second way, None where it has none.
        energy_note: why there is no energy, or what to mind about it; "" where there is nothing.
        log_likelihood: natural log of the probability of ``tokens`` under the target at temperature
            1, nothing truncated; None in records from before it was kept.
        latency_s: seconds from the start of the prompt's prefill to its last token, whatever else
            was decoded meanwhile; None in records from before it was kept.
    """

    prompt_id: str
    tokens: tuple[int, ...]
    finish: Finish
    steps: tuple[StepRecord, ...]
    prefill_s: float
    decode_s: float
    draft_s: float
    target_s: float
    energy_j: float | None = None
    log_likelihood: float | None = None
    energy_check_j: float | None = None
    energy_note: str = ""
    latency_s: float | None = None

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary; ``from_json`` inverts it."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Generation:
        """Rebuilds a generation from ``to_json``'s dictionary."""
        steps = tuple(
            StepRecord(**{**step, "widths": tuple(step.get("widths", ()))})
            for step in data["steps"]
        )
        return cls(**{**data, "tokens": tuple(data["tokens"]), "steps": steps})


@dataclass(frozen=True)
class CellResult:
    """One row of the results table.

    A failed cell has a status, a reason and no numbers.

    Attributes:
        run_id: hash of the resolved settings that change the numbers.
        labels: what identifies the cell (pair, task, decoder, spec, seed, ...).
        lossless: how the output's law relates to the target's.
        status: ``complete``, ``partial`` or ``failed``.
        reason: why the cell failed or why a column is empty; "" otherwise.
        metrics: column name -> value; None is an empty cell.
    """

    run_id: str
    labels: dict[str, Any]
    lossless: Lossless
    status: Literal["complete", "partial", "failed"]
    reason: str = ""
    metrics: dict[str, float | str | None] = field(default_factory=dict)
