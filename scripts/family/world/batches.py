"""Endless training batches: fresh samples, tokenised, grouped by length, one sample a sequence."""

from collections.abc import Iterator, Mapping
from random import Random

import torch
from tokenizers import Tokenizer
from torch import Tensor

from .samples import TASKS, draw_sample, turns

PROMPT_WEIGHT = 0.2
WEIGHTS = {"wmt18_deen": 1.5, "wmt14_ende": 1.5, "xsum": 1.5, "dolly": 1.5}  # others 1


def segments(tokenizer: Tokenizer, dialogue: list[tuple[str, str]]) -> list[tuple[list[int], bool]]:
    """Token ids of a dialogue as (ids, is the answer) in order, special tokens included."""
    bos, eos = tokenizer.token_to_id("<s>"), tokenizer.token_to_id("</s>")
    parts: list[tuple[list[int], bool]] = [([bos], False)]
    for prompt, answer in dialogue:
        parts.append((tokenizer.encode(prompt, add_special_tokens=False).ids, False))
        ids = tokenizer.encode(answer, add_special_tokens=False).ids
        parts.append(([*ids, eos], True))
    return parts


def batches(
    tokenizer: Tokenizer,
    seed: int,
    tokens: int,
    pool: int = 1536,
    weights_of: Mapping[str, float] = WEIGHTS,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields (ids [B, T], weights [B, T]); weights are the loss weights of each token.

    Args:
        tokenizer: the family's.
        seed: of the text.
        tokens: padded tokens per batch, about.
        pool: samples drawn at a time and sorted by length, so that little is padded.
        weights_of: how often a task is drawn; 1 where it is not named.
    """
    rng = Random(seed)
    pad = tokenizer.token_to_id("<pad>")
    chances = [weights_of.get(task, 1.0) for task in TASKS]
    while True:
        drawn = []
        for task in rng.choices(TASKS, chances, k=pool):
            ids: list[int] = []
            weights: list[float] = []
            for part, answer in segments(tokenizer, turns(task, draw_sample(task, rng))):
                ids += part
                weights += [1.0 if answer else PROMPT_WEIGHT] * len(part)
            drawn.append((ids, weights))
        yield from group_by_length(drawn, tokens, rng, pad)


def group_by_length(
    drawn: list[tuple[list[int], list[float]]], tokens: int, rng: Random, pad: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of samples of similar length, in random order, padded on the right.

    Args:
        drawn: (ids, loss weights) per sample.
        tokens: padded tokens per batch, at most (one sample at least).
        rng: shuffles the batches.
        pad: padding token.
    """
    drawn = sorted(drawn, key=lambda sample: len(sample[0]))
    groups, start = [], 0
    while start < len(drawn):
        end = start + 1
        while end < len(drawn) and (end + 1 - start) * len(drawn[end][0]) <= tokens:
            end += 1
        groups.append(drawn[start:end])
        start = end
    rng.shuffle(groups)
    for group in groups:
        longest = max(len(ids) for ids, _ in group)
        yield (
            torch.tensor([ids + [pad] * (longest - len(ids)) for ids, _ in group]),
            torch.tensor([w + [0.0] * (longest - len(w)) for _, w in group]),
        )
