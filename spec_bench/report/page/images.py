"""Pictures as they lie within a page: no larger than they are shown, in few colours."""

from __future__ import annotations

import base64
import io
from pathlib import Path

from PIL import Image

_COLOURS = 64  # a figure has fewer, all else are their edges' shades


def data_uri(path: Path, width: int) -> str:
    """A picture as a data URI.

    Args:
        path: of a PNG.
        width: pixels that it has at most, each way.
    """
    with Image.open(path) as picture:
        small = picture.convert("RGB")
        small.thumbnail((width, width))
    stream = io.BytesIO()
    small.quantize(_COLOURS).save(stream, "PNG", optimize=True)
    data = base64.b64encode(stream.getvalue()).decode("ascii")
    return f"data:image/png;base64,{data}"
