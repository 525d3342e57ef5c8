"""Filling a prompt template from a row of a dataset.

A template is text with ``{name}`` in it. A name is looked up in the task's ``fields``, which map it
to a column, to a path into nested columns (``translation.de``) or to several of them of which the
first that exists is taken; a name without an entry is itself a path. Values go in verbatim.
"""

import logging
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from string import Formatter
from typing import Any, TypeVar

from spec_bench.settings.fields import first_line, one_line, suggest
from spec_bench.system.errors import UsageError
from spec_bench.system.limits import call_with_timeout, limit_memory
from spec_bench.tasks.prompt_files import ANSWERING

log = logging.getLogger(__name__)
Item = TypeVar("Item")
Made = TypeVar("Made")
Fields = Mapping[str, str | Sequence[str]]

TEMPLATE = "a text, or a list of them, with fields such as {document} in it"
# Looked up by a reader; turns and reference are named by conf/task/jsonl.yaml, used or not.
_ALWAYS = ("id", "category", "schema", "db_id", "prompt", "entry_point", "turns", "reference")
_MISSING = object()
_UNSAID = {*"'\"\\."}  # what a name in a hint cannot have: it is quoted, and no path
LONGEST_S = 5  # of the processor, for one rendering of a chat template
LONGEST_TEXT_S = 60  # for the tokens of one text
MOST_BYTES = 2**31  # of memory, for either


def placeholders(template: str) -> list[str]:
    """Returns the names in a template, in order. Raises ValueError: its braces do not match."""
    return [name for _, name, _, _ in Formatter().parse(template) if name is not None]


def _check_template(key: str, template: str) -> list[str]:
    """The names in a template. Raises ValueError: its braces or one of its names do not fit."""
    try:
        names = placeholders(template)
    except ValueError as error:
        raise UsageError(f"{key}: template {template!r}: {error}") from None
    if "" in names:
        raise UsageError(f"{key} must name a field in its braces, got {template!r}")
    return names


def check_names(key: str, template: str, names: Sequence[str]) -> None:
    """Checks that a template has these names alone. Raises ValueError: it has others."""
    if _check_template(key, template) != [*names]:
        wanted = " and ".join(f"{{{name}}}" for name in names)
        raise UsageError(f"{key} must be a text with {wanted} in it, got {template!r}")


def check_templates(
    templates: Sequence[str], plain: str, fields: Fields, more: Sequence[str | None]
) -> None:
    """Checks a task's templates, and that each of its fields is one that is read.

    ``plain`` are those without a chat template, ``fields`` maps a name to where it stands in a row,
    and ``more`` are names that the task reads beside those of its templates. Raises ValueError:
    naming the template, or the field and those that are read.
    """
    read = {name for name in (*_ALWAYS, *more) if name}
    for template in templates:
        if not (names := _check_template("task.template", template)):
            raise UsageError(f"task.template must be {TEMPLATE}, got {template!r}")
        read.update(names)
    check_names("task.plain", plain, ("turn",))
    if unused := [name for name in fields if name not in read]:
        raise UsageError(
            f"task.fields.{unused[0]} is read by nothing; read are {', '.join(sorted(read))}"
        )


def fill_template(template: str, values: Mapping[str, Any]) -> str:
    """The template with each ``{name}`` replaced, None by nothing; braces in values stay."""
    parts = []
    for literal, name, _, _ in Formatter().parse(template):
        parts.append(literal)
        if name is not None:
            if type(values[name]) not in (str, int, type(None)):
                each = ": {turn} stands for each of its texts" if name == "turns" else ""
                kind = type(values[name]).__name__
                raise UsageError(f"the template's {{{name}}} is no text but a {kind}{each}")
            parts.append("" if values[name] is None else str(values[name]))
    return "".join(parts)


def choose_template(templates: Sequence[str], values: Mapping[str, Any]) -> str:
    """The first template whose names all have a value that is not blank, else the last one."""
    for template in templates:
        if all(str(values[name] or "").strip() for name in placeholders(template)):
            return template
    return templates[-1]


