"""Reads rows from users' own files in any common format, and finds the prompt in a row.

The format is detected from the content: JSON (a list, or a value per line), a table separated by
commas, semicolons or tabs, a text with a prompt per line, or Parquet; compressed or not, in UTF-8
or UTF-16. Values stay as they are in the file. A cell of a table is a text, or None if empty; a
number with a point is a text, too, so that 3.10 does not become 3.1.
"""

import codecs
import csv
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from io import StringIO
from pathlib import Path
from typing import Any

from spec_bench.settings.fields import format_value
from spec_bench.settings.foreign import (
    MOST_BYTES,
    MOST_TEXT,
    compute_max_unpacked_bytes,
    parse_json_within_limits,
    read_and_unpack,
    require_within_limits,
)
from spec_bench.system.errors import UsageError
from spec_bench.system.limits import limited_memory

Row = Mapping[str, Any]

STDIN = "-"
CHAT_FIELDS = ("messages", "conversations", "conversation")
PROMPT_FIELDS = (*CHAT_FIELDS, "turns", "instruction", "prompt", "question", "text")
"""Fields that may hold a prompt; the first non-empty one of a row is used."""
REFERENCE_FIELDS = ("reference", "references", "answer", "output", "summary", "completion")
ROLES = dict.fromkeys(("human", "user", "prompter"), "user")
ROLES |= dict.fromkeys(("gpt", "assistant", "chatgpt", "model", "bot"), "assistant")
ROLES |= dict.fromkeys(("system", "developer"), "system")
FILE_FORMS = "JSON, JSON lines, CSV, TSV, .txt with a prompt a line, Parquet or a saved dataset"
# Data sets with prompts that span several fields: these fields, and the task that reads them.
_TASK_BY_FIELDS = {
    "SQuAD": ({"question", "context", "answers"}, "--task squad"),
    "Spider": ({"question", "query", "db_id"}, "--task spider task.database=FOLDER"),
    "HumanEval": ({"prompt", "entry_point", "test"}, "--task humaneval task.run_code=true"),
    "Dolly": ({"instruction", "context", "response"}, "--task dolly"),
}
_ROW_LIST_FIELDS = ("data", "rows", "prompts", "questions", "examples")
_JSON_SUFFIXES = (".json", ".jsonl", ".ndjson")
_TABLE_SUFFIXES = (".csv", ".tsv")
_TEXT_SUFFIXES = ("", ".txt", ".text", ".md")
_COMPRESSED_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
_TURNS = ("user", "assistant")
_DELIMITERS = (",", ";", "\t")
_QUOTED_CELL = re.compile(r'(?:^|\t)"(?:[^"]|"")*"(?:\t|\r?$)', re.MULTILINE)
_MAX_HEADER_LETTERS = 2**16  # characters of the first line to search for column names
csv.field_size_limit(MOST_TEXT)


class LocatedRow(dict[str, Any]):
    """A row with its place in the source: ``line 3`` or ``record 3``, counted from 1, or ``row 3``
    of a dataset, counted from 0.
    """

    def __init__(self, values: Row, place: str) -> None:
        super().__init__(values)
        self.place = place


RowMaker = Callable[[], LocatedRow]


@cache
def _read_stream_once(file: str) -> bytes:
    """Reads a file; keeps its bytes, because standard input or a pipe can be read only once. Raises
    UsageError if standard input is a terminal.
    """
    if file != STDIN:
        with open(file, "rb") as stream:
            return read_and_unpack(stream)
    if sys.stdin.isatty():
        raise UsageError("- is what a pipe or < FILE brings: there is nothing but the terminal")
    return read_and_unpack(sys.stdin.buffer)


def _read_decompressed_text(file: Path, label: str) -> str:
    """Reads a file's text, decompressed. Raises UsageError if its encoding is unknown."""
    read_file = _read_stream_once.__wrapped__ if file.is_file() else _read_stream_once
    try:
        raw_bytes = read_file(str(file))
    except ValueError as error:
        raise UsageError(f"{label}: {error}") from None
    utf16 = raw_bytes.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        return raw_bytes.decode("utf-16" if utf16 else "utf-8-sig")
    except UnicodeDecodeError as error:
        line = 1 + raw_bytes.count(b"\n", 0, error.start)
        raise UsageError(f"{label}, line {line}: {error}; save it as UTF-8") from None


