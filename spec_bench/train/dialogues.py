"""What heads learn from: dialogues as token ids, read from files or answered by the target itself.

The alignment is that of decoding. At position t the target's last hidden state x_t is known and so
is token t + 1, which the target has emitted; guess i (1..K) is about token t + 1 + i. The papers
call these t+1..t+K, counting from the token that is known.
"""

import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from spec_bench.core.sampling import SamplingSettings
from spec_bench.engine.generate import Assistance, generate
from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.jobs.work.prompts import JobPrompts
from spec_bench.records.ends import StopCriteria, end_ids
from spec_bench.records.types import Request
from spec_bench.system.errors import UsageError
from spec_bench.system.files import digest, name_path_in_errors, open_own, write_text
from spec_bench.tasks import Task
from spec_bench.tasks.example import get_fixed_answers
from spec_bench.tasks.template import chat_text, encode_each
from spec_bench.train.batches import Dialogue, find_learned_positions
from spec_bench.train.settings import AnswerSettings, TrainSettings

log = logging.getLogger(__name__)

_PLAINLY = "set pair.chat_template, or learn from texts: data.kind=prompts or data.kind=task"
Messages = list[dict[str, str]]
_MARK = "\N{SYMBOL FOR UNIT SEPARATOR}"
Ids = Sequence[int]
_NONE = StopCriteria()


def split(
    dialogues: Sequence[Dialogue], share: float, seed: int
) -> tuple[list[Dialogue], list[Dialogue]]:
    """Training and validation, which has about this share of the prompts; dialogues of the same
    prompt are never on both sides.
    """
    sides: tuple[list[Dialogue], list[Dialogue]] = ([], [])
    for dialogue in dialogues:
        digest = hashlib.sha256(repr((seed, dialogue.prompt)).encode()).digest()
        sides[int.from_bytes(digest[:8]) < share * 2**64].append(dialogue)
    return sides


def check_data(settings: TrainSettings) -> None:
    """Reads what there is to read before a large target is loaded; a ValueError if it is wrong."""
    if settings.task is not None:
        settings.task.examples(1 if settings.asked.data.kind == "task" else None)


def read_dialogues(
    settings: TrainSettings, model: HuggingFaceModel, tokenizer: Any
) -> list[Dialogue]:
    """The dialogues to learn from, at most ``data.max_length`` tokens each; where the target
    answers, its answers are kept below ``results/cache``. A ValueError if they teach nothing.
    """
    data = settings.asked.data
    longest = min(data.max_length, model.max_positions or data.max_length)
    if task := settings.task:
        read = JobPrompts(task, tokenizer, tuple(task.examples(data.limit)), ())
        log.info(read.describe(settings.pair))
    if data.answered_by == "file":
        assert isinstance(settings.task, Task)
        chats = read_chats(settings.task, data.limit)
        dialogues = encode_each(chats, lambda chat: encode_chat(chat, tokenizer))
    else:
        dialogues = _answer_dialogues(settings, model, tokenizer, longest)
    dialogues = [Dialogue(each.ids[:longest], each.learned[:longest]) for each in dialogues]
    useful = [dialogue for dialogue in dialogues if find_learned_positions(dialogue)]
    told = (
        f"data.kind={data.kind}: {len(useful)} of {len(dialogues)} prompts have an answer of two "
        f"tokens or more within data.max_length={longest}"
    )
    if len(useful) < 2:
        raise UsageError(f"{told}; at least 2 are needed")
    log.info(told)
    return useful


def _answer_dialogues(
    settings: TrainSettings, model: HuggingFaceModel, tokenizer: Any, room: int
) -> list[Dialogue]:
    """Prompts of any source with the target's own answers."""
    data = settings.asked.data
    answers = settings.asked.data.answers
    stop_ids = end = end_ids(tokenizer)
    ends = StopCriteria()

    def answered(
        name: str, told: object, asked: Sequence[Ids], stops: Ids, how: AnswerSettings
    ) -> list[list[int]]:
        models = settings.pair.settings(), settings.pair.get_marks()
        identity = digest([models, told, stops, vars(answers)])
        file = Path(settings.asked.results) / "cache" / f"{name}-{identity}.jsonl"
        log.info("%s of the target: %s", name, file)
        shown = settings.asked.sink.progress
        return answer_prompts(model, asked, stops, how, file, shown, ends)

    if data.kind == "sampled":
        # Nobody's data, and as many as are wanted (Magpie, arXiv 2406.08464, section 2): what
        # follows the template's opening of a user's turn, sampled at temperature 1.
        assert data.limit is not None
        begun = [data.openings[i % len(data.openings)] for i in range(data.limit)]
        ids = {words: user_opening(tokenizer, words) for words in data.openings}
        opening = [ids[words] for words in begun]
        how = AnswerSettings((1.0,), data.longest_turn, answers.batch_size, answers.seed)
        turns = answered("prompts", [data.limit, data.openings], opening, end, how)
        prompts = _prompts_of_turns(begun, turns, end, tokenizer)
    elif isinstance(settings.task, Task):
        task = settings.task
        examples = task.examples(data.limit)
        if data.kind == "task":
            prompts = encode_each(examples, lambda example: task.encode(example, tokenizer))
        else:
            prompts = task.encode_all(examples, tokenizer)
        ends = task.ends(tokenizer)
        stop_ids = ends.ids
    else:
        raise UsageError("data.kind=task needs a task with text; random prompts teach nothing")
    prompts = [prompt for prompt in prompts if len(prompt) + 2 <= room][: data.limit]
    if not prompts:
        raise UsageError(f"data.kind={data.kind}: no prompt fits into data.max_length={room}")
    told = (prompts, ends.texts) if ends.texts else prompts
    texts = answered("answers", told, prompts, stop_ids, answers)
    return [
        Dialogue((*prompt, *answer), (False,) * len(prompt) + (True,) * len(answer))
        for prompt, answer in zip(prompts, texts, strict=True)
    ]


