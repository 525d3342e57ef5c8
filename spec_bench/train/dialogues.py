"""Prepares training dialogues as token ids: read from files, or prompts answered by the target.

The alignment is that of decoding. At position t the target's last hidden state x_t is known and so
is token t + 1, which the target has emitted; guess i (1..K) is token t + 1 + i. The papers call the
guesses t+1..t+K, counting from the known token.
"""

import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from spec_bench.engine.generate import Assistance, run_generate
from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.jobs.work.prompts import JobPrompts
from spec_bench.records.ends import StopCriteria, find_end_token_ids
from spec_bench.records.sampling import SamplingSettings
from spec_bench.records.types import Request
from spec_bench.system.errors import UsageError
from spec_bench.system.files import (
    hash_json,
    open_regular_to_write,
    write_errors_naming,
    write_text,
)
from spec_bench.tasks import Task
from spec_bench.tasks.example import get_answers_or_references
from spec_bench.tasks.template import encode_all_but_failing, render_chat
from spec_bench.train.batches import Dialogue, find_learned_positions
from spec_bench.train.settings import TargetAnswerSettings, TrainSettings

log = logging.getLogger(__name__)

_NO_TEMPLATE_REMEDY = (
    "set pair.chat_template, or learn from texts: data.kind=prompts or data.kind=task"
)
Messages = list[dict[str, str]]
_MARK = "\N{SYMBOL FOR UNIT SEPARATOR}"
Ids = Sequence[int]
_NO_STOPS = StopCriteria()


def split_dialogues(
    dialogues: Sequence[Dialogue],
    share: float,
    seed: int,
) -> tuple[list[Dialogue], list[Dialogue]]:
    """Splits dialogues into a training and a validation set; the latter gets about ``share`` of the
    prompts. Dialogues with equal prompts stay together.
    """
    sides: tuple[list[Dialogue], list[Dialogue]] = ([], [])
    for dialogue in dialogues:
        digest = hashlib.sha256(repr((seed, dialogue.prompt)).encode()).digest()
        sides[int.from_bytes(digest[:8]) < share * 2**64].append(dialogue)
    return sides


def require_training_data(settings: TrainSettings) -> None:
    """Reads the data before a large target is loaded, so that errors in it are reported at once."""
    if settings.task is not None:
        settings.task.read_examples(1 if settings.config.data.kind == "task" else None)


def get_training_dialogues(
    settings: TrainSettings,
    model: HuggingFaceModel,
    tokenizer: Any,
) -> list[Dialogue]:
    """Returns the dialogues to learn from, cut to ``data.max_length`` tokens. The target's answers
    are cached below ``results/cache``. Raises UsageError if fewer than 2 dialogues have an answer
    of two tokens or more.
    """
    data = settings.config.data
    longest = min(data.max_length, model.max_positions or data.max_length)
    if task := settings.task:
        job_prompts = JobPrompts(task, tokenizer, tuple(task.read_examples(data.limit)), ())
        log.info(job_prompts.describe_data_ends_and_template(settings.pair))
    if data.answered_by == "file":
        assert isinstance(settings.task, Task)
        chats = read_answered_chats(settings.task, data.limit)
        dialogues = encode_all_but_failing(chats, lambda chat: encode_chat(chat, tokenizer))
    else:
        dialogues = _make_answered_dialogues(settings, model, tokenizer, longest)
    dialogues = [
        Dialogue(dialogue.ids[:longest], dialogue.loss_mask[:longest]) for dialogue in dialogues
    ]
    useful = [dialogue for dialogue in dialogues if find_learned_positions(dialogue)]
    summary = (
        f"data.kind={data.kind}: {len(useful)} of {len(dialogues)} prompts have an answer of two "
        f"tokens or more within data.max_length={longest}"
    )
    if len(useful) < 2:
        raise UsageError(f"{summary}; at least 2 are needed")
    log.info(summary)
    return useful


