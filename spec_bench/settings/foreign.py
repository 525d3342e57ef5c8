"""Limits for files and answers that other people wrote, and how they are read; ``docs/security.md``
is for users.

Prompt files, answer files, configs and a server's JSON pass through here before anything is built
from them, so that no number sizes an allocation and no key starts a program. A refusal is a
``ValueError`` of one line; the caller adds the file and the line number.
"""

import json
import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from io import BytesIO
from typing import Annotated, Any, BinaryIO, Literal

import yaml
from annotated_types import Ge, Le, MaxLen, MinLen
from pydantic import AfterValidator, AllowInfNan, BaseModel, BeforeValidator, ConfigDict

from spec_bench.settings.fields import MOST_NODES, to_one_line
from spec_bench.settings.validation import FiniteFloat, StrictInt
from spec_bench.system.errors import UsageError
from spec_bench.system.printable import redact_escape_and_cut

MOST_BYTES = 2**30
"""Bytes of a file, after unpacking if it is packed."""
MOST_RATIO = 100
"""A packed file may unpack to its size times this, plus ``FREE_BYTES``."""
FREE_BYTES = 2**26
MOST_TEXT = 2**24
"""Characters of one text, such as a prompt."""
MOST_DEPTH = 64
"""Levels of nested lists and mappings."""
MOST_VALUES = 100_000
"""Values of one config; an alias counts as all the values that it refers to."""
MOST_RESOLVED = 500
"""A config's interpolations when expanded, plus the pieces of 65,536 characters of their texts."""
MOST_TOKENS = 2**22
"""Tokens of all answers of a file together."""
MOST_S = 1e6
"""Maximum seconds of a prompt."""
LEAST_S = 1e-6
"""Minimum seconds of a request, or of one of its tokens."""
_TOO_DEEP = f"it is nested more than {MOST_DEPTH} deep"
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_PACKAGE = re.compile(r"@package\s+(\S+)")
_CALLING_KEY = re.compile(r"(^|\.)_target_$|hydra", re.IGNORECASE)
_ALLOWED_HYDRA_KEY = re.compile(
    r"hydra(\.mode|\.sweeper)?"
    r"|hydra\.(launcher(?!\.basic$)|sweeper\.params)(\.((?!hydra|_target_).)*)?"
)
_HYDRA_KEYS = "of hydra it may have launcher, mode and sweeper.params"
# The key, or the resolver's first argument, of an interpolation; interpolations that are refused.
_INTERPOLATION_NAME = re.compile(r"\$\{\s*(?:[\w.]+:)?\s*['\"]?(\.*)([\w.\[\]]+)")
_REFUSED_INTERPOLATION = re.compile(
    r"\$\{(?!\s*[\w.\[\]]+\s*\}|(?!\s*oc\.(?:create|decode))\s*[\w.]+\s*:)"
)
_MODULES_BY_MAGIC: dict[bytes, tuple[str, ...]] = {
    b"\x1f\x8b": ("gzip",),
    b"BZh": ("bz2",),
    b"\xfd7zXZ": ("lzma",),
    b"\x28\xb5\x2f\xfd": ("compression.zstd", "backports.zstd", "zstandard"),
}


def read_and_unpack(stream: BinaryIO) -> bytes:
    """Reads a file, or a pipe, to its end and unpacks it. Raises ValueError if it is too large."""
    data = stream.read(MOST_BYTES + 1)
    limit = MOST_BYTES
    for magic, modules in _MODULES_BY_MAGIC.items():
        if data.startswith(magic):
            limit = compute_max_unpacked_bytes(len(data))
            data = _open_with_first_installed(modules, data).read(limit + 1)
            break
    if len(data) > limit:
        raise UsageError(f"it holds more than {limit >> 20} MiB")
    return data


def compute_max_unpacked_bytes(size: int) -> int:
    """Computes the number of bytes that a packed file of ``size`` bytes may unpack to."""
    return min(MOST_BYTES, FREE_BYTES + MOST_RATIO * size)


