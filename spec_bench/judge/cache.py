"""Judgements on disk by what was asked, so that asking again costs nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spec_bench.system import files


class Judgements:
    """A folder with one file a judgement.

    Only replies with a rating are kept: what failed is asked again.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, payload: Mapping[str, Any]) -> float | None:
        """The rating that this request was given before."""
        path = self._path(payload)
        return (
            float(json.loads(path.read_text(encoding="utf-8"))["rating"]) if path.exists() else None
        )

    def put(self, payload: Mapping[str, Any], reply: str, rating: float) -> None:
        """Keeps a rating with the reply it stands in."""
        content = {"model": payload["model"], "rating": rating, "reply": reply}
        files.write_json(self._path(payload), content)

    def _path(self, payload: Mapping[str, Any]) -> Path:
        """Named by a hash of model, prompt and the reply's limits."""
        return self.folder / f"{files.digest(payload, 24)}.json"
