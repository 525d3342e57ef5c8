"""What Hydra and OmegaConf say, in one line of our words."""

from __future__ import annotations


def one_line(error: Exception) -> str:
    """An error's message in one line."""
    return " ".join(str(error).split("Config search path:")[0].split())
