"""The aligned draft: trained on what the target itself says, towards the target's distribution.

RSD Appendix C.1 fine-tunes its drafts on text that the target generated.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from spec_bench.system.files import write_text

from .batches import group_by_length
from .samples import TASKS, draw_sample, turns

BATCH = 96
TEMPERATURES = (1.0, 0.7, 0.3)
Output = tuple[list[int], list[int]]  # prompt ids, answer ids


@torch.inference_mode()
def answer_all(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    prompts: list[list[int]],
    *,
    temperature: float,
    max_new_tokens: int = 96,
) -> list[list[int]]:
    """Answers prompts in batches; each answer ends with the end-of-sequence token or the limit.

    Args:
        model: the model.
        tokenizer: its tokenizer.
        prompts: token ids.
        temperature: 0 is greedy.
        max_new_tokens: limit.

    Returns:
        Token ids of the answers, in the order of the prompts.
    """
    pad, eos = tokenizer.pad_token_id, tokenizer.eos_token_id
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    answers: list[list[int]] = [[] for _ in prompts]
    for start in range(0, len(order), BATCH):
        chosen = order[start : start + BATCH]
        longest = max(len(prompts[index]) for index in chosen)
        rows = [[pad] * (longest - len(prompts[i])) + prompts[i] for i in chosen]
        ids = torch.tensor(rows)
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0}
        generated = model.generate(
            input_ids=ids,
            attention_mask=(ids != pad).long(),
            max_new_tokens=max_new_tokens,
            eos_token_id=eos,
            pad_token_id=pad,
            **(sampling if temperature else {"do_sample": False}),
        )[:, longest:].tolist()
        for index, answer in zip(chosen, generated, strict=True):
            answers[index] = answer[: answer.index(eos) + 1] if eos in answer else answer
    return answers


def sample_outputs(
    target: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, seed: int, count: int, work: Path
) -> list[Output]:
    """The target's answers to fresh prompts at several temperatures; kept in ``work``."""
    path = work / "outputs.jsonl"
    if not path.exists():
        torch.manual_seed(seed)
        rng, lines = Random(seed), []
        for temperature in TEMPERATURES:
            prompts = []
            for _ in range(count // len(TEMPERATURES)):
                task = rng.choice(TASKS)
                prompt, _ = turns(task, draw_sample(task, rng))[0]
                prompts.append(tokenizer(prompt)["input_ids"])
            answers = answer_all(target, tokenizer, prompts, temperature=temperature)
            lines += [json.dumps(pair) for pair in zip(prompts, answers, strict=True)]
        write_text(path, "\n".join(lines))
    return [tuple(json.loads(line)) for line in path.read_text().splitlines()]


def distillation_batches(
    outputs: list[Output], seed: int, tokens: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless passes over the outputs: (ids [B, T], weights [B, T]), weight 1 on answers."""
    rng = Random(seed)
    drawn = [(p + a, [0.0] * len(p) + [1.0] * len(a)) for p, a in outputs]
    while True:
        yield from group_by_length(drawn, tokens, rng, pad=0)


def distillation_loss(
    draft: LlamaForCausalLM, target: LlamaForCausalLM, ids: Tensor, weights: Tensor
) -> Tensor:
    """KL(target || draft) per answer token, in nats. ids, weights: [B, T]."""
    with torch.inference_mode():
        teacher = target(ids[:, :-1]).logits.log_softmax(-1)
    student = draft(ids[:, :-1]).logits.log_softmax(-1)
    divergence = (teacher.exp() * (teacher - student)).sum(-1)
    weights = weights[:, 1:]
    return (divergence * weights).sum() / weights.sum()
