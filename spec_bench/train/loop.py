"""The training loop, with its accuracy measurement, log and checkpoints.

A resumed run gives the same result as an uninterrupted one. The learning rate and the next
dialogues are computed from the step and are not stored.
"""

import csv
import logging
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from copy import deepcopy
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from pickle import UnpicklingError
from typing import Annotated, Any

import torch
from accelerate import Accelerator, InitProcessGroupKwargs
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import AdamW, Optimizer
from tqdm import tqdm

from spec_bench.settings.fields import to_one_line
from spec_bench.settings.validation import Ge, adapter
from spec_bench.system.errors import UsageError
from spec_bench.system.files import (
    atomic_replace,
    hash_json,
    move_aside,
    open_regular_to_write,
    write_csv,
    write_errors_naming,
)
from spec_bench.train.batches import IGNORED_LABEL, DialogueBatches, select_step_indices
from spec_bench.train.settings import TrainSettings
from spec_bench.train.training_heads import (
    TrainableHead,
    compute_decay_powers,
    compute_weighted_loss,
)

log = logging.getLogger(__name__)
# Errors that reading a damaged checkpoint can raise.
_FAULTS = (RuntimeError, ValueError, KeyError, TypeError, EOFError, OSError, UnpicklingError)
_ACCURACY_BATCH_SIZE = 8  # dialogues in a batch when accuracy is measured


@dataclass(frozen=True)
class GuessAccuracy:
    """Loss and accuracy of each guess."""

    loss: tuple[float, ...]  # K mean cross-entropies in nats
    # K lists; ranks[k][n] is the share of positions where the right token has rank n in guess k,
    # both counted from 0; ReDrafter is measured with teacher forcing
    ranks: tuple[tuple[float, ...], ...]
    counts: tuple[int, ...]  # number of positions of each guess
    # K means of sum min(p, q) at temperature 1, for the target's distribution p and the head's q:
    # the acceptance rate of one sampled token; empty if the batches do not hold p
    overlaps: tuple[float, ...] = ()

    @property
    def best_guess_shares(self) -> tuple[float, ...]:
        """Share of positions where the top token is right, for each of the K guesses."""
        return tuple(head[0] for head in self.ranks)


@torch.no_grad()
def measure_accuracy(
    trainee: TrainableHead,
    batches: DialogueBatches,
    indices: Sequence[int],
    ranks: int,
) -> GuessAccuracy | None:
    """Measures loss and accuracy on the dialogues ``indices``, for the best ``ranks`` tokens of
    each guess; None if there are no dialogues.
    """
    if not indices:
        return None
    trainee.eval()
    device = batches.model.device
    guesses = trainee.guesses
    loss, overlaps, counts = torch.zeros(3, guesses, dtype=torch.float64, device=device)
    hits = torch.zeros((), dtype=torch.long, device=device)
    for start in range(0, len(indices), _ACCURACY_BATCH_SIZE):
        batch_indices = indices[start : start + _ACCURACY_BATCH_SIZE]
        batch = batches.make_batch(batch_indices)
        counts += torch.tensor(batches.count_labels(batch_indices), device=device)
        target_logits = trainee.iter_target_logits(batch)
        right = []
        for guess, logits in enumerate(trainee.iter_guess_logits(batch)):
            tokens = batch.labels[:, guess]
            if target_logits is not None:
                p, q = (scores.float().softmax(dim=-1) for scores in (next(target_logits), logits))
                overlaps[guess] += torch.minimum(p, q).sum(dim=-1)[tokens != IGNORED_LABEL].sum()
            token_losses = cross_entropy(
                logits.float(), tokens, ignore_index=IGNORED_LABEL, reduction="none"
            )
            # A token outside of a head's vocabulary has infinite loss, which counts as 0.
            loss[guess] += token_losses.nan_to_num(posinf=0.0).sum()
            best = logits.topk(min(ranks, logits.shape[-1]), dim=-1).indices
            right.append((best == tokens[:, None]).sum(0))
        hits = hits + torch.stack(right)
    trainee.train()
    divisor = counts.clamp(min=1)
    return GuessAccuracy(
        tuple((loss / divisor).tolist()),
        tuple(tuple(row) for row in (hits / divisor[:, None]).tolist()),
        tuple(map(int, counts.tolist())),
        () if target_logits is None else tuple((overlaps / divisor).tolist()),
    )


