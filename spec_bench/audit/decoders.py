"""Runs randomised code once per outcome, with the outcome's probability.

The audit runs the code that is benchmarked. That code requests every random choice from a ``Draws``
object, and the object here visits all choices depth-first.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from math import isfinite, nan
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from spec_bench.audit.catalogue import WARM, describe_error_with_location, iter_audit_cases
from spec_bench.audit.rules import (
    TOLERANCE,
    VOCABS,
    EnumeratedError,
    WrongVerdictError,
    enumerate_rule_error,
    iter_cases_of_rule,
)
from spec_bench.audit.toys import MarkovModel, make_random_markov_model
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import DecoderConfig
from spec_bench.decode.decoder import Decoder
from spec_bench.draft.base import get_heads_class
from spec_bench.draft.network import DraftHeads
from spec_bench.records.types import Request
from spec_bench.system.errors import UsageError
from spec_bench.verify.base import NodeVerifier, Verifier

Outcome = TypeVar("Outcome")
Key = TypeVar("Key", bound=Hashable)


class EnumeratedDraws:
    """``Draws`` for one row: makes the choices of a script, then takes the first alternative.

    It lacks ``sample_nodes_at`` and ``passes``, which would also enumerate nodes that no walk
    reaches.
    """

    def __init__(self, script: Sequence[int]) -> None:
        self._script = script
        self.choices: list[int] = []
        self.alternatives: list[list[int]] = []
        self.probability = 1.0

    def choose_alternative(self, probs: Sequence[float]) -> int:
        """Returns the index of the scripted alternative, or after the script the first one with
        positive probability.
        """
        possible = [index for index, prob in enumerate(probs) if prob > 0]
        step = len(self.choices)
        choice = self._script[step] if step < len(self._script) else possible[0]
        self.choices.append(choice)
        self.alternatives.append(possible)
        self.probability *= probs[choice]
        return choice

    def categorical(self, probs: Tensor, count: int) -> Tensor:
        assert probs.shape[0] == 1, "enumeration runs one row"
        nodes = probs[0].tolist()
        return torch.tensor(
            [[[self.choose_alternative(node) for _ in range(count)] for node in nodes]]
        )

    def gumbel(
        self,
        like: Tensor,
        counts: Sequence[int] | None = None,
        best: int | None = None,
    ) -> Tensor:
        """Returns noise that puts each node's tokens in an enumerated order.

        Perturbed log-probabilities have the order of sampling without replacement (Gumbel-top-k),
        which is enumerated here. The values are not Gumbel values: code that uses them (stochastic
        beam search) cannot be enumerated this way.
        """
        assert like.shape[0] == 1, "enumeration runs one row"
        vocab = like.shape[-1]
        noise = torch.where(like.isfinite(), -like - vocab, 0.0)  # for tokens that are not ranked
        for node, log_q in enumerate(like[0]):
            probs = log_q.exp().tolist()
            for rank in range(min(sum(prob > 0 for prob in probs), best or vocab)):
                total = sum(probs)
                token = self.choose_alternative([prob / total for prob in probs])
                noise[0, node, token] = -rank - log_q[token]
                probs[token] = 0.0
        return noise

    def verdict(self, count: object) -> EnumeratedDraws:
        return self

    prepare_positions = trials = verdict

    def advance(self, emitted: Sequence[int]) -> None:
        """Does nothing, because no choice was drawn ahead."""

    def first_accepted(self, level: int, acceptance: Tensor) -> Tensor:
        probs = []
        reach_prob = 1.0
        for accept in acceptance[0].tolist():
            probs.append(reach_prob * accept)
            reach_prob *= 1 - accept
        return torch.tensor([self.choose_alternative([*probs, reach_prob])])

    def succeeds(self, index: int, probability: Tensor) -> Tensor:
        return torch.tensor(
            [self.choose_alternative([1 - float(probability), float(probability)]) == 1]
        )

    def token(self, probs: Tensor) -> Tensor:
        return torch.tensor([self.choose_alternative(probs[0].tolist())])

    def sample_at(self, level: int, probs: Tensor) -> Tensor:
        return self.token(probs)


def enumerate_outcomes(
    experiment: Callable[[EnumeratedDraws], Outcome],
) -> Iterator[tuple[float, Outcome]]:
    """Yields (probability, result) for every outcome of the choices in ``experiment``, which must
    be deterministic except for its draws.
    """
    script: list[int] = []
    while True:
        draws = EnumeratedDraws(script)
        result = experiment(draws)
        yield draws.probability, result
        script = list(draws.choices)
        while script:
            possible = draws.alternatives[len(script) - 1]
            later = [choice for choice in possible if choice > script[-1]]
            if later:
                script[-1] = later[0]
                break
            script.pop()
        if not script:
            return


def enumerate_iteration_law(
    decoder: Any,
    request: Request,
    read_result: Callable[[Any], Key],
    continue_result: Callable[[Key], Mapping[Key, float]],
) -> tuple[Mapping[Key, float], int]:
    """Enumerates the law of one iteration's result, and counts the outcomes.

    ``read_result`` reads the result from the row after the step. ``continue_result`` returns the
    law of the result's continuations by the target, up to the largest length. Replaces the
    decoder's random draws.
    """

    def iteration(draws: EnumeratedDraws) -> Key:
        decoder.make_draws = lambda generators: draws
        rows = decoder.prefill_requests([request], seed=0)
        decoder.step(rows)
        return read_result(rows[0])

    results: dict[Key, float] = defaultdict(float)
    law: dict[Key, float] = defaultdict(float)
    count = 0
    for probability, result in enumerate_outcomes(iteration):
        results[result] += probability
        count += 1
    for result, probability in results.items():
        for longer, chance in continue_result(result).items():
            law[longer] += probability * chance
    return law, count


def compute_chi_square_p_value(
    counts: Counter[Key],
    law: Mapping[Key, float],
    min_expected: float = 0.0,
) -> float:
    """Computes the chi-square p-value of counts under a law; 0 if an impossible outcome occurred.
    Rare outcomes are pooled into bins with an expected count of at least ``min_expected``.
    """
    possible_outcomes = sorted(
        (outcome for outcome in law.items() if outcome[1] > 0), key=lambda outcome: outcome[1]
    )
    samples = sum(counts.values())
    bins = list[list[float]]()  # observed, expected
    if counts.keys() - dict(possible_outcomes).keys():
        return 0.0
    for key, chance in possible_outcomes:
        if not bins or bins[-1][1] >= min_expected:
            bins.append([0.0, 0.0])
        bins[-1][0] += counts[key]
        bins[-1][1] += chance * samples
    if len(bins) > 1 and bins[-1][1] < min_expected:
        rare = bins.pop()
        bins[-1] = [bins[-1][0] + rare[0], bins[-1][1] + rare[1]]
    if len(bins) == 1:
        return 1.0
    observed_counts, expected_counts = torch.tensor(bins, dtype=torch.float64).T
    expected_counts = expected_counts / expected_counts.sum() * observed_counts.sum()
    statistic = ((observed_counts - expected_counts) ** 2 / expected_counts).sum()
    # Upper tail of the chi-square distribution; scipy may not be installed.
    return float(
        torch.special.gammaincc(observed_counts.new_tensor((len(bins) - 1) / 2), statistic / 2)
    )


FALSE_ALARM_RATE = 1e-6
PROMPT = (1, 0)
Tokens = tuple[int, ...]


def make_markov_decoder(
    config: DecoderConfig,
    settings: SamplingSettings,
    *,
    vocab: int,
    seed: int = 0,
    rows: int = 1,
    device: str = "cpu",
    modify_decoder: Callable[[Any], None] | None = None,
) -> tuple[Any, MarkovModel]:
    """Builds a decoder over a random chain, with drafts that resemble the chain; returns both.

    ``modify_decoder`` breaks the decoder in tests of the audit.
    """
    target = MarkovModel(make_random_markov_model(vocab, seed).logits.to(device))
    drafts = []
    for index in range(config.drafts):
        noise = make_random_markov_model(vocab, 1000 + seed + index).logits.to(device)
        drafts.append(MarkovModel(target.logits + noise))
    heads = None if config.heads is None else make_random_heads(target, config.heads, seed)
    decoder = config.build(target, drafts, settings, rows, heads=heads)
    if modify_decoder:
        modify_decoder(decoder)
    return decoder, target


def make_random_heads(target: MarkovModel, kind: str, seed: int) -> DraftHeads:
    """Makes draft heads for a chain, with standard normal parameters in float64."""
    generator = torch.Generator().manual_seed(seed)
    heads = get_heads_class(kind).make_smallest(target.hidden_size, target.vocab_size)
    with torch.no_grad():
        for parameter in heads.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return heads.double().eval()


class BlockLaw(NamedTuple):
    """A decoder's law of one block, and the target's."""

    enumerated_law: Mapping[Tokens, float]
    expected_law: Mapping[Tokens, float]
    outcome_count: int


def enumerate_block_law(
    decoder: Decoder,
    law: Callable[[Tokens, int], Mapping[Tokens, float]],
    prompt: Tokens = PROMPT,
) -> BlockLaw:
    """Enumerates the law of one block, continued by tokens of the target.

    A block has a random length; continued to the longest block's length it must have the target's
    law. ``law`` computes the target's probabilities of continuations from a prefix and a length.
    """
    length = decoder.depth + 1

    def continue_tokens(tokens: Tokens) -> dict[Tokens, float]:
        continuations = law((*prompt, *tokens), length - len(tokens))
        return {tokens + continuation: chance for continuation, chance in continuations.items()}

    request = Request("audit", prompt, length)
    enumerated_law, count = enumerate_iteration_law(
        decoder,
        request,
        lambda row: tuple(row.tokens[len(prompt) :]),
        continue_tokens,
    )
    return BlockLaw(enumerated_law, law(prompt, length), count)


def enumerate_law_differences(
    config: DecoderConfig,
    settings: SamplingSettings,
    *,
    vocab: int = 3,
    seed: int = 0,
    prompt: Tokens = PROMPT,
    modify_decoder: Callable[[Any], None] | None = None,
) -> tuple[list[float], int]:
    """Enumerates |probability - chain's probability| of all outputs of one iteration, and counts
    the outcomes. Needs a small tree and a ``probability_dtype`` of float64.
    """
    decoder, target = make_markov_decoder(
        config, settings, vocab=vocab, seed=seed, modify_decoder=modify_decoder
    )
    enumerated_law, expected_law, count = enumerate_block_law(
        decoder, partial(target.compute_continuation_law, settings=settings), prompt
    )
    return [abs(enumerated_law[tokens] - chance) for tokens, chance in expected_law.items()], count


def enumerate_decoder_error(
    config: DecoderConfig,
    settings: SamplingSettings,
    **options: Any,
) -> EnumeratedError:
    """Computes the largest difference of ``enumerate_law_differences``, and counts the outcomes."""
    errors, count = enumerate_law_differences(config, settings, **options)
    return EnumeratedError(max(errors), count)


def enumerate_total_variation(
    config: DecoderConfig,
    settings: SamplingSettings,
    **options: Any,
) -> float:
    """Computes the total variation distance of one iteration's output law from the chain's."""
    return sum(enumerate_law_differences(config, settings, **options)[0]) / 2


def sample_decoder_p_value(
    config: DecoderConfig,
    settings: SamplingSettings,
    *,
    vocab: int = 3,
    length: int = 3,
    samples: int = 6000,
    seed: int = 0,
    prompt: Tokens = PROMPT,
    **options: Any,
) -> float:
    """Samples continuations; returns their p-value under the chain's exact law. ``options`` are
    those of ``make_markov_decoder``. Unlike enumeration it covers several iterations, batches and
    seeded draws.
    """
    rows = 500
    decoder, target = make_markov_decoder(
        config,
        settings,
        vocab=vocab,
        seed=seed,
        rows=rows,
        **options,
    )
    counts: Counter[Tokens] = Counter()
    for start in range(0, samples, rows):
        requests = [Request(f"{start + row}", prompt, length) for row in range(rows)]
        counts.update(generation.tokens for generation in decoder.generate(requests, seed))
    return compute_chi_square_p_value(
        counts, target.compute_continuation_law(prompt, length, settings)
    )


def refuse_inexact_plugin_rule(verifier: Verifier, tree_name: str) -> None:
    """Raises UsageError, with the size of the error, if a rule that another package marks as exact
    is not. Node rules are enumerated alone, other rules in decoders.
    """
    package = getattr(verifier, "function", type(verifier)).__module__.partition(".")[0]
    if verifier.mark == "exact" and package != "spec_bench":
        claim = f"rule {verifier.name!r} of package {package!r} is marked exact; enumerated, it"
        try:
            error = _enumerate_verifier_error(verifier, tree_name)
        except WrongVerdictError as wrong:
            raise UsageError(f"rule {verifier.name!r} of package {package!r}: {wrong}") from wrong
        except Exception as failure:  # a plug-in may raise anything
            raise UsageError(
                f"{claim} ended in {describe_error_with_location(failure)}"
            ) from failure
        if not error <= TOLERANCE:
            deviation = f"off by {error:.2g}" if isfinite(error) else "not finite"
            raise UsageError(
                f"{claim}s output's distribution is {deviation}: see spec-bench check decoders "
                f"--only 'rule: {verifier.name}*', or register it with mark=\"approximate\""
            )


@cache
def _enumerate_verifier_error(verifier: Verifier, tree_name: str) -> float:
    if isinstance(verifier, NodeVerifier):
        rules = (
            case
            for law in verifier.exact_sibling_kinds
            for case in iter_cases_of_rule(verifier, law)
        )
        errors = [enumerate_rule_error(case, vocabs=VOCABS[-1:]).largest for case in rules]
    else:
        errors = [
            enumerate_decoder_error(
                replace(case.config, verifier=verifier), WARM, **case.markov_chain_options
            ).largest
            for case in iter_audit_cases("exact")
            if type(case.config.verifier) is type(verifier) and case.has_only_discrete_draws(WARM)
            if case.config.tree.name in ("chain", tree_name) and case.config.heads is None
        ]
    return float(np.max(errors or [nan]))
