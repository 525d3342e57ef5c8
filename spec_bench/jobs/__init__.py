"""Settings in, a results table out: jobs, cells, run ids, the store and the Hydra application.

The only layer that knows Hydra. It knows nothing about tensors, trees or probabilities. Its
folders, in the order in which they may import each other: ``config`` (what was asked), ``store``
(where it is kept), ``work`` (what a job works with), ``job`` (one), ``sweep`` (many), and ``app``
above them.
"""
