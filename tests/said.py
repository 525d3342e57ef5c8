"""Messages are read for what they name, not for their words."""

from __future__ import annotations

import re


def naming(*parts: object) -> str:
    """A pattern for ``raises(match=...)``: a message that names all of these, in any order."""
    return "(?s)" + "".join(f"(?=.*{re.escape(str(part))})" for part in parts)
