"""The rules for several sequences at once; how they decide is in ``verify.beams``."""

from __future__ import annotations

from dataclasses import dataclass

from spec_bench.records.types import Lossless
from spec_bench.verify.base import BeamVerifier, rule


@rule("beam_sampling", mark="exact_beam")
@dataclass(frozen=True)
class BeamSampling(BeamVerifier):
    """Beams drawn i.i.d. from the warped joint law of all beams (DSBD, arXiv 2409.16560, eq. 1)."""

    length_penalty: float = 1.0

    policy = "beam_root"


@rule("beam_search", mark="exact_beam")
@dataclass(frozen=True)
class LikeliestBeams(BeamVerifier):
    """Deterministic beam search: the likeliest continuations go on."""

    length_penalty: float = 1.0

    policy = "beam_root"
    searches = True


@rule("beam_rejection", mark="exact_beam")
@dataclass(frozen=True)
class BeamRejection(BeamVerifier):
    """Draft beams accepted or rejected layer by layer (DSBD, section 3).

    Attributes:
        one_cache: only the best output beam of an iteration goes on (section 3.4).
    """

    length_penalty: float = 1.0
    one_cache: bool = False

    policy = "beams"
    models = 1

    @property
    def mark(self) -> Lossless:
        # With one cache an iteration's beams have the beam law given its input beam, but choosing
        # the best of them to go on is not part of that law.
        return "approximate" if self.one_cache else self.declared
