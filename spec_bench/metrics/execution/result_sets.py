"""Whether two result sets are the same: the rules of Spider's execution match.

The rules are those of ``result_eq`` in ``exec_eval.py`` of the benchmark's test-suite evaluation
(Zhong et al., 2020, arXiv:2010.02840; https://github.com/taoyds/test-suite-sql-eval), on one
database, with DISTINCT kept and values compared:

* two empty results are equal, whatever their columns;
* otherwise both have as many rows and as many columns, and some order of the second's columns
  makes the rows equal: as a list where order matters, as a multiset where it does not;
* numbers are equal by value (1 and 1.0), without a tolerance; text is equal letter by letter and
  never equals a number or a blob; NULL equals NULL.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

Value = int | float | str | bytes | None
Row = tuple[Value, ...]

# Most rows compared while orders of columns are tried. Columns must agree as multisets before they
# are tried, and equal columns are tried once, so results of queries stay far below this.
MOST_COMPARED = 5_000_000


def same_result(wanted: Sequence[Row], got: Sequence[Row], order_matters: bool) -> bool:
    """Whether results are equal up to the order of columns, and of rows unless it matters."""
    if not wanted and not got:
        return True
    if len(wanted) != len(got) or len(wanted[0]) != len(got[0]):
        return False
    theirs, ours = list(zip(*wanted, strict=True)), list(zip(*got, strict=True))
    choices = [[n for n, column in enumerate(ours) if _agree(column, want)] for want in theirs]
    return _Search(theirs, ours, choices, order_matters).completes(())


class _Search:
    """Backtracking over the order of columns; every prefix of columns must agree."""

    def __init__(
        self,
        theirs: Sequence[Sequence[Value]],
        ours: Sequence[Sequence[Value]],
        choices: Sequence[Sequence[int]],
        order_matters: bool,
    ) -> None:
        self._theirs, self._ours, self._choices = theirs, ours, choices
        self._order_matters = order_matters
        self._rows = len(theirs[0])
        self._left = max(MOST_COMPARED, 2 * len(theirs) * self._rows)

    def completes(self, chosen: tuple[int, ...]) -> bool:
        """Whether the columns chosen for the first of theirs can be completed."""
        if len(chosen) == len(self._theirs):
            return True
        tried: list[Sequence[Value]] = []
        for column in self._choices[len(chosen)]:
            if column in chosen or self._ours[column] in tried:
                continue
            tried.append(self._ours[column])
            self._left -= self._rows
            if self._left < 0:
                return False
            if self._fits((*chosen, column)) and self.completes((*chosen, column)):
                return True
        return False

    def _fits(self, chosen: tuple[int, ...]) -> bool:
        """Whether the rows, cut to these columns, are equal."""
        ours = [self._ours[column] for column in chosen]
        theirs = self._theirs[: len(chosen)]
        if self._order_matters:
            return ours[-1] == theirs[-1]  # the columns before it were compared before
        return Counter(zip(*ours, strict=True)) == Counter(zip(*theirs, strict=True))


def _agree(ours: Sequence[Value], theirs: Sequence[Value]) -> bool:
    """Whether two columns hold the same values, each as often."""
    return Counter(ours) == Counter(theirs)
