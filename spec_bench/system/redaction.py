"""Redacts keys and passwords in commands, addresses and errors that are printed or stored.

Redacted are the server's key in the environment, however it is spelt or cut; the user and password
of an address; a value with a name like that of a key; and a text that looks like a key, by its
maker's prefix or because it mixes more letters and digits than names do.
"""

import base64
import logging
import os
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

HIDDEN = "***"
SERVER_KEY_VARIABLE = "SPEC_BENCH_SERVER_KEY"
"""Environment variable with the key that is sent as bearer token."""
_PART_LETTERS = 8  # length of the parts of a key that are hidden
_MAX_CACHED_LETTERS = 2000
_RULES = (
    # http://user:password@host
    (r"(?<=//)[^/\s]*@", "***@"),
    # --api-key VALUE VALUE, -hft VALUE
    (
        r"(?i)((?<![\w-])(?:--?[\w-]*(?:key|token|secret|password)[= ]+|-hft +))"
        r"(?!-)\S+(?: +(?!-)\S+)*",
        r"\1***",
    ),
    # HF_TOKEN=VALUE, 'api_key': ['VALUE'], ?key=VALUE
    (
        r"((?i:\b\w*(?:(?:api|access|auth|hf|private)[-_]?(?:key|token)|secret|passw(?:or)?d))"
        r"|\b[A-Z0-9_]+_(?:KEY|TOKEN)|(?i:(?<=[?&;])[\w.-]*(?:key|token|sig|signature)))"
        r"""([\\'"]*\s*[=:]\s*[\\'"]*)(?:\[[^]]{0,999}\]|[^\s\\'",;&[]+)""",
        r"\1\2***",
    ),
    # sk-VALUE, a JSON web token, letters and digits by chance
    (
        r"\b(?:(?:[spr]k|gsk|nvapi|glpat|xox[a-z])-|(?:hf|gh[a-z]|github_pat|npm)_|AKIA|AIza"
        r"|eyJ)(?=[\w-]{0,60}\d)[\w-]{10,}(?:\.[\w-]+)*"
        r"|(?<!\w)(?=\w*[a-z])(?=\w*[A-Z])(?=(?:\w*\d){3})[A-Za-z0-9]{24,}(?!\w)",
        HIDDEN,
    ),
)
# A letter or digit, as it is or escaped as in JSON, Python, addresses or HTML.
_LETTER = re.compile(r"(?:\\u00|\\x|%|&#x)([0-9a-fA-F]{2})|\\[nrt]|([A-Za-z0-9])")


def redact(text: str, secret: str = "") -> str:
    """Redacts keys and passwords in a text, including the environment's key and ``secret``."""
    # Long texts bypass the cache, which would keep them.
    redact_text = (
        _redact_secrets if len(text) < _MAX_CACHED_LETTERS else _redact_secrets.__wrapped__
    )
    return redact_text(text, secret, os.environ.get(SERVER_KEY_VARIABLE, "").strip())


def redact_values(value: Any) -> Any:
    """Redacts every text in a JSON value except the keys of mappings."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {name: redact_values(item) for name, item in value.items()}
    return [redact_values(item) for item in value] if isinstance(value, list | tuple) else value


class RedactedLogRecord(logging.LogRecord):
    """Log record with a redacted message."""

    def getMessage(self) -> str:  # noqa: N802
        """Returns the message, redacted."""
        return redact(super().getMessage())


@lru_cache(4096)
def _redact_secrets(text: str, *keys: str) -> str:
    for key in filter(None, keys):
        text = _hide_secret_spellings(re.sub(rf"(?<!\w){re.escape(key)}(?!\w)", HIDDEN, text), key)
    for pattern, replacement in _RULES:
        text = re.sub(pattern, replacement, text)
    return text


def _hide_secret_spellings(text: str, key: str) -> str:
    """Hides parts of a key in a text, whatever characters separate its letters."""
    parts = _list_secret_parts(key)
    letters = [
        (*match.span(), letter)
        for match in _LETTER.finditer(text)
        if (letter := match[2] or chr(int(match[1] or "0", 16)).lower()).isalnum()
    ]
    letters_text = "".join(letter for *_, letter in letters).lower()
    pieces = []
    end = 0
    for place in range(len(letters) - _PART_LETTERS + 1):
        if letters_text[place : place + _PART_LETTERS] in parts:
            start = letters[place][0]
            pieces += [text[end:start], HIDDEN] if start >= end else []
            end = letters[place + _PART_LETTERS - 1][1]
    return "".join(pieces) + text[end:]


@lru_cache(8)
def _list_secret_parts(key: str) -> set[str]:
    """Lists the parts of a key to hide, for each spelling: plain, hexadecimal, and base64 at each
    of three offsets, without the letters at both ends, which depend on the neighbours.
    """
    data = key.encode()
    spelt = [base64.b64encode(bytes(n) + data).decode()[n + bool(n) : -4] for n in range(3)]
    plain = ["".join(filter(str.isalnum, text)).lower() for text in (key, data.hex(), *spelt)]
    return {
        text[start : start + _PART_LETTERS]
        for text in plain
        for start in range(len(text) - _PART_LETTERS + 1)
    }
