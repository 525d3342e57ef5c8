"""The papers' shorthand for a draft tree: ``-``, ``3``, ``2-2-1``, ``4x3``, ``4x2@0.9``, a name.

Parses only the syntax: tree policies define the meaning of the numbers. Imports no policies,
decoders or torch, so that a report can read a ``spec`` column.
"""

import re
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Literal

from spec_bench.system.errors import UsageError

Form = Literal["root", "number", "levels", "product", "threshold", "name"]

_NUMBER = "[1-9][0-9]{0,8}"
_LEVELS = re.compile(rf"{_NUMBER}(?:-{_NUMBER})+")
_PRODUCT = re.compile(rf"({_NUMBER})x({_NUMBER})(?:@([0-9]*\.?[0-9]+))?")


@dataclass(frozen=True)
class Spec:
    """A parsed shorthand."""

    # `root` (`-`), `number` (`3`), `levels` (`2-2-1`), `product` (`4x3`), `threshold` (`4x2@0.9`)
    # or `name`
    form: Form
    numbers: tuple[int, ...] = ()  # its whole numbers, in order
    threshold: float | None = None  # the number after `@`, else None
    name: str = ""  # the text of the form `name`, else ""

    @property
    def widths(self) -> tuple[int, ...] | None:
        """Children per level; a number is one level. None for products, thresholds and names."""
        return self.numbers if self.form in ("root", "number", "levels") else None

    @property
    def depth(self) -> int:
        """L: levels of the tree; a bare number is a chain of that length.

        Policies for which a bare number counts children or beams use ``widths``. Raises UsageError
        for a name.
        """
        self._refuse_name("depth")
        if self.form == "levels":
            return len(self.numbers)
        return self.numbers[-1] if self.numbers else 0

    @property
    def width(self) -> int:
        """K or W: paths, beams, or the most children of one node; 0 for the root alone.

        A bare number is returned as it is. Raises UsageError for a name.
        """
        self._refuse_name("width")
        if self.form == "levels":
            return max(self.numbers)
        return self.numbers[0] if self.numbers else 0

    @property
    def nodes(self) -> int:
        """Nodes of the tree without the root. Raises UsageError for a name."""
        self._refuse_name("nodes")
        if self.form in ("product", "threshold"):
            return self.width * self.depth
        return sum(accumulate(self.numbers, mul))

    def _refuse_name(self, property_name: str) -> None:
        if self.form == "name":
            raise UsageError(
                f"the tree {self.name!r} is a name, which has no {property_name} in it"
            )


def parse_tree_spec(text: str | int) -> Spec:
    """Parses a shorthand; text in no other form is a name. Raises UsageError if it is empty."""
    text = str(text).strip()
    if not text:
        raise UsageError("a tree's shorthand is empty; 3, 2-2-1, 4x3 and 4x2@0.9 are trees")
    if text == "-":
        return Spec("root")
    if re.fullmatch(_NUMBER, text):
        return Spec("number", (int(text),))
    if _LEVELS.fullmatch(text):
        return Spec("levels", tuple(map(int, text.split("-"))))
    if match := _PRODUCT.fullmatch(text):
        numbers = int(match[1]), int(match[2])
        if match[3] is None:
            return Spec("product", numbers)
        return Spec("threshold", numbers, float(match[3]))
    return Spec("name", name=text)