def _prompts_of_turns(
    begun: Sequence[str], turns: Sequence[Ids], ends: Ids, tokenizer: Any
) -> list[tuple[int, ...]]:
    """What a chat model wrote as a user's turns behind their first words, up to the assistant's;
    those that do not end, or repeat another one, are dropped.
    """
    ended = (
        (words, turn[:-1]) for words, turn in zip(begun, turns, strict=True) if turn[-1] in ends
    )
    written = ((words, tokenizer.decode(turn, skip_special_tokens=True)) for words, turn in ended)
    texts = ((words + more).strip() for words, more in written if more.strip())
    chats = [
        chat_text(tokenizer, [{"role": "user", "content": each}]) for each in dict.fromkeys(texts)
    ]
    return [tuple(tokenizer(chat, add_special_tokens=False)["input_ids"]) for chat in chats]


def read_chats(task: Task, limit: int | None = None) -> list[Messages]:
    """Returns the conversations of a file, each to its last answer: a chat's own, or a reference.
    Those that no assistant answers are left out; a ValueError where that is all of them.
    """
    examples = task.examples(limit)
    chats = list[Messages]()
    for example in examples:
        answers = get_fixed_answers(example)[: len(example.turns)]
        if answers:
            said = task.messages(example, len(answers) - 1, answers)
            chats.append([*said, {"role": "assistant", "content": answers[-1]}])
    if not chats:
        raise UsageError(
            f"{task.data_file}: none of its {len(examples)} rows has an answer; "
            "data.answered_by=target has the target answer"
        )
    return chats


def encode_chat(messages: Messages, tokenizer: Any) -> Dialogue:
    """Returns a chat as the tokenizer's template writes it; learned is what the assistant says.

    The end that the template gives an answer is learned with it. Raises ValueError: no chat
    template, a slow tokenizer, or a template that rewrites earlier turns.
    """
    text = ""
    spans = []
    for index, message in enumerate(messages):
        if message["role"] == "assistant":
            before = chat_text(tokenizer, messages[:index], otherwise=_PLAINLY)
            after = chat_text(tokenizer, messages[: index + 1], False, _PLAINLY)
            if not (before.startswith(text) and after.startswith(before)):
                raise UsageError(
                    "the chat template writes earlier turns differently once later ones follow; "
                    "set pair.chat_template to one that does not"
                )
            spans.append((len(before), len(after)))
            text = after
    if not getattr(tokenizer, "is_fast", False):
        raise UsageError("chats need a fast tokenizer: only those know a token's place in the text")
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    starts = [at for at, _ in encoded["offset_mapping"]]
    ids = tuple(encoded["input_ids"])
    ends = end_ids(tokenizer)
    learned = [False] * len(ids)
    for start, stop in spans:
        for place in (place for place, at in enumerate(starts) if start <= at < stop):
            learned[place] = True
            if ids[place] in ends:  # what the template writes behind it, nobody says
                break
    return Dialogue(ids, tuple(learned))


def user_opening(tokenizer: Any, words: str) -> tuple[int, ...]:
    """Returns the ids that a chat template writes up to the end of a user's first words."""
    text = chat_text(tokenizer, [{"role": "user", "content": words + _MARK}], False, _PLAINLY)
    return tuple(tokenizer(text.partition(_MARK)[0], add_special_tokens=False)["input_ids"])


def answer_prompts(
    model: HuggingFaceModel,
    prompts: Sequence[Ids],
    stop_ids: Ids,
    settings: AnswerSettings,
    file: Path,
    progress: bool = False,
    ends: StopCriteria = _NONE,
) -> list[list[int]]:
    """Answers every prompt, in order; an answer ends with a stop token or text, or at the limit.
    The file of what is answered so far gains a line of JSON a batch, each
    batch with a seed of its own: a killed run goes on and writes what an undisturbed one would.
    """
    answers: list[list[int]] = [[] for _ in prompts]
    done = _read(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    groups = []  # batches of prompts of one temperature and similar length
    count = len(settings.temperatures)
    size = settings.batch_size
    for place, temperature in enumerate(settings.temperatures):
        chosen = sorted(range(place, len(prompts), count), key=lambda i: (len(prompts[i]), i))
        groups += [(temperature, chosen[at : at + size]) for at in range(0, len(chosen), size)]
    bar = tqdm(groups, desc="answers", unit="batch", disable=not progress)
    with name_path_in_errors(file), open_own(file) as lines:
        for number, (temperature, chosen) in enumerate(bar):
            if number not in done:
                how = settings.max_new_tokens, tuple(stop_ids), ends
                asked = [Request(str(i), tuple(prompts[i]), *how) for i in chosen]
                sampling = SamplingSettings(temperature=temperature)
                made = generate(model, asked, sampling, settings.seed + number, Assistance())
                done[number] = made.answers
                lines.write(json.dumps({"batch": number, "answers": done[number]}) + "\n")
                lines.flush()
            for index, answer in zip(chosen, done[number], strict=True):
                answers[index] = answer
    return answers


def _read(file: Path) -> dict[int, list[list[int]]]:
    """Returns what a former run answered; a line that it had not finished is forgotten."""
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    complete = text[: text.rfind("\n") + 1]
    if len(complete) != len(text):
        write_text(file, complete)
    records = map(json.loads, complete.splitlines())
    return {record["batch"]: record["answers"] for record in records}
