"""THE loop, the same for every decoder: begin, then step until every row has finished.

Knows the clock; nothing about trees, beams or what a step does.
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
from spec_bench.records.types import Generation, Lossless, Meter, Progress, PromptError, Request


@dataclass
class IterationCounts:
    """Counts of recorded and eager iterations."""

    recorded: int = 0  # as replays of a graph
    eager: int = 0

    def count(self, is_recorded: bool) -> None:
        """Counts one iteration."""
        self.recorded += is_recorded
        self.eager += not is_recorded

    @property
    def recorded_share_text(self) -> str:
        """Returns ``recorded``, with its share if it is not all, or ``eager``."""
        if not self.recorded or not self.eager:
            return "recorded" if self.recorded else "eager"
        return f"recorded {self.recorded / (self.recorded + self.eager):.1%}"


RowType = TypeVar("RowType", bound=AnswerRow)


class DecodingLoop(ABC, Generic[RowType]):
    """A decoder over one target; subclasses define its rows and its step."""

    name: str  # as in `conf/decoder`
    target: LanguageModel  # the target model
    drafts: Sequence[LanguageModel]  # draft models; empty if nothing is drafted
    rows: int  # most requests that decode together
    lossless: Lossless  # how the output's distribution relates to the target's
    iteration_counts: IterationCounts  # counts iterations

    @property
    @abstractmethod
    def depth(self) -> int:
        """L: sequential draft calls per iteration."""

    @property
    @abstractmethod
    def nodes(self) -> int:
        """Tree nodes per iteration, the root not counted."""

    @property
    def draft_calls(self) -> int:
        """L of MBSU: sequential draft calls per iteration."""
        return self.depth

    @property
    def parameter_ratio(self) -> float:
        """r: parameters of the drafts over parameters of the target; 0 without a draft."""
        return sum(draft.parameters for draft in self.drafts) / self.target.parameters

    @abstractmethod
    def count_slots_per_row(self, longest_prompt: int, max_new_tokens: int) -> int:
        """Returns the cache slots per row for prompts of at most ``longest_prompt`` tokens."""

    @abstractmethod
    def reserve(self, slots: int) -> None:
        """Makes sure the caches have at least ``slots`` slots per row."""

    def record_graphs(self, requests: Sequence[Request]) -> None:
        """Records the graphs that these requests need on a GPU; the caches have room for them."""

    @abstractmethod
    def join(self, index: int, request: Request, seed: int) -> RowType:
        """Prefills one request, admitted before, into the caches' row ``index``."""

    @abstractmethod
    def step(self, active: Sequence[RowType]) -> int:
        """Runs one iteration over the active rows; returns the number of tokens emitted."""

    @abstractmethod
    def move_row(self, row: RowType, source: int, target: int) -> None:
        """Moves a row from one place in the caches to another."""

    def remember_for_drafting(self, answers: Sequence[Sequence[int]]) -> None:
        """Gives the drafter the answers to all earlier prompts, in their order."""

    def count_target_calls(self, active: Sequence[RowType]) -> int:
        """Returns the target calls of these rows' last step: one each."""
        return len(active)

    def drop_finished_rows(self, active: list[RowType]) -> None:
        """Drops finished rows; the last active row takes the freed place in the caches."""
        for index in reversed(range(len(active))):
            if active[index].finish is None:
                continue
            moved_row = active.pop()
            if index < len(active):
                active[index] = moved_row
                self.move_row(moved_row, len(active), index)

    @abstractmethod
    def take_forward_s(self) -> tuple[float, float]:
        """(draft, target) seconds in forward passes since the last call."""

    def cache_bytes_per_row(self, longest_prompt: int, max_new_tokens: int) -> int:
        """Bytes of keys and values that this decoder needs per row, of target and drafts."""
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
        """Decodes any number of requests, up to ``rows`` at a time; returns one generation each, in
        the order asked. With more requests than rows the batch is continuous: whenever a row
        finishes, the next request takes its place.

        The seed with a request's id fixes that request's randomness. ``progress`` is called after
        every iteration with its target calls and emitted tokens. The meter is begun after the first
        prefills and ended after the last token, outside ``decode_s``; it measures the prefills of
        requests that join later too. Raises PromptError if a request does not fit.
        """
        if not requests:
            return []
        clock = BatchClock(self.read_synchronised_clock_s, self.take_forward_s)
        self.check_and_reserve(requests)
        rows = [self.join(index, r, seed) for index, r in enumerate(requests[: self.rows])]
        active = list(rows)
        queue = deque(requests[self.rows :])
        clock.share_prefill_time(active)
        if meter:
            meter.begin()
        clock.start()
        while active:
            token_count = self.step(active)
            clock.share_step_time(active)
            if progress:
                progress(self.count_target_calls(active), token_count)
            self.drop_finished_rows(active)
            while queue and len(active) < self.rows:
                clock.pause_decoding()
                rows.append(self.join(len(active), queue.popleft(), seed))
                active.append(rows[-1])
                clock.share_prefill_time(active[-1:])
        clock.pause_decoding()
        if meter:
            meter.end()
        return [
            replace(
                row.make_generation(*clock.get_row_seconds(row)), latency_s=clock.latency_s(row)
            )
            for row in rows
        ]

    def prefill_requests(self, requests: Sequence[Request], seed: int) -> list[RowType]:
        """Checks the requests, makes room and prefills one row for each. Raises ValueError if one
        does not fit, or there are too many.
        """
        if len(requests) > self.rows:
            raise ValueError(f"{len(requests)} requests for a decoder of {self.rows} rows")
        self.check_and_reserve(requests)
        return [self.join(index, request, seed) for index, request in enumerate(requests)]

    def refuse_unfit_prompts(self, requests: Sequence[Request]) -> None:
        """Raises PromptError if a request and its tree exceed the models' context, or it holds an
        unknown token.
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
        """Checks requests (a ValueError if one does not fit) and makes room for the longest."""
        self.refuse_unfit_prompts(requests)
        self.reserve(
            max(self.count_slots_per_row(len(r.prompt_ids), r.max_new_tokens) for r in requests)
        )

    def read_synchronised_clock_s(self) -> float:
        """Reads the clock once the target's device has done what it was given."""
        wait_for_device(self.target.device)
        return time.perf_counter()
