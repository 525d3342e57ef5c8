"""Draft heads: small networks on the target's last hidden state."""

from spec_bench.draft.heads.files import load_heads, save_heads
from spec_bench.draft.heads.medusa import MedusaHeads
from spec_bench.draft.heads.recurrent import RecurrentHead

__all__ = ["MedusaHeads", "RecurrentHead", "load_heads", "save_heads"]
