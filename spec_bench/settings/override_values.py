"""Formats values as Hydra's command-line syntax. Knows nothing of settings."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spec_bench.settings import fields
from spec_bench.system.errors import UsageError

# Texts that need no quotes for Hydra: ASCII only, and not 2026_11_27, which it reads as a number.
_UNQUOTED_TEXT = re.compile(
    r"(?!(true|false|null|nan|inf)$)(\.{0,2}/|[a-z_])[\w./:@+-]*", re.A | re.I
)
_BEFORE_A_QUOTE = re.compile(r'(\\*)("|$)')


def quote_setting_value(key_in_error: str, value: Any) -> str:
    """Quotes a setting's value for Hydra. Raises UsageError, which names the key, if the value is
    not plain data.
    """
    try:
        return quote_if_needed(value)
    except TypeError:
        raise UsageError(
            f"{key_in_error} must be a text, a number, true, false, null, a list or a mapping of "
            f"them, got {describe_type_and_value(value)}"
        ) from None


def quote_if_needed(value: Any) -> str:
    """Quotes a plain value for Hydra, except a text that needs no quotes. Raises TypeError if the
    value is not plain data.
    """
    return (
        value if isinstance(value, str) and _UNQUOTED_TEXT.fullmatch(value) else quote_value(value)
    )


def quote_value(value: Any) -> str:
    """Quotes a plain value for Hydra; line ends and letters in texts are not escaped. Raises
    TypeError if the value is not plain data.
    """
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {quote_value(item)}' for key, item in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(quote_value, value))}]"
    if isinstance(value, str | Path):
        # Hydra reads backslashes literally, except before a quote.
        content = _BEFORE_A_QUOTE.sub(
            lambda match: match[1] * 2 + ('\\"' if match[2] else ""), str(value)
        )
        return f'"{content}"'
    return json.dumps(value)


def describe_type_and_value(value: Any) -> str:
    """Describes a value by its type and its beginning, in one line for a message."""
    return f"{type(value).__name__} {fields.format_value(value)}"
