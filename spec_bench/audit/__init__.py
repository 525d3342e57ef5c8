"""Exact checks of losslessness: rules by enumeration, decoders end to end, pairs greedily."""

AUDIT_PARTS = ("rules", "decoders", "approximations", "beams")
DEFAULT_DECODERS = (
    "sd:3,block:3,spectr:4x3,specinfer:2-2-2,mcsd:4-1-1,rsd_c:2-2-2,rsd_s:4x3,traversal:2-2-2,"
    "prompt_lookup,lookup_vote"
)
