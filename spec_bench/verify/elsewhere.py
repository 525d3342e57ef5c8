"""Another engine's own decoding: only who drafts and how much is set here, the rest is its code.

Such rows share our prompts and our clock, but have a mark of their own: their distributions were
not enumerated.
"""

from __future__ import annotations

from dataclasses import dataclass

from spec_bench.settings.fields import Share
from spec_bench.verify.base import Verifier, rule


class OtherEngine(Verifier):
    """Decoding by a library."""


@rule("transformers", mark="unaudited")
@dataclass(frozen=True)
class Transformers(OtherEngine):
    """``generate`` of transformers: alone, with an assistant, or with prompt lookup."""

    # the assistant stops after a token less probable than this (`assistant_confidence_threshold`;
    # the library's own default is 0.4)
    confidence: Share = 0.0

    library = "transformers"
    policies = ("root", "chain", "guessed")


@rule("server", mark="unaudited")
@dataclass(frozen=True)
class Served(OtherEngine):
    """However a server decodes; that cannot be chosen here (``spec_bench.server``)."""

    library = "server"
    policies = ("root",)
