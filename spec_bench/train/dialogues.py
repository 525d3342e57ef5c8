"""What heads learn from: dialogues as token ids, read from files or answered by the target itself.

The alignment is that of decoding. At position t the target's last hidden state x_t is known and so
is token t + 1, which the target has emitted; guess i (1..K) is about token t + 1 + i. The papers
call these t+1..t+K, counting from the token that is known.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.system.files import digest, naming, write_text
from spec_bench.tasks import Task
from spec_bench.tasks.template import chat_text
from spec_bench.train.settings import AnswerSettings, TrainSettings

log = logging.getLogger(__name__)

IGNORED = -100  # no loss where nothing is to be learned; the default of torch's cross-entropy
ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "system": "system",
}
EXPECTED = '{"conversations": [{"from": "human" or "gpt", "value": "..."}, ...]}'
Messages = list[dict[str, str]]
_LONGEST = 64  # tokens; a turn that has not ended by then is dropped
_MARK = "\N{SYMBOL FOR UNIT SEPARATOR}"
Ids = Sequence[int]


@dataclass(frozen=True)
class Dialogue:
    """One sequence."""

    ids: tuple[int, ...]  # T token ids
    learned: tuple[bool, ...]  # T times whether the token is an answer's

    def cut(self, length: int) -> Dialogue:
        """Its first ``length`` tokens."""
        return Dialogue(self.ids[:length], self.learned[:length])

    @property
    def prompt(self) -> tuple[int, ...]:
        """The tokens before the first answer."""
        return self.ids[: self.learned.index(True)] if True in self.learned else self.ids


def positions(dialogue: Dialogue) -> list[int]:
    """Positions t that something is learned at: tokens t + 1 and t + 2 belong to one answer."""
    learned = dialogue.learned
    return [t for t in range(len(learned) - 2) if learned[t + 1] and learned[t + 2]]


def known_and_guessed(dialogue: Dialogue, guesses: int) -> Tensor:
    """Tokens t + 1..t + 1 + K of every position.

    Returns:
        [N, K + 1] int64: first the token that is known, then those to be guessed; IGNORED from the
        end of the answer on.
    """
    at = positions(dialogue)
    ids = torch.tensor([*dialogue.ids, *[0] * guesses])
    learned = torch.tensor([*dialogue.learned, *[False] * guesses])
    window = torch.tensor(at, dtype=torch.long)[:, None] + 1 + torch.arange(guesses + 1)
    # Once an answer has ended, what another one says is no guess of this one.
    inside = learned[window].long().cumprod(dim=1).bool()
    return ids[window].masked_fill(~inside, IGNORED)


def answered_tokens(dialogues: Sequence[Dialogue]) -> Counter[int]:
    """How often answers hold each token."""
    return Counter(
        token
        for each in dialogues
        for token, learned in zip(each.ids, each.learned, strict=True)
        if learned
    )


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
    """Reads what there is to read before a large target is loaded.

    Raises:
        ValueError: a missing file, or a line or record that is not what it should be.
    """
    data = settings.asked.data
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
    data = settings.asked.data
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
    data = settings.asked.data
    stop_ids: tuple[int, ...] = ()
    end = () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
    if data.kind == "sampled":
        assert data.limit is not None
        identity = [settings.pair.settings(), data.limit, end, vars(data.answers)]
        file = Path(settings.asked.results) / "cache" / f"prompts-{digest(identity)}.jsonl"
        prompts = sampled_prompts(
            *(model, tokenizer, data.limit, end, data.answers, file, settings.asked.sink.progress)
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
    file = Path(settings.asked.results) / "cache" / f"answers-{digest(identity)}.jsonl"
    log.info("answers of the target: %s", file)
    texts = answer_prompts(model, prompts, stop_ids, answers, file, settings.asked.sink.progress)
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


def read_chats(file: Path) -> list[Messages]:
    """All chats in ShareGPT's format that a chat template can render, as messages {"role",
    "content"}; {"messages": [{"role": ..., "content": ...}]} is read as well.

    A JSON file holds a list of chats, a JSONL file one a line. As FastChat does, answers before the
    first question are dropped. Chats in which the speakers do not take turns, or that no assistant
    answers, are left out; the log says how many.

    Raises:
        ValueError: no such file, no JSON, a record that is no chat, or no chat left over; one line
            that names the file, the record or line, and what is expected.
    """
    if not file.is_file():
        raise ValueError(
            f"data.path: no file {str(file)!r}; a JSON or JSONL file of chats is needed"
        )
    chats, left_out = [], 0
    for place, record in _records(file):
        messages = _messages(record, f"{file.name}, {place}")
        if (chat := _in_turns(messages)) is None:
            left_out += 1
        else:
            chats.append(chat)
    if not chats:
        raise ValueError(
            f"{file.name}: none of its {left_out} records is a chat of alternating turns with an "
            f"answer; expected {EXPECTED}"
        )
    if left_out:
        log.info("%s: %d of %d chats left out", file.name, left_out, left_out + len(chats))
    return chats


def encode_chat(messages: Messages, tokenizer: Any) -> Dialogue:
    """A chat as the tokenizer's template writes it; learned is what the assistant says.

    The end that the template gives an answer is learned with it.

    Raises:
        ValueError: no chat template, a slow tokenizer, or a template that rewrites earlier turns.
    """
    text, spans = _rendered(messages, tokenizer)
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError("chats need a fast tokenizer: only those know a token's place in the text")
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    learned = tuple(
        any(start <= at < end for start, end in spans) for at, _ in encoded["offset_mapping"]
    )
    return Dialogue(tuple(encoded["input_ids"]), learned)


def chat_prompts(messages: Messages, tokenizer: Any) -> list[tuple[int, ...]]:
    """The token ids before each of the assistant's turns, for the target to answer itself."""
    prompts = []
    for index, message in enumerate(messages):
        if message["role"] == "assistant":
            text = chat_text(tokenizer, messages[:index])
            prompts.append(tuple(tokenizer(text, add_special_tokens=False)["input_ids"]))
    return prompts