def label_guess_shares(prefix: str, shares: Sequence[float]) -> dict[str, float]:
    """Labels each guess's share as the papers do: ``t+1``, ``t+2``, ...; rounds to 4 decimals."""
    return {f"{prefix}t+{i + 1}": round(share, 4) for i, share in enumerate(shares)}


@dataclass
class TrainingProgress:
    """Progress of a training."""

    step: Annotated[int, Ge(0)] = 0  # optimiser steps done
    tokens: int = 0  # positions trained on
    seconds: float = 0.0  # of training, validation included
    window: dict[str, Any] | None = None  # sums since the last line of the log, by name


class TrainingCheckpoint:
    """Checkpoint file of a training; ``load`` refuses a file of other settings or ``models``."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], models: object = None) -> None:
        self.models = hash_json(models)
        self.file = folder / "checkpoint.pt"
        self.settings = hash_json(settings)

    def save(self, module: nn.Module, optimiser: Optimizer, progress: TrainingProgress) -> None:
        """Writes the state of the training atomically."""
        state = {
            "settings": self.settings,
            "models": self.models,
            "module": module.state_dict(),
            "optimiser": optimiser.state_dict(),
            "progress": vars(progress),
            "random": torch.get_rng_state(),
            "random_cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }
        with atomic_replace(self.file) as partial, partial.open("wb") as stream:
            torch.save(state, stream)  # given a path, torch would hide the cause of an error

    def load(self, module: nn.Module, optimiser: Optimizer) -> TrainingProgress:
        """Restores the last checkpoint and returns its progress; without a checkpoint, that of step
        0. Moves a damaged file aside and starts from step 0. Raises UsageError if the file has
        other settings or models.
        """
        if not self.file.is_file():
            return TrainingProgress()
        fresh = deepcopy((module.state_dict(), optimiser.state_dict()))
        try:
            state = torch.load(self.file, map_location="cpu", weights_only=True)
            if not isinstance(state, dict) or not isinstance(state["settings"], str):
                raise UsageError("it holds no training")
            models = state.get("models", self.models)  # older checkpoints lack it
            if (state["settings"], models) == (self.settings, self.models):
                progress = adapter(TrainingProgress).validate_python(state["progress"])
                module.load_state_dict(state["module"])
                optimiser.load_state_dict(state["optimiser"])
                torch.set_rng_state(state["random"])
                if state["random_cuda"] and torch.cuda.is_available():
                    torch.cuda.set_rng_state_all(state["random_cuda"])
                return progress
        except _FAULTS as error:
            with suppress(FileNotFoundError):  # another process moved it first
                name = move_aside(self.file).name
                message = "%s: %s; it is now %s, training begins anew"
                log.warning(message, self.file, to_one_line(error, 120), name)
            module.load_state_dict(fresh[0])
            optimiser.load_state_dict(fresh[1])
            return TrainingProgress()
        raise UsageError(
            f"{self.file.parent} holds a training with other settings or models; give this one "
            "another name=..., or remove that folder"
        )


class TrainingLog:
    """The log of a training, ``log.csv``."""

    def __init__(self, file: Path, columns: Sequence[str]) -> None:
        self.file = file
        self.columns = list(columns)

    def drop_rows_after(self, step: int) -> None:
        """Drops the lines of steps after ``step``, which will be repeated."""
        rows = [row for row in self.read_rows() if int(row["step"]) <= step]
        write_csv(self.file, rows, self.columns)

    def append_row(self, row: Mapping[str, Any]) -> None:
        """Appends a line; columns that the row lacks stay empty."""
        with write_errors_naming(self.file), open_regular_to_write(self.file) as stream:
            csv.DictWriter(stream, self.columns).writerow(row)

    def read_rows(self) -> list[dict[str, str]]:
        """Reads all complete lines; values are strings."""
        if not self.file.is_file():
            return []
        with self.file.open(encoding="utf-8", newline="") as stream:
            return [row for row in csv.DictReader(stream) if row.get(self.columns[-1]) is not None]


@dataclass(frozen=True)
class TrainingRun:
    """Heads, data and processes of a training."""

    settings: TrainSettings
    trainee: TrainableHead  # the heads; all other parameters are frozen
    train_batches: DialogueBatches
    validation_batches: DialogueBatches
    steps: int  # optimiser steps in all
    batch_size: int  # dialogues in a step
    accelerator: Accelerator  # splits each step's dialogues among the processes


def make_accelerator(device: str) -> Accelerator:
    """Makes the accelerator of this process, which ``accelerate launch`` or ``torchrun`` may have
    started with others; with ``device`` ``cpu`` it uses no GPU.
    """
    cpu = device == "cpu"
    # The other processes wait while the first answers prompts.
    patience = [InitProcessGroupKwargs(timeout=timedelta(days=2))]
    return Accelerator(
        device_placement=False,
        mixed_precision="no",
        cpu=cpu,
        kwargs_handlers=patience,
    )


def split_process_share(
    indices: Sequence[int], process_index: int, process_count: int, parts: int
) -> list[list[int]]:
    """Splits this process's dialogues of a step into ``parts`` pieces, which may be empty."""
    own_indices = list(indices[process_index::process_count])
    return [own_indices[part::parts] for part in range(parts)]


