"""The Hydra application of ``spec-bench train``: a composed config in, heads out.

Exit status: 0 heads are written, 1 a disk takes no more, 2 the settings or the data cannot be right
(one line says why), 130 interrupted; the same command goes on from the last checkpoint.
"""

import logging
import sys
from typing import Any

from omegaconf import DictConfig, OmegaConf

from spec_bench.jobs.config.compose import CHATTY, run_application, shown_resolved
from spec_bench.train.settings import build_train_settings


def main() -> None:
    """Runs the application and exits with its status."""
    sys.argv = shown_resolved(sys.argv)
    sys.exit(run_application(_job, "train", "the same command goes on", "spec_bench.train"))


def _job(config: DictConfig) -> None:
    """Runs one training."""
    for chatty in CHATTY:
        logging.getLogger(chatty).setLevel(logging.WARNING)
    plain: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    settings = build_train_settings(plain)
    from spec_bench.train.train import train_heads

    train_heads(settings)