def _rendered(messages: Messages, tokenizer: Any) -> tuple[str, list[tuple[int, int]]]:
    """The whole text, and where in it the assistant speaks."""
    text, spans = "", []
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = chat_text(tokenizer, messages[:index])
        after = chat_text(tokenizer, messages[: index + 1], False)
        if not (before.startswith(text) and after.startswith(before)):
            raise ValueError(
                "the chat template writes earlier turns differently once later ones follow; "
                "set pair.chat_template to one that does not"
            )
        spans.append((len(before), len(after)))
        text = after
    return text, spans


def _records(file: Path) -> Iterator[tuple[str, Any]]:
    """(line or record, value) of a file."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".jsonl":
        for number, line in enumerate(text.splitlines(), start=1):
            if line.strip():
                yield f"line {number}", _parsed(line, f"{file.name}, line {number}")
        return
    records = _parsed(text, file.name)
    if not isinstance(records, list):
        raise ValueError(f"{file.name}: holds {_kind(records)}; expected a list of {EXPECTED}")
    for number, record in enumerate(records, start=1):
        yield f"record {number}", record


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{where}: no JSON ({error}); expected {EXPECTED}") from None


def _messages(record: Any, where: str) -> Messages:
    """A record's turns; a ValueError names what is wrong with one that is no chat."""
    if not isinstance(record, dict):
        raise ValueError(f"{where}: {_kind(record)}; expected {EXPECTED}")
    key, who, what = (
        ("messages", "role", "content")
        if "conversations" not in record and "messages" in record
        else ("conversations", "from", "value")
    )
    turns = record.get(key)
    if not isinstance(turns, list):
        has = "no 'conversations'" if key not in record else f"{key!r} is {_kind(turns)}"
        raise ValueError(f"{where}: {has}; expected {EXPECTED}")
    messages = []
    for number, turn in enumerate(turns, start=1):
        at = f"{where}, turn {number}"
        if not isinstance(turn, dict) or not isinstance(turn.get(what), str):
            raise ValueError(f"{at}: no text under {what!r}; expected {EXPECTED}")
        if turn.get(who) not in ROLES:
            raise ValueError(
                f"{at}: {who!r} is {turn.get(who)!r}; expected one of {', '.join(ROLES)}"
            )
        messages.append({"role": ROLES[turn[who]], "content": turn[what]})
    return messages


def _in_turns(messages: Messages) -> Messages | None:
    """The chat from its first question to its last answer; None where turns do not alternate."""
    system = messages[:1] if messages and messages[0]["role"] == "system" else []
    rest = messages[len(system) :]
    while rest and rest[0]["role"] == "assistant":
        rest = rest[1:]
    if len(rest) % 2:
        rest = rest[:-1]
    expected = ["user", "assistant"] * (len(rest) // 2)
    if not rest or [message["role"] for message in rest] != expected:
        return None
    return system + rest


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", type(None): "null"}
    return names.get(type(value), f"a {type(value).__name__}")


def user_opening(tokenizer: Any) -> tuple[int, ...]:
    """The ids that a chat template writes before a user's first words.

    Raises:
        ValueError: the tokenizer has no chat template, or one that drops what the user says.
    """
    text = chat_text(tokenizer, [{"role": "user", "content": _MARK}], asks=False)
    return tuple(tokenizer(text.partition(_MARK)[0], add_special_tokens=False)["input_ids"])


def sampled_prompts(
    model: HuggingFaceModel,
    tokenizer: Any,
    count: int,
    stop_ids: Sequence[int],
    answers: AnswerSettings,
    file: Path,
    progress: bool = False,
) -> list[tuple[int, ...]]:
    """Distinct prompts that a chat model writes itself, up to the assistant's turn.

    What follows the template's opening of a user's turn is sampled at temperature 1 until that turn
    ends (Magpie, arXiv 2406.08464, section 2): nobody's data, and as many as are wanted. Of
    ``count`` turns those that do not end, or repeat another one, are dropped. The file holds what
    is sampled so far; a run that was killed goes on from it.
    """
    opening = user_opening(tokenizer)
    settings = AnswerSettings((1.0,), _LONGEST, answers.batch_size, answers.seed)
    turns = answer_prompts(model, [opening] * count, stop_ids, settings, file, progress)
    ended = (turn[:-1] for turn in turns if turn[-1] in set(stop_ids))
    texts = (tokenizer.decode(turn, skip_special_tokens=True).strip() for turn in ended)
    chats = [
        [{"role": "user", "content": text}, {"role": "assistant", "content": ""}]
        for text in dict.fromkeys(texts)
        if text
    ]
    return [chat_prompts(chat, tokenizer)[0] for chat in chats]


def answer_prompts(
    model: HuggingFaceModel,
    prompts: Sequence[Ids],
    stop_ids: Sequence[int],
    settings: AnswerSettings,
    file: Path,
    progress: bool = False,
) -> list[list[int]]:
    """Answers every prompt, in order; an answer ends with a stop token, of which there is one at
    least, or at the limit. The file of what is answered so far gains a line of JSON a batch, each
    batch with a seed of its own: a killed run goes on and writes what an undisturbed one would.
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
    """One batch, padded on the left; each answer up to its first stop token, that included."""
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
    ends = (
        min((row.index(s) for s in stop_ids if s in row), default=len(row)) for row in generated
    )
    return [row[: end + 1] for row, end in zip(generated, ends, strict=True)]


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
