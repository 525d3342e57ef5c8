"""Opens the files that people bring and tells their rows, whatever tool wrote them.

What a file is follows from what is in it: JSON (a list, or a value a line), a table whose cells
stand between commas, semicolons or tabs, a text with a prompt a line, or Parquet; packed or not,
in UTF-8 or UTF-16. Values stay as the file has them: a cell of a table is a text, or None where it
is empty, and a number with a point is a text, too: 3.10 is not made 3.1. Then it tells in which
field of a row its prompt stands.
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
    bound,
    check_value,
    parse_json,
    read_bytes,
)
from spec_bench.system.errors import UsageError
from spec_bench.system.limits import limit_memory

Row = Mapping[str, Any]

STDIN = "-"
CHATS = ("messages", "conversations", "conversation")
ASKING = (*CHATS, "turns", "instruction", "prompt", "question", "text")
"""Fields that a prompt can be in; of several that a row has, the first counts."""
ANSWERING = ("reference", "references", "answer", "output", "summary", "completion")
ROLES = dict.fromkeys(("human", "user", "prompter"), "user")
ROLES |= dict.fromkeys(("gpt", "assistant", "chatgpt", "model", "bot"), "assistant")
ROLES |= dict.fromkeys(("system", "developer"), "system")
FORMS = "JSON, JSON lines, CSV, TSV, .txt with a prompt a line, Parquet or a saved dataset"
# Data sets whose prompts are more than one field: what else their rows have, and what asks them.
_TASKS = {
    "SQuAD": ({"question", "context", "answers"}, "--task squad"),
    "Spider": ({"question", "query", "db_id"}, "--task spider task.database=FOLDER"),
    "HumanEval": ({"prompt", "entry_point", "test"}, "--task humaneval task.run_code=true"),
    "Dolly": ({"instruction", "context", "response"}, "--task dolly"),
}
_LISTS = ("data", "rows", "prompts", "questions", "examples")
_JSON = (".json", ".jsonl", ".ndjson")
_TABLES = (".csv", ".tsv")
_TEXTS = ("", ".txt", ".text", ".md")
_PACKED = (".gz", ".bz2", ".xz", ".zst")
_TURNS = ("user", "assistant")
_DELIMITERS = (",", ";", "\t")
_QUOTED_CELL = re.compile(r'(?:^|\t)"(?:[^"]|"")*"(?:\t|\r?$)', re.MULTILINE)
_HEADER = 2**16  # characters of the first line that are looked at for names of columns
csv.field_size_limit(MOST_TEXT)


class LocatedRow(dict[str, Any]):
    """A row that remembers where in its file it stood, such as ``line 3``, from 1."""

    def __init__(self, values: Row, place: str) -> None:
        super().__init__(values)
        self.place = place


Making = Callable[[], LocatedRow]


@cache
def _read_once(file: str) -> bytes:
    """What can be read a single time: the standard input, or a pipe."""
    if file != STDIN:
        with open(file, "rb") as stream:
            return read_bytes(stream)
    if sys.stdin.isatty():
        raise UsageError("- is what a pipe or < FILE brings: there is nothing but the terminal")
    return read_bytes(sys.stdin.buffer)


def _read_text(file: Path, where: str) -> str:
    """A file's text, unpacked; "" for a Parquet file. Raises ValueError: it is in no known code."""
    read = _read_once.__wrapped__ if file.is_file() else _read_once
    try:
        data = read(str(file))
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from None
    utf16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        return data.decode("utf-16" if utf16 else "utf-8-sig")
    except UnicodeDecodeError as error:
        line = 1 + data.count(b"\n", 0, error.start)
        raise UsageError(f"{where}, line {line}: {error}; save it as UTF-8") from None


def iter_row_makers(file: Path, whose: str) -> Iterator[Making]:
    """Yields what makes each row of a file, or of a folder that ``save_to_disk`` wrote, so that
    rows that are not asked for need not be right. Raises ValueError, as does what it yields: the
    file is of no use, and ``whose`` it is and where.
    """
    where = f"{whose}: {'standard input' if str(file) == STDIN else file.name}"
    try:
        if not file.is_dir() and file.suffix != ".parquet":
            yield from _rows_of_text(_read_text(file, where), file, where)
            return
        from datasets import load_from_disk  # slow

        rows = load_from_disk(str(file)) if file.is_dir() else _read_parquet(file)
    except Exception as error:  # of each library that unpacks or reads
        if type(error) is ValueError:
            raise
        raise UsageError(f"{where}: cannot read it: {error.__cause__ or error}") from error
    yield from iter_dataset_rows(rows)


