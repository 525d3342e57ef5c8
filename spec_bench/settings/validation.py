"""Typed settings: validation of configs, and the one-line message of an error in them.

A settings class declares fields with types and ranges; ``read_settings`` reads a plain mapping into
it or raises a ``ValueError`` of one line with the key, the value and what is allowed. Knows
pydantic, and nothing about any particular setting. A plain dataclass, such as a rule, policy or
drafter, is validated strictly by its annotations: no value is converted from another type.

    @settings
    class Sampling:
        temperature: Annotated[Number, Ge(0)] = 1.0

    read_settings(Sampling, {"temprature": 0}, "generation")
    # unknown setting generation.temprature; did you mean generation.temperature? ...
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, field, make_dataclass
from functools import cache
from typing import (
    Annotated,
    Any,
    NamedTuple,
    TypeVar,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import AllowInfNan, ConfigDict, Strict, TypeAdapter, ValidationError
from pydantic import StringConstraints as StringConstraints
from pydantic.dataclasses import dataclass as checked_dataclass
from pydantic_core import ErrorDetails, PydanticCustomError

from spec_bench.settings.fields import (
    Requirement,
    describe_annotation,
    describe_unknown_setting,
    format_value,
    is_union,
    list_setting_fields,
    to_one_line,
)
from spec_bench.system.errors import UsageError

__all__ = [
    "FiniteFloat",
    "Ge",
    "Gt",
    "IntOrFloat",
    "Le",
    "Lt",
    "MinLen",
    "NonEmptyStr",
    "Requirement",
    "StrictBool",
    "StrictInt",
]

Kind = TypeVar("Kind")
Class = TypeVar("Class", bound=type)
adapter = cache(TypeAdapter)
_UNKNOWN_KEY_ERRORS = {"unexpected_keyword_argument", "invalid_key", "extra_forbidden"}
_MAPPINGS = (dict, Mapping)
# for plain dataclasses, because their annotations are not marked as strict
_STRICT_CONFIG = ConfigDict(
    extra="forbid", strict=True, allow_inf_nan=False, arbitrary_types_allowed=True
)
_LONGEST = 120  # characters of a value that is shown


StrictInt = Annotated[int, Strict()]
"""A whole number; true and 1.0 are refused."""
FiniteFloat = Annotated[float, Strict(), AllowInfNan(False)]
"""A finite number; true is refused."""
IntOrFloat = Annotated[StrictInt | FiniteFloat, Requirement("a number")]
"""A finite number that keeps its type: 0 does not become 0.0."""
StrictBool = Annotated[bool, Strict()]
"""True or false; 1 and "yes" are refused."""
NonEmptyStr = Annotated[str, Strict(), MinLen(1)]
"""A text that is not empty."""


@dataclass_transform(frozen_default=True)
def settings(kind: Class) -> Class:
    """Makes a frozen dataclass that validates its fields and refuses unknown keys."""
    settings_class: Any = checked_dataclass(frozen=True, config=ConfigDict(extra="forbid"))(kind)
    return settings_class


def refuse_unless(holds: bool) -> None:
    """Raises an error in a field's validator unless ``holds``; the field's ``Requirement`` is the
    message.
    """
    if not holds:
        raise PydanticCustomError("out_of_range", "out of range")


def read_settings(
    kind: type[Kind], values: Any, parent_key: str = "", source: str = "", owner: str = ""
) -> Kind:
    """Reads a settings class, a plain dataclass or a pydantic model from a plain mapping such as
    YAML gives. Fields of a dataclass with ``metadata={"setting": False}`` are not keys.

    Fields are of the types above, ``Literal``, ``tuple[X, ...]`` (YAML's lists), ``dict[str, X]``,
    other settings classes, and unions of them. The UsageError about a wrong field names the
    mapping's ``parent_key``, such as ``engine``, and begins with the ``source``, such as
    ``table 7``. If a key is unknown, it names the keys' ``owner``, such as ``tree policy 'chain'``.
    """
    prefix = f"{source}: " if source else ""
    if not isinstance(values, Mapping):
        got = format_value(values, longest=_LONGEST)
        raise UsageError(
            f"{prefix}{parent_key or 'the config'} must be a mapping of settings, got {got}"
        )
    checker: Any = kind
    try:
        block = _validate(checker, values)
    except ValidationError as error:
        # A misspelt key also leaves a key missing; the misspelling is more useful to the user.
        worst = min(
            error.errors(include_url=False),
            key=lambda detail: detail["type"] not in _UNKNOWN_KEY_ERRORS,
        )
        line = _format_error_line(worst, _get_validating_class(checker), parent_key, owner)
        raise UsageError(f"{prefix}{line}") from None
    if isinstance(block, kind):
        return block
    try:
        return kind(**{name: getattr(block, name) for name in values})
    except ValueError as error:
        raise UsageError(f"{prefix}{parent_key}.{error}") from None


def require_valid_fields(block: Any) -> None:
    """Validates every field of a plain dataclass by its annotation. Raises UsageError, which names
    the field, if a value is not allowed.
    """
    kind: Any = type(block)
    try:
        _validate(kind, vars(block))
    except ValidationError as error:
        worst = error.errors(include_url=False)[0]
        raise UsageError(_format_error_line(worst, _get_validating_class(kind), "")) from None


@cache
def _get_validating_class(kind: Any) -> Any:
    """Returns the class that validates ``kind``: itself, or a pydantic copy of
    a plain dataclass.
    """
    if not hasattr(kind, "__dataclass_fields__") or hasattr(kind, "__pydantic_fields__"):
        return kind
    hints = get_type_hints(kind, include_extras=True)
    columns = []
    for setting in list_setting_fields(kind):
        is_required = setting.default is MISSING and setting.default_factory is MISSING
        column = field() if is_required else field(default=None)
        columns.append((setting.name, hints[setting.name], column))
    copied_class = make_dataclass(kind.__name__, columns, kw_only=True)
    return checked_dataclass(copied_class, config=_STRICT_CONFIG)


def _validate(kind: Any, values: Mapping[str, Any]) -> Any:
    """Validates a mapping against a class and returns the instance; a plain dataclass gets lists as
    tuples.
    """
    model = _get_validating_class(kind)
    if model is kind:
        return adapter(kind).validate_python(dict(values))
    return model(
        **{str(key): _replace_sequence_type(value, list, tuple) for key, value in values.items()}
    )


def _replace_sequence_type(value: Any, old: Any, new: Any) -> Any:
    """Converts all sequences of the type ``old`` in a value, nested ones too, to ``new``."""
    return (
        new(_replace_sequence_type(part, old, new) for part in value)
        if isinstance(value, old)
        else value
    )


def _format_error_line(
    error: ErrorDetails, kind: type[Any], parent_key: str, owner: str = ""
) -> str:
    """Formats a validation error in one line."""
    key, annotation, owning_class = _locate_error(error["loc"], kind, parent_key)
    value = error["input"]
    if error["type"] == "value_error":
        return to_one_line(error["ctx"]["error"])
    if error["type"] in _UNKNOWN_KEY_ERRORS:
        return describe_unknown_setting(
            key, str(error["loc"][-1]), sorted(_get_field_hints(owning_class)), owner
        )
    if error["type"] == "missing":
        needs = f"{owner} needs" if owner else "it must be"
        return f"{key} is missing: {needs} {describe_annotation(annotation)}"
    got = format_value(_replace_sequence_type(value, tuple, list), longest=_LONGEST)
    if isinstance(value, int | float) and str in _list_union_members(annotation):
        got += ", which was read as no text: put it in quotes, '\"...\"' on a command line"
    return f"{key} must be {describe_annotation(annotation)}, got {got}"


def takes_text(kind: Any, key: str) -> bool:
    """Returns whether a key of a settings class, which may be dotted, takes text and no number."""
    for part in key.split("."):
        kind = _get_field_hints(kind).get(part)
    return {*_list_union_members(kind)} - {type(None)} == {str}


class ErrorLocation(NamedTuple):
    """The setting that an error is about."""

    key: str  # as the user writes it
    annotation: Any
    owning_class: Any  # the class that has the field


def _locate_error(loc: Sequence[int | str], kind: Any, parent_key: str) -> ErrorLocation:
    """Resolves a pydantic error location to the setting that it is about."""
    key = parent_key
    annotation = kind
    owning_class = kind
    is_tag = False
    for part in loc:
        if (
            not is_tag
            and len([m for m in _list_union_members(annotation) if m is not type(None)]) > 1
        ):
            is_tag = True
            continue
        is_tag = False
        hints = _get_field_hints(annotation)
        is_class = hints or annotation is kind
        origin, items = _get_container_type(annotation)
        if is_class and (part in hints or items is None):
            owning_class = annotation
            annotation = hints.get(str(part))
            key = f"{key}.{part}" if key else str(part)
        elif origin in _MAPPINGS:
            key = f"{key}.{part}"
            annotation = items
        elif origin is tuple and isinstance(part, int):
            key = f"{key}[{part}]"
            annotation = items
    return ErrorLocation(key, annotation, owning_class)


def _get_field_hints(annotation: Any) -> dict[str, Any]:
    """Returns the annotations of a settings class's fields by key, also of an Optional class; {}
    for anything else.
    """
    for member in _list_union_members(annotation):
        if fields := getattr(member, "__pydantic_fields__", None):
            hints = get_type_hints(member, include_extras=True)
            return {field.alias or name: hints[name] for name, field in fields.items()}
    return {}


def _get_container_type(annotation: Any) -> tuple[type | None, Any]:
    """Returns the container type that an annotation allows (``tuple`` or a mapping) and the type of
    its items; (None, None) if it allows no container.
    """
    for member in _list_union_members(annotation):
        if (origin := get_origin(member)) in (tuple, *_MAPPINGS):
            return origin, get_args(member)[-1 if origin in _MAPPINGS else 0]
    return None, None


def _list_union_members(annotation: Any) -> list[Any]:
    """Lists the types of a union without their annotations; a type that is no union as its only
    item.
    """
    if get_origin(annotation) is Annotated:
        return _list_union_members(get_args(annotation)[0])
    if is_union(annotation):
        return [part for member in get_args(annotation) for part in _list_union_members(member)]
    return [annotation]