def _make_answered_dialogues(
    settings: TrainSettings,
    model: HuggingFaceModel,
    tokenizer: Any,
    max_length: int,
) -> list[Dialogue]:
    """Makes dialogues from prompts of any source and the target's own answers."""
    data = settings.config.data
    answers = data.answers
    stop_ids = end = find_end_token_ids(tokenizer)
    ends = StopCriteria()

    def decode_answers(
        name: str,
        source: object,
        prompts: Sequence[Ids],
        stops: Ids,
        answer_settings: TargetAnswerSettings,
    ) -> list[list[int]]:
        models = settings.pair.get_run_id_settings(), settings.pair.read_content_ids()
        identity = hash_json([models, source, stops, vars(answers)])
        file = Path(settings.config.results) / "cache" / f"{name}-{identity}.jsonl"
        log.info("%s of the target: %s", name, file)
        progress = settings.config.sink.progress
        return answer_prompts(model, prompts, stops, answer_settings, file, progress, ends)

    if data.kind == "sampled":
        # Magpie (arXiv 2406.08464, section 2): the model continues the template's opening of a
        # user's turn at temperature 1, which gives any number of prompts without a data set.
        assert data.limit is not None
        first_words = [data.openings[i % len(data.openings)] for i in range(data.limit)]
        ids = {words: encode_user_opening(tokenizer, words) for words in data.openings}
        opening_ids = [ids[words] for words in first_words]
        turn_settings = TargetAnswerSettings(
            (1.0,), data.longest_turn, answers.batch_size, answers.seed
        )
        turn_source = [data.limit, data.openings]
        turns = decode_answers("prompts", turn_source, opening_ids, end, turn_settings)
        prompts = _make_prompts_of_finished_turns(first_words, turns, end, tokenizer)
    elif isinstance(settings.task, Task):
        task = settings.task
        examples = task.read_examples(data.limit)
        if data.kind == "task":
            prompts = encode_all_but_failing(examples, lambda e: task.encode(e, tokenizer))
        else:
            prompts = task.encode_asked_turns_but_failing(examples, tokenizer)
        ends = task.make_stop_criteria(tokenizer)
        stop_ids = ends.stop_ids
    else:
        raise UsageError("data.kind=task needs a task with text; random prompts teach nothing")
    prompts = [prompt for prompt in prompts if len(prompt) + 2 <= max_length][: data.limit]
    if not prompts:
        raise UsageError(f"data.kind={data.kind}: no prompt fits into data.max_length={max_length}")
    source = (prompts, ends.stop_texts) if ends.stop_texts else prompts
    texts = decode_answers("answers", source, prompts, stop_ids, answers)
    return [
        Dialogue((*prompt, *answer), (False,) * len(prompt) + (True,) * len(answer))
        for prompt, answer in zip(prompts, texts, strict=True)
    ]


def _make_prompts_of_finished_turns(
    first_words: Sequence[str],
    turns: Sequence[Ids],
    ends: Ids,
    tokenizer: Any,
) -> list[tuple[int, ...]]:
    """Makes prompts from the first words of user turns and their sampled continuations. Drops
    unfinished, empty and repeated turns.
    """
    finished_turns = (
        (words, turn[:-1])
        for words, turn in zip(first_words, turns, strict=True)
        if turn[-1] in ends
    )
    decoded_turns = (
        (words, tokenizer.decode(turn, skip_special_tokens=True)) for words, turn in finished_turns
    )
    texts = (
        (words + continuation).strip()
        for words, continuation in decoded_turns
        if continuation.strip()
    )
    chats = [
        render_chat(tokenizer, [{"role": "user", "content": text}]) for text in dict.fromkeys(texts)
    ]
    return [tuple(tokenizer(chat, add_special_tokens=False)["input_ids"]) for chat in chats]


def read_answered_chats(task: Task, limit: int | None = None) -> list[Messages]:
    """Reads a task's conversations, each up to its last answer; answers are the chat's own or
    references. Leaves out conversations without an answer. Raises UsageError if none has an answer.
    """
    examples = task.read_examples(limit)
    chats = list[Messages]()
    for example in examples:
        answers = get_answers_or_references(example)[: len(example.turns)]
        if answers:
            messages = task.list_messages(example, len(answers) - 1, answers)
            chats.append([*messages, {"role": "assistant", "content": answers[-1]}])
    if not chats:
        raise UsageError(
            f"{task.data_label}: none of its {len(examples)} rows has an answer; "
            "data.answered_by=target has the target answer"
        )
    return chats


