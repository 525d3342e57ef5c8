"""Drafters: they give a growing tree its draft logits."""