def iter_row_makers(file: Path, owner: str) -> Iterator[RowMaker]:
    """Yields, for each row of a file or of a folder that ``save_to_disk`` wrote, the function that
    makes it, so that only rows in use are parsed. Raises UsageError, here or in a function, if the
    file cannot be read; the message names ``owner``, file and line.
    """
    label = f"{owner}: {'standard input' if str(file) == STDIN else file.name}"
    try:
        if not file.is_dir() and file.suffix != ".parquet":
            yield from _iter_text_row_makers(_read_decompressed_text(file, label), file, label)
            return
        from datasets import load_from_disk  # slow

        rows = load_from_disk(str(file)) if file.is_dir() else _read_parquet(file)
    except UsageError:
        raise
    except Exception as error:  # of any library that decompresses or reads
        raise UsageError(f"{label}: cannot read it: {error.__cause__ or error}") from error
    yield from iter_dataset_row_makers(rows)


def _read_parquet(file: Path) -> Any:
    """Reads a Parquet file as a dataset. Raises MemoryError if its unpacked rows are too large,
    which a small file may hide.
    """
    from datasets import Dataset
    from pyarrow import Table, parquet

    batches = []
    max_bytes = bytes_left = compute_max_unpacked_bytes(file.stat().st_size)
    with limited_memory(MOST_BYTES + max_bytes), parquet.ParquetFile(file) as parquet_file:
        for batch in parquet_file.iter_batches(1000, use_threads=False):
            batches.append(batch)
            bytes_left -= batch.nbytes
            if bytes_left < 0:
                raise MemoryError(f"it holds more than {max_bytes >> 20} MiB")
        return Dataset(Table.from_batches(batches, parquet_file.schema_arrow))


def iter_dataset_row_makers(dataset: Any) -> Iterator[RowMaker]:
    """Yields a function for each row of a dataset of the ``datasets`` library."""
    for place in range(len(dataset)):
        yield lambda place=place: LocatedRow(dataset[place], f"row {place}")  # type: ignore[misc]


def _iter_text_row_makers(text: str, file: Path, label: str) -> Iterator[RowMaker]:
    suffixes = [part.lower() for part in file.suffixes if part.lower() not in _COMPRESSED_SUFFIXES]
    suffix = (suffixes or [""])[-1]
    start, first_line = next(_iter_text_lines(text), (1, ""))
    first_line = first_line.strip()
    if suffix not in _TABLE_SUFFIXES and (
        suffix in _JSON_SUFFIXES or first_line[:1] in ("{", "[", '"')
    ):
        document = _parse_json_or_none(text)
        first_value = _parse_json_or_none(first_line)
        if isinstance(document, dict | list):
            values = _list_json_rows(document)
            is_single_line = len(values) == 1 and len(first_line) == len(text.strip())
            unit, start = ("line", start) if is_single_line else ("record", 1)
            for number, value in enumerate(values, start):
                yield partial(_make_row_from_json_value, value, label, f"{unit} {number}")
            return
        if suffix == ".json" and first_value is None:
            _parse_json(text, label)  # raises the reason
        if (
            suffix in _JSON_SUFFIXES
            or isinstance(first_value, dict | list)
            or (first_value and suffix not in _TEXT_SUFFIXES[1:])
        ):
            for number, line in _iter_text_lines(text):
                yield partial(_parse_row, line, label, number)
            return
    delimiter, names = _guess_header(first_line[:_MAX_HEADER_LETTERS])
    has_known_names = len(names) > 1 and {*names} & {*PROMPT_FIELDS} and " " not in "".join(names)
    if suffix in _TABLE_SUFFIXES or has_known_names:
        yield from _iter_table_row_makers(text, delimiter, label)
    elif suffix in _TEXT_SUFFIXES and "\0" not in text:
        for number, line in _iter_text_lines(text):
            yield partial(_make_row_from_json_value, line.rstrip("\r"), label, f"line {number}")
    else:
        raise UsageError(f"{label}: cannot read such a file; choose from {FILE_FORMS}")