def _read_parquet(file: Path) -> Any:
    """Returns a Parquet file's rows as a dataset. Raises MemoryError: they are too large, which the
    file need not be, nor say.
    """
    from datasets import Dataset
    from pyarrow import Table, parquet

    batches = []
    most = left = bound(file.stat().st_size)
    with limit_memory(MOST_BYTES + most), parquet.ParquetFile(file) as opened:
        for batch in opened.iter_batches(1000, use_threads=False):
            batches.append(batch)
            left -= batch.nbytes
            if left < 0:
                raise MemoryError(f"it holds more than {most >> 20} MiB")
        return Dataset(Table.from_batches(batches, opened.schema_arrow))


def iter_dataset_rows(dataset: Any) -> Iterator[Making]:
    """Yields what makes each row of a dataset of the ``datasets`` library."""
    for place in range(len(dataset)):
        yield lambda place=place: LocatedRow(dataset[place], f"row {place}")  # type: ignore[misc]


def _rows_of_text(text: str, file: Path, where: str) -> Iterator[Making]:
    endings = [each.lower() for each in file.suffixes if each.lower() not in _PACKED]
    ending = (endings or [""])[-1]
    start, first = next(_iter_text_lines(text), (1, ""))
    first = first.strip()
    if ending not in _TABLES and (ending in _JSON or first[:1] in ("{", "[", '"')):
        whole = _try_parse_json(text)
        told = _try_parse_json(first)
        if isinstance(whole, dict | list):
            values = _list_in(whole)
            alone = len(values) == 1 and len(first) == len(text.strip())
            unit, start = ("line", start) if alone else ("record", 1)
            for number, value in enumerate(values, start):
                yield partial(_make_located_row, value, where, f"{unit} {number}")
            return
        if ending == ".json" and told is None:
            _parse_json(text, where)  # says why it is none
        if ending in _JSON or isinstance(told, dict | list) or (told and ending not in _TEXTS[1:]):
            for number, line in _iter_text_lines(text):
                yield partial(_row_of_line, line, where, number)
            return
    delimiter, names = _header(first[:_HEADER])
    named = len(names) > 1 and {*names} & {*ASKING} and " " not in "".join(names)
    if ending in _TABLES or named:
        yield from _rows_of_table(text, delimiter, where)
    elif ending in _TEXTS and "\0" not in text:
        for number, line in _iter_text_lines(text):
            yield partial(_make_located_row, line.rstrip("\r"), where, f"line {number}")
    else:
        raise UsageError(f"{where}: cannot read such a file; choose from {FORMS}")


def _iter_text_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yields the lines that are not blank with their numbers, from 1."""
    for number, line in enumerate(StringIO(text, newline="\n"), 1):
        if not line.isspace():
            yield number, line.removesuffix("\n")


def iter_json_lines(file: Path, whose: str) -> Iterator[LocatedRow]:
    """Yields the rows of a file of JSON objects, one a line; blank lines are skipped.

    Read here and not by ``datasets``, which would make the lines' fields and their types equal.
    Raises ValueError: a line that is no JSON object in UTF-8, by its number, or holds half a
    character (one of a pair of surrogates), which no tokenizer takes and no file can keep.
    """
    if not file.is_file():
        raise UsageError(f"{whose}: there is no file {str(file)!r}")
    for make in iter_row_makers(file, whose):
        yield make()


def _constant(name: str) -> None:
    """NaN is a value that is missing."""
    if name != "NaN":
        raise UsageError(f"{name} is no value")


def _parse_json(text: str, where: str, line: int = 1) -> Any:
    try:
        value = parse_json(text, parse_float=str, parse_constant=_constant)
        json.dumps(value, ensure_ascii=False).encode("utf-8")
        return value
    except UnicodeEncodeError as error:
        why = f"{error.object[error.start]!r} is half a surrogate pair, no character"
    except ValueError as error:
        line += getattr(error, "lineno", 1) - 1
        what = "no JSON: " * isinstance(error, json.JSONDecodeError)
        why = f"{what}{str(error).partition(': line')[0]}"
    raise UsageError(f"{where}, line {line}: {why}")


def _try_parse_json(text: str) -> Any:
    try:
        return _parse_json(text, "")
    except ValueError:
        return None


def _row_of_line(line: str, where: str, number: int) -> LocatedRow:
    return _make_located_row(_parse_json(line.strip(), where, number), where, f"line {number}")


def _make_located_row(value: Any, where: str, place: str) -> LocatedRow:
    """A row of what stands for one: an object, a text, or a list of turns or messages."""
    if isinstance(value, str):
        try:
            value = {"prompt": check_value(value)}
        except ValueError as error:
            raise UsageError(f"{where}, {place}: {error}") from None
    elif isinstance(value, list):
        value = {"turns": value}
    elif not isinstance(value, dict):
        raise UsageError(f"{where}, {place}: a {type(value).__name__}, not an object")
    elif isinstance(body := value.get("body"), dict):  # of OpenAI's batches
        value = {**body, "id": value.get("custom_id")}
    return LocatedRow(value, place)


def _list_in(value: Any) -> list[Any]:
    """The rows of a whole file of JSON: a list, the one list in an object, or one row alone."""
    if isinstance(value, list):
        said = all(isinstance(each, dict) and "content" in each for each in value)
        return [value] if value and said else value
    lists = [value[name] for name in _LISTS if isinstance(value.get(name), list)]
    return [row for each in lists[0] for row in _iter_squad_rows(each)] if lists else [value]


def _iter_squad_rows(article: Any) -> Iterator[Any]:
    """The rows of SQuAD's own file, which nests them; anything else as it is."""
    if not isinstance(article, dict) or "paragraphs" not in article:
        yield article
        return
    for paragraph in article["paragraphs"]:
        for asked in paragraph["qas"]:
            texts = [each["text"] for each in asked["answers"]]
            more = {"title": article["title"], "context": paragraph["context"]}
            yield {**asked, **more, "answers": {"text": texts}}