def look_up(row: Mapping[str, Any], name: str, fields: Fields, default: Any = _MISSING) -> Any:
    """Returns the value that a name of a template stands for in a row of a dataset.

    ``fields`` maps it to a path, or several of which the first that exists is taken. Raises
    ValueError: no such field, and no default; the message lists those that the row has.
    """
    paths = fields.get(name, name)
    paths = [paths] if isinstance(paths, str) else list(paths)
    for path in paths:
        value: Any = row
        for key in path.split("."):
            value = value.get(key, _MISSING) if isinstance(value, Mapping) else _MISSING
        if value is not _MISSING:
            return value
    if default is not _MISSING:
        return default
    near = suggest(paths[0], [*row], f"task.fields.{name}=")
    near = near.replace("?", ", if all lines have it?") or f"; task.fields.{name}=FIELD names it"
    hint = _hint_at_prompt(row) if name == "turns" else near
    wanted = " or ".join(map(repr, paths))
    raise UsageError(f"no field {wanted}; the row has {', '.join(row)}{hint}")


def _hint_at_prompt(row: Mapping[str, Any]) -> str:
    """How to name the field of a row that reads like a prompt; "" where none does."""
    for key, text in row.items():
        words = isinstance(text, str) and (" " in text or not text.isascii())
        if words and key not in ANSWERING and not {*key} & _UNSAID:
            return f": name {key!r} prompt, or run with 'task.fields.turns=\"{key}\"'"
    return ""


def chat_text(
    tokenizer: Any,
    messages: Sequence[Mapping[str, Any]],
    asks: bool = True,
    otherwise: str = "set pair.chat_template",
) -> str:
    """Messages as a tokenizer's chat template writes them.

    ``messages`` have a role and a content each; ``asks`` is whether an answer is to follow, and
    ``otherwise`` what the caller's user can do without a template. Raises ValueError: there is
    none, it fails on them, with its reason in one line, takes longer than ``LONGEST_S`` of this
    process's time, or drops what one of them says.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise UsageError(f"the tokenizer has no chat template: {otherwise}")
    text = _render(tokenizer, messages, asks)
    if all(str(each.get("content")).strip() in text for each in messages):
        return text
    # It may be written differently: with escapes, say.
    marked = [{**each, "content": f"zq{place}qz"} for place, each in enumerate(messages)]
    kept = _render(tokenizer, marked, asks)
    for each in marked:
        if each["content"] not in kept:
            raise UsageError(f"the chat template drops what a message of role {each['role']} says")
    return text


def _render(tokenizer: Any, messages: Sequence[Mapping[str, str]], asks: bool) -> str:
    limited = threading.current_thread() is threading.main_thread()  # no other takes signals
    try:
        if limited:
            signal.signal(signal.SIGVTALRM, _late)
            signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST_S, LONGEST_S)
        options = {"add_generation_prompt": asks, "tokenize": False}
        with limit_memory(MOST_BYTES):
            return str(tokenizer.apply_chat_template(messages, **options))
    except Exception as error:  # a template may do anything
        why = first_line(error) or type(error).__name__
        if "tools" in str(tokenizer.chat_template):
            why += "; it may want tools: pair.chat_template_kwargs={tools: [...]}"
        raise UsageError(f"the chat template fails: {why}") from None
    finally:
        if limited:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def token_ids(tokenizer: Any, text: str, **options: Any) -> tuple[int, ...]:
    """Returns a text's tokens. Raises ValueError: the tokenizer fails at it; TimeoutError: it is
    not done in time, so that no other text need be tried.
    """
    try:
        with limit_memory(MOST_BYTES):
            return tuple(
                call_with_timeout(LONGEST_TEXT_S, lambda: tokenizer(text, **options)["input_ids"])
            )
    except TimeoutError:
        told = f"its normalizer, say, takes more than {LONGEST_TEXT_S} s for {len(text)} letters"
        raise TimeoutError(f"the tokenizer is not done: {told}") from None
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of the tokenizers' is no Exception
        raise UsageError(f"the tokenizer fails: {one_line(error, 200)}") from None


def encode_each(items: Sequence[Item], encode: Callable[[Item], Made]) -> list[Made]:
    """Encodes what can be encoded, and says of how many that is not so. Raises ValueError: of
    none.
    """
    made = list[Made]()
    failed = list[ValueError]()
    for each in items:
        try:
            made.append(encode(each))
        except ValueError as error:
            failed.append(error)
    if failed and not made:
        raise failed[0]
    if failed:
        log.warning("%d of %d texts are left out: %s", len(failed), len(items), failed[0])
    return made


def _late(*_: object) -> None:
    raise TimeoutError(f"it is not done after {LONGEST_S} s")
