"""``spec-bench train``: trains draft heads; see ``conf/train.yaml``.

Exit status: 0 if heads are written, 1 if a disk is full, 2 if the settings or the data are wrong
(in one line), 130 if interrupted. The same command resumes from the last checkpoint.
"""

import logging
import sys
from collections.abc import Sequence
from typing import Any

from spec_bench.settings.fields import print_error
from spec_bench.system.errors import UsageError
from spec_bench.system.signals import exit_cleanly

RESUMES = "the same command goes on"


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the help, or runs the Hydra application and exits with its status."""
    with exit_cleanly(f"interrupted; {RESUMES}"):
        from spec_bench.jobs.config.flags import flags_to_overrides, read_escapes
        from spec_bench.jobs.config.help import command_help

        command_words = sys.argv[1:] if arguments is None else arguments
        if {"--help", "-h"} & set(command_words):
            print(command_help("train"), end="")
            return
        try:
            words = read_escapes(flags_to_overrides("train", command_words))
        except UsageError as error:
            print_error(f"spec-bench train: {error}")
            sys.exit(2)
        from spec_bench.jobs.config.application import read_request, run_application

        sys.exit(run_application(_job, "train", read_request(words), RESUMES, "spec-bench train"))


def _job(config: Any) -> None:
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
    main()
