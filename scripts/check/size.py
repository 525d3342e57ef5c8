"""Whether the project stays small enough to read: tokens of each folder, lines of each file.

    python scripts/check/size.py        # part of `make check`

Tokens are bounded and lines are not, so that a blank line, a name for an intermediate value or a
docstring costs nothing. Python's tokenizer counts Python, without docstrings and comments; Pygments
counts YAML, Jinja and JavaScript, without comments. Exit status 1 with a line for each bound that
does not hold.
"""

import ast
import io
import sys
import tokenize
from pathlib import Path

from pygments.lexers import get_lexer_by_name
from pygments.token import Comment

ROOT = Path(__file__).resolve().parents[2]
# Tokens at most, of Python and of everything else. A bound only falls, unless a change says in the
# changelog what users get for raising it.
MOST_TOKENS = {
    "spec_bench": (365_000, 8_600),
    "conf": (0, 8_300),
    "tests": (333_800, 16_000),
    "scripts": (84_700, 200),
    "experiments": (15_700, 8_540),
}
SLACK = 1_000  # tokens that a folder may have fewer of before its bound has to follow
LONGEST = 600  # lines of one file of the package or the scripts

LEXERS = {".yaml": "yaml", ".yml": "yaml", ".j2": "html+jinja", ".jinja": "html+jinja", ".js": "js"}
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def find_docstring_lines(source: str) -> set[int]:
    """Returns the numbers of the lines, from 1, that docstrings take."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            lines.update(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    return lines


def count_python_tokens(source: str) -> int:
    """Counts the tokens of a Python source, without layout, comments and docstrings."""
    docstring_lines = find_docstring_lines(source)
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return sum(
        token.type not in LAYOUT and token.start[0] not in docstring_lines for token in tokens
    )


def count_other_tokens(source: str, suffix: str) -> int:
    """Counts the tokens of YAML, Jinja or JavaScript, without blanks and comments."""
    tokens = get_lexer_by_name(LEXERS[suffix]).get_tokens(source)
    # Pygments files Jinja's braces under comments, as instructions to a preprocessor.
    return sum(
        bool(text.strip()) and (kind not in Comment or kind in Comment.Preproc)
        for kind, text in tokens
    )


def count_folder(folder: Path) -> tuple[int, int]:
    """Counts a folder's tokens: of Python, and of the other languages in `LEXERS`."""
    python = other = 0
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".py":
            python += count_python_tokens(path.read_text("utf-8"))
        elif path.suffix in LEXERS and path.is_file():
            other += count_other_tokens(path.read_text("utf-8"), path.suffix)
    return python, other


def check_tokens(name: str, counts: tuple[int, int], most: tuple[int, int]) -> list[str]:
    """Compares a folder's counts with its bounds; returns a sentence for each that fails."""
    failures = []
    for language, count, bound in zip(("Python", "other"), counts, most, strict=True):
        if count > bound:
            failures.append(f"{name}: {count} {language} tokens, at most {bound}: delete some")
        if count < bound - SLACK:
            failures.append(f"{name}: {count} {language} tokens: lower its bound from {bound}")
    return failures


def find_long_files(folder: Path) -> list[str]:
    """Returns a sentence for each Python file with more than `LONGEST` lines."""
    lengths = {path: path.read_text("utf-8").count("\n") for path in folder.rglob("*.py")}
    return [
        f"{path.relative_to(folder.parent)}: {length} lines, at most {LONGEST}"
        for path, length in lengths.items()
        if length > LONGEST
    ]


def main() -> int:
    failures = []
    for name, most in MOST_TOKENS.items():
        counts = count_folder(ROOT / name)
        print(f"{name}: {counts[0]} tokens of Python, {counts[1]} of YAML, Jinja and JavaScript")
        failures += check_tokens(name, counts, most)
    for name in ("spec_bench", "scripts"):
        failures += find_long_files(ROOT / name)
    print(*failures, sep="\n", end="\n" if failures else "", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
