"""``spec-bench train``: trains draft heads; see ``conf/train.yaml``.

Exit status: 0 if heads are written, 1 if a disk is full, 2 if the settings or the data are wrong
(in one line), 130 if interrupted. The same command resumes from the last checkpoint.
"""

import logging
import sys
from argparse import Namespace
from typing import Any

from spec_bench.system import signals

RESUMES = "the same command goes on"


def run_train_command(request: Namespace) -> int:
    """Runs the trainings of a command line; returns the exit status."""
    from spec_bench.jobs.config.application import run_application

    return run_application(_run_composed_training, "train", request, RESUMES, "spec-bench train")


def _run_composed_training(config: Any) -> None:
    """Runs the training of a composed config."""
    from omegaconf import OmegaConf

    from spec_bench.jobs.config.application import CHATTY
    from spec_bench.train.settings import build_train_settings

    for logger_name in CHATTY:
        logging.getLogger(logger_name).setLevel(logging.WARNING)
    plain: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    settings = build_train_settings(plain)
    from spec_bench.train.train import train_heads  # imports torch

    train_heads(settings)


if __name__ == "__main__":
    with signals.exits_in_one_line(f"interrupted; {RESUMES}"):
        from spec_bench.jobs.config.flags import parse_job_arguments

        request = parse_job_arguments("train", sys.argv[1:])
        with signals.signals_as_interrupts():
            sys.exit(run_train_command(request))