def _open_with_first_installed(module_names: tuple[str, ...], data: bytes) -> Any:
    for name in module_names:
        try:
            return import_module(name).open(BytesIO(data))
        except ImportError:
            continue
    raise UsageError("zstd needs Python 3.14, or pip install zstandard; or unpack it: zstd -d")


def parse_json_within_limits(text: str | bytes, **options: Any) -> Any:
    """Parses a JSON text; ``options`` are those of ``json.loads``. Raises ValueError if it is not
    JSON, or if ``require_within_limits`` refuses it.
    """
    try:
        return require_within_limits(json.loads(text, **options))
    except RecursionError:
        raise UsageError(_TOO_DEEP) from None


def require_within_limits(value: Any, depth: int = 0) -> Any:
    """Returns a value unchanged. Raises UsageError if it is nested too deep or
    has too long a text.
    """
    if isinstance(value, str) and len(value) > MOST_TEXT:
        raise UsageError(f"a text has {len(value)} characters, at most {MOST_TEXT}")
    if depth > MOST_DEPTH:
        raise UsageError(_TOO_DEEP)
    content = value.values() if isinstance(value, dict) else value
    for part in content if isinstance(value, dict | list) else ():
        require_within_limits(part, depth + 1)
    return value


def load_yaml_within_limits(text: str) -> Any:
    """Parses a YAML text. Raises UsageError if it is nested too deep, has a control character or
    has too many values; an alias counts as all the values that it refers to.
    """
    count_by_anchor: dict[str | None, int] = {}  # of anchors, by name
    open_collections: list[tuple[str | None, int]] = []
    count = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            open_collections.append((event.anchor, count))
        elif isinstance(event, yaml.CollectionEndEvent):
            name, start_count = open_collections.pop()
            count_by_anchor[name] = count - start_count
        elif isinstance(event, yaml.AliasEvent):
            count += count_by_anchor.get(event.anchor, MOST_VALUES)
        elif isinstance(event, yaml.ScalarEvent) and (
            control_character := _CONTROL_CHARACTERS.search(event.value)
        ):
            raise UsageError(f"a text has the control character {control_character[0]!r}")
        count += 1
        if len(open_collections) > MOST_DEPTH:
            raise UsageError(_TOO_DEEP)
        if count > MOST_VALUES:
            raise UsageError(f"it has more than {MOST_VALUES} values")
    return yaml.safe_load(text)


def refuse_unsafe_config(text: str, name: str) -> None:
    """Raises UsageError if another person's config, at the path ``name`` below its folder, names
    something to call, or sets more of Hydra than a launcher's settings and a sweep's values. A
    launcher is chosen on the command line.
    """
    try:
        config = load_yaml_within_limits(text)
    except yaml.YAMLError as error:
        raise UsageError(to_one_line(error)) from None
    if interpolation := _REFUSED_INTERPOLATION.search(text):
        raise UsageError(f"{text[interpolation.start() :].split()[0]} is no interpolation of a key")
    defaults = config.get("defaults") if isinstance(config, Mapping) else None
    places = [name.replace("/", "."), *_PACKAGE.findall(text)]
    for key in (*places, *map(str, defaults or ()), *_iter_keys(config)):
        if _CALLING_KEY.search(key) and not _ALLOWED_HYDRA_KEY.fullmatch(key):
            raise UsageError(f"{key} is not taken from a config that is not ours; {_HYDRA_KEYS}")


def refuse_costly_interpolations(config: Any) -> None:
    """Raises UsageError if the unresolved interpolations of a composed config expand to more than
    ``MOST_RESOLVED``, as nested references can.
    """
    texts = dict(_iter_long_or_interpolated_texts(config))
    counts: dict[tuple[str, ...], int] = {}

    def count(place: tuple[str, ...]) -> int:
        """Counts the expanded interpolations of all texts at a place."""
        total = 0
        for path in (text_path for text_path in texts if text_path[: len(place)] == place):
            if path not in counts:
                counts[path] = MOST_RESOLVED + 1  # if it refers to itself
                targets = [
                    _resolve_interpolation_path(path, *reference)
                    for reference in _INTERPOLATION_NAME.findall(texts[path])
                ]
                counts[path] = (len(texts[path]) >> 16) + sum(
                    1 + count(target) for target in targets
                )
            total += counts[path]
        if total > MOST_RESOLVED:
            raise UsageError(f"${{...}} of ${{...}} come to more than {MOST_RESOLVED}")
        return total

    count(())


