"""Records whole iterations as CUDA graphs, and checks every graph before it is used.

An eager iteration launches some hundred kernels, each by the host. A recorded iteration is a single
launch: the host writes its numbers (lengths, roots, tokens that drafts have not seen) and each
row's random numbers to buffers, replays the graph, and reads the packed verdicts. The graph is a
function of those buffers and of caches and drafters' state at fixed addresses. What a replay leaves
for the host or for the next replay lies outside of the memory that graphs share. A graph serves up
to R rows, padded, with prefixes of up to B tokens.

A graph that misses an operation, or reads memory that another graph has overwritten, gives wrong
tokens without an error. So before a job decodes anything, every graph decodes a test answer (the
canary), which is compared with two answers from the same states of the same generators. The first
calls the recorded function itself, with the same kernels and shapes, so all tokens must be equal.
The second runs eager passes of other shapes, so rounding may explain a difference. A decoder with
any other difference runs eagerly, which a log line and a column report.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from math import isclose
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from spec_bench.core.host_device import HostDeviceInts
from spec_bench.engine.recorder import near_tie_gap
from spec_bench.engine.tree_pass import compute_next_logits
from spec_bench.records.types import Generation, Request
from spec_bench.settings.fields import to_one_line
from spec_bench.system.errors import raise_if_device_lost

if TYPE_CHECKING:
    from spec_bench.decode.compiled import CompiledIteration
    from spec_bench.decode.decoder import Decoder
    from spec_bench.decode.verdict import VerdictLayout

log = logging.getLogger(__name__)
ROWS = (1, 4, 16)  # row counts of graphs; more rows keep a GPU busy without graphs
CANARY_TOKENS = 32  # tokens of a test answer
CANARY_ANSWERS = 2  # least number of test answers per graph
MIN_EQUAL_SHARE = 0.5  # least tokens equal to eager ones, per token equal with nudged numbers
_CALL_TOLERANCE = 1e-6  # relative tolerance of a log-likelihood between replay and call
MAX_CALLS_DEVIATION = 0.15  # share of target calls that rounding in a draft may cost or save


def round_up_to_bucket(tokens: int) -> int:
    """Rounds ``tokens`` up to B of the graph that serves such prefixes: 64, 256, 1024, then powers
    of 2.
    """
    buckets = (bucket for bucket in (64, 256, 1024) if tokens <= bucket)
    return next(buckets, 1 << (tokens - 1).bit_length())


def length_buckets(shortest: int, longest: int) -> list[int]:
    """Lists B of all graphs that serve prefixes of ``shortest`` to ``longest`` tokens."""
    buckets = [min(round_up_to_bucket(shortest), longest)]
    while buckets[-1] < longest:
        buckets.append(min(round_up_to_bucket(buckets[-1] + 1), longest))
    return buckets


def max_sequence_tokens(requests: Sequence[Request]) -> int:
    """Returns the largest number of tokens, prompt and answer, of any request."""
    return max(len(request.prompt_ids) + request.max_new_tokens for request in requests)


def row_buckets(rows: int) -> list[int]:
    """Lists the row counts of the graphs for a decoder of at most ``rows`` rows."""
    return [*(bucket for bucket in ROWS if bucket < rows), min(rows, ROWS[-1])]


class IterationGraph:
    """Recorded graph of an iteration over R rows with prefixes of at most B tokens."""

    def __init__(
        self,
        decoder: Decoder,
        rows: int,
        tokens: int,
        numbers: Tensor,
        compiled: CompiledIteration | None = None,
    ) -> None:
        target = decoder.target
        draft_state = decoder.draft_state
        old_state = dict(vars(draft_state))
        committed, ints = decoder.make_dummy_inputs(rows, tokens)
        draft_inputs = {
            name: value
            for name, value in vars(draft_state).items()
            if value is not old_state.get(name)
        }
        parts = [torch.tensor(int_list) for int_list in ints]
        sizes = [part.numel() for part in parts]
        host_buffer = torch.empty(sum(sizes), dtype=torch.long, pin_memory=True)
        host_buffer.copy_(torch.cat([part.flatten() for part in parts]))
        self._host_ints = host_buffer
        self._device_ints = host_buffer.to(target.device)
        self._host_views = [
            part.view(int_tensor.shape)
            for part, int_tensor in zip(host_buffer.split(sizes), parts, strict=True)
        ]
        for int_list, part, int_tensor in zip(
            ints, self._device_ints.split(sizes), parts, strict=True
        ):
            int_list.read_from_buffer(part.view(int_tensor.shape), tokens)
        # Buffers that outlive an iteration are allocated outside of the graphs' memory.
        self.numbers = numbers
        result = decoder.run_iteration(committed, decoder.make_predrawn_source(numbers))
        self.layout: VerdictLayout = result.layout
        self._packed_verdicts = torch.empty_like(result.packed_verdicts)
        self._host_verdicts = torch.empty(
            result.packed_verdicts.shape, dtype=torch.float64, pin_memory=True
        )

        def iteration() -> None:
            vars(draft_state).update(draft_inputs)  # not those of the step before
            if compiled is None:
                result = decoder.run_iteration(committed, decoder.make_predrawn_source(numbers))
            else:
                result = compiled.iterate(committed, numbers)
            decoder.commit_accepted_paths(result.path, committed.lengths, (), result.layout)
            self._packed_verdicts.copy_(result.packed_verdicts)

        self._graph = target.recorder.record_graph(iteration)
        self._copy_event = torch.cuda.Event()
        self._iteration = iteration
        self.is_called = False  # whether the recorded function is called in place of the graph

    def replay(self, ints: Sequence[HostDeviceInts]) -> list[list[float]]:
        """Replays the graph for at most its number of rows; waits for and returns the packed
        verdicts.
        """
        for part, numbers in zip(self._host_views, ints, strict=True):
            part[: len(numbers)] = torch.tensor(numbers)
        self._device_ints.copy_(self._host_ints, non_blocking=True)
        if self.is_called:
            self._iteration()
        else:
            self._graph.replay()
        self._host_verdicts.copy_(self._packed_verdicts, non_blocking=True)
        self._copy_event.record(torch.cuda.current_stream(self._packed_verdicts.device))
        self._copy_event.synchronize()
        return self._host_verdicts[: len(ints[0])].tolist()


class GraphCache:
    """A decoder's checked graphs. ``max_prefix`` is the longest prefix that fits its caches
    together with a tree.
    """

    def __init__(self, decoder: Decoder, max_prefix: int) -> None:
        self._decoder = decoder
        self._max_prefix = max_prefix
        self.graphs: dict[tuple[int, int], IterationGraph] = {}
        self.refusal = ""  # why some row counts, or all, run eagerly
        self.min_bucket = 0  # least B of a graph to use; selects the graph under test
        self._nudge = 0.0  # relative shift of random numbers, to find near ties
        # eager test answers
        self._eager_answers: dict[tuple[str, int, int], list[Generation]] = {}
        self._split_from = decoder.target.split_from
        self._max_tokens = 0  # tokens of the longest sequence that the graphs were recorded for

    def is_long_enough_for(self, requests: Sequence[Request]) -> bool:
        """Returns whether the graphs are long enough for these requests."""
        return max_sequence_tokens(requests) <= self._max_tokens

    def record_needed_graphs(self, requests: Sequence[Request]) -> None:
        """Records and checks the graphs that these requests need. No row may be decoding."""
        decoder = self._decoder
        self._max_tokens = longest = max_sequence_tokens(requests)
        limit = min(self._max_prefix, longest, self._split_from or longest)
        shortest = min(len(request.prompt_ids) for request in requests)
        buckets = length_buckets(min(shortest, limit), limit)
        all_graphs: dict[tuple[int, int], IterationGraph] = {}
        for rows in row_buckets(decoder.rows):
            compiled = decoder.make_compiled_iteration()
            graphs, fault = self._record_rows(rows, buckets, requests, compiled)
            if fault and compiled is not None:
                log.warning("%s: growth and walk are not compiled: %s", decoder.name, fault[:300])
                graphs, fault = self._record_rows(rows, buckets, requests, None)
            if not fault:
                all_graphs |= graphs
                continue
            self.refusal = self.refusal or fault
            log.warning("%s is not recorded: %s", decoder.name, fault[:300])
            if graphs:  # it may be wrong, so no other is trusted; a failed recording spares them
                all_graphs = {}
                break
        self.graphs = all_graphs
        self.min_bucket = 0

    def _record_rows(
        self,
        rows: int,
        buckets: Sequence[int],
        requests: Sequence[Request],
        compiled: CompiledIteration | None,
    ) -> tuple[dict[tuple[int, int], IterationGraph], str]:
        """Records and checks the graphs of one row count. Returns the graphs, none if recording
        failed, and a description of the fault, "" if there is none.
        """
        decoder = self._decoder
        device = decoder.target.device
        count = sum(count for _, count in decoder.draw_requests or ())
        try:
            numbers = torch.zeros((rows, count), dtype=torch.float64, device=device)
            graphs = {
                (rows, tokens): IterationGraph(decoder, rows, tokens, numbers, compiled)
                for tokens in buckets
            }
            return graphs, self._describe_wrong_graph_token(graphs, requests)
        except Exception as error:  # only a lost device ends the run
            raise_if_device_lost(error)
            return {}, f"{rows} rows: {to_one_line(error)}"

    def log_replay_difference(
        self,
        requests: Sequence[Request],
        answers: Sequence[Generation],
        seed: int,
    ) -> None:
        """Decodes a job's last requests again by calling the recorded functions, and logs the first
        difference from the graphs' answers. These answers are longer than the test answers.
        """
        decoder = self._decoder
        if len(requests) != len(answers) or not self.graphs:
            return
        counts = decoder.iteration_counts
        decoder.iteration_counts = type(decoder.iteration_counts)()
        self._set_called(True)
        repeated = decoder.generate(requests, seed)
        self._set_called(False)
        decoder.iteration_counts = counts
        faults = (
            _describe_replay_difference(*pair) for pair in zip(repeated, answers, strict=True)
        )
        if fault := next(filter(None, faults), ""):
            self.refusal = f"of the job's last answers {fault} of the same pass called"
            log.error("%s was recorded wrongly: %s", decoder.name, self.refusal)

    def _set_called(self, called: bool) -> None:
        for graph in self.graphs.values():
            graph.is_called = called

    def find_graph(self, lengths: HostDeviceInts) -> IterationGraph | None:
        """Returns the smallest graph for rows of these lengths; None if there is none."""
        if self._split_from is not None and min(lengths) >= self._split_from:
            return None  # attention over a long prefix is split, which no graph does
        usable = [
            (rows, bucket)
            for rows, bucket in self.graphs
            if rows >= len(lengths) and bucket >= max(*lengths, self.min_bucket)
        ]
        return self.graphs[min(usable)] if usable else None

    def nudge_random_numbers(self, numbers: Tensor) -> None:
        """Shifts random numbers alternately up and down by the nudge, which only a test sets."""
        if self._nudge:
            signs = 1 - 2 * (torch.arange(numbers.shape[1], device=numbers.device) % 2)
            numbers.mul_(1 + self._nudge * signs).clamp_(max=1 - 2**-53)

    def _describe_wrong_graph_token(
        self,
        graphs: dict[tuple[int, int], IterationGraph],
        requests: Sequence[Request],
    ) -> str:
        """Describes the first wrong test answer of a graph, compared with the called function and
        with eager decoding; "" if there is none.
        """
        for rows, bucket in graphs:
            test_requests = self._build_test_requests(requests, rows, bucket)
            label = f"{rows} rows over {bucket} tokens"
            self.graphs = graphs
            self.min_bucket = bucket
            self._set_called(True)
            expected = self._decode_batches(test_requests[:rows], rows)
            self._set_called(False)
            replayed = self._decode_batches(test_requests, rows)
            for answer, actual in zip(expected, replayed, strict=False):
                if fault := _describe_replay_difference(answer, actual):
                    return f"{label}: {fault} of the same pass called"
            if fault := self._describe_eager_difference(test_requests, rows, replayed):
                return f"{label}: {fault}"
        return ""

    def _describe_eager_difference(
        self,
        requests: Sequence[Request],
        rows: int,
        replayed: Sequence[Generation],
    ) -> str:
        """Describes how answers differ from eager ones by more than rounding; "" if they do not."""
        eager = self._decode_eagerly(requests, rows)
        eager_calls = replayed_calls = 0
        for index, (expected, actual) in enumerate(zip(eager, replayed, strict=True)):
            position = find_first_difference(expected.tokens, actual.tokens)
            if position is None:
                eager_calls += len(expected.steps)
                replayed_calls += len(actual.steps)
                continue
            nudged_answers = [
                self._decode_eagerly(requests, rows, sign)[index].tokens for sign in (1, -1)
            ]
            if any(
                expected.tokens[: position + 1] != nudged_tokens[: position + 1]
                for nudged_tokens in nudged_answers
            ):
                continue  # where a nudge of the numbers changes a token, rounding may
            if not self._is_near_tie(
                requests[index],
                expected.tokens,
                actual.tokens[position],
                position,
            ):
                difference = _describe_token(actual, position)
                return f"{difference}, an eager pass's {expected.tokens[position]}"
        equal = count_common_tokens(eager, replayed)
        if equal < MIN_EQUAL_SHARE * sum(len(expected.tokens) for expected in eager):
            nudged_equal = min(
                count_common_tokens(eager, self._decode_eagerly(requests, rows, sign))
                for sign in (1, -1)
            )
            if equal < MIN_EQUAL_SHARE * nudged_equal:
                return (
                    f"answers part from eager passes' after {equal} tokens in all, with nudged "
                    f"numbers after {nudged_equal}"
                )
        if abs(replayed_calls - eager_calls) > MAX_CALLS_DEVIATION * eager_calls:
            return f"{replayed_calls} target calls, eagerly {eager_calls}"
        return ""

    def _build_test_requests(
        self,
        requests: Sequence[Request],
        rows: int,
        bucket: int,
    ) -> list[Request]:
        """Builds the test requests from the longest prompt that the graph serves to the end of its
        answer.
        """
        decoder = self._decoder
        shortest = min(requests, key=lambda request: len(request.prompt_ids))
        limits = [model.max_positions for model in (decoder.target, *decoder.drafts)]
        end = min([self._max_prefix, *(limit - decoder.depth for limit in limits if limit)])
        fits = [
            request
            for request in requests
            if len(request.prompt_ids) + CANARY_TOKENS <= min(bucket, end)
        ]
        longest = max(fits, key=lambda request: len(request.prompt_ids), default=shortest)
        count = max(1, min(CANARY_TOKENS, end - len(longest.prompt_ids)))
        return [
            replace(
                longest,
                prompt_id=f"{longest.prompt_id} {i}",
                max_new_tokens=count,
                stop_ids=(),
            )
            for i in range(-(-CANARY_ANSWERS // rows) * rows)
        ]

    def _decode_eagerly(
        self,
        requests: Sequence[Request],
        rows: int,
        nudge: int = 0,
    ) -> list[Generation]:
        """Decodes without graphs, with cached answers. ``nudge`` (1, -1 or 0) shifts random numbers
        as far as rounding may shift a probability whose logit is at most 8.
        """
        key = requests[0].prompt_id, rows, nudge
        if key not in self._eager_answers:
            gap = near_tie_gap(self._decoder.target.dtype, 8.0)
            self.graphs = {}
            self._nudge = nudge * gap
            self._eager_answers[key] = self._decode_batches(requests, rows)
            self._nudge = 0.0
        return self._eager_answers[key]

    def _decode_batches(self, requests: Sequence[Request], rows: int) -> list[Generation]:
        batches = [requests[i : i + rows] for i in range(0, len(requests), rows)]
        return [answer for batch in batches for answer in self._decoder.generate(batch, 0)]

    def _is_near_tie(
        self,
        request: Request,
        expected: Sequence[int],
        token: int,
        position: int,
    ) -> bool:
        """Returns whether rounding may swap two greedy tokens after the same text."""
        if self._decoder.settings.temperature > 0:
            return False
        logits = compute_next_logits(
            self._decoder.target, [*request.prompt_ids, *expected[:position]]
        )
        best = float(logits[expected[position]])
        return abs(best - float(logits[token])) <= near_tie_gap(logits.dtype, best)


def _describe_replay_difference(expected: Generation, actual: Generation) -> str:
    """Describes the first difference between a replayed answer and the called function's; "" if
    there is none.
    """
    if (position := find_first_difference(expected.tokens, actual.tokens)) is not None:
        return f"{_describe_token(actual, position)}, {expected.tokens[position]}"
    if expected.steps != actual.steps:
        pairs = enumerate(zip(expected.steps, actual.steps, strict=False), 1)
        place = next((n for n, (step, other_step) in pairs if step != other_step), 0)
        return (
            f"{len(actual.steps)} target calls, the first that differs is {place}; "
            f"{len(expected.steps)}"
        )
    # Matrix products need not be bitwise reproducible.
    actual_value = actual.log_likelihood or 0.0
    expected_value = expected.log_likelihood or 0.0
    if not isclose(actual_value, expected_value, rel_tol=_CALL_TOLERANCE, abs_tol=_CALL_TOLERANCE):
        return f"log-likelihood is {actual_value:.9g}, {expected_value:.9g}"
    return ""


def _describe_token(answer: Generation, position: int) -> str:
    return f"token {position + 1} of an answer is {answer.tokens[position]}"


def count_common_tokens(answers: Sequence[Generation], other_answers: Sequence[Generation]) -> int:
    """Counts the tokens before the first difference of each pair of answers, over all pairs."""
    count = 0
    for answer, other_answer in zip(answers, other_answers, strict=True):
        place = find_first_difference(answer.tokens, other_answer.tokens)
        count += len(answer.tokens) if place is None else place
    return count


def find_first_difference(tokens: Sequence[int], other_tokens: Sequence[int]) -> int | None:
    """Returns the index of the first token in which two answers differ; None if they are equal."""
    pairs = enumerate(zip(tokens, other_tokens, strict=True))
    return next((place for place, (token, other_token) in pairs if token != other_token), None)
