"""Runs a function on a composed config, once or once for each job of a sweep.

Hydra composes the configs and its launchers start the jobs, both unmodified. The list of a sweep's
jobs is ours: all combinations of the settings' values.
"""

import io
import logging
import os
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from copy import deepcopy
from functools import cache
from itertools import product
from pathlib import Path
from traceback import walk_tb
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import OverrideType
from hydra.core.plugins import Plugins
from hydra.core.utils import configure_log
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from spec_bench.jobs.config.compose import (
    compose_hydra_config,
    config_loader,
    explain_in_one_line,
    parse_override,
    refuse_costly_foreign_config,
    split_swept_values,
    strip_hydra,
    to_hydra_arguments,
)
from spec_bench.settings.fields import print_wrapped_error
from spec_bench.settings.override_values import quote_value
from spec_bench.system import files, signals
from spec_bench.system.errors import UsageError, print_fault
from spec_bench.system.redaction import RedactedLogRecord, redact, redact_values

_wants_trace = os.environ.get("HYDRA_FULL_ERROR") == "1"
# Libraries that log requests and uploads; only their warnings matter to us.
CHATTY = ("absl", "hydra", "httpx", "httpx2", "huggingface_hub", "wandb")
_MULTIRUN_OVERRIDE = "hydra.mode=MULTIRUN"


class SweepConfigs:
    """The configs of a sweep's jobs; files are composed once for all jobs with the same choices.

    Launchers use it in place of Hydra's loader, of which they call ``load_sweep_config`` alone. A
    process that a launcher starts composes by Hydra's loader.
    """

    def __init__(self, loader: ConfigLoader) -> None:
        self._loader = loader
        self._config_by_choices = dict[tuple[str, ...], DictConfig]()

    def __reduce__(self) -> tuple[type, tuple[ConfigLoader]]:
        return type(self), (self._loader,)

    def load_sweep_config(
        self, master_config: DictConfig, sweep_overrides: Sequence[str]
    ) -> DictConfig:
        """Composes a job's config."""
        assignments = {
            word: assignment
            for word in sweep_overrides
            if (assignment := _parse_assignment(word))
            and _is_setting_and_no_choice(assignment[0], master_config)
        }
        choices = tuple(word for word in sweep_overrides if word not in assignments)
        if choices not in self._config_by_choices:
            config = self._loader.load_sweep_config(master_config, [*choices])
            self._config_by_choices[choices] = refuse_costly_foreign_config(config)
        config = deepcopy(self._config_by_choices[choices])
        for key, value in assignments.values():
            OmegaConf.update(config, key, value)
        config.hydra.overrides.task = [*sweep_overrides]
        return config

    def list_job_overrides(self, root: DictConfig) -> list[list[str]]:
        """Lists the override words of each job."""
        swept = [f"{key}={value}" for key, value in (root.hydra.sweeper.params or {}).items()]
        choices = {
            word.partition("=")[0]: split_swept_values(word)
            for word in (*swept, *root.hydra.overrides.task)
        }
        return [list(job) for job in product(*choices.values())]

    def compose_jobs(self, root: DictConfig) -> Iterator[tuple[list[str], DictConfig]]:
        """Yields each job's words and its config as a launcher composes it."""
        return (
            (words, self.load_sweep_config(root, words)) for words in self.list_job_overrides(root)
        )


@cache
def _parse_assignment(word: str) -> tuple[str, Any] | None:
    """Parses a word that only sets a value into (key, value); None for any other word."""
    override = parse_override(word)
    is_plain = override.type is OverrideType.CHANGE and override.package is None
    value = override.value()
    return (override.key_or_group, value) if is_plain and not isinstance(value, dict) else None


def _is_setting_and_no_choice(key: str, sweep_config: DictConfig) -> bool:
    """Returns whether a key is certainly a setting and not the choice of a file."""
    matches = re.fullmatch(r"[\w.]+", key) and key.partition(".")[0] in sweep_config
    return bool(matches) and key not in sweep_config.hydra.runtime.choices


class JobError(Exception):
    """Ends a command with a non-zero status; the message is "" if a table has shown the reason."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message


def to_job_error(error: Exception, resumes: str) -> JobError | None:
    """Converts an error to a command's status and last line; None for an internal error."""
    if isinstance(error, JobError):
        return error
    if isinstance(error, OSError) and (os_explanation := files.explain_write_error(error)):
        return JobError(1, f"{os_explanation}; what was done is kept, {resumes}")
    is_refusal = isinstance(error, UsageError | HydraException | OmegaConfBaseException)
    if is_refusal or _comes_from_hydra(error):
        return JobError(2, explain_in_one_line(error))
    # A launcher reports with a private class that a process died.
    if type(error).__module__.partition(".")[0] in {"joblib", "submitit", "ray"}:
        hint = f"the cells that had ended are kept; {resumes}"
        return JobError(1, f"a worker was lost: {explain_in_one_line(error)}\n{hint}")
    return None


