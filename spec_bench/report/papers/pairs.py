"""Other names of ``spec_bench.report.pairs``."""

from spec_bench.report.pairs import PairConfig, pair_configs, pair_of

__all__ = ["PairConfig", "pair_configs", "pair_of"]
