"""Servers that complete prompts, as their users see them: tokens and times over a connection."""
