"""Every decoder end to end on a Markov chain: enumerated where possible, else by chi-square."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial

import torch

from spec_bench.audit.catalogue import WARM, tree_cases
from spec_bench.audit.enumeration import EnumeratedDraws, law_of
from spec_bench.audit.rules import TOLERANCE, audit_rule, cases_of
from spec_bench.audit.toys import MarkovModel, random_markov
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import DecoderConfig
from spec_bench.decode.decoder import Decoder
from spec_bench.draft.base import heads_class
from spec_bench.draft.network import Heads
from spec_bench.records.types import Request
from spec_bench.verify.base import NodeVerifier, Verifier

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
    built: Decoder,
    law: Callable[[Tokens, int], Mapping[Tokens, float]],
    prompt: Tokens = PROMPT,
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
