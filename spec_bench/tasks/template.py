"""Fills prompt templates from rows of a dataset, and encodes texts and chats.

A template is text with ``{name}`` in it. A name is looked up in the task's ``fields``, which map it
to a column, a path into nested columns (``translation.de``), or a list of these, tried in order; a
name without an entry is itself the path. Values are inserted verbatim.
"""

import logging
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from string import Formatter
from typing import Any, TypeVar

from spec_bench.settings.fields import format_suggestion, get_first_line, to_one_line
from spec_bench.system.errors import UsageError
from spec_bench.system.limits import call_with_timeout, limited_memory
from spec_bench.tasks.prompt_files import REFERENCE_FIELDS

log = logging.getLogger(__name__)
Entry = TypeVar("Entry")
Encoded = TypeVar("Encoded")
Fields = Mapping[str, str | Sequence[str]]

TEMPLATE_REQUIREMENT = "a text, or a list of them, with fields such as {document} in it"
# Names that the package looks up, and turns and reference, which conf/task/jsonl.yaml has.
_ALWAYS_READ = ("id", "category", "schema", "db_id", "prompt", "entry_point", "turns", "reference")
_NO_FIELD = object()
_UNQUOTABLE_LETTERS = {*"'\"\\."}  # letters that a quoted name in a hint cannot have
MAX_TEMPLATE_S = 5  # processor time for rendering a chat template
MAX_ENCODING_S = 60  # time for encoding a text
MAX_EXTRA_BYTES = 2**31  # memory for rendering or encoding


def list_placeholders(template: str) -> list[str]:
    """Lists the names in a template, in order. Raises ValueError if its braces do not match."""
    return [name for _, name, _, _ in Formatter().parse(template) if name is not None]


def _parse_template(key: str, template: str) -> list[str]:
    """Parses the names in a template. Raises UsageError for wrong braces or an empty name."""
    try:
        names = list_placeholders(template)
    except ValueError as error:
        raise UsageError(f"{key}: template {template!r}: {error}") from None
    if "" in names:
        raise UsageError(f"{key} must name a field in its braces, got {template!r}")
    return names


def require_exact_placeholders(key: str, template: str, names: Sequence[str]) -> None:
    """Checks that a template has exactly these names; raises UsageError if not."""
    if _parse_template(key, template) != [*names]:
        expected_fields = " and ".join(f"{{{name}}}" for name in names)
        raise UsageError(f"{key} must be a text with {expected_fields} in it, got {template!r}")


def require_templates_use_fields(
    templates: Sequence[str],
    plain_template: str,
    fields: Fields,
    extra_names: Sequence[str | None],
) -> None:
    """Checks a task's templates, and that they use each of its fields.

    ``plain_template`` is the template of a turn without a chat template, ``fields`` maps names to
    paths in a row, and ``extra_names`` are names that the task reads in addition to those of its
    templates. Raises UsageError with the wrong template, or with an unused field and the names that
    are read.
    """
    read_names = {name for name in (*_ALWAYS_READ, *extra_names) if name}
    for template in templates:
        if not (names := _parse_template("task.template", template)):
            raise UsageError(f"task.template must be {TEMPLATE_REQUIREMENT}, got {template!r}")
        read_names.update(names)
    require_exact_placeholders("task.plain", plain_template, ("turn",))
    if surplus := [name for name in fields if name not in read_names]:
        raise UsageError(
            f"task.fields.{surplus[0]} is read by nothing; read are {', '.join(sorted(read_names))}"
        )


def fill_template(template: str, values: Mapping[str, Any]) -> str:
    """Replaces each ``{name}`` in a template by its value, None by ""; braces in values stay.
    Raises UsageError if a value is neither text nor integer.
    """
    parts = []
    for literal, name, _, _ in Formatter().parse(template):
        parts.append(literal)
        if name is not None:
            if type(values[name]) not in (str, int, type(None)):
                hint = ": {turn} stands for each of its texts" if name == "turns" else ""
                kind = type(values[name]).__name__
                raise UsageError(f"the template's {{{name}}} is no text but a {kind}{hint}")
            parts.append("" if values[name] is None else str(values[name]))
    return "".join(parts)


def choose_template(templates: Sequence[str], values: Mapping[str, Any]) -> str:
    """Chooses the first template whose names all have non-blank values, else the last one."""
    for template in templates:
        if all(str(values[name] or "").strip() for name in list_placeholders(template)):
            return template
    return templates[-1]


