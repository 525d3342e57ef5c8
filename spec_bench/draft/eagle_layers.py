"""Checks that an EAGLE-3 head reads the hidden states on which it was trained.

Layer ids count inputs of blocks in one family of files and outputs in another, and no file states
which. A head that reads neighbouring states still drafts, but badly. So the head is tried on the
target's own text with the declared hidden states, with all shifted by one block, and in reverse
order.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from spec_bench.draft.eagle_network import Eagle3Head
from spec_bench.engine.model import LanguageModel, Layers
from spec_bench.engine.tree_pass import run_causal_tokens

TOKENS = 32  # tokens that the target generates
LONGEST = 512  # most prompt tokens that are used
CLEARLY = 0.15  # by how much the agreement must be higher for another choice of states


def extend_prompt_greedily(target: LanguageModel, prompt: Sequence[int]) -> list[int]:
    """Returns the last tokens of a prompt with the target's greedy continuation."""
    text = list(prompt[-LONGEST:])
    cache = target.allocate(1, len(text) + TOKENS)
    for start in (0, *range(len(text), len(text) + TOKENS - 1)):
        tokens = torch.tensor([text[start:]], device=target.device)
        logits = run_causal_tokens(target, cache, [start], tokens, prefill=True).logits
        text.append(int(logits[0, -1].argmax()))
    return text


@torch.inference_mode()
def measure_agreements(
    head: Eagle3Head,
    target: LanguageModel,
    readings: dict[str, Layers],
    tokens: list[int],
) -> dict[str, float]:
    """Measures the share of the last tokens of a text where the head's first guess is the target's
    likeliest token, for each choice of the three hidden states.
    """
    count = len(tokens)
    ids = torch.tensor([tokens], device=target.device)
    positions = torch.arange(count, device=target.device).unsqueeze(0)
    places = tuple(sorted({place for layers in readings.values() for place in layers}))
    cache = target.allocate(1, count)
    logits, hidden = run_causal_tokens(
        target,
        cache,
        [0],
        ids,
        logits_to_keep=0,
        needs_hidden=places,
        prefill=True,
    )
    assert hidden is not None
    states = dict(zip(places, hidden[:, :-1].chunk(len(places), dim=-1), strict=True))
    embeddings = head.get_embeddings(ids[:, 1:], target.embed)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> Tensor:
        gqa = q.shape[1] != k.shape[1]
        return scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=gqa)

    shares = {}
    for name, layers in readings.items():
        head_input = torch.cat([states[state_index] for state_index in layers], dim=-1).to(
            embeddings.dtype
        )
        output = head.compute_outputs(
            head.fuse_hidden_states(head_input), embeddings, positions[:, :-1], attend
        )
        guesses = head.compute_logits(output, target.project, target.vocab_size)[0].argmax(-1)
        agrees = guesses == logits[0, 1:].argmax(-1)
        shares[name] = float(agrees[-TOKENS:].float().mean())
    return shares


def describe_better_layers(
    head: Eagle3Head,
    target: LanguageModel,
    layers: Layers,
    prompt: Sequence[int],
) -> str | None:
    """Describes in one line a better choice of the hidden states that a head reads; None if there
    is none. The target continues ``prompt``, which may be of any task.
    """
    alternatives = {
        "one block earlier": tuple(place - 1 for place in layers),
        "one block later": tuple(place + 1 for place in layers),
        "in the opposite order": layers[::-1],
    }
    readings = {"": layers} | {
        name: places
        for name, places in alternatives.items()
        if all(0 <= place < target.blocks for place in places)
    }
    shares = measure_agreements(head, target, readings, extend_prompt_greedily(target, prompt))
    best = max(shares, key=lambda name: shares[name])
    if shares[best] <= shares[""] + CLEARLY:
        return None
    return (
        f"the EAGLE-3 head agrees with its target on {shares['']:.0%} of {TOKENS} tokens with "
        f"hidden states {', '.join(map(str, layers))}, and on {shares[best]:.0%} with those "
        f"{best}, {', '.join(map(str, readings[best]))}: set drafter.layer_ids (input, output), or "
        "correct the ids in its config.json"
    )
