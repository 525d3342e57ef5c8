"""Runs randomised code once per outcome, with the outcome's probability.

The code under audit is the code that is benchmarked: it asks a ``Draws`` object for every random
choice, and here that object walks depth-first through all of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TypeVar

import torch
from torch import Tensor

from spec_bench.audit.catalogue import WARM, tree_cases
from spec_bench.audit.rules import TOLERANCE, audit_rule, cases_of
from spec_bench.audit.toys import MarkovModel, random_markov
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import DecoderConfig
from spec_bench.decode.decoder import Decoder
from spec_bench.draft.base import heads_class
from spec_bench.draft.network import Heads
from spec_bench.records.types import Request
from spec_bench.verify.base import NodeVerifier, Verifier

Outcome = TypeVar("Outcome")
Key = TypeVar("Key", bound=Hashable)


class EnumeratedDraws:
    """``Draws`` for one row whose choices follow a script and extend it by first alternatives."""

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

    def gumbel(self, like: Tensor, counts: Sequence[int] | None = None) -> Tensor:
        """Noise that puts each node's tokens in an enumerated order.

        The order of perturbed log-probabilities is distributed as sampling without replacement
        (Gumbel-top-k), which is what is enumerated. Only the order is right, not the values: code
        that uses the values (stochastic beam search) cannot be enumerated this way.
        """
        assert like.shape[0] == 1, "enumeration runs one row"
        noise = torch.zeros_like(like)
        for node, log_q in enumerate(like[0]):
            probs = log_q.exp().tolist()
            for rank in range(sum(prob > 0 for prob in probs)):
                total = sum(probs)
                token = self.choose([prob / total for prob in probs])
                noise[0, node, token] = -rank - log_q[token]
                probs[token] = 0.0
        return noise

    def verdict(self, children: Sequence[int]) -> EnumeratedDraws:
        return self

    def first_accepted(self, level: int, acceptance: Tensor) -> Tensor:
        probs, missed = [], 1.0
        for accept in acceptance[0].tolist():
            probs.append(missed * accept)
            missed *= 1 - accept
        return torch.tensor([self.choose([*probs, missed])])

    def accepts(self, level: int, child: int, acceptance: float) -> bool:
        return self.choose([1 - acceptance, acceptance]) == 1

    def by_position(self, count: int) -> EnumeratedDraws:
        return self

    def token_at(self, level: int, probs: Tensor) -> Tensor:
        return self.token(probs)

    def tokens_at(self, levels: Tensor, probs: Tensor) -> Tensor:
        raise NotImplementedError("outcomes of nodes that no walk meets would be counted too")

    def settle(self, emitted: Sequence[int]) -> None:
        """Nothing was looked ahead at."""

    def passes(self, tests: Tensor, acceptance: Tensor) -> Tensor:
        raise NotImplementedError("outcomes of tests that no walk meets would be counted too")

    def trials(self, count: int) -> EnumeratedDraws:
        return self

    def succeeds(self, index: int, probability: Tensor) -> Tensor:
        chance = float(probability)
        return torch.tensor([self.choose([1 - chance, chance]) == 1])

    def token(self, probs: Tensor) -> Tensor:
        return torch.tensor([self.choose(probs[0].tolist())])


def outcomes(run: Callable[[EnumeratedDraws], Outcome]) -> Iterator[tuple[float, Outcome]]:
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


def law_of(run: Callable[[EnumeratedDraws], Key]) -> tuple[dict[Key, float], int]:
    """The probability of each result of ``run``, and the number of outcomes enumerated."""
    law: dict[Key, float] = defaultdict(float)
    count = 0
    for probability, result in outcomes(run):
        law[result] += probability
        count += 1
    return law, count


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
) -> tuple[Decoder, MarkovModel]:
    """A decoder over a random chain, with drafts that resemble it; and the chain."""
    target = MarkovModel(random_markov(vocab, seed).logits.to(device))
    drafts = []
    for index in range(config.drafts):
        noise = random_markov(vocab, 1000 + seed + index).logits.to(device)
        drafts.append(MarkovModel(target.logits + noise))
    heads = None if config.heads is None else heads_on(target, config.heads, seed)
    built = config.build(target, drafts, settings, rows, heads=heads)
    assert isinstance(built, Decoder), "beams have an audit of their own"
    return built, target


def heads_on(target: MarkovModel, kind: str, seed: int) -> Heads:
    """Random draft heads on a chain, which prefer something in every state."""
    generator = torch.Generator().manual_seed(seed)
    heads = heads_class(kind).smallest(target.hidden_size, target.vocab_size)
    with torch.no_grad():
        for parameter in heads.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return heads.double().eval()


def enumerated_error(
    config: DecoderConfig,
    settings: SamplingSettings,
    *,
    vocab: int = 3,
    seed: int = 0,
    prompt: Tokens = PROMPT,
    alter: Callable[[Decoder], None] | None = None,
) -> tuple[float, int]:
    """Exact error of one iteration's output law.

    A block has a random length; followed by tokens of the chain itself it must have the chain's
    law. That is checked for every continuation of the longest block's length. The decoder has a
    small tree, the settings ``probability_dtype`` float64; ``alter`` breaks the decoder on purpose,
    to see the audit catch it.

    Returns:
        The largest |probability - chain's probability| and the number of outcomes enumerated.
    """
    built, target = markov_decoder(config, settings, vocab=vocab, seed=seed)
    if alter:
        alter(built)
    got, expected, count = block_law(built, partial(target.law, settings=settings), prompt)
    return max(abs(got[tokens] - chance) for tokens, chance in expected.items()), count


def block_law(
    built: Decoder, law: Callable[[Tokens, int], Mapping[Tokens, float]], prompt: Tokens = PROMPT
) -> tuple[Mapping[Tokens, float], Mapping[Tokens, float], int]:
    """The law of one block followed by the target's own tokens, by enumeration.

    Args:
        built: the decoder; its randomness is replaced.
        law: the target's: P(continuation) of every continuation of a prefix, of a length.
        prompt: what is continued.

    Returns:
        Decoder's and target's law of the tokens that follow the prompt, as many as the longest
        block has, and the number of outcomes enumerated.
    """
    request = Request("audit", prompt, built.depth + 1)

    def block(draws: EnumeratedDraws) -> Tokens:
        built.make_draws = lambda generators: draws
        rows = built.begin([request], seed=0)
        built.step(rows)
        return tuple(rows[0].tokens[len(prompt) :])

    blocks, count = law_of(block)
    length = built.depth + 1
    got: dict[Tokens, float] = defaultdict(float)
    for tokens, probability in blocks.items():
        rest = law((*prompt, *tokens), length - len(tokens))
        for continuation, chance in rest.items():
            got[tokens + continuation] += probability * chance
    return got, law(prompt, length), count


def total_variation(
    config: DecoderConfig,
    settings: SamplingSettings,
    *,
    vocab: int = 3,
    seed: int = 0,
    prompt: Tokens = PROMPT,
) -> float:
    """Distance of one iteration's output law from the chain's: half the sum of differences."""
    built, target = markov_decoder(config, settings, vocab=vocab, seed=seed)
    got, expected, _ = block_law(built, partial(target.law, settings=settings), prompt)
    return sum(abs(got[tokens] - chance) for tokens, chance in expected.items()) / 2


def chi_square(
    config: DecoderConfig,
    settings: SamplingSettings,
    *,
    vocab: int = 3,
    length: int = 3,
    samples: int = 6000,
    seed: int = 0,
    prompt: Tokens = PROMPT,
    alter: Callable[[Decoder], None] | None = None,
    device: str = "cpu",
) -> float:
    """p-value of the sampled continuations against the chain's exact law.

    Covers several iterations, batches and seeded draws, which enumeration does not; 0 if a
    continuation came out that cannot. ``alter`` breaks the decoder on purpose. Chain and draws are
    on ``device``.
    """
    rows = 500
    built, target = markov_decoder(
        config, settings, vocab=vocab, seed=seed, rows=rows, device=device
    )
    if alter:
        alter(built)
    counts: Counter[tuple[int, ...]] = Counter()
    for start in range(0, samples, rows):
        requests = [Request(f"{start + row}", prompt, length) for row in range(rows)]
        counts.update(generation.tokens for generation in built.generate(requests, seed))
    law = {tokens: p for tokens, p in target.law(prompt, length, settings).items() if p > 0}
    if set(counts) - set(law):
        return 0.0
    observed = torch.tensor([counts[tokens] for tokens in law], dtype=torch.float64)
    expected = torch.tensor(list(law.values()), dtype=torch.float64)
    expected = expected / expected.sum() * observed.sum()
    if len(law) == 1:
        return 1.0
    statistic = ((observed - expected) ** 2 / expected).sum()
    # The upper tail of chi-square; scipy is not everywhere where torch is.
    return float(torch.special.gammaincc(observed.new_tensor((len(law) - 1) / 2), statistic / 2))


def check_exact(verifier: Verifier, tree: str) -> None:
    """Enumerates a rule that another package marks exact: a node rule alone, another in decoders.

    Raises:
        ValueError: it has another law than it says; naming it and how far off it is.
    """
    package = getattr(verifier, "function", type(verifier)).__module__.partition(".")[0]
    if verifier.mark == "exact" and package != "spec_bench":
        _enumerate(verifier, tree, package)


@cache
def _enumerate(verifier: Verifier, tree: str, package: str) -> None:
    if isinstance(verifier, NodeVerifier):
        rules = (case for law in verifier.siblings for case in cases_of(verifier, law))
        errors = [audit_rule(case, vocab=3)[0] for case in rules]
    else:
        errors = [
            enumerated_error(replace(case.config, verifier=verifier), WARM, **case.chain)[0]
            for case in tree_cases("exact")
            if type(case.config.verifier) is type(verifier) and case.enumerable(WARM)
            if case.config.tree.name in ("chain", tree) and case.config.heads is None
        ]
    if not (error := max(errors, default=float("nan"))) <= TOLERANCE:
        raise ValueError(
            f"rule {verifier.name!r} of package {package!r} is marked exact; enumerated, its law "
            f"is off by {error:.2g}"
        )