def _iter_text_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yields number (from 1) and text of each line that is not blank."""
    for number, line in enumerate(StringIO(text, newline="\n"), 1):
        if not line.isspace():
            yield number, line.removesuffix("\n")


def iter_json_lines(file: Path, owner: str) -> Iterator[LocatedRow]:
    """Yields the rows of a file of JSON objects, one per line; skips blank lines.

    Does not use ``datasets``, which gives all lines the same fields and types. Raises UsageError if
    there is no such file, or with the number of a line that is no JSON object in UTF-8 or has half
    a surrogate pair, which tokenizers refuse and files cannot hold.
    """
    if not file.is_file():
        raise UsageError(f"{owner}: there is no file {str(file)!r}")
    for make in iter_row_makers(file, owner):
        yield make()


def _parse_nan_or_refuse(name: str) -> None:
    """Returns None for NaN. Raises UsageError for other constants (infinities)."""
    if name != "NaN":
        raise UsageError(f"{name} is no value")


def _parse_json(text: str, label: str, line: int = 1) -> Any:
    try:
        value = parse_json_within_limits(text, parse_float=str, parse_constant=_parse_nan_or_refuse)
        json.dumps(value, ensure_ascii=False).encode("utf-8")
        return value
    except UnicodeEncodeError as error:
        reason = f"{error.object[error.start]!r} is half a surrogate pair, no character"
    except ValueError as error:
        line += getattr(error, "lineno", 1) - 1
        prefix = "no JSON: " * isinstance(error, json.JSONDecodeError)
        reason = f"{prefix}{str(error).partition(': line')[0]}"
    raise UsageError(f"{label}, line {line}: {reason}")


def _parse_json_or_none(text: str) -> Any:
    try:
        return _parse_json(text, "")
    except ValueError:
        return None


def _parse_row(line: str, label: str, number: int) -> LocatedRow:
    return _make_row_from_json_value(
        _parse_json(line.strip(), label, number), label, f"line {number}"
    )


def _make_row_from_json_value(content: Any, label: str, place: str) -> LocatedRow:
    """Makes a row from an object, a text, or a list of turns or messages."""
    if isinstance(content, str):
        try:
            content = {"prompt": require_within_limits(content)}
        except ValueError as error:
            raise UsageError(f"{label}, {place}: {error}") from None
    elif isinstance(content, list):
        content = {"turns": content}
    elif not isinstance(content, dict):
        raise UsageError(f"{label}, {place}: a {type(content).__name__}, not an object")
    elif isinstance(body := content.get("body"), dict):  # a line of OpenAI's batches
        content = {**body, "id": content.get("custom_id")}
    return LocatedRow(content, place)


def _list_json_rows(document: Any) -> list[Any]:
    """Lists the rows of a JSON document: a list, an object with a list, or a single row."""
    if isinstance(document, list):
        are_messages = all(isinstance(entry, dict) and "content" in entry for entry in document)
        return [document] if document and are_messages else document
    lists = [document[name] for name in _ROW_LIST_FIELDS if isinstance(document.get(name), list)]
    return (
        [row for entry in lists[0] for row in _flatten_squad_article(entry)]
        if lists
        else [document]
    )


def _flatten_squad_article(article: Any) -> Iterator[Any]:
    """Yields the rows nested in an article of SQuAD's own file; yields other values unchanged."""
    if not isinstance(article, dict) or "paragraphs" not in article:
        yield article
        return
    for paragraph in article["paragraphs"]:
        for question in paragraph["qas"]:
            texts = [answer["text"] for answer in question["answers"]]
            article_fields = {"title": article["title"], "context": paragraph["context"]}
            yield {
                **question,
                **article_fields,
                "answers": {"text": texts},
            }


def _guess_header(line: str) -> tuple[str, list[str]]:
    """Guesses a table's delimiter from its first line; returns it with the column names."""
    names_by_delimiter = {
        delimiter: next(csv.reader([line], delimiter=delimiter), []) for delimiter in _DELIMITERS
    }
    return max(names_by_delimiter.items(), key=lambda pair: len(pair[1]))


