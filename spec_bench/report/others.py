"""The papers' figures and claims, imported when they are asked for: drawing is slow to load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pandas as pd

if TYPE_CHECKING:
    from spec_bench.report.orderings import Check


class Draw(Protocol):
    """``draw(paper, figure, rows, folder, pair)``; both formats unless told."""

    def __call__(
        self,
        paper: str,
        figure: str,
        rows: pd.DataFrame,
        folder: Path,
        pair: str | None = None,
        formats: Sequence[str] = ...,
    ) -> Sequence[Path]: ...


CheckClaims = Callable[[str, pd.DataFrame, Path], "Sequence[Check]"]


def draw_figure() -> Draw:
    """``draw(paper, figure, rows, folder, pair)`` writes a figure's files.

    Raises:
        ValueError: this installation draws none.
    """
    found: Draw = _attribute("spec_bench.report.figures", "draw")
    return found


def claims_of() -> CheckClaims:
    """``check_claims(paper, rows, results)`` checks what a paper says.

    Raises:
        ValueError: this installation knows no claims.
    """
    found: CheckClaims = _attribute("spec_bench.report.claims", "check_claims")
    return found


def _attribute(module: str, name: str) -> Any:
    try:
        return getattr(import_module(module), name)
    except (ModuleNotFoundError, AttributeError):
        raise ValueError(f"this installation has no {module}.{name}") from None
