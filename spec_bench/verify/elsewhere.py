"""Another engine's own decoding: who drafts and how much is said here, all else is its code.

Such rows stand beside ours on the same prompts and the same clock, and bear a mark of their own: no
law of theirs was enumerated.
"""

from __future__ import annotations

from dataclasses import dataclass

from spec_bench.fields import Share
from spec_bench.verify.base import Verifier, rule


class OtherEngine(Verifier):
    """Decoding by a library."""


@rule("transformers", mark="unaudited")
@dataclass(frozen=True)
class Transformers(OtherEngine):
    """``generate`` of transformers: alone, with an assistant, or with prompt lookup.

    Attributes:
        confidence: the assistant stops behind a token less probable than this
            (``assistant_confidence_threshold``; the library's own default is 0.4).
    """

    confidence: Share = 0.0

    library = "transformers"
    policies = ("root", "chain", "guessed")


@rule("server", mark="unaudited")
@dataclass(frozen=True)
class Served(OtherEngine):
    """Whatever a server decodes by, which it cannot be told here (``spec_bench.server``)."""

    library = "server"
    policies = ("root",)
