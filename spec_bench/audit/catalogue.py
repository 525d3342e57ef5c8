"""What is audited: the nine decoders with trees small enough to enumerate, and settings."""

from __future__ import annotations

from typing import Any, NamedTuple

from spec_bench.core.warp import SamplingSettings

_LM = {"kind": "language_model"}
_RRS = {"rule": "recursive_rejection", "replacement": False}
_RRS_REPLACEMENT = {"rule": "recursive_rejection", "replacement": True}


class AuditCase(NamedTuple):
    """One decoder to audit.

    Attributes:
        decoder: its settings.
        enumerable: whether every random choice is discrete.
    """

    decoder: dict[str, Any]
    enumerable: bool = True


def _case(
    name: str, drafter: dict, tree: dict, verifier: dict, *, enumerable: bool = True
) -> AuditCase:
    settings = {"name": name, "drafter": drafter, "tree": tree, "verifier": verifier}
    return AuditCase(settings, enumerable)


def _widths(*widths: int, replacement: bool) -> dict[str, Any]:
    return {"policy": "widths", "widths": list(widths), "replacement": replacement}


AUDIT_CASES = (
    _case("ar", {"kind": "none"}, {"policy": "root"}, _RRS),
    _case("sd", _LM, {"policy": "chain", "depth": 2}, _RRS),
    _case("spectr", _LM, {"policy": "iid_paths", "paths": 2, "depth": 2}, {"rule": "k_seq"}),
    _case("specinfer", _LM, _widths(2, 1, replacement=True), _RRS_REPLACEMENT),
    _case(
        "specinfer, 2 drafts",
        {"kind": "language_model", "drafts": 2},
        _widths(2, replacement=True),
        _RRS_REPLACEMENT,
    ),
    _case("mcsd", _LM, _widths(3, replacement=True), _RRS_REPLACEMENT),
    _case("mcsd_wor", _LM, _widths(2, 1, replacement=False), _RRS),
    _case("mcns", _LM, _widths(2, 1, replacement=False), {"rule": "naive"}),
    _case("mcns, replacement", _LM, _widths(2, 1, replacement=True), {"rule": "naive"}),
    _case("rsd_c", _LM, _widths(3, 1, replacement=False), _RRS),
    # Stochastic beam search depends on the Gumbel values, not only on their order.
    _case(
        "rsd_s",
        _LM,
        {"policy": "stochastic_beam", "width": 3, "depth": 2},
        _RRS,
        enumerable=False,
    ),
)

_SPARSE = {"policy": "node_list", "nodes": [[0], [1], [0, 0]]}
_BEAMS = {"policy": "head_beams", "width": 2, "depth": 2}
HEAD_CASES = (
    _case("medusa", {"kind": "medusa"}, _SPARSE, _RRS),
    _case("redrafter", {"kind": "redrafter"}, _BEAMS, _RRS),
)
# Not exact; the audit measures how far off they are.
TYPICAL_CASES = (
    _case("medusa_typical", {"kind": "medusa"}, _SPARSE, {"rule": "typical"}),
    _case("redrafter_typical", {"kind": "redrafter"}, _BEAMS, {"rule": "typical"}),
)

SETTINGS = {
    "temperature 1": SamplingSettings(probability_dtype="float64"),
    "temperature 1.5, top-p 0.9": SamplingSettings(1.5, top_p=0.9, probability_dtype="float64"),
    "temperature 1, top-k 2": SamplingSettings(top_k=2, probability_dtype="float64"),
    "temperature 1, draft at 0": SamplingSettings(
        draft_temperature=0.0, probability_dtype="float64"
    ),
}