def _header(line: str) -> tuple[str, list[str]]:
    """What stands between the cells of a table, and the names that its first line has then."""
    found = {each: next(csv.reader([line], delimiter=each), []) for each in _DELIMITERS}
    return max(found.items(), key=lambda each: len(each[1]))


def _rows_of_table(text: str, delimiter: str, where: str) -> Iterator[Making]:
    literal = delimiter == "\t" and not _QUOTED_CELL.search(text)  # quotation marks are letters
    quoting: Any = csv.QUOTE_NONE if literal else csv.QUOTE_MINIMAL
    lines = StringIO(text, newline="")
    table = csv.reader(lines, delimiter=delimiter, quoting=quoting, strict=True)
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
                        f"{where}, {place}: two columns of one name: {format_value(names)}"
                    )
                continue
            if len(cells) != len(names):
                raise UsageError(
                    f"{where}, {place}: {len(cells)} cells, where the first line has {len(names)}"
                )
            row = {name: cell or None for name, cell in zip(names, cells, strict=True)}
            yield partial(LocatedRow, row, place)
    except csv.Error as error:
        raise UsageError(
            f"{where}, line {number}: a quotation mark is not closed: {error}"
        ) from None


def parse_message(item: Any) -> tuple[str | None, Any]:
    """Who says a message of a conversation, a user, an assistant or the system, and what; None for
    anyone or anything else.
    """
    given = item if isinstance(item, Mapping) else {}
    said = given.get("content", given.get("value"))
    if isinstance(said, list):  # of OpenAI's parts
        parts: list[Any] = [each.get("text") for each in said if isinstance(each, Mapping)]
        said = "\n".join(parts) if all(isinstance(each, str) for each in parts) else None
    who = given.get("role", given.get("from"))
    return (ROLES.get(who) if isinstance(who, str) else None), said


def trim_conversation(row: LocatedRow) -> LocatedRow | None:
    """A row with its conversation from the first question on, as FastChat reads ShareGPT's; None
    where the speakers do not take turns. A row of another kind stays.
    """
    name = find_prompt_field(row)
    if name not in CHATS[1:] or not isinstance(row[name], list):
        return row
    said = row[name]
    who = [parse_message(each)[0] for each in row[name]]
    first = who.index("user") if "user" in who else len(who)
    if None in who:
        return row  # which reading it names
    if first == len(who) or any(who[n] != _TURNS[(n - first) % 2] for n in range(first, len(who))):
        return None
    return LocatedRow({**row, name: [*said[: who[0] == "system"], *said[first:]]}, row.place)


def find_prompt_field(row: Row) -> str:
    """The field of a row that its prompt stands in; "" where it has none."""
    return next((name for name in ASKING if row.get(name) not in (None, "", [])), "")


def read_prompt(row: Row) -> Any:
    """What a row asks: a text, a list of turns, or of messages. Raises ValueError: it has a
    prompt that is more than one field, of a data set that a task knows.
    """
    name = find_prompt_field(row)
    for title, (others, words) in _TASKS.items():
        if others <= {*row} and name not in (*CHATS, "turns"):
            raise UsageError(
                f"the row is like {title}'s, whose prompt is more than {name!r}: add {words}; "
                "otherwise give rows a field turns"
            )
    value = row[name]
    if name in CHATS and isinstance(value, str):
        return parse_json(value) if value.startswith("[") else value
    more = row.get("input") if name == "instruction" else None
    return f"{value}\n\n{more}" if isinstance(more, str) and more.strip() else value


def find_reference_field(row: Row) -> str:
    """The field of a row that its reference answer stands in; "" where it has none."""
    found = (name for name in ANSWERING if type(row.get(name)) in (str, int, list))
    return next((name for name in found if row[name] not in ("", [])), "")
