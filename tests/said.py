"""Messages are read for what they name, not for their words."""

import re


def naming(*parts):
    """A pattern for ``raises(match=...)``: a message that names all of these, in any order."""
    return "(?s)" + "".join(f"(?=.*{re.escape(str(part))})" for part in parts)
