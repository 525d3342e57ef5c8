"""SQL text: its first statement, and whether that statement orders its rows.

Knows where words, quotes, comments and brackets begin and end in SQLite's SQL, and no grammar.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# Unclosed quotes and comments run to the end of the text, as SQLite's own scanner takes them.
_TOKEN = re.compile(
    r"""
    (?P<skip>   \s+ | --[^\n]* | /\*.*?(?:\*/|\Z) )
  | (?P<quoted> '[^']*(?:'|\Z) | "[^"]*(?:"|\Z) | `[^`]*(?:`|\Z) | \[[^\]]*(?:\]|\Z) )
  | (?P<word>   \w+ )
  | (?P<mark>   . )
    """,
    re.VERBOSE | re.DOTALL,
)
# Some parsers' output has a blank inside these; the benchmark joins them before it runs a query.
_SPLIT_OPERATORS = (("> =", ">="), ("< =", "<="), ("! =", "!="))


def first_statement(text: str) -> str:
    """The first non-empty statement, without its semicolon; "" if there is none."""
    for split, whole in _SPLIT_OPERATORS:
        text = text.replace(split, whole)
    begin = None
    for kind, token, position in _tokens(text):
        if kind == "mark" and token == ";":
            if begin is not None:
                return text[begin:position].strip()
        elif begin is None:
            begin = position
    return "" if begin is None else text[begin:].strip()


def is_query(statement: str) -> bool:
    """Whether a statement begins as one that only reads."""
    first = next((token.lower() for _, token, _ in _tokens(statement)), "")
    return first in {"select", "with", "values"}


def is_ordered(statement: str) -> bool:
    """Whether the statement's own rows are ordered; a subquery's or a window's order is not that.

    Spider's own script takes any ``order by`` in the text of the reference.
    """
    depth, previous = 0, ""
    for kind, token, _ in _tokens(statement):
        depth += (token == "(") - (token == ")")
        word = token.lower() if kind == "word" and depth == 0 else ""
        if (previous, word) == ("order", "by"):
            return True
        previous = word
    return False


def _tokens(text: str) -> Iterator[tuple[str, str, int]]:
    """Kind, text and position of everything but blanks and comments."""
    for match in _TOKEN.finditer(text):
        if match.lastgroup not in (None, "skip"):
            yield str(match.lastgroup), match.group(), match.start()