def _resolve_interpolation_path(path: tuple[str, ...], dots: str, name: str) -> tuple[str, ...]:
    """Resolves the path that an interpolation names; leading dots are relative to ``path``."""
    keys = tuple(filter(None, re.split(r"[.\[\]]", name)))
    return (*path[: -len(dots)], *keys) if dots else keys


def _iter_long_or_interpolated_texts(
    value: Any, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yields the path and the text of each text in a config that is long or interpolated."""
    if isinstance(value, str) and ("${" in value or len(value) >> 16):
        yield path, value
    pairs = value.items() if isinstance(value, dict) else ()
    for key, item in enumerate(value) if isinstance(value, list) else pairs:
        yield from _iter_long_or_interpolated_texts(item, (*path, str(key)))


def _iter_keys(value: Any, prefix: str = "") -> Iterator[str]:
    pairs = value.items() if isinstance(value, Mapping) else ()
    for key, content in enumerate(value) if isinstance(value, list) else pairs:
        yield f"{prefix}{key}"
        yield from _iter_keys(content, f"{prefix}{key}.")


Label = Annotated[str, MaxLen(1000), AfterValidator(redact_escape_and_cut)]
Count = Annotated[StrictInt, Ge(0), Le(2**20)]
CallTokens = Annotated[StrictInt, Ge(1), Le(MOST_NODES)]
DraftTokens = Annotated[StrictInt, Ge(0), Le(MOST_NODES)]
# Prompt files keep decimal numbers as texts; the text of true is refused as no number.
Seconds = Annotated[float, BeforeValidator(str), AllowInfNan(False), Ge(0), Le(MOST_S)]


class AnsweredLine(BaseModel):
    """A line of an answer file."""

    model_config = ConfigDict(coerce_numbers_to_str=True, protected_namespaces=())
    question_id: Label
    model_id: Label | None = None
    category: Label | None = None
    choices: Annotated[tuple[dict[str, Any], ...], MinLen(1)]  # only the first is read


class AnsweredChoice(BaseModel):
    """A choice of an answer line; each list but ``accept_lengths`` has an entry per turn."""

    new_tokens: Annotated[tuple[Count, ...], MinLen(1), MaxLen(1000)]
    turns: tuple[Any, ...] | None = None
    wall_time: tuple[Seconds, ...]
    prefill_time: tuple[Seconds, ...] | None = None
    decode_time: tuple[Seconds, ...] | None = None
    accept_lengths: tuple[CallTokens, ...] | None = None
    idxs: tuple[Annotated[StrictInt, Ge(-1), Le(2**20)], ...] | None = None  # of the last calls


class SpeculativeCounts(BaseModel):
    """vLLM's counts of an answer's drafts: per call in order, or the number of calls for each
    number of accepted tokens.
    """

    per_step_accepted: tuple[DraftTokens, ...] | None = None
    per_step_drafted: tuple[DraftTokens, ...] | None = None
    acceptance_histogram: Annotated[tuple[Count, ...], MaxLen(MOST_NODES)] | None = None
    num_draft_tokens: StrictInt | None = None
    num_spec_tokens: DraftTokens | None = None


class LlamaTimings(BaseModel):
    """Progress of an answer of llama.cpp: tokens so far, and milliseconds of its own clock."""

    predicted_n: Count = 0
    predicted_ms: FiniteFloat
    draft_n: Count = 0
    draft_n_accepted: Count = 0


class StoredResult(BaseModel):
    """A cell's result as stored in its folder."""

    labels: dict[str, str | float | None]
    metrics: dict[str, str | float | None]
    status: Literal["complete", "partial", "failed"]
    reason: str


class StoredCell(BaseModel):
    """A ``cell.json``: see ``records.cell_folder.read_cell_json``."""

    settings: dict[str, Any] = {}
    starts: tuple[dict[str, Any], ...] = ()
    result: StoredResult | None = None
    scores: dict[str, dict[str, float | tuple[float, ...]]] = {}
