"""The loop of every decoder: prefill rows, then step until every row has finished.

It keeps the time; what a step does is the decoder's business.
"""

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import torch

from spec_bench.decode.rows import AnswerRow, BatchClock
from spec_bench.engine.model import LanguageModel, wait_for_device
from spec_bench.records.types import (
    Generation,
    Lossless,
    Meter,
    Progress,
    PromptError,
    Request,
    TokenCount,
)


@dataclass
class IterationCounts:
    """Numbers of recorded and eager iterations."""

    recorded: int = 0  # replays of a graph
    eager: int = 0

    def count(self, is_recorded: bool) -> None:
        """Counts one iteration."""
        self.recorded += is_recorded
        self.eager += not is_recorded

    @property
    def recorded_share_text(self) -> str:
        """``recorded``, with a percentage if some iterations were eager, or ``eager``."""
        if not self.recorded or not self.eager:
            return "recorded" if self.recorded else "eager"
        return f"recorded {self.recorded / (self.recorded + self.eager):.1%}"


RowType = TypeVar("RowType", bound=AnswerRow)


class DecodingLoop(ABC, Generic[RowType]):
    """Base class of decoders over one target; subclasses define the rows and the step."""

    name: str  # as in `conf/decoder`
    target: LanguageModel  # the target model
    drafts: Sequence[LanguageModel]  # draft models; empty if nothing is drafted
    rows: int  # maximum number of requests that decode together
    lossless: Lossless  # how the output's distribution relates to the target's
    iteration_counts: IterationCounts

    @property
    @abstractmethod
    def depth(self) -> int:
        """L: sequential draft calls per iteration."""

    @property
    @abstractmethod
    def nodes(self) -> int:
        """Tree nodes per iteration, without the root."""

    @property
    def draft_calls(self) -> int:
        """Sequential draft calls per iteration, which is L in the formula of MBSU."""
        return self.depth

    @property
    def parameter_ratio(self) -> float:
        """r: parameters of the drafts divided by those of the target; 0 without a draft."""
        return sum(draft.parameters for draft in self.drafts) / self.target.parameters

    @abstractmethod
    def count_slots_per_row(self, longest_prompt: int, max_new_tokens: int) -> int:
        """Counts the cache slots that a row needs for prompts of at most
        ``longest_prompt`` tokens.
        """

    @abstractmethod
    def reserve(self, slots: int) -> None:
        """Grows the caches to at least ``slots`` slots per row."""

    def record_graphs(self, requests: Sequence[Request]) -> None:
        """Records the graphs that these requests need on a GPU. The caches must
        already fit them.
        """

    @abstractmethod
    def join(self, index: int, request: Request, seed: int) -> RowType:
        """Prefills an admitted request into row ``index`` of the caches."""

    @abstractmethod
    def step(self, active: Sequence[RowType]) -> TokenCount:
        """Runs one iteration over the active rows; returns the number of tokens emitted."""

    @abstractmethod
    def move_row(self, row: RowType, source: int, target: int) -> None:
        """Moves a row from one place in the caches to another."""

    def remember_for_drafting(self, answers: Sequence[Sequence[int]]) -> None:
        """Passes the answers to all earlier prompts to the drafter, in the prompts' order."""

    def sum_target_calls(self, active: Sequence[RowType]) -> int:
        """Sums the rows' target calls in the last step, one per row by default."""
        return len(active)

    def drop_finished_rows(self, active: list[RowType]) -> None:
        """Drops finished rows; the last active row takes each freed place in the caches."""
        for index in reversed(range(len(active))):
            if active[index].finish is None:
                continue
            moved_row = active.pop()
            if index < len(active):
                active[index] = moved_row
                self.move_row(moved_row, len(active), index)

    @abstractmethod
    def take_forward_s(self) -> tuple[float, float]:
        """Returns (draft, target) seconds in forward passes since the last call."""

    def cache_bytes_per_row(self, longest_prompt: int, max_new_tokens: int) -> int:
        """Computes the bytes of keys and values, of target and drafts, that a row needs."""
        slots = self.count_slots_per_row(longest_prompt, max_new_tokens)
        return slots * sum(model.bytes_per_slot for model in (self.target, *self.drafts))

    @torch.inference_mode()
    def generate(
        self,
        requests: Sequence[Request],
        seed: int,
        progress: Progress | None = None,
        meter: Meter | None = None,
    ) -> list[Generation]:
        """Decodes any number of requests, at most ``rows`` at a time; returns a generation for
        each, in the same order. With more requests than rows the batch is continuous: whenever a
        row finishes, the next request takes its place.

        The seed and a request's id determine that request's randomness. ``progress`` is called
        after every iteration with the numbers of its target calls and emitted tokens. The meter
        begins after the first prefills and ends after the last token, outside ``decode_s``; it
        includes the prefills of requests that join later. Raises PromptError if a request does not
        fit.
        """
        if not requests:
            return []
        clock = BatchClock(self.read_synchronised_clock_s, self.take_forward_s)
        self.check_and_reserve(requests)
        rows = [self.join(index, r, seed) for index, r in enumerate(requests[: self.rows])]
        active = list(rows)
        queue = deque(requests[self.rows :])
        clock.share_prefill_wall_time(active)
        if meter:
            meter.begin_window()
        clock.start_decoding()
        while active:
            token_count = self.step(active)
            clock.share_step_wall_time(active)
            if progress:
                progress(self.sum_target_calls(active), token_count)
            self.drop_finished_rows(active)
            while queue and len(active) < self.rows:
                clock.pause_decoding()
                rows.append(self.join(len(active), queue.popleft(), seed))
                active.append(rows[-1])
                clock.share_prefill_wall_time(active[-1:])
        clock.pause_decoding()
        if meter:
            meter.end_window()
        return [
            replace(
                row.make_generation(*clock.get_row_seconds(row)), latency_s=clock.latency_s(row)
            )
            for row in rows
        ]

    def prefill_requests(self, requests: Sequence[Request], seed: int) -> list[RowType]:
        """Checks the requests, grows the caches and prefills a row for each request. Raises
        ValueError if a request does not fit, or if there are more requests than rows.
        """
        if len(requests) > self.rows:
            raise ValueError(f"{len(requests)} requests for a decoder of {self.rows} rows")
        self.check_and_reserve(requests)
        return [self.join(index, request, seed) for index, request in enumerate(requests)]

    def refuse_unfit_prompts(self, requests: Sequence[Request]) -> None:
        """Raises PromptError if a request with its tree exceeds a model's context, or if its prompt
        is empty or has an unknown token.
        """
        for request in requests:
            name = request.prompt_id
            count = len(request.prompt_ids)
            if not count:
                raise PromptError(name, " is empty; at least one token needed")
            largest = max(request.prompt_ids)
            if largest >= self.target.vocab_size:
                largest_id = self.target.vocab_size - 1
                raise PromptError(
                    name, f" holds token {largest}, the models embed 0 to {largest_id}"
                )
            # Positions, unlike slots, grow with a tree's depth and not with its nodes.
            positions = count + request.max_new_tokens + self.depth
            for model in (self.target, *self.drafts):
                if model.max_positions is not None and positions > model.max_positions:
                    raise PromptError(
                        name,
                        f" needs {positions} positions ({count} prompt + {request.max_new_tokens} "
                        f"new + {self.depth} tree levels), the model has {model.max_positions}",
                    )

    def check_and_reserve(self, requests: Sequence[Request]) -> None:
        """Checks the requests and grows the caches for the longest. Raises PromptError if a request
        does not fit.
        """
        self.refuse_unfit_prompts(requests)
        self.reserve(
            max(self.count_slots_per_row(len(r.prompt_ids), r.max_new_tokens) for r in requests)
        )

    def read_synchronised_clock_s(self) -> float:
        """Reads the clock after waiting for the target's device."""
        wait_for_device(self.target.device)
        return time.perf_counter()
