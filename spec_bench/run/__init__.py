"""Settings in, a results table out: jobs, cells, run ids, the store and the Hydra application.

The only layer that knows Hydra. It knows nothing about tensors, trees or probabilities.
"""
