"""Jobs: turn settings into a results table by cells, run ids, a store and the Hydra application.

The only layer that knows Hydra. It knows nothing about tensors, trees or probabilities. Its
folders, in the order in which they may import each other: ``config`` (the settings), ``store`` (the
results on disk), ``work`` (prompts, models and meters), ``job`` (one job), ``sweep`` (many jobs),
and ``app`` above them.
"""
