"""From data settings to dialogues, and from dialogues to a step's batch."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.system.files import digest
from spec_bench.tasks import Task
from spec_bench.train.answers import answer_prompts
from spec_bench.train.chats import chat_prompts, encode_chat, read_chats
from spec_bench.train.dialogues import IGNORED, Dialogue, known_and_guessed, positions
from spec_bench.train.hidden import HiddenStates
from spec_bench.train.sampled_prompts import sampled_prompts
from spec_bench.train.settings import TrainSettings

log = logging.getLogger(__name__)


def check_data(settings: TrainSettings) -> None:
    """Reads what there is to read before a large target is loaded.

    Raises:
        ValueError: a missing file, or a line or record that is not what it should be.
    """
    data = settings.data
    if data.file is not None:
        read = read_chats if data.kind == "chats" else read_prompts
        read(data.file)
    elif settings.task is not None:
        settings.task.examples(1)


def read_dialogues(
    settings: TrainSettings, model: HuggingFaceModel, tokenizer: Any
) -> list[Dialogue]:
    """The dialogues to learn from, at most ``data.max_length`` tokens each.

    Where the target answers, its answers are kept below ``results/cache``.

    Raises:
        ValueError: the data cannot be read, or teach nothing.
    """
    data = settings.data
    if data.kind == "chats" and data.answered_by == "file":
        assert data.file is not None
        chats = read_chats(data.file)[: data.limit]
        dialogues = [encode_chat(chat, tokenizer) for chat in chats]
    else:
        dialogues = _answered(settings, model, tokenizer)
    longest = min(data.max_length, model.max_positions or data.max_length)
    dialogues = [dialogue.cut(longest) for dialogue in dialogues]
    useful = [dialogue for dialogue in dialogues if positions(dialogue)]
    if len(useful) < 2:
        raise ValueError(
            f"data.kind={data.kind}: {len(useful)} of {len(dialogues)} dialogues have an answer of "
            f"two tokens or more within data.max_length={longest}; at least 2 are needed"
        )
    return useful


def _answered(settings: TrainSettings, model: HuggingFaceModel, tokenizer: Any) -> list[Dialogue]:
    """Prompts of any source with the target's own answers."""
    data = settings.data
    stop_ids: tuple[int, ...] = ()
    end = () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
    if data.kind == "sampled":
        assert data.limit is not None
        identity = [settings.pair.settings(), data.limit, end, vars(data.answers)]
        file = settings.results / "cache" / f"prompts-{digest(identity)}.jsonl"
        prompts = sampled_prompts(
            *(model, tokenizer, data.limit, end, data.answers, file, settings.sink.progress)
        )
    elif isinstance(settings.task, Task):
        examples = settings.task.examples(data.limit)
        prompts = [settings.task.encode(example, tokenizer) for example in examples]
        stop_ids = settings.task.stop_ids(tokenizer)
    elif settings.task is not None:
        raise ValueError("data.kind=task needs a task with text; random prompts teach nothing")
    elif data.kind == "chats":
        assert data.file is not None
        prompts = [p for chat in read_chats(data.file) for p in chat_prompts(chat, tokenizer)]
    else:
        assert data.file is not None
        prompts = [tuple(tokenizer(text)["input_ids"]) for text in read_prompts(data.file)]
    room = min(data.max_length, model.max_positions or data.max_length)
    prompts = [prompt for prompt in prompts if len(prompt) + 2 <= room][: data.limit]
    if not prompts:
        raise ValueError(f"data.kind={data.kind}: no prompt fits into data.max_length={room}")
    stop_ids = tuple(dict.fromkeys([*stop_ids, *end]))
    answers = data.answers
    identity = [settings.pair.settings(), prompts, stop_ids, vars(answers)]
    file = settings.results / "cache" / f"answers-{digest(identity)}.jsonl"
    log.info("answers of the target: %s", file)
    texts = answer_prompts(model, prompts, stop_ids, answers, file, settings.sink.progress)
    return [
        Dialogue((*prompt, *answer), (False,) * len(prompt) + (True,) * len(answer))
        for prompt, answer in zip(prompts, texts, strict=True)
    ]


def read_prompts(file: Path) -> list[str]:
    """The prompts of a JSONL file, {"prompt": "..."} a line.

    Raises:
        ValueError: no such file, or a line without a prompt; one line that names it.
    """
    if not file.is_file():
        raise ValueError(f"data.path: no file {str(file)!r}; JSONL of prompts is needed")
    prompts = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            prompt = json.loads(line)["prompt"]
        except (ValueError, KeyError, TypeError):
            prompt = None
        if not isinstance(prompt, str) or not prompt:
            raise ValueError(f'{file.name}, line {number}: expected {{"prompt": "..."}}')
        prompts.append(prompt)
    return prompts


class Batch(NamedTuple):
    """What one part of a step learns from.

    Attributes:
        x: [N, D] hidden states.
        embedded: [N, K, D] of the tokens t + 1..t + K.
        guessed: [N, K] the tokens t + 2..t + K + 1, IGNORED past an answer's end.
    """

    x: Tensor
    embedded: Tensor
    guessed: Tensor


@dataclass(frozen=True)
class Batches:
    """Dialogues as batches.

    Attributes:
        dialogues: all of them.
        hidden: their hidden states.
        model: for its embeddings, which stay as they are.
        guesses: K.
    """

    dialogues: Sequence[Dialogue]
    hidden: HiddenStates
    model: HuggingFaceModel
    guesses: int

    @torch.no_grad()
    def of(self, indices: Sequence[int]) -> Batch:
        """The positions of these dialogues."""
        tokens = self.tokens(indices).to(self.model.device)
        table = self.model.module.get_input_embeddings()
        embedded = table(tokens[:, :-1].clamp(min=0)).to(self.model.device).float()
        return Batch(self.hidden.of(indices), embedded, tokens[:, 1:])

    def tokens(self, indices: Sequence[int]) -> Tensor:
        """[N, K + 1] known and guessed tokens."""
        return torch.cat([known_and_guessed(self.dialogues[i], self.guesses) for i in indices])

    def counts(self, indices: Sequence[int]) -> list[int]:
        """K times in how many positions of these dialogues there is something to guess."""
        counts: list[int] = (self.tokens(indices)[:, 1:] != IGNORED).sum(0).tolist()
        return counts


def order_of(count: int, seed: int, epoch: int) -> list[int]:
    """The order of an epoch's dialogues; it follows from seed and epoch alone."""
    generator = torch.Generator().manual_seed(seed * 100_003 + epoch)
    order: list[int] = torch.randperm(count, generator=generator).tolist()
    return order


def steps_of(count: int, batch: int) -> int:
    """Steps in an epoch: what is left over after the last full batch waits for the next epoch."""
    return max(1, count // batch)


def step_indices(count: int, batch: int, seed: int, step: int) -> list[int]:
    """The dialogues of a step counted from 0."""
    epoch, place = divmod(step, steps_of(count, batch))
    return order_of(count, seed, epoch)[place * batch : (place + 1) * batch]
