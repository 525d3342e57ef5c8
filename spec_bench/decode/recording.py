"""A whole iteration as one graph, and the canary without which nothing recorded is trusted.

A GPU is launched some hundred kernels for an iteration, each by the host. Recorded, an iteration is
one launch: the host writes its numbers (lengths, roots, what drafts have not seen) and each row's
random numbers to buffers, replays, and reads the message. All between is a function of those
buffers and of what lies in caches and drafters at fixed addresses; what a replay leaves for the
host or the next one lies outside of the memory that graphs share. A graph serves a number of rows,
missing ones filled up, and prefixes of up to a number of tokens.

A graph that misses something, or reads what another has overwritten, answers wrongly without a
sign. So before a job decodes anything, every graph decodes some tokens from the same states of the
same generators as two others: the very function that it was made of, called, whose kernels and
shapes are the same, so that every token must be; and eager passes, whose shapes are not, so that
rounding may explain a token. A decoder whose tokens differ otherwise is left to eager passes, which
a line and a column say.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from math import isclose
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from spec_bench.core.transfer import HostDeviceInts
from spec_bench.engine.recorder import near_tie_gap
from spec_bench.engine.tree_pass import next_logits
from spec_bench.records.types import Generation, Request
from spec_bench.settings.fields import one_line
from spec_bench.system.errors import raise_if_device_lost

if TYPE_CHECKING:
    from spec_bench.decode.decoder import Decoder, VerdictLayout

log = logging.getLogger(__name__)
ROWS = (1, 4, 16)  # of graphs; more rows keep a GPU busy by themselves
CANARY_TOKENS = 32  # of an answer that is decoded both ways
CANARY_ANSWERS = 2  # at least, for every graph
ALIKE = 0.5  # share of the tokens before answers part by nudged numbers that must be equal
_CALLED = 1e-6  # relative; how far a log-likelihood may be from that of the same pass called
CALLS_OFF = 0.15  # share of target calls that rounding in a draft may cost or save


def round_up_length(tokens: int) -> int:
    """Returns B of the graph that serves so many tokens: 64, 256, from 1,024 on each power of 2."""
    few = (most for most in (64, 256, 1024) if tokens <= most)
    return next(few, 1 << (tokens - 1).bit_length())


def length_buckets(least: int, most: int) -> list[int]:
    """Returns every B of graphs that serve ``least`` to ``most`` tokens; none is above ``most``."""
    found = [min(round_up_length(least), most)]
    while found[-1] < most:
        found.append(min(round_up_length(found[-1] + 1), most))
    return found


def longest_sequence(requests: Sequence[Request]) -> int:
    """Returns the tokens of the longest sequence that requests can become."""
    return max(len(each.prompt_ids) + each.max_new_tokens for each in requests)


def row_buckets(rows: int) -> list[int]:
    """Returns the numbers of rows that graphs of a decoder of so many rows serve."""
    return [*(each for each in ROWS if each < rows), min(rows, ROWS[-1])]


class IterationGraph:
    """One graph: an iteration of R rows whose prefixes have at most B tokens."""

    def __init__(self, decoder: Decoder, rows: int, most: int, numbers: Tensor) -> None:
        target = decoder.target
        drafting = decoder.drafting
        before = dict(vars(drafting))
        committed, known = decoder.make_dummy_inputs(rows, most)
        needs = {name: x for name, x in vars(drafting).items() if x is not before.get(name)}
        parts = [torch.tensor(each) for each in known]
        sizes = [part.numel() for part in parts]
        home = torch.empty(sum(sizes), dtype=torch.long, pin_memory=True)
        home.copy_(torch.cat([part.flatten() for part in parts]))
        self._home, self._given = home, home.to(target.device)
        self._parts = [
            part.view(like.shape) for part, like in zip(home.split(sizes), parts, strict=True)
        ]
        for each, part, like in zip(known, self._given.split(sizes), parts, strict=True):
            each.read_at(part.view(like.shape), most)
        # What one iteration leaves, and the next finds: outside of the graphs' memory.
        self.numbers = numbers
        first = decoder.iterate(committed, decoder.use_predrawn(numbers))
        self.layout: VerdictLayout = first.layout
        self._message = torch.empty_like(first.message)
        self._read = torch.empty(first.message.shape, dtype=torch.float64, pin_memory=True)

        def iteration() -> None:
            vars(drafting).update(needs)  # of this graph, not of the step before
            made = decoder.iterate(committed, decoder.use_predrawn(numbers))
            decoder.keep(made.path, committed.lengths, (), made.layout)
            self._message.copy_(made.message)

        self._graph = target.recorder.record(iteration)
        self._arrived = torch.cuda.Event()
        self._replay = self._graph.replay
        self._iteration = iteration

    def call(self, instead: bool) -> None:
        """Has the iteration called, or replayed again."""
        self._replay = self._iteration if instead else self._graph.replay

    def run(self, known: Sequence[HostDeviceInts]) -> list[list[float]]:
        """Replays it for fewer or as many rows; returns the message of each, once it has come."""
        for part, numbers in zip(self._parts, known, strict=True):
            part[: len(numbers)] = torch.tensor(numbers)
        self._given.copy_(self._home, non_blocking=True)
        self._replay()
        self._read.copy_(self._message, non_blocking=True)
        self._arrived.record(torch.cuda.current_stream(self._message.device))
        self._arrived.synchronize()
        lines: list[list[float]] = self._read[: len(known[0])].tolist()
        return lines


class GraphCache:
    """A decoder's graphs, and whether they are trusted. ``room`` is the longest prefix that its
    caches hold beside a tree.
    """

    def __init__(self, decoder: Decoder, room: int) -> None:
        self._decoder = decoder
        self._room = room
        self.made: dict[tuple[int, int], IterationGraph] = {}
        self.refused = ""  # why some number of rows, or all, is left to eager passes
        self.least = 0  # B of the smallest graph that may serve; a canary tries each
        self._nudge = 0.0  # relative, of the random numbers; a canary looks for ties
        self._known: dict[tuple[str, int, int], list[Generation]] = {}  # eager answers of a canary
        self._split = decoder.target.split_from
        self._longest = 0  # tokens of the sequences that were to be recorded

    def covers(self, requests: Sequence[Request]) -> bool:
        """Returns whether sequences of these requests are no longer than those before."""
        return longest_sequence(requests) <= self._longest

    def record(self, requests: Sequence[Request]) -> None:
        """Records what these requests need, and tries it; no row may be decoded meanwhile."""
        decoder, device = self._decoder, self._decoder.target.device
        self._longest = longest = longest_sequence(requests)
        most = min(self._room, longest, self._split or longest)
        shortest = min(len(each.prompt_ids) for each in requests)
        kinds = row_buckets(decoder.rows)
        count = sum(count for _, count in decoder.asked or ())
        made: dict[tuple[int, int], IterationGraph] = {}
        for rows in kinds:
            here = {}
            try:
                numbers = torch.zeros((rows, count), dtype=torch.float64, device=device)
                for tokens in length_buckets(min(shortest, most), most):
                    here[rows, tokens] = IterationGraph(decoder, rows, tokens, numbers)
                fault = self._canary(here, requests)
            except Exception as error:  # recording fails in many ways; few may end a run
                raise_if_device_lost(error)
                self._refuse(f"{rows} rows: {one_line(error)}")
                continue  # what cannot be made leaves other numbers of rows as they are
            if fault:  # what is wrong in one may be so in others
                self._refuse(fault)
                made = {}
                break
            made |= here
        self.made = made
        self.least = 0

    def _refuse(self, why: str) -> None:
        self.refused = self.refused or why
        log.warning("%s is not recorded: %s", self._decoder.name, why[:300])

    def check_again(
        self, requests: Sequence[Request], answers: Sequence[Generation], seed: int
    ) -> None:
        """Decodes requests once more by the functions that graphs were made of, called, and says
        which number of the answers that graphs gave differs: a job's last ones are longer than a
        canary's.
        """
        decoder = self._decoder
        if len(requests) != len(answers) or not self.made:
            return
        counts, decoder.ran = decoder.ran, type(decoder.ran)()
        for each in self.made.values():
            each.call(True)
        again = decoder.generate(requests, seed)
        for each in self.made.values():
            each.call(False)
        decoder.ran = counts
        faults = (_compare_with_called(*pair) for pair in zip(again, answers, strict=True))
        if fault := next(filter(None, faults), ""):
            self.refused = f"of the job's last answers {fault} of the same pass called"
            log.error("%s was recorded wrongly: %s", decoder.name, self.refused)

    def find_graph(self, lengths: HostDeviceInts) -> IterationGraph | None:
        """Returns the graph that serves rows of such lengths; None where they run eagerly."""
        if self._split is not None and min(lengths) >= self._split:
            return None  # attention over a long prefix is split, which no graph does
        able = [
            (rows, most)
            for rows, most in self.made
            if rows >= len(lengths) and most >= max(*lengths, self.least)
        ]
        return self.made[min(able)] if able else None

    def nudge(self, numbers: Tensor) -> None:
        """Moves random numbers up and down, by turns, while a canary looks for ties."""
        if self._nudge:
            signs = 1 - 2 * (torch.arange(numbers.shape[1], device=numbers.device) % 2)
            numbers.mul_(1 + self._nudge * signs).clamp_(max=1 - 2**-53)

    def _canary(
        self, made: dict[tuple[int, int], IterationGraph], requests: Sequence[Request]
    ) -> str:
        """Says which token of a graph is not the right one, and no rounding explains it."""
        for rows, most in made:
            asked = self._asked(requests, rows, most)
            where = f"{rows} rows over {most} tokens"
            self.made = {kind: each for kind, each in made.items() if kind[0] == rows}
            self.least = most
            for each in self.made.values():
                each.call(True)
            called = self._answers(asked[:rows], rows)
            for each in self.made.values():
                each.call(False)
            found = self._answers(asked, rows)
            for right, one in zip(called, found, strict=False):
                if fault := _compare_with_called(right, one):
                    return f"{where}: {fault} of the same pass called"
            if fault := self._compare_with_eager(asked, rows, found):
                return f"{where}: {fault}"
        return ""

    def _compare_with_eager(
        self, asked: Sequence[Request], rows: int, found: Sequence[Generation]
    ) -> str:
        """Says what rounding does not explain of a graph's answers beside eager passes'."""
        eager = self._decode_eagerly(asked, rows)
        calls = taken = 0
        for place, (right, one) in enumerate(zip(eager, found, strict=True)):
            at = first_difference(right.tokens, one.tokens)
            if at is None:
                calls = calls + len(right.steps)
                taken = taken + len(one.steps)
                continue
            nudged = [self._decode_eagerly(asked, rows, sign)[place].tokens for sign in (1, -1)]
            if any(right.tokens[: at + 1] != moved[: at + 1] for moved in nudged):
                continue  # where a nudge of the numbers changes a token, rounding may
            if not self._is_near_tie(asked[place], right.tokens, one.tokens[at], at):
                return f"{_differs(one, at)}, an eager pass's {right.tokens[at]}"
        equal = count_common_tokens(eager, found)
        if equal < ALIKE * sum(len(right.tokens) for right in eager):
            nudged_equal = min(
                count_common_tokens(eager, self._decode_eagerly(asked, rows, sign))
                for sign in (1, -1)
            )
            if equal < ALIKE * nudged_equal:
                return (
                    f"answers part from eager passes' after {equal} tokens in all, with nudged "
                    f"numbers after {nudged_equal}"
                )
        if abs(taken - calls) > CALLS_OFF * calls:
            return f"{taken} target calls, eagerly {calls}"
        return ""

    def _asked(self, requests: Sequence[Request], rows: int, most: int) -> list[Request]:
        """Returns what a canary decodes: of the longest prompt that a graph serves to its end."""
        decoder = self._decoder
        shortest = min(requests, key=lambda each: len(each.prompt_ids))
        limits = [model.max_positions for model in (decoder.target, *decoder.drafts)]
        end = min([self._room, *(limit - decoder.depth for limit in limits if limit)])
        fits = [each for each in requests if len(each.prompt_ids) + CANARY_TOKENS <= min(most, end)]
        one = max(fits, key=lambda each: len(each.prompt_ids), default=shortest)
        count = max(1, min(CANARY_TOKENS, end - len(one.prompt_ids)))
        return [
            replace(one, prompt_id=f"{one.prompt_id} {i}", max_new_tokens=count, stop_ids=())
            for i in range(-(-CANARY_ANSWERS // rows) * rows)
        ]

    def _decode_eagerly(
        self, asked: Sequence[Request], rows: int, nudge: int = 0
    ) -> list[Generation]:
        """Answers without graphs; with a nudge, random numbers are moved as far as rounding may
        move a probability whose logit is up to 8.
        """
        key = asked[0].prompt_id, rows, nudge
        if key not in self._known:
            gap = near_tie_gap(self._decoder.target.dtype, 8.0)
            self.made = {}
            self._nudge = nudge * gap
            self._known[key] = self._answers(asked, rows)
            self._nudge = 0.0
        return self._known[key]

    def _answers(self, requests: Sequence[Request], rows: int) -> list[Generation]:
        batches = [requests[i : i + rows] for i in range(0, len(requests), rows)]
        return [each for batch in batches for each in self._decoder.generate(batch, 0)]

    def _is_near_tie(self, request: Request, right: Sequence[int], token: int, at: int) -> bool:
        """Returns whether two greedy tokens' logits after the same text are as good as equal."""
        if self._decoder.settings.temperature > 0:
            return False
        logits = next_logits(self._decoder.target, [*request.prompt_ids, *right[:at]])
        best = float(logits[right[at]])
        return abs(best - float(logits[token])) <= near_tie_gap(logits.dtype, best)