def look_up_field(
    row: Mapping[str, Any], name: str, fields: Fields, default: Any = _NO_FIELD
) -> Any:
    """Looks up the value of a template's name in a row.

    ``fields`` maps names to a path, or to several, tried in order. If no path exists, returns the
    default, or raises UsageError with the row's fields if there is no default.
    """
    paths = fields.get(name, name)
    paths = [paths] if isinstance(paths, str) else list(paths)
    for path in paths:
        value: Any = row
        for key in path.split("."):
            value = value.get(key, _NO_FIELD) if isinstance(value, Mapping) else _NO_FIELD
        if value is not _NO_FIELD:
            return value
    if default is not _NO_FIELD:
        return default
    suggestion = format_suggestion(paths[0], [*row], f"task.fields.{name}=")
    suggestion = (
        suggestion.replace("?", ", if all lines have it?") or f"; task.fields.{name}=FIELD names it"
    )
    hint = _hint_at_prompt_field(row) if name == "turns" else suggestion
    paths_text = " or ".join(map(repr, paths))
    raise UsageError(f"no field {paths_text}; the row has {', '.join(row)}{hint}")


def _hint_at_prompt_field(row: Mapping[str, Any]) -> str:
    """Suggests how to use the row's field that looks like a prompt; "" if no field does."""
    for key, text in row.items():
        words = isinstance(text, str) and (" " in text or not text.isascii())
        if words and key not in REFERENCE_FIELDS and not {*key} & _UNQUOTABLE_LETTERS:
            return f": name {key!r} prompt, or run with 'task.fields.turns=\"{key}\"'"
    return ""


def render_chat(
    tokenizer: Any,
    messages: Sequence[Mapping[str, Any]],
    add_generation_prompt: bool = True,
    remedy: str = "set pair.chat_template",
) -> str:
    """Renders messages with a tokenizer's chat template.

    Messages have a role and a content. ``add_generation_prompt`` appends the opening of an answer;
    ``remedy`` completes the error if there is no template. Raises UsageError if there is no
    template, or if it fails, takes longer than ``MAX_TEMPLATE_S`` of processor time, or drops the
    content of a message.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise UsageError(f"the tokenizer has no chat template: {remedy}")
    text = _apply_chat_template(tokenizer, messages, add_generation_prompt)
    if all(str(message.get("content")).strip() in text for message in messages):
        return text
    # The template may escape letters of the content: retries with contents that need no escape.
    marked_messages = [
        {**message, "content": f"zq{place}qz"} for place, message in enumerate(messages)
    ]
    marked_text = _apply_chat_template(tokenizer, marked_messages, add_generation_prompt)
    for message in marked_messages:
        if message["content"] not in marked_text:
            raise UsageError(
                f"the chat template drops what a message of role {message['role']} says"
            )
    return text


def _apply_chat_template(
    tokenizer: Any, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool
) -> str:
    has_timer = threading.current_thread() is threading.main_thread()  # only it gets signals
    try:
        if has_timer:
            signal.signal(signal.SIGVTALRM, _raise_timeout)
            signal.setitimer(signal.ITIMER_VIRTUAL, MAX_TEMPLATE_S, MAX_TEMPLATE_S)
        options = {"add_generation_prompt": add_generation_prompt, "tokenize": False}
        with limited_memory(MAX_EXTRA_BYTES):
            return str(tokenizer.apply_chat_template(messages, **options))
    except Exception as error:  # a template may do anything
        reason = get_first_line(error) or type(error).__name__
        if "tools" in str(tokenizer.chat_template):
            reason += "; it may want tools: pair.chat_template_kwargs={tools: [...]}"
        raise UsageError(f"the chat template fails: {reason}") from None
    finally:
        if has_timer:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def encode_text(tokenizer: Any, text: str, **options: Any) -> tuple[int, ...]:
    """Encodes a text. Raises UsageError if the tokenizer fails on it, and TimeoutError if it takes
    too long; callers then try no other text.
    """
    try:
        with limited_memory(MAX_EXTRA_BYTES):
            return tuple(
                call_with_timeout(MAX_ENCODING_S, lambda: tokenizer(text, **options)["input_ids"])
            )
    except TimeoutError:
        limit_note = (
            f"its normalizer, say, takes more than {MAX_ENCODING_S} s for {len(text)} letters"
        )
        raise TimeoutError(f"the tokenizer is not done: {limit_note}") from None
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic in tokenizers is no Exception
        raise UsageError(f"the tokenizer fails: {to_one_line(error, 200)}") from None


def encode_all_but_failing(
    entries: Sequence[Entry], encode: Callable[[Entry], Encoded]
) -> list[Encoded]:
    """Encodes the entries, leaves out those that raise ValueError, and logs their number. Raises
    the first of these errors if all entries fail.
    """
    results = list[Encoded]()
    errors = list[ValueError]()
    for entry in entries:
        try:
            results.append(encode(entry))
        except ValueError as error:
            errors.append(error)
    if errors and not results:
        raise errors[0]
    if errors:
        log.warning("%d of %d texts are left out: %s", len(errors), len(entries), errors[0])
    return results


def _raise_timeout(*_: object) -> None:
    raise TimeoutError(f"it is not done after {MAX_TEMPLATE_S} s")
