"""The training loop: a step's dialogues, their loss, one update, now and then a line of the log."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from spec_bench.train.accuracy import measure
from spec_bench.train.checkpoint import Checkpoint, Progress, TrainingLog
from spec_bench.train.data import Batches, step_indices
from spec_bench.train.processes import Processes, share
from spec_bench.train.settings import Optimisation, TrainSettings
from spec_bench.train.trainee import Trainee, weighted, weights_of


@dataclass(frozen=True)
class Training:
    """Everything a training works with.

    Attributes:
        settings: of the training.
        trainee: the heads; frozen is everything else.
        train: dialogues to train on.
        validation: dialogues to validate on.
        steps: optimiser steps in all.
        batch: dialogues in a step.
        processes: that share the work.
    """

    settings: TrainSettings
    trainee: Trainee
    train: Batches
    validation: Batches
    steps: int
    batch: int
    processes: Processes


def columns(guesses: int) -> list[str]:
    """Columns of the log; ``train t+i`` and ``validation t+i`` are accuracies of guess i."""
    per_guess = [f"{side} t+{i + 1}" for side in ("train", "validation") for i in range(guesses)]
    last = ("validation_loss", "tokens_per_s", "seconds")
    return ["step", "tokens", "loss", "learning_rate", *per_guess, *last]


def run_training(training: Training) -> Progress:
    """Trains to the end, from the last checkpoint where there is one.

    Returns:
        What was done, over all runs of this training.
    """
    settings, processes = training.settings, training.processes
    trainee = training.trainee.to(processes.device).train()
    optimiser = _optimiser(trainee, settings.optimiser)
    checkpoint = Checkpoint(settings.folder, {**settings.config, "steps": training.steps})
    progress = checkpoint.load(trainee, optimiser)
    log = TrainingLog(settings.folder / "log.csv", columns(trainee.guesses))
    if processes.rank == 0:
        log.rewind(progress.step)
    wrapped = processes.wrap(trainee)
    shown = settings.sink.progress and processes.rank == 0
    bar = tqdm(total=training.steps, initial=progress.step, desc=settings.name, disable=not shown)
    began = time.perf_counter() - progress.seconds
    while progress.step < training.steps:
        rate = learning_rate(
            progress.step,
            training.steps,
            settings.optimiser.warmup,
            settings.optimiser.learning_rate,
        )
        sums = _step(training, wrapped, optimiser, progress.step, rate)
        progress.step += 1
        _note(progress, sums, time.perf_counter() - began)
        bar.update()
        last = progress.step == training.steps
        if progress.step % settings.log_every == 0 or last:
            row = _line(training, progress, rate, last)
            progress.seconds = row["seconds"] = round(time.perf_counter() - began, 2)
            progress.window = None
            if processes.rank == 0:
                log.add(row)
            bar.set_postfix(loss=row["loss"])
        if processes.rank == 0 and (progress.step % settings.save_every == 0 or last):
            checkpoint.save(trainee, optimiser, progress)
    bar.close()
    processes.wait()
    return progress


def learning_rate(step: int, steps: int, warmup: float, peak: float) -> float:
    """The rate of one step, counted from 0: it rises to the peak over this share of the steps, then
    falls to zero by half a cosine.
    """
    rising = max(1, round(warmup * steps))
    if step < rising:
        return peak * (step + 1) / rising
    share = (step - rising) / max(1, steps - rising)
    return peak * 0.5 * (1 + math.cos(math.pi * share))


def _optimiser(trainee: Trainee, settings: Optimisation) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        trainee.parameters(),
        lr=settings.learning_rate,
        betas=settings.betas,
        weight_decay=settings.weight_decay,
    )


def _step(
    training: Training,
    wrapped: torch.nn.Module,
    optimiser: torch.optim.Optimizer,
    step: int,
    rate: float,
) -> dict[str, Tensor]:
    """One update.

    Returns:
        Over all processes: per guess the summed loss, how often it was right, positions.
    """
    settings, processes = training.settings.optimiser, training.processes
    indices = step_indices(
        len(training.train.dialogues), training.batch, training.settings.seed, step
    )
    counts = training.train.counts(indices)
    weights = weights_of(training.settings.head.decay, training.trainee.guesses)
    for group in optimiser.param_groups:
        group["lr"] = rate
    parts = share(indices, processes.rank, processes.count, settings.accumulate)
    sums = torch.zeros(2, len(counts), device=processes.device)
    for number, part in enumerate(parts):
        # Gradients of the processes are exchanged with the last part's.
        apart = processes.alone(wrapped) if number + 1 < len(parts) else nullcontext()
        with apart:
            batch = training.train.of(part)
            with _precision(settings.precision, processes.device):
                losses = wrapped(*batch)
            # The exchange averages; a step's loss is the sum of what each process adds to it.
            (weighted(losses.loss, counts, weights) * processes.count).backward()
        sums += torch.stack([losses.loss.detach(), losses.right.float()])
    if settings.clip:
        torch.nn.utils.clip_grad_norm_(training.trainee.parameters(), settings.clip)
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    summed = processes.total(sums)
    return {"loss": summed[0].cpu(), "right": summed[1].cpu(), "count": torch.tensor(counts)}


def _precision(name: str, device: torch.device) -> Any:
    if name == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


def _note(progress: Progress, sums: dict[str, Tensor], seconds: float) -> None:
    """Adds a step to what the next line of the log will say."""
    lists: dict[str, Any] = {name: values.tolist() for name, values in sums.items()}
    window = progress.window
    if window is None:
        window = {"seconds": progress.seconds, "tokens": progress.tokens}
        progress.window = {**window, **lists}
    else:
        for name, values in lists.items():
            window[name] = [a + b for a, b in zip(window[name], values, strict=True)]
    progress.tokens += int(lists["count"][0])
    progress.seconds = seconds


def _line(training: Training, progress: Progress, rate: float, last: bool) -> dict[str, Any]:
    """A line of the log, without the seconds."""
    window, settings = progress.window, training.settings
    assert window is not None
    weights: Sequence[float] = weights_of(settings.head.decay, training.trainee.guesses).tolist()
    means = [loss / max(1, n) for loss, n in zip(window["loss"], window["count"], strict=True)]
    spent = progress.seconds - window["seconds"]
    row: dict[str, Any] = {
        "step": progress.step,
        "tokens": progress.tokens,
        "loss": round(sum(w * mean for w, mean in zip(weights, means, strict=True)), 5),
        "learning_rate": f"{rate:.4g}",
        "tokens_per_s": round((progress.tokens - window["tokens"]) / max(spent, 1e-9), 1),
    }
    for i, (right, n) in enumerate(zip(window["right"], window["count"], strict=True)):
        row[f"train t+{i + 1}"] = round(right / max(1, n), 4)
    validates = progress.step % settings.validate_every == 0 or last
    if validates and training.processes.rank == 0:
        indices = range(len(training.validation.dialogues))
        accuracy = measure(training.trainee, training.validation, indices, 1)
        if accuracy is not None:
            for i, share_right in enumerate(accuracy.best):
                row[f"validation t+{i + 1}"] = round(share_right, 4)
            loss = sum(w * mean for w, mean in zip(weights, accuracy.loss, strict=True))
            row["validation_loss"] = round(loss, 5)
    return row
