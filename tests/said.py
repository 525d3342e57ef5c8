"""Messages are read for what they name, not for their words."""

import re
from contextlib import contextmanager

import pytest


def naming(*parts):
    """A pattern for ``raises(match=...)``: a message that names all of these, in any order."""
    return "(?s)" + "".join(f"(?=.*{re.escape(str(part))})" for part in parts)


@contextmanager
def one_line(match, error=ValueError):
    """As ``raises``, of a message in one line."""
    with pytest.raises(error, match=match) as caught:
        yield caught
    assert "\n" not in str(caught.value)
