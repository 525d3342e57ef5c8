"""Whether an EAGLE-3 head is given the hidden states that it learned from.

Layer ids count inputs of blocks in one family and outputs in another, and nothing in a file says
which; a head that reads neighbouring states still drafts, but badly. So a head is tried on the
target's own text: at the places it is declared to read, at each moved by one block, and reversed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from spec_bench.draft.eagle_network import Eagle3Head
from spec_bench.engine.model import LanguageModel, Layers
from spec_bench.engine.tree_pass import causal

TOKENS = 32  # that the target generates
LONGEST = 512  # of a prompt
CLEARLY = 0.15  # how much more often another reading must agree


def own_text(target: LanguageModel, prompt: Sequence[int], count: int = TOKENS) -> list[int]:
    """A prompt's end and the target's likeliest continuation of ``count`` tokens."""
    text = list(prompt[-LONGEST:])
    cache = target.allocate(1, len(text) + count)
    for at in (0, *range(len(text), len(text) + count - 1)):
        tokens = torch.tensor([text[at:]], device=target.device)
        positions = at + torch.arange(tokens.shape[1], device=target.device).unsqueeze(0)
        visible = causal(positions, len(text))
        logits = target.forward(
            cache, slice(0, 1), [at], tokens, positions, visible, logits_to_keep=1, prefill=True
        ).logits
        text.append(int(logits[0, -1].argmax()))
    return text


def agreements(
    head: Eagle3Head, target: LanguageModel, readings: dict[str, Layers], tokens: list[int]
) -> dict[str, float]:
    """How often the head's first guess is the target's best token on a text of the target's, by the
    three places where the head looks.
    """
    count = len(tokens)
    ids = torch.tensor([tokens], device=target.device)
    positions = torch.arange(count, device=target.device).unsqueeze(0)
    visible = torch.ones((1, count, count), dtype=torch.bool, device=target.device).tril()
    places = tuple(sorted({place for reading in readings.values() for place in reading}))
    logits, hidden = target.forward(
        target.allocate(1, count),
        *(slice(0, 1), [0], ids, positions, visible),
        needs_hidden=places,
        prefill=True,
    )
    assert hidden is not None
    states = dict(zip(places, hidden.chunk(len(places), dim=-1), strict=True))
    expected = logits[0, 1:].argmax(-1)
    return {
        name: _agreement(head, target, torch.cat([states[at] for at in reading], -1), ids, expected)
        for name, reading in readings.items()
    }


@torch.inference_mode()
def _agreement(
    head: Eagle3Head, target: LanguageModel, hidden: Tensor, ids: Tensor, expected: Tensor
) -> float:
    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float | None = None) -> Tensor:
        grouped = q.shape[1] != k.shape[1]
        return scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=scale, enable_gqa=grouped
        )

    feature = head.fuse(hidden[:, :-1].to(next(head.parameters()).dtype))
    embedded = head.embedded(ids[:, 1:], target.embed)
    at = torch.arange(ids.shape[1] - 1, device=ids.device).unsqueeze(0)
    output = head.step(feature, embedded, at, attend)
    guessed = head.logits(output, target.project, target.vocab_size)[0].argmax(-1)
    return float((guessed == expected)[-TOKENS:].float().mean())


def misreading(
    head: Eagle3Head, target: LanguageModel, layers: Layers, prompt: Sequence[int]
) -> str | None:
    """What is wrong with the places that a head is declared to read, in a line; None if nothing is.
    The target continues the prompt, which may be of any task.
    """
    moved = {
        "one block earlier": tuple(place - 1 for place in layers),
        "one block later": tuple(place + 1 for place in layers),
        "in the opposite order": layers[::-1],
    }
    readings = {"": layers} | {
        name: places
        for name, places in moved.items()
        if all(0 <= place < target.blocks for place in places)
    }
    shares = agreements(head, target, readings, own_text(target, prompt))
    best = max(shares, key=lambda name: shares[name])
    if shares[best] <= shares[""] + CLEARLY:
        return None
    return (
        f"the EAGLE-3 head agrees with its target on {shares['']:.0%} of {TOKENS} tokens with "
        f"hidden states {', '.join(map(str, layers))}, and on {shares[best]:.0%} with those "
        f"{best}, {', '.join(map(str, readings[best]))}: set drafter.layer_ids (input, output), or "
        "correct the ids in its config.json"
    )