def list_log_columns(guesses: int) -> list[str]:
    """Lists the log's columns; ``train t+i`` and ``validation t+i`` are guess i's accuracies."""
    per_guess = [f"{side} t+{i + 1}" for side in ("train", "validation") for i in range(guesses)]
    final_columns = ("validation_loss", "tokens_per_s", "seconds")
    return ["step", "tokens", "loss", "learning_rate", *per_guess, *final_columns]


def run_training(training: TrainingRun) -> TrainingProgress:
    """Trains from the last checkpoint, if there is one, to the last step. Returns the progress over
    all runs of this training.
    """
    settings = training.settings
    accelerator = training.accelerator
    config = settings.config
    is_main = accelerator.is_main_process
    trainee = training.trainee.to(training.train_batches.model.device).train()
    plan = config.optimiser
    optimiser = AdamW(
        trainee.parameters(),
        plan.learning_rate,
        plan.betas,
        weight_decay=plan.weight_decay,
    )
    identity = {**settings.identity, "steps": training.steps}
    checkpoint = TrainingCheckpoint(
        settings.checkpoint_folder, identity, settings.pair.read_content_ids()
    )
    progress = checkpoint.load(trainee, optimiser)
    log = TrainingLog(settings.checkpoint_folder / "log.csv", list_log_columns(trainee.guesses))
    if is_main:
        log.drop_rows_after(progress.step)
    parallel_trainee = accelerator.prepare_model(trainee)
    is_bar_off = not (config.sink.progress and is_main)
    bar = tqdm(
        total=training.steps,
        initial=progress.step,
        desc=config.name,
        disable=is_bar_off,
    )
    began = time.perf_counter() - progress.seconds
    while progress.step < training.steps:
        rate = cosine_learning_rate(progress.step, training.steps, plan.warmup, plan.learning_rate)
        sums = _update_weights_and_sum_losses(
            training, parallel_trainee, optimiser, progress.step, rate
        )
        if progress.window is None:  # sums for the next line of the log
            began_at = {"seconds": progress.seconds, "tokens": progress.tokens}
            progress.window = {**began_at, "sums": 0.0}
        progress.window["sums"] += sums.double()
        progress.step += 1
        progress.tokens += int(sums[2, 0])
        progress.seconds = time.perf_counter() - began
        bar.update()
        is_last = progress.step == training.steps
        if progress.step % config.log_every == 0 or is_last:
            row = _validate_and_make_log_row(training, progress, rate, is_last)
            progress.seconds = row["seconds"] = round(time.perf_counter() - began, 2)
            progress.window = None
            if is_main:
                log.append_row(row)
            bar.set_postfix(loss=row["loss"])
        if is_main and (progress.step % config.save_every == 0 or is_last):
            checkpoint.save(trainee, optimiser, progress)
    bar.close()
    accelerator.wait_for_everyone()
    return progress


