"""Opens the files that people bring and tells their rows, whatever tool wrote them.

What a file is follows from what is in it: JSON (a list, or a value a line), a table whose cells
stand between commas, semicolons or tabs, a text with a prompt a line, or Parquet; packed or not,
in UTF-8 or UTF-16. Values stay as the file has them: a cell of a table is a text, or None where it
is empty, and a number with a point is a text, too: 3.10 is not made 3.1. Then it tells in which
field of a row its prompt stands.
"""

import bz2
import codecs
import csv
import gzip
import json
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from importlib import import_module
from io import BufferedReader, BytesIO, StringIO
from itertools import chain, islice
from pathlib import Path
from typing import Any

from spec_bench.settings.fields import shown

Row = Mapping[str, Any]
Making = Callable[[], Row]

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
_DELIMITERS = (",", ";", "\t")
_QUOTED_CELL = re.compile(r'(?:^|\t)"(?:[^"]|"")*"(?:\t|\r?$)', re.MULTILINE)
_ZSTD = ("compression.zstd", "backports.zstd", "zstandard")


class Line(dict[str, Any]):
    """A row that remembers where in its file it stood."""

    def __init__(self, values: Row, place: str, file: str = "") -> None:
        super().__init__(values)
        self.place = place  # such as "line 3", from 1
        self.file = file  # which one, where there are several


def _open_zstd(stream: Any) -> Any:
    for name in _ZSTD:
        try:
            return import_module(name).open(stream, "rb")
        except ImportError:
            continue
    raise ValueError("zstd needs Python 3.14, or pip install zstandard; or unpack it: zstd -d")


