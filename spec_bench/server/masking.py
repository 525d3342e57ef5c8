"""What a server says, made fit to be shown: one line, no secrets, no control characters. Pure."""

from __future__ import annotations

import base64
import re

from spec_bench.settings.fields import HIDDEN, one_line, without_user

_CONTROL = re.compile(r"[^\S ]|[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]")
# ``--api-key VALUE VALUE``, ``HF_TOKEN=VALUE``, ``'api_key': ['VALUE']``.
_NAME = r"(?:key|token|secret|password)"
_OPTION = rf"(--?[\w-]*{_NAME}[= ]+)(?!-)\S+(?: +(?!-)\S+)*"
_NAMED = rf"(?i){_OPTION}|(-hft +|\b\w+{_NAME}['\"]?\s*[=:]\s*)(?:\[[^]]*\]|\S+)"


def masked(text: str, key: str = "") -> str:
    """A text without the key, in plain or in base64, the values of what is named as a key, and the
    user and password of an address.
    """
    text = re.sub(_NAMED, rf"\1\2{HIDDEN}", text)
    if key:
        for secret in (key, *(_in_base64(key))):
            text = text.replace(secret, HIDDEN)
    return without_user(text)


def fit(message: object, key: str = "", longest: int | None = None) -> str:
    """A message from outside in one line; masked before it is cut: no part of a key is left."""
    return one_line(masked(_CONTROL.sub(" ", str(message)), key), longest)


def _in_base64(key: str) -> list[str]:
    """How a key looks within base64, by where in a group of three bytes it begins."""
    found = []
    for before in range(3):
        whole = base64.b64encode(b"\0" * before + key.encode()).decode().rstrip("=")
        # Letters at both ends are of neighbours, too.
        inner = whole[-(-8 * before // 6) : len(whole) - bool((len(key) + before) % 3)]
        found += [inner, inner.replace("+", "-").replace("/", "_")] if len(inner) > 7 else []
    return found