def cosine_learning_rate(step: int, steps: int, warmup: float, peak: float) -> float:
    """Computes the learning rate of a step, counted from 0: it rises to the peak over the share
    ``warmup`` of the steps, then falls to zero by half a cosine.
    """
    warmup_steps = max(1, round(warmup * steps))
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    share = (step - warmup_steps) / max(1, steps - warmup_steps)
    return peak * 0.5 * (1 + math.cos(math.pi * share))


def _update_weights_and_sum_losses(
    training: TrainingRun,
    parallel_trainee: nn.Module,
    optimiser: Optimizer,
    step: int,
    rate: float,
) -> Tensor:
    """Makes one optimiser step. Returns sums over all processes per guess, [3, K]: the loss, the
    number of right guesses, and the number of positions.
    """
    config = training.settings.config
    accelerator = training.accelerator
    settings = config.optimiser
    device = training.train_batches.model.device
    indices = select_step_indices(
        len(training.train_batches.dialogues), training.batch_size, config.seed, step
    )
    counts = training.train_batches.count_labels(indices)
    weights = compute_decay_powers(config.head.decay, training.trainee.guesses)
    for group in optimiser.param_groups:
        group["lr"] = rate
    count = accelerator.num_processes
    parts = split_process_share(indices, accelerator.process_index, count, settings.accumulate)
    sums = torch.zeros(2, len(counts), device=device)
    for number, part in enumerate(parts):
        # The processes exchange gradients in the last part.
        sync_context = (
            accelerator.no_sync(parallel_trainee) if number + 1 < len(parts) else nullcontext()
        )
        with sync_context:
            batch = training.train_batches.make_batch(part)
            low = settings.precision == "bfloat16"
            with torch.autocast(device.type, torch.bfloat16, enabled=low):
                losses = parallel_trainee(*batch)
            # The exchange averages gradients over processes; a step's loss is the sum over them.
            (compute_weighted_loss(losses.loss, counts, weights) * count).backward()
        sums += torch.stack([losses.loss.detach(), losses.right.float()])
    if settings.clip:
        nn.utils.clip_grad_norm_(training.trainee.parameters(), settings.clip)
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    total = accelerator.reduce(sums, reduction="sum").cpu()
    return torch.cat([total, torch.tensor([counts], dtype=total.dtype)])


def _validate_and_make_log_row(
    training: TrainingRun,
    progress: TrainingProgress,
    rate: float,
    is_last: bool,
) -> dict[str, Any]:
    """Makes a line of the log, with validation if it is due; the caller adds ``seconds``."""
    window = progress.window
    config = training.settings.config
    assert window is not None
    weights = compute_decay_powers(config.head.decay, training.trainee.guesses).double()
    loss, right, counts = window["sums"]
    seconds = progress.seconds - window["seconds"]
    row: dict[str, Any] = {
        "step": progress.step,
        "tokens": progress.tokens,
        "loss": round(float(weights @ (loss / counts.clamp(min=1))), 5),
        "learning_rate": f"{rate:.4g}",
        "tokens_per_s": round((progress.tokens - window["tokens"]) / max(seconds, 1e-9), 1),
        **label_guess_shares("train ", (right / counts.clamp(min=1)).tolist()),
    }
    if training.accelerator.is_main_process and (
        progress.step % config.validate_every == 0 or is_last
    ):
        indices = range(len(training.validation_batches.dialogues))
        if (
            accuracy := measure_accuracy(training.trainee, training.validation_batches, indices, 1)
        ) is not None:
            row |= label_guess_shares("validation ", accuracy.best_guess_shares)
            row["validation_loss"] = round(float(weights @ torch.tensor(accuracy.loss).double()), 5)
    return row