def _comes_from_hydra(error: BaseException) -> bool:
    """Returns whether Hydra, OmegaConf or a launcher refused a config."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    package = frames[-1].f_globals.get("__name__", "").partition(".")[0] if frames else ""
    is_refusal = isinstance(error, ValueError) and package in {"joblib", "submitit", "ray"}
    return is_refusal or package in {"hydra", "omegaconf", "antlr4", "yaml"}


def run_application(
    job: Callable[[DictConfig], None],
    config_name: str,
    options: Namespace,
    resumes: str,
    program: str = "spec_bench",
    should_start_sweep: Callable[[DictConfig, SweepConfigs], bool] = lambda config, configs: True,
    finish: Callable[[], None] = lambda: None,
) -> int:
    """Runs ``job`` on a config of ours, composed from the ``options`` of ``parse_job_arguments``,
    once or once for each job of a sweep, and returns the exit status. ``should_start_sweep`` is
    called before a sweep's first job, ``finish`` always at the end. The line about an interrupt
    ends with ``resumes``; lines about errors begin with ``program``.
    """
    logging.setLogRecordFactory(RedactedLogRecord)
    try:
        with signals.signals_as_interrupts(), ExitStack() as at_end:
            at_end.callback(finish)
            words = to_hydra_arguments(
                [*options.words, *map(_format_search_path_override, options.folders)]
            )
            loader = at_end.enter_context(config_loader())
            if options.shown or options.info:
                _print_config(
                    loader, config_name, [split_swept_values(word)[0] for word in words], options
                )
                return 0
            config = compose_hydra_config(
                loader, config_name, [*words, *[_MULTIRUN_OVERRIDE] * options.sweeps], sweeps=True
            )
            configure_log(config.hydra.hydra_logging, config.hydra.verbose)
            if config.hydra.mode == RunMode.MULTIRUN:
                _launch_sweep(job, config, SweepConfigs(loader), should_start_sweep)
                return 0
            configure_log(config.hydra.job_logging, config.hydra.verbose)
            HydraConfig.instance().set_config(config)
            at_end.callback(setattr, HydraConfig.instance(), "cfg", None)
            job(strip_hydra(config))
    except KeyboardInterrupt:
        if not signals.was_interrupted():
            print(f"interrupted; {resumes}", file=sys.stderr)
        return 130
    except Exception as error:
        if signals.was_interrupted():  # something raised another error for it
            return 130
        job_error = to_job_error(error, resumes)
        if job_error is None:
            return print_fault(error, program, resumes)
        if _wants_trace:
            raise
        if job_error.message:
            print_wrapped_error(f"{program}: {job_error.message}")
        return job_error.status
    return 0


def _launch_sweep(
    job: Callable[[DictConfig], None],
    config: DictConfig,
    configs: SweepConfigs,
    should_start_sweep: Callable[[DictConfig, SweepConfigs], bool],
) -> None:
    if (sweeper := config.hydra.runtime.choices["hydra/sweeper"]) != "basic":
        raise UsageError(f"hydra/sweeper must be basic, got {sweeper}")
    if not should_start_sweep(config, configs):
        return
    files.write_text(
        Path(config.hydra.sweep.dir, "multirun.yaml"),
        _format_redacted_yaml(OmegaConf.to_container(config, enum_to_str=True)),
    )
    context: Any = {"config_loader": configs, "callbacks": Callback()}
    launcher = Plugins.instance().instantiate_launcher(
        hydra_context=HydraContext(**context),
        task_function=job,
        config=config,
    )
    job_returns = launcher.launch(configs.list_job_overrides(config), 0)
    with redirect_stderr(io.StringIO()):  # Hydra's line about a failed job
        for job_return in job_returns:
            job_return.return_value  # noqa: B018  # raises the job's error


def _format_search_path_override(folder: str) -> str:
    """Formats the override ``hydra.searchpath=[folder]``. Raises UsageError if there is no such
    folder.
    """
    if not Path(folder).is_dir():
        raise UsageError(f"--config-dir must be a folder, got {folder!r}")
    return f"hydra.searchpath={quote_value([folder])}"


def _print_config(
    loader: ConfigLoader, config_name: str, words: Sequence[str], options: Namespace
) -> None:
    """Prints a job's config, or (``--info``) how Hydra composed it."""
    config = compose_hydra_config(loader, config_name, words)
    if options.info:
        with redirect_stdout(io.StringIO()) as output:
            hydra: Any = GlobalHydra.instance().hydra
            hydra.show_info(options.info, config_name, [*words])
        print(redact(output.getvalue()), end="")
        return
    selection: Any = strip_hydra(config) if options.shown == "job" else config
    if options.shown == "hydra":
        selection = OmegaConf.masked_copy(config, "hydra")
    if options.package:
        selection = OmegaConf.select(selection, options.package, throw_on_missing=True)
    resolves = options.resolves or options.shown == "job"
    print(
        _format_redacted_yaml(
            OmegaConf.to_container(selection, resolve=resolves, enum_to_str=True)
        ),
        end="",
    )


def _format_redacted_yaml(plain: Any) -> str:
    """Formats a config as YAML, its secrets redacted."""
    return redact(OmegaConf.to_yaml(redact_values(plain)))