def _compare_with_called(right: Generation, one: Generation) -> str:
    """Says which number of a replayed answer is not that of the same function, called."""
    if (at := first_difference(right.tokens, one.tokens)) is not None:
        return f"{_differs(one, at)}, {right.tokens[at]}"
    if right.steps != one.steps:
        pairs = enumerate(zip(right.steps, one.steps, strict=False), 1)
        place = next((n for n, (left, other) in pairs if left != other), 0)
        return (
            f"{len(one.steps)} target calls, the first that differs is {place}; {len(right.steps)}"
        )
    # Nobody promises that a product repeats its bits.
    ours, wanted = one.log_likelihood or 0.0, right.log_likelihood or 0.0
    if not isclose(ours, wanted, rel_tol=_CALLED, abs_tol=_CALLED):
        return f"log-likelihood is {ours:.9g}, {wanted:.9g}"
    return ""


def _differs(answer: Generation, at: int) -> str:
    return f"token {at + 1} of an answer is {answer.tokens[at]}"


def count_common_tokens(ones: Sequence[Generation], others: Sequence[Generation]) -> int:
    """Returns how many tokens are equal before answers part, over all answers."""
    pairs = [(one.tokens, other.tokens) for one, other in zip(ones, others, strict=True)]
    places = [first_difference(*pair) for pair in pairs]
    return sum(len(one) if at is None else at for (one, _), at in zip(pairs, places, strict=True))


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Returns the first place where two answers differ; None if they are equal."""
    pairs = enumerate(zip(one, other, strict=True))
    return next((place for place, (left, right) in pairs if left != right), None)
