"""Makes text from outside safe to print: on a terminal, in a table, in a log."""

import re

from spec_bench.system.redaction import redact

# Control characters except tab and line feed, and characters that change the text's direction.
_CONTROL_CHARACTERS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)

_MAX_CHARACTERS = 2**16  # characters of a message


def redact_escape_and_cut(text: str) -> str:
    """Redacts keys in a text, cut to 2**16 characters, and escapes characters that control a
    terminal.
    """
    text = redact(text[:_MAX_CHARACTERS])
    return _CONTROL_CHARACTERS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