_UNPACKED: dict[bytes, Callable[[Any], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ": lzma.open,
    b"\x28\xb5\x2f\xfd": _open_zstd,
}


@cache
def _read_once(file: str) -> bytes:
    """What can be read a single time: the standard input, or a pipe."""
    if file == STDIN:
        if sys.stdin.isatty():
            raise ValueError("- is what a pipe or < FILE brings: there is nothing but the terminal")
        return sys.stdin.buffer.read()
    return Path(file).read_bytes()


def _open(file: Path) -> BufferedReader:
    """Opens a file for its bytes, unpacked and in UTF-8."""
    once = not file.is_file()
    stream: Any = BytesIO(_read_once(str(file))) if once else file.open("rb")
    opened = BufferedReader(stream)
    for magic, unpack in _UNPACKED.items():
        if opened.peek(8).startswith(magic):
            opened = BufferedReader(unpack(opened))
    start = opened.peek(8)
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return BufferedReader(BytesIO(opened.read().decode("utf-16").encode()))
    if start.startswith(codecs.BOM_UTF8):
        opened.read(len(codecs.BOM_UTF8))
    return opened


def rows_of(file: Path, whose: str) -> Iterator[Making]:
    """Yields what makes each row of a file, so that rows that are not asked for need not be right.
    Raises ValueError, as does what it yields: the file is of no use, and ``whose`` it is and where.
    """
    where = f"{whose}: {'standard input' if str(file) == STDIN else file.name}"
    try:
        with _open(file) as stream:
            if not stream.peek(4).startswith(b"PAR1"):
                yield from _rows_of_text(stream, file, where)
                return
        from datasets import load_dataset  # slow

        rows = load_dataset("parquet", data_files=str(file), split="train")
        yield from (partial(rows.__getitem__, place) for place in range(len(rows)))
    except (OSError, EOFError, RuntimeError, zlib.error, lzma.LZMAError, UnicodeError) as error:
        raise ValueError(f"{where}: cannot read it: {error.__cause__ or error}") from error


def _rows_of_text(stream: BufferedReader, file: Path, where: str) -> Iterator[Making]:
    endings = [each.lower() for each in file.suffixes if each.lower() not in _PACKED]
    ending = (endings or [""])[-1]
    filled = ((number, line) for number, line in enumerate(stream, 1) if line.strip())
    two = list(islice(filled, 2))
    if not two:
        return
    first, lines = two[0][1], chain(two, filled)
    values: Any = None
    if ending not in _TABLES and (ending in _JSON or first.lstrip()[:1] in (b"{", b"[", b'"')):
        told = _json_or_none(first)
        values = _json_or_none(_open(file).read()) if told is None else told
        of_lines = len(two) == 2 or isinstance(told, dict)
        by_line = ending in _JSON[1:] and (values is None or of_lines)
        if by_line or (told is not None and len(two) == 2 and ending not in _TEXTS[1:]):
            yield from (partial(_line_of_json, line, where, number) for number, line in lines)
            return
        if ending in _JSON and values is None:
            _parse_json(_open(file).read(), where)  # says why it is none
    if isinstance(values, dict | list):
        for number, value in enumerate(_list_in(values), 1):
            yield partial(_row_of, value, where, f"record {number}")
    elif ending in _TABLES or _is_header(first):
        yield from _rows_of_table(_decode(_open(file).read(), where), where)
    elif ending in _TEXTS and b"\0" not in first:
        for number, line in lines:
            text = _decode(line, where, number).rstrip("\r\n")
            yield partial(Line, {"prompt": text}, f"line {number}")
    else:
        raise ValueError(f"{where}: cannot read such a file; choose from {FORMS}")


def lines_of(file: Path, whose: str) -> Iterator[Line]:
    """Yields the rows of a file of JSON objects, one a line; blank lines are skipped.

    Read here and not by ``datasets``, which would make the lines' fields and their types equal.
    Raises ValueError: a line that is no JSON object in UTF-8, by its number, or holds half a
    character (one of a pair of surrogates), which no tokenizer takes and no file can keep.
    """
    with _open(file) as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield _line_of_json(line, f"{whose}: {file.name}", number)


def _decode(data: bytes, where: str, line: int = 1) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        at = line + data.count(b"\n", 0, error.start)
        raise ValueError(f"{where}, line {at}: {error}; save it as UTF-8") from None


def _constant(name: str) -> None:
    """NaN is a value that is missing."""
    if name != "NaN":
        raise ValueError(f"{name} is no value")


def _parse_json(data: bytes, where: str, line: int = 1) -> Any:
    text = _decode(data, where, line)
    try:
        value = json.loads(text, parse_float=str, parse_constant=_constant)
        json.dumps(value, ensure_ascii=False).encode("utf-8")
        return value
    except UnicodeEncodeError as error:
        why = f"{error.object[error.start]!r} is half a surrogate pair, no character"
    except ValueError as error:
        line += getattr(error, "lineno", 1) - 1
        why = f"no JSON: {str(error).partition(': line')[0]}"
    raise ValueError(f"{where}, line {line}: {why}")


def _json_or_none(data: bytes) -> Any:
    try:
        return _parse_json(data, "")
    except ValueError:
        return None


def _line_of_json(line: bytes, where: str, number: int) -> Line:
    return _row_of(_parse_json(line.strip(), where, number), where, f"line {number}")


def _row_of(value: Any, where: str, place: str) -> Line:
    """A row of what stands for one: an object, a text, or a list of turns or messages."""
    if isinstance(value, str):
        value = {"prompt": value}
    elif isinstance(value, list):
        value = {"turns": value}
    elif not isinstance(value, dict):
        raise ValueError(f"{where}, {place}: a {type(value).__name__}, not an object")
    elif isinstance(body := value.get("body"), dict):  # of OpenAI's batches
        told = {"prompt": body.get("input"), "system": body.get("instructions")}
        value = {**told, **body, "id": value.get("custom_id")}
    return Line(value, place)


def _list_in(value: Any) -> list[Any]:
    """The rows of a whole file of JSON: a list, the one list in an object, or one row alone."""
    if isinstance(value, list):
        said = all(isinstance(each, dict) and "content" in each for each in value)
        return [value] if value and said else value
    lists = [value[name] for name in _LISTS if isinstance(value.get(name), list)]
    return [row for each in lists[0] for row in _questions_of(each)] if lists else [value]


def _questions_of(article: Any) -> Iterator[Any]:
    """The rows of SQuAD's own file, which nests them; anything else as it is."""
    if not isinstance(article, dict) or "paragraphs" not in article:
        yield article
        return
    for paragraph in article["paragraphs"]:
        for asked in paragraph["qas"]:
            texts = [each["text"] for each in asked["answers"]]
            more = {"title": article["title"], "context": paragraph["context"]}
            yield {**asked, **more, "answers": {"text": texts}}


def _cells(line: str, delimiter: str) -> list[str]:
    return next(csv.reader([line], delimiter=delimiter), [])


def _is_header(line: bytes) -> bool:
    """Whether a first line names the columns of a table, one of them a field that asks."""
    text = line.decode("utf-8", "replace").strip()
    for delimiter in _DELIMITERS:
        names = {name.strip() for name in _cells(text, delimiter)}
        if len(names) > 1 and names & {*ASKING} and not any(" " in name for name in names):
            return True
    return False


def _rows_of_table(text: str, where: str) -> Iterator[Making]:
    csv.field_size_limit(sys.maxsize)
    header = text.lstrip("\r\n").partition("\n")[0].strip("\r")
    delimiter = max(_DELIMITERS, key=lambda each: len(_cells(header, each)))
    literal = delimiter == "\t" and not _QUOTED_CELL.search(text)  # quotation marks are letters
    quoting: Any = csv.QUOTE_NONE if literal else csv.QUOTE_MINIMAL
    lines = StringIO(text, newline="")
    table = csv.reader(lines, delimiter=delimiter, quoting=quoting, strict=True)
    names, number = list[str](), 1
    try:
        for cells in table:
            place, number = f"line {number}", table.line_num + 1
            if not any(cells):
                continue
            if not names:
                names = [name.strip() for name in cells]
                if len({*names}) < len(names):
                    raise ValueError(f"{where}, {place}: two columns of one name: {shown(names)}")
                continue
            if len(cells) != len(names):
                raise ValueError(
                    f"{where}, {place}: {len(cells)} cells, where the first line has {len(names)}"
                )
            row = {name: cell or None for name, cell in zip(names, cells, strict=True)}
            yield partial(Line, row, place)
    except csv.Error as error:
        raise ValueError(
            f"{where}, line {number}: a quotation mark is not closed: {error}"
        ) from None


def message_of(item: Any) -> tuple[str | None, Any]:
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


def in_turns(row: Row) -> Row | None:
    """A row with its conversation from the first question on, as FastChat reads ShareGPT's; None
    where the speakers do not take turns. A row of another kind stays.
    """
    name = asking_field(row)
    if name not in CHATS[1:] or not isinstance(row[name], list):
        return row
    said, who = row[name], [message_of(each)[0] for each in row[name]]
    if None in who:
        return row  # which reading it names
    first = next((place for place, role in enumerate(who) if role == "user"), len(who))
    asked = who[first:]
    if not asked or asked != (["user", "assistant"] * len(asked))[: len(asked)]:
        return None
    kept = {**row, name: [*said[: who[0] == "system"], *said[first:]]}
    return Line(kept, row.place, row.file) if isinstance(row, Line) else kept


def asking_field(row: Row) -> str:
    """The field of a row that its prompt stands in; "" where it has none."""
    return next((name for name in ASKING if row.get(name) not in (None, "", [])), "")


def asked_in(row: Row) -> Any:
    """What a row asks: a text, a list of turns, or of messages. Raises ValueError: it has a
    prompt that is more than one field, of a data set that a task knows.
    """
    name = asking_field(row)
    for title, (others, words) in _TASKS.items():
        if others <= {*row} and name not in (*CHATS, "turns"):
            raise ValueError(
                f"the row is like {title}'s, whose prompt is more than {name!r}: add {words}; "
                "otherwise give rows a field turns"
            )
    value = row[name]
    if name in CHATS and isinstance(value, str):
        return json.loads(value) if value.startswith("[") else value
    more = row.get("input") if name == "instruction" else None
    return f"{value}\n\n{more}" if isinstance(more, str) and more.strip() else value


def answering_field(row: Row) -> str:
    """The field of a row that its reference answer stands in; "" where it has none."""
    kinds = str | int | float | list
    found = (name for name in ANSWERING if isinstance(row.get(name), kinds))
    return next((name for name in found if row[name] not in ("", [], True, False)), "")
