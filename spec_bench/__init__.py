"""A benchmark and experiment-reproduction harness for speculative decoding."""

__version__ = "0.1.0"