def _iter_table_row_makers(text: str, delimiter: str, label: str) -> Iterator[RowMaker]:
    # whether quotation marks are text
    has_literal_quotes = delimiter == "\t" and not _QUOTED_CELL.search(text)
    quote_style: Any = csv.QUOTE_NONE if has_literal_quotes else csv.QUOTE_MINIMAL
    lines = StringIO(text, newline="")
    table = csv.reader(lines, delimiter=delimiter, quoting=quote_style, strict=True)
    names = list[str]()
    number = 1
    try:
        for cells in table:
            place = f"line {number}"
            number = table.line_num + 1
            if not any(cells):
                continue
            if not names:
                names = [name.strip() for name in cells]
                if len({*names}) < len(names):
                    raise UsageError(
                        f"{label}, {place}: two columns of one name: {format_value(names)}"
                    )
                continue
            if len(cells) != len(names):
                raise UsageError(
                    f"{label}, {place}: {len(cells)} cells, where the first line has {len(names)}"
                )
            row = {name: cell or None for name, cell in zip(names, cells, strict=True)}
            yield partial(LocatedRow, row, place)
    except csv.Error as error:
        raise UsageError(
            f"{label}, line {number}: a quotation mark is not closed: {error}"
        ) from None


def parse_message(message: Any) -> tuple[str | None, Any]:
    """Parses a message of a conversation into its role (user, assistant or system) and content;
    each is None if it is unknown.
    """
    fields = message if isinstance(message, Mapping) else {}
    content = fields.get("content", fields.get("value"))
    if isinstance(content, list):  # OpenAI's content parts
        parts: list[Any] = [part.get("text") for part in content if isinstance(part, Mapping)]
        content = "\n".join(parts) if all(isinstance(part, str) for part in parts) else None
    speaker = fields.get("role", fields.get("from"))
    return (ROLES.get(speaker) if isinstance(speaker, str) else None), content


def trim_before_first_question(row: LocatedRow) -> LocatedRow | None:
    """Drops what a row's conversation has before the first question, as FastChat does for ShareGPT;
    None if the speakers do not alternate. Returns rows without a conversation unchanged.
    """
    name = find_prompt_field(row)
    if name not in CHAT_FIELDS[1:] or not isinstance(row[name], list):
        return row
    messages = row[name]
    roles = [parse_message(message)[0] for message in row[name]]
    start = roles.index("user") if "user" in roles else len(roles)
    if None in roles:
        return row  # reading it raises a clear error
    if start == len(roles) or any(
        roles[n] != _TURNS[(n - start) % 2] for n in range(start, len(roles))
    ):
        return None
    return LocatedRow(
        {**row, name: [*messages[: roles[0] == "system"], *messages[start:]]}, row.place
    )


def find_prompt_field(row: Row) -> str:
    """Finds the field that holds a row's prompt; "" if there is none."""
    return next((name for name in PROMPT_FIELDS if row.get(name) not in (None, "", [])), "")


def read_prompt(row: Row) -> Any:
    """Reads a row's prompt: a text, a list of turns, or a list of messages. Raises UsageError if
    the row is like those of a known data set with prompts of several fields.
    """
    name = find_prompt_field(row)
    for title, (other_fields, words) in _TASK_BY_FIELDS.items():
        if other_fields <= {*row} and name not in (*CHAT_FIELDS, "turns"):
            raise UsageError(
                f"the row is like {title}'s, whose prompt is more than {name!r}: add {words}; "
                "otherwise give rows a field turns"
            )
    prompt = row[name]
    if name in CHAT_FIELDS and isinstance(prompt, str):
        return parse_json_within_limits(prompt) if prompt.startswith("[") else prompt
    input_text = row.get("input") if name == "instruction" else None
    return (
        f"{prompt}\n\n{input_text}"
        if isinstance(input_text, str) and input_text.strip()
        else prompt
    )


def find_reference_field(row: Row) -> str:
    """Finds the field that holds a row's reference answer; "" if there is none."""
    names = (name for name in REFERENCE_FIELDS if type(row.get(name)) in (str, int, list))
    return next((name for name in names if row[name] not in ("", [])), "")
