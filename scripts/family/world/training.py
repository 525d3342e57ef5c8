"""Training runs that checkpoint and resume, and the growing of a deep model from a shallow one."""

import copy
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from spec_bench.system.files import atomic_replace

CHECKPOINT_S = 90


@dataclass(frozen=True)
class Schedule:
    """Steps and learning rate: linear warm-up, constant, linear decay to zero."""

    steps: int  # optimiser steps
    lr: float  # peak learning rate
    warmup: int  # steps of warm-up
    decay: int  # last steps, over which the rate falls to zero

    def rate(self, step: int) -> float:
        """Learning rate of a step counted from 0."""
        up = min(1.0, (step + 1) / max(1, self.warmup))
        down = min(1.0, (self.steps - step) / max(1, self.decay))
        return self.lr * up * down


def llama(vocab: int, layers: int, width: int, heads: int, inner: int) -> LlamaForCausalLM:
    """A Llama of the given shape with tied embeddings."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocab,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=heads,
            intermediate_size=inner,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        )
    )


def deepen(model: LlamaForCausalLM, times: int) -> LlamaForCausalLM:
    """A model of ``times`` as many layers, each block repeated in place.

    Progressive stacking (Gong et al. 2019, "Efficient Training of BERT by Progressively Stacking").
    The repeats' output projections are scaled down so that the deep model starts close to the
    shallow one.
    """
    config = copy.deepcopy(model.config)
    config.num_hidden_layers *= times
    deep = LlamaForCausalLM(config)
    state = {k: v for k, v in model.state_dict().items() if ".layers." not in k}
    deep.load_state_dict(state, strict=False)
    for index, block in enumerate(model.model.layers):
        for repeat in range(times):
            copied = deep.model.layers[index * times + repeat]
            copied.load_state_dict(block.state_dict())
            with torch.no_grad():
                copied.self_attn.o_proj.weight /= times
                copied.mlp.down_proj.weight /= times
    return deep


def weighted_loss(model: LlamaForCausalLM, ids: Tensor, weights: Tensor) -> Tensor:
    """Mean cross-entropy of the next token, in nats, weighted per token. ids, weights: [B, T]."""
    logits = model(ids[:, :-1]).logits
    losses = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none"
    )
    weights = weights[:, 1:].flatten()
    return (losses * weights).sum() / weights.sum()


def train(
    name: str,
    model: LlamaForCausalLM,
    data: Iterator[tuple],
    loss_of: Callable[..., Tensor],
    schedule: Schedule,
    folder: Path,
) -> dict[str, float]:
    """Trains in place; picks up from ``folder/name.pt`` if it is there.

    Args:
        name: of the stage.
        model: the model.
        data: batches, the same from the start at every call; finished steps are skipped.
        loss_of: (model, *batch) -> loss.
        schedule: steps and rates.
        folder: where the checkpoint and the log go.

    Returns:
        Steps, tokens, seconds and the last 100 steps' mean loss.
    """
    optimiser = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.01)
    checkpoint = folder / f"{name}.pt"
    step, tokens, seconds, recent = 0, 0, 0.0, []
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimiser.load_state_dict(saved["optimiser"])
        step, tokens, seconds = saved["step"], saved["tokens"], saved["seconds"]
        recent = saved["recent"]
        for _ in range(step):
            next(data)
    started = saved_at = time.monotonic()
    model.train()

    def save() -> None:
        spent = seconds + time.monotonic() - started
        state = {"model": model.state_dict(), "optimiser": optimiser.state_dict()}
        state |= {"step": step, "tokens": tokens, "seconds": spent, "recent": recent}
        with atomic_replace(checkpoint) as partial:
            torch.save(state, partial)

    while step < schedule.steps:
        batch = next(data)
        for group in optimiser.param_groups:
            group["lr"] = schedule.rate(step)
        loss = loss_of(model, *batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        step, tokens = step + 1, tokens + batch[0].numel()
        recent = [*recent[-99:], loss.item()]
        if step % 50 == 0 or step == schedule.steps:
            line = {
                "stage": name,
                "step": step,
                "tokens": tokens,
                "loss": round(sum(recent[-50:]) / len(recent[-50:]), 4),
                "seconds": round(seconds + time.monotonic() - started, 1),
            }
            print(json.dumps(line), flush=True)
        if time.monotonic() - saved_at > CHECKPOINT_S:
            save()
            saved_at = time.monotonic()
    if math.isnan(recent[-1]):
        raise RuntimeError(f"stage {name}: the loss is not a number")
    save()
    seconds += time.monotonic() - started
    model.eval()
    return {
        "steps": step,
        "tokens": tokens,
        "seconds": round(seconds, 1),
        "loss": round(sum(recent) / len(recent), 4),
    }
