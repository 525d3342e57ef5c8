"""The target's own answers to prompts: what heads see when they draft is what they learn from.

Answers go to a file batch by batch, each batch with a seed of its own, so that a killed run goes on
where it stopped and writes what an undisturbed one would have written. Knows token ids only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.system.disk import naming
from spec_bench.system.files import write_text
from spec_bench.train.answer_settings import AnswerSettings

Ids = Sequence[int]


def answer_prompts(
    model: HuggingFaceModel,
    prompts: Sequence[Ids],
    stop_ids: Sequence[int],
    settings: AnswerSettings,
    file: Path,
    progress: bool = False,
) -> list[list[int]]:
    """Answers every prompt, in order; an answer ends with a stop token, of which there is one at
    least, or at the limit. The file of what is answered so far gains a line of JSON a batch.
    """
    answers: list[list[int]] = [[] for _ in prompts]
    done = _read(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    groups = list(_groups(prompts, settings))
    with naming(file), file.open("a", encoding="utf-8") as lines:
        for number, (temperature, chosen) in enumerate(
            tqdm(groups, desc="answers", unit="batch", disable=not progress)
        ):
            if number not in done:
                torch.manual_seed(settings.seed + number)
                rows = _generate(
                    model, [prompts[i] for i in chosen], stop_ids, temperature, settings
                )
                done[number] = rows
                lines.write(json.dumps({"batch": number, "answers": rows}) + "\n")
                lines.flush()
            for index, answer in zip(chosen, done[number], strict=True):
                answers[index] = answer
    return answers


def _groups(prompts: Sequence[Ids], settings: AnswerSettings) -> Iterator[tuple[float, list[int]]]:
    """Batches of prompts of one temperature and similar length."""
    count = len(settings.temperatures)
    for place, temperature in enumerate(settings.temperatures):
        chosen = sorted(range(place, len(prompts), count), key=lambda i: (len(prompts[i]), i))
        for start in range(0, len(chosen), settings.batch_size):
            yield temperature, chosen[start : start + settings.batch_size]


@torch.inference_mode()
def _generate(
    model: HuggingFaceModel,
    prompts: Sequence[Ids],
    stop_ids: Sequence[int],
    temperature: float,
    settings: AnswerSettings,
) -> list[list[int]]:
    """One batch, padded on the left."""
    longest, pad = max(map(len, prompts)), stop_ids[0]
    rows = [[pad] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
    real = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    ids: Tensor = torch.tensor(rows, device=model.device)
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    generated = model.module.generate(
        input_ids=ids,
        attention_mask=torch.tensor(real, device=model.device),
        max_new_tokens=settings.max_new_tokens,
        eos_token_id=list(stop_ids),
        pad_token_id=pad,
        **(sampling if temperature else {"do_sample": False}),
    )[:, longest:].tolist()
    return [_cut(row, set(stop_ids)) for row in generated]


def _cut(row: list[int], stop_ids: set[int]) -> list[int]:
    """An answer up to its first stop token, that included."""
    end = next((place for place, token in enumerate(row) if token in stop_ids), len(row) - 1)
    return row[: end + 1]


def _read(file: Path) -> dict[int, list[list[int]]]:
    """What a former run answered; a line that it had not finished is forgotten."""
    done: dict[int, list[list[int]]] = {}
    if not file.is_file():
        return done
    text = file.read_text(encoding="utf-8")
    complete = text[: text.rfind("\n") + 1]
    for line in complete.splitlines():
        record = json.loads(line)
        done[record["batch"]] = record["answers"]
    if len(complete) != len(text):
        write_text(file, complete)
    return done
