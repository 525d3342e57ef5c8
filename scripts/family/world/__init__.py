"""A small world that writes text: people, towns, goods and what happens to them, as eight tasks.

Everything is drawn from a seeded ``random.Random``; the same seed writes the same world.
"""
