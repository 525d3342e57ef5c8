"""One training: heads, data and target as the settings say, and the heads written."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

import torch

from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.engine.loading import load_model
from spec_bench.jobs.work.models import tokenizer_of
from spec_bench.sinks.wandb import build_wandb, log_training
from spec_bench.train.data import Batches, check_data, read_dialogues, steps_of
from spec_bench.train.dialogues import Dialogue, split
from spec_bench.train.finish import finish
from spec_bench.train.hidden import HiddenStates
from spec_bench.train.loop import Training, run_training
from spec_bench.train.processes import Accelerated, OneProcess, Processes
from spec_bench.train.settings import TrainSettings
from spec_bench.train.start import fresh_heads
from spec_bench.train.trainee import Trainee

log = logging.getLogger(__name__)


def train_heads(settings: TrainSettings) -> dict[str, Any]:
    """Trains heads as the settings say and writes them.

    Returns:
        What ``training.json`` holds; empty in all processes but the first.

    Raises:
        ValueError: data, target or checkpoint cannot be right.
    """
    check_data(settings)
    sink = build_wandb(settings.sink.wandb, settings.folder)
    processes = _processes(settings)
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    training = _prepare(settings, processes)
    progress = run_training(training)
    if processes.rank != 0:
        return {}
    facts = finish(training, progress)
    if sink is not None:
        log_training(sink, settings.name, facts, settings.folder / "log.csv")
    accuracy = facts["accuracy"]["validation"] or facts["accuracy"]["train"]
    print(f"{settings.name}: {facts['parameters']:,} parameters, right at {accuracy}")
    print(f"heads: {settings.out}")
    return facts


def _processes(settings: TrainSettings) -> Processes:
    device = settings.pair.specs[0].device
    if settings.accelerate or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return Accelerated(device)
    return OneProcess(torch.device(device))


def _prepare(settings: TrainSettings, processes: Processes) -> Training:
    """Loads the target, reads the data, makes fresh heads."""
    tokenizer, _ = tokenizer_of(settings.pair)
    spec = settings.pair.specs[0]
    model = load_model(spec)
    if spec.device_map is None:
        model.module.to(processes.device)
        model.device = processes.device
    for parameter in model.module.parameters():
        parameter.requires_grad_(False)
    if processes.rank:
        processes.wait()  # for the first to write what it computes
    dialogues = read_dialogues(settings, model, tokenizer)
    train, validation = split(dialogues, settings.data.validation, settings.seed)
    if not train:
        raise ValueError(f"data.validation={settings.data.validation} leaves nothing to train on")
    trainee = fresh_heads(settings.head, model, settings.seed, train)
    sides = [_batches(settings, model, side, trainee) for side in (train, validation)]
    if not processes.rank:
        processes.wait()
    optimiser = settings.optimiser
    batch = min(optimiser.batch, len(train))
    if batch < processes.count * optimiser.accumulate:
        raise ValueError(
            f"a step's {batch} dialogues cannot be shared by {processes.count} processes with "
            f"optimiser.accumulate={optimiser.accumulate}"
        )
    steps = optimiser.steps or optimiser.epochs * steps_of(len(train), batch)
    log.info("%d dialogues to train on, %d to validate on", len(train), len(validation))
    trainee.to(processes.device)
    return Training(settings, trainee, sides[0], sides[1], steps, batch, processes)


def _batches(
    settings: TrainSettings,
    model: HuggingFaceModel,
    dialogues: Sequence[Dialogue],
    trainee: Trainee,
) -> Batches:
    """One side's dialogues with their hidden states."""
    layers, size = trainee.layers(model.blocks), settings.data.hidden_batch
    hidden = HiddenStates(model, dialogues, size, layers, trainee.picked)
    return trainee.batches(dialogues, hidden, model, settings.head.guesses)