def encode_chat(messages: Messages, tokenizer: Any) -> Dialogue:
    """Encodes a chat by the tokenizer's template; only the assistant's messages are learned.

    A message is learned with the end token that the template puts after it. Raises UsageError if
    there is no chat template, if the tokenizer is slow, or if the template rewrites earlier turns.
    """
    text = ""
    spans = []
    for index, message in enumerate(messages):
        if message["role"] == "assistant":
            text_before = render_chat(tokenizer, messages[:index], remedy=_NO_TEMPLATE_REMEDY)
            text_after = render_chat(tokenizer, messages[: index + 1], False, _NO_TEMPLATE_REMEDY)
            if not (text_before.startswith(text) and text_after.startswith(text_before)):
                raise UsageError(
                    "the chat template writes earlier turns differently once later ones follow; "
                    "set pair.chat_template to one that does not"
                )
            spans.append((len(text_before), len(text_after)))
            text = text_after
    if not getattr(tokenizer, "is_fast", False):
        raise UsageError("chats need a fast tokenizer: only those know a token's place in the text")
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    starts = [offset for offset, _ in encoding["offset_mapping"]]
    ids = tuple(encoding["input_ids"])
    ends = find_end_token_ids(tokenizer)
    is_learned = [False] * len(ids)
    for start, stop in spans:
        for place in (place for place, offset in enumerate(starts) if start <= offset < stop):
            is_learned[place] = True
            if ids[place] in ends:  # the template's text after the end token is not learned
                break
    return Dialogue(ids, tuple(is_learned))


def encode_user_opening(tokenizer: Any, words: str) -> tuple[int, ...]:
    """Encodes a chat that breaks off after the first words of the user's turn."""
    text = render_chat(
        tokenizer, [{"role": "user", "content": words + _MARK}], False, _NO_TEMPLATE_REMEDY
    )
    return tuple(tokenizer(text.partition(_MARK)[0], add_special_tokens=False)["input_ids"])


def answer_prompts(
    model: HuggingFaceModel,
    prompts: Sequence[Ids],
    stop_ids: Ids,
    settings: TargetAnswerSettings,
    file: Path,
    progress: bool = False,
    ends: StopCriteria = _NO_STOPS,
) -> list[list[int]]:
    """Returns the target's answer to each prompt; an answer ends with a stop token or text, or at
    the limit of tokens.

    Appends a line of JSON per batch to ``file``. Each batch has its own seed, so that a resumed run
    writes the same answers as an uninterrupted one.
    """
    answers: list[list[int]] = [[] for _ in prompts]
    answers_by_batch = _read_answers_and_cut_file(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    groups = []  # batches of prompts of one temperature and similar length
    count = len(settings.temperatures)
    size = settings.batch_size
    for place, temperature in enumerate(settings.temperatures):
        indices = sorted(range(place, len(prompts), count), key=lambda i: (len(prompts[i]), i))
        groups += [
            (temperature, indices[start : start + size]) for start in range(0, len(indices), size)
        ]
    bar = tqdm(groups, desc="answers", unit="batch", disable=not progress)
    with write_errors_naming(file), open_regular_to_write(file) as lines:
        for number, (temperature, indices) in enumerate(bar):
            if number not in answers_by_batch:
                request_settings = settings.max_new_tokens, tuple(stop_ids), ends
                requests = [Request(str(i), tuple(prompts[i]), *request_settings) for i in indices]
                sampling = SamplingSettings(temperature=temperature)
                result = run_generate(
                    model, requests, sampling, settings.seed + number, Assistance()
                )
                answers_by_batch[number] = result.answers
                lines.write(
                    json.dumps({"batch": number, "answers": answers_by_batch[number]}) + "\n"
                )
                lines.flush()
            for index, answer in zip(indices, answers_by_batch[number], strict=True):
                answers[index] = answer
    return answers


def _read_answers_and_cut_file(file: Path) -> dict[int, list[list[int]]]:
    """Reads the answers of an earlier run by batch; cuts off an incomplete last line."""
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    complete = text[: text.rfind("\n") + 1]
    if len(complete) != len(text):
        write_text(file, complete)
    records = map(json.loads, complete.splitlines())
    return {record["batch"]: record["answers"] for record in records}
