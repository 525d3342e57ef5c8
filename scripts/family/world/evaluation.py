"""What the family can do: greedy scores, and how often the target accepts a draft's token."""

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from spec_bench.metrics import SCORES as REGISTERED

from .distillation import answer_all
from .samples import TASKS, turns

SCORES = {
    "wmt18_deen": "bleu",
    "wmt14_ende": "bleu",
    "xsum": "rouge2",
    "alpaca": "exact_match",
    "squad": "exact_match",
    "spider": "exact_match",
}


def _shipped(tasks: Path, task: str) -> list[tuple[str, str]]:
    """(prompt, answer) of the first turn of every shipped sample."""
    lines = (tasks / f"{task}.jsonl").read_text(encoding="utf-8").splitlines()
    return [turns(task, json.loads(line))[0] for line in lines]


def seen_in_training(
    tokenizer: PreTrainedTokenizerFast, tasks: Path, texts: Iterable[Iterator[tuple]]
) -> dict[str, float]:
    """Share of the shipped prompts, per task, that the training text happens to contain as well.

    The spaces of translations and stories are large; those of questions on a database are small.

    Args:
        tokenizer: the family's.
        tasks: folder of the shipped samples.
        texts: the batches that the target was trained on, as (ids [B, T], weights [B, T]).
    """
    seen = set()
    for ids, weights in itertools.chain(*texts):
        lengths = (weights == 1).float().argmax(dim=1).tolist()  # the answer's tokens weigh 1
        seen |= {tuple(row[:n]) for row, n in zip(ids.tolist(), lengths, strict=True)}
    shares = {}
    for task in TASKS:
        prompts = [tuple(tokenizer(prompt)["input_ids"]) for prompt, _ in _shipped(tasks, task)]
        shares[task] = round(sum(prompt in seen for prompt in prompts) / len(prompts), 3)
    return shares


def greedy_scores(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, tasks: Path
) -> dict[str, float]:
    """Score of the greedy answers to the shipped samples, per task that has one."""
    scores = {}
    for task, metric in SCORES.items():
        samples = _shipped(tasks, task)
        prompts = [tokenizer(prompt)["input_ids"] for prompt, _ in samples]
        answers = answer_all(model, tokenizer, prompts, temperature=0)
        texts = [tokenizer.decode(a, skip_special_tokens=True).strip() for a in answers]
        references = [[answer.strip()] for _, answer in samples]
        scores[task] = round(REGISTERED[metric]().columns(texts, references)[metric].value, 4)
    return scores


@torch.inference_mode()
def acceptance(
    target: LlamaForCausalLM,
    draft: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    tasks: Path,
) -> dict[str, dict[str, float]]:
    """Mean over the target's own tokens of P(accept one draft token), per task and temperature.

    At temperature 1 that is sum min(p, q); at 0 it is whether both argmaxes agree.
    """
    rates: dict[str, dict[str, float]] = {}
    for task in TASKS:
        prompts = [tokenizer(prompt)["input_ids"] for prompt, _ in _shipped(tasks, task)[:48]]
        rates[task] = {}
        for temperature in (0, 1):
            torch.manual_seed(0)
            answers = answer_all(target, tokenizer, prompts, temperature=temperature)
            accepted, count = 0.0, 0
            for prompt, answer in zip(prompts, answers, strict=True):
                ids = torch.tensor([prompt + answer])
                window = slice(len(prompt) - 1, ids.shape[1] - 1)
                p, q = (model(ids).logits[0, window].softmax(-1) for model in (target, draft))
                agreed = (
                    torch.minimum(p, q).sum(-1) if temperature else p.argmax(-1) == q.argmax(-1)
                )
                accepted, count = accepted + agreed.sum().item(), count + len(answer)
            rates[task][str(temperature)] = round(accepted / count, 3)
    return rates
