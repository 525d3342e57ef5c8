"""Runs randomised code once per outcome, with the outcome's probability.

The code under audit is the code that is benchmarked: it asks a ``Draws`` object for every random
choice, and here that object walks depth-first through all of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from math import isfinite, nan
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from spec_bench.audit.catalogue import WARM, describe_failure, tree_cases
from spec_bench.audit.rules import (
    TOLERANCE,
    VOCABS,
    WrongVerdictError,
    audit_rule,
    expand_rule_cases,
)
from spec_bench.audit.toys import MarkovModel, random_markov
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import DecoderConfig
from spec_bench.decode.decoder import Decoder
from spec_bench.draft.base import heads_class
from spec_bench.draft.network import DraftHeads
from spec_bench.records.types import Request
from spec_bench.system.errors import UsageError
from spec_bench.verify.base import NodeVerifier, Verifier

Outcome = TypeVar("Outcome")
Key = TypeVar("Key", bound=Hashable)


class EnumeratedDraws:
    """``Draws`` for one row whose choices follow a script and extend it by first alternatives.

    ``sample_nodes_at`` and ``passes`` are missing: outcomes that no walk meets would count too.
    """

    def __init__(self, script: Sequence[int]) -> None:
        self._script = script
        self.taken: list[int] = []
        self.alternatives: list[list[int]] = []
        self.probability = 1.0

    def choose(self, probs: Sequence[float]) -> int:
        """Picks the scripted alternative, or the first one with positive probability."""
        possible = [index for index, prob in enumerate(probs) if prob > 0]
        step = len(self.taken)
        choice = self._script[step] if step < len(self._script) else possible[0]
        self.taken.append(choice)
        self.alternatives.append(possible)
        self.probability *= probs[choice]
        return choice

    def categorical(self, probs: Tensor, count: int) -> Tensor:
        assert probs.shape[0] == 1, "enumeration runs one row"
        nodes = probs[0].tolist()
        return torch.tensor([[[self.choose(node) for _ in range(count)] for node in nodes]])

    def gumbel(
        self, like: Tensor, counts: Sequence[int] | None = None, best: int | None = None
    ) -> Tensor:
        """Noise that puts each node's tokens in an enumerated order.

        The order of perturbed log-probabilities is distributed as sampling without replacement
        (Gumbel-top-k), which is what is enumerated. Only the order is right, not the values: code
        that uses the values (stochastic beam search) cannot be enumerated this way.
        """
        assert like.shape[0] == 1, "enumeration runs one row"
        last = like.shape[-1]
        noise = torch.where(like.isfinite(), -like - last, 0.0)  # of those that are not looked at
        for node, log_q in enumerate(like[0]):
            probs = log_q.exp().tolist()
            for rank in range(min(sum(prob > 0 for prob in probs), best or last)):
                total = sum(probs)
                token = self.choose([prob / total for prob in probs])
                noise[0, node, token] = -rank - log_q[token]
                probs[token] = 0.0
        return noise

    def verdict(self, count: object) -> EnumeratedDraws:
        return self

    by_position = trials = verdict

    def settle(self, emitted: Sequence[int]) -> None:
        """Nothing was looked ahead at."""

    def first_accepted(self, level: int, acceptance: Tensor) -> Tensor:
        probs = []
        missed = 1.0
        for accept in acceptance[0].tolist():
            probs.append(missed * accept)
            missed *= 1 - accept
        return torch.tensor([self.choose([*probs, missed])])

    def succeeds(self, index: int, probability: Tensor) -> Tensor:
        return torch.tensor([self.choose([1 - float(probability), float(probability)]) == 1])

    def token(self, probs: Tensor) -> Tensor:
        return torch.tensor([self.choose(probs[0].tolist())])

    def sample_at(self, level: int, probs: Tensor) -> Tensor:
        return self.token(probs)


def enumerate_outcomes(
    run: Callable[[EnumeratedDraws], Outcome],
) -> Iterator[tuple[float, Outcome]]:
    """Yields (probability, result) for every way the choices can fall out of ``run``, which is
    deterministic but for the draws it is given.
    """
    script: list[int] = []
    while True:
        draws = EnumeratedDraws(script)
        result = run(draws)
        yield draws.probability, result
        script = list(draws.taken)
        while script:
            possible = draws.alternatives[len(script) - 1]
            later = [choice for choice in possible if choice > script[-1]]
            if later:
                script[-1] = later[0]
                break
            script.pop()
        if not script:
            return


def enumerate_iteration(
    built: Any,
    request: Request,
    reached: Callable[[Any], Key],
    goes_on: Callable[[Key], Mapping[Key, float]],
) -> tuple[Mapping[Key, float], int]:
    """Returns the law of one iteration's result, by enumeration, and the number of outcomes.

    ``reached`` reads the result from the row that has made a step, ``goes_on`` is the law of what
    the target makes of a result until it is as long as any. The decoder's randomness is replaced.
    """

    def iteration(draws: EnumeratedDraws) -> Key:
        built.make_draws = lambda generators: draws
        rows = built.begin([request], seed=0)
        built.step(rows)
        return reached(rows[0])

    results: dict[Key, float] = defaultdict(float)
    law: dict[Key, float] = defaultdict(float)
    count = 0
    for probability, result in enumerate_outcomes(iteration):
        results[result] += probability
        count += 1
    for result, probability in results.items():
        for longer, chance in goes_on(result).items():
            law[longer] += probability * chance
    return law, count


def p_value(counts: Counter[Key], law: Mapping[Key, float], least: float = 0.0) -> float:
    """Chi-square of counts against a law, rare outcomes pooled to at least so many expected; 0 if
    something came out that cannot.
    """
    possible = sorted((p for p in law.items() if p[1] > 0), key=lambda item: item[1])
    # observed, expected
    samples = sum(counts.values())
    bins = list[list[float]]()
    if counts.keys() - dict(possible).keys():
        return 0.0
    for key, chance in possible:
        if not bins or bins[-1][1] >= least:
            bins.append([0.0, 0.0])
        bins[-1][0] += counts[key]
        bins[-1][1] += chance * samples
    if len(bins) > 1 and bins[-1][1] < least:
        rare = bins.pop()
        bins[-1] = [bins[-1][0] + rare[0], bins[-1][1] + rare[1]]
    if len(bins) == 1:
        return 1.0
    observed, expected = torch.tensor(bins, dtype=torch.float64).T
    expected = expected / expected.sum() * observed.sum()
    statistic = ((observed - expected) ** 2 / expected).sum()
    # The upper tail of chi-square; scipy is not everywhere where torch is.
    return float(torch.special.gammaincc(observed.new_tensor((len(bins) - 1) / 2), statistic / 2))


# Every decoder end to end on a Markov chain: enumerated where possible, else by chi-square.

FALSE_ALARM_RATE = 1e-6
PROMPT = (1, 0)
Tokens = tuple[int, ...]


def markov_decoder(
    config: DecoderConfig,
    settings: SamplingSettings,
    *,
    vocab: int,
    seed: int = 0,
    rows: int = 1,
    device: str = "cpu",
    alter: Callable[[Any], None] | None = None,
) -> tuple[Any, MarkovModel]:
    """A decoder, of beams or not, over a random chain, with drafts that resemble it; and the chain.
    ``alter`` breaks the decoder on purpose, to see the audit catch it.
    """
    target = MarkovModel(random_markov(vocab, seed).logits.to(device))
    drafts = []
    for index in range(config.drafts):
        noise = random_markov(vocab, 1000 + seed + index).logits.to(device)
        drafts.append(MarkovModel(target.logits + noise))
    heads = None if config.heads is None else make_random_heads(target, config.heads, seed)
    built = config.build(target, drafts, settings, rows, heads=heads)
    if alter:
        alter(built)
    return built, target


def make_random_heads(target: MarkovModel, kind: str, seed: int) -> DraftHeads:
    """Random draft heads on a chain, which prefer something in every state."""
    generator = torch.Generator().manual_seed(seed)
    heads = heads_class(kind).smallest(target.hidden_size, target.vocab_size)
    with torch.no_grad():
        for parameter in heads.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return heads.double().eval()


def enumerate_block(
    built: Decoder, law: Callable[[Tokens, int], Mapping[Tokens, float]], prompt: Tokens = PROMPT
) -> tuple[Mapping[Tokens, float], Mapping[Tokens, float], int]:
    """Returns the law of one block followed by the target's own tokens, by enumeration.

    A block has a random length; followed by tokens of the target itself it must have the target's
    law, for every continuation of the longest block's length. ``law`` is the target's:
    P(continuation) of every continuation of a prefix, of a length. The decoder's law, the target's,
    and the number of outcomes enumerated.
    """
    length = built.depth + 1

    def goes_on(tokens: Tokens) -> dict[Tokens, float]:
        rest = law((*prompt, *tokens), length - len(tokens))
        return {tokens + continuation: chance for continuation, chance in rest.items()}

    request = Request("audit", prompt, length)
    got, count = enumerate_iteration(
        built, request, lambda row: tuple(row.tokens[len(prompt) :]), goes_on
    )
    return got, law(prompt, length), count


def enumerate_differences(
    config: DecoderConfig,
    settings: SamplingSettings,
    *,
    vocab: int = 3,
    seed: int = 0,
    prompt: Tokens = PROMPT,
    alter: Callable[[Any], None] | None = None,
) -> tuple[list[float], int]:
    """|probability - chain's probability| of everything one iteration can say, and the number of
    outcomes enumerated. The tree is small, the settings' ``probability_dtype`` float64.
    """
    built, target = markov_decoder(config, settings, vocab=vocab, seed=seed, alter=alter)
    got, expected, count = enumerate_block(built, partial(target.law, settings=settings), prompt)
    return [abs(got[tokens] - chance) for tokens, chance in expected.items()], count


def enumerate_error(
    config: DecoderConfig, settings: SamplingSettings, **given: Any
) -> tuple[float, int]:
    """Returns the largest of the ``differences``, and the number of outcomes."""
    errors, count = enumerate_differences(config, settings, **given)
    return max(errors), count


def total_variation(config: DecoderConfig, settings: SamplingSettings, **given: Any) -> float:
    """Distance of one iteration's output law from the chain's: half the sum of ``differences``."""
    return sum(enumerate_differences(config, settings, **given)[0]) / 2


def chi_square_p_value(
    config: DecoderConfig,
    settings: SamplingSettings,
    *,
    vocab: int = 3,
    length: int = 3,
    samples: int = 6000,
    seed: int = 0,
    prompt: Tokens = PROMPT,
    **more: Any,
) -> float:
    """p-value of the sampled continuations against the chain's exact law; more arguments are
    ``markov_decoder``'s. Covers several iterations, batches and seeded draws, which enumeration
    does not.
    """
    rows = 500
    built, target = markov_decoder(config, settings, vocab=vocab, seed=seed, rows=rows, **more)
    counts: Counter[Tokens] = Counter()
    for start in range(0, samples, rows):
        requests = [Request(f"{start + row}", prompt, length) for row in range(rows)]
        counts.update(generation.tokens for generation in built.generate(requests, seed))
    return p_value(counts, target.law(prompt, length, settings))


def check_exact(verifier: Verifier, tree: str) -> None:
    """Enumerates a rule that another package marks exact: a node rule alone, another in decoders.
    Raises ValueError: it has another law than it says, naming it and how far off it is.
    """
    package = getattr(verifier, "function", type(verifier)).__module__.partition(".")[0]
    if verifier.mark == "exact" and package != "spec_bench":
        said = f"rule {verifier.name!r} of package {package!r} is marked exact; enumerated, it"
        try:
            error = _enumerate(verifier, tree)
        except WrongVerdictError as wrong:
            raise UsageError(f"rule {verifier.name!r} of package {package!r}: {wrong}") from wrong
        except Exception as failure:  # a plugged rule may fail in any way
            raise UsageError(f"{said} ended in {describe_failure(failure)}") from failure
        if not error <= TOLERANCE:
            off = f"off by {error:.2g}" if isfinite(error) else "not finite"
            raise UsageError(
                f"{said}s output's distribution is {off}: see spec-bench audit --only "
                f"'rule: {verifier.name}*', or register it with mark=\"approximate\""
            )


@cache
def _enumerate(verifier: Verifier, tree: str) -> float:
    if isinstance(verifier, NodeVerifier):
        rules = (case for law in verifier.siblings for case in expand_rule_cases(verifier, law))
        errors = [audit_rule(case, vocabs=VOCABS[-1:])[0] for case in rules]
    else:
        errors = [
            enumerate_error(replace(case.config, verifier=verifier), WARM, **case.chain)[0]
            for case in tree_cases("exact")
            if type(case.config.verifier) is type(verifier) and case.enumerable(WARM)
            if case.config.tree.name in ("chain", tree) and case.config.heads is None
        ]
    return float(np.max(errors or [nan]))
