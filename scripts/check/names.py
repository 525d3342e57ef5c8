"""Whether names say what they name: odd ones are counted by kind, and only become fewer.

    python scripts/check/names.py         # part of `make check`
    python scripts/check/names.py --list  # prints every odd name with its place

The rules are those of CONTRIBUTING.md, by the lists of words in ``names.txt``. Some names that they
catch are good, as a field's own word is; the bounds leave room for these. Exit status 1 with a line
for each bound that does not hold.
"""

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Odd names of the package at most, by kind. A bound only falls.
MOST_ODD = {"function": 59, "class": 1, "class name used twice": 0, "variable": 528}
SLACK = 10  # odd names that may be fewer before a bound has to follow
SHORT = 3  # lines that a variable with a name for anything may live

LISTS = re.split("^#.*$", Path(__file__).with_suffix(".txt").read_text("utf-8"), flags=re.M)
RELATIONS, IRREGULAR, NOUNS, ANYTHING = (frozenset(words.split()) for words in LISTS[1:])


def is_participle(word: str) -> bool:
    return word in IRREGULAR or (word.endswith(("ed", "ing")) and word not in NOUNS)


def is_lone(name: str) -> bool:
    """Whether a name is nothing but a participle, a relation or a pronoun."""
    word = name.removeprefix("_").lower()
    return "_" not in word and (is_participle(word) or word in RELATIONS)


def is_odd_function(name: str) -> bool:
    """Whether a function begins with a participle or a relation, or is an ``x_of``."""
    first, *others = name.strip("_").split("_")
    return is_participle(first) or first in RELATIONS or others[-1:] == ["of"]


def is_odd_class(name: str) -> bool:
    """Whether a class is one word that is no noun of one thing: a participle, or a plural."""
    words = re.findall("[A-Z][a-z0-9]*", name)
    plural = name.endswith("s") and not name.endswith("ss")
    return len(words) == 1 and (is_lone(name) or plural)


def find_variables(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yields each odd variable and argument with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            name, line = node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name, line = node.id, node.lineno
        else:
            continue
        if is_lone(name):
            yield name, line
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            lines = defaultdict(list)
            for node in ast.walk(function):
                if isinstance(node, ast.Name) and node.id in ANYTHING:
                    lines[node.id].append(node.lineno)
            for name, places in lines.items():
                if max(places) - min(places) > SHORT:
                    yield name, min(places)


def find_odd_names(source: str) -> list[tuple[str, str, int]]:
    """Finds the odd names of a source: the kind, the name and its line."""
    tree = ast.parse(source)
    found = [("variable", name, line) for name, line in find_variables(tree)]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and is_odd_function(node.name):
            found.append(("function", node.name, node.lineno))
        if isinstance(node, ast.ClassDef) and is_odd_class(node.name):
            found.append(("class", node.name, node.lineno))
    return found


def check_counts(counts: Counter[str], most: dict[str, int]) -> list[str]:
    """Compares counts with their bounds; returns a sentence for each that fails."""
    failures = []
    for kind, bound in most.items():
        if counts[kind] > bound:
            failures.append(f"{kind}: {counts[kind]} odd names, at most {bound}: --list has them")
        if counts[kind] < bound - SLACK:
            failures.append(f"{kind}: {counts[kind]} odd names: lower the bound from {bound}")
    return failures


def main() -> int:
    counts: Counter[str] = Counter()
    classes: Counter[str] = Counter()
    for path in sorted((ROOT / "spec_bench").rglob("*.py")):
        source = path.read_text("utf-8")
        for kind, name, line in find_odd_names(source):
            counts[kind] += 1
            if "--list" in sys.argv:
                print(f"{path.relative_to(ROOT)}:{line}: {kind} {name}")
        nodes = ast.walk(ast.parse(source))
        classes.update(node.name for node in nodes if isinstance(node, ast.ClassDef))
    counts["class name used twice"] = sum(uses > 1 for uses in classes.values())
    failures = check_counts(counts, MOST_ODD)
    print(*failures, sep="\n", end="\n" if failures else "", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
