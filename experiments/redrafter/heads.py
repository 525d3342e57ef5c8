"""What ReDrafter says of trained heads (arXiv:2403.09919, Section 3.1), for its claims and figures.

``heads.csv`` lies beside the measured rows, a row a head, as training collects it; nothing here
knows how heads are trained. Shares are of positions where the best guess is right; ``t+1`` is the
first token after the one already known.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

FILE = "heads.csv"
GUESSES = ("t+1", "t+2", "t+3", "t+4", "t+5")
ACCURACY = "validation t+5"
NO_RNN = "redrafter_no_rnn"
KINDS = ("medusa", "redrafter", NO_RNN)
BLOCKS = (2, 4)
"""Residual blocks of the two ReDrafters that Figure 3 shows."""


def heads_of(rows: pd.DataFrame) -> pd.DataFrame:
    """The heads of the results folders that these rows come from; empty where there are none.

    Args:
        rows: measured cells with a column ``file``, or the heads themselves.
    """
    if ACCURACY in rows:
        return rows
    for file in dict.fromkeys(rows.file) if "file" in rows else ():
        folder = Path(file).parent
        for path in (folder / FILE, *sorted(folder.parent.glob(f"*/{FILE}"))):
            if path.is_file():
                return pd.read_csv(path)
    return pd.DataFrame()


def best_heads(heads: pd.DataFrame) -> dict[str, Mapping[str, Any]]:
    """Of each kind the head with the highest mean accuracy in validation, in order of ``KINDS``."""
    found: dict[str, Mapping[str, Any]] = {}
    for kind in KINDS if not heads.empty else ():
        own = heads[heads["head"] == kind]
        if not own.empty:
            means = own[[f"validation {guess}" for guess in GUESSES]].mean(axis=1)
            found[kind] = own.loc[means.idxmax()].to_dict()
    return found


def shown_heads(heads: pd.DataFrame) -> dict[str, Mapping[str, Any]]:
    """The heads of Figure 3: the best of each kind, of ReDrafter's the best of either size.

    Returns:
        Heads by kind, a ReDrafter of two blocks by ``redrafter_2`` and one of four by
        ``redrafter_4``; by ``redrafter`` where there is neither.
    """
    found: dict[str, Any] = {}
    for kind, best in best_heads(heads).items():
        own = heads[heads["head"] == kind]
        sizes = {f"{kind}_{each}": own[own["blocks"] == each] for each in BLOCKS}
        several = {name: best_heads(part)[kind] for name, part in sizes.items() if len(part)}
        found |= several if several and kind == KINDS[1] else {kind: best}
    return found


def grid_of(heads: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """The measured cells with what is known of their heads, joined by the head's folder.

    Args:
        heads: all heads.
        rows: measured cells of ReDrafter; ``draft`` is the folder that its pair names.

    Raises:
        ValueError: both have a column of one name, of which one would be lost.
    """
    if heads.empty or "draft" not in rows:
        return pd.DataFrame()
    names = heads[heads["head"].isin((KINDS[1], NO_RNN))].drop_duplicates("folder")
    known = names.assign(draft=names.folder.str.rstrip("/")).drop(columns="seconds")
    own = rows[rows.decoder == KINDS[1]]
    own = own.assign(draft=own.draft.astype(str).str.rstrip("/"))
    if twice := [name for name in known if name in own and name != "draft"]:
        raise ValueError(f"cells and {FILE} both have a column {twice[0]!r}")
    return own.merge(known, on="draft", how="inner")


def with_heads(rows: pd.DataFrame) -> pd.DataFrame:
    """Measured cells with what is known of the heads that drafted them."""
    return grid_of(heads_of(rows), rows)
