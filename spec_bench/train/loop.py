"""The training loop: a step's dialogues, their loss, one update, now and then a line of the log.

Also what it measures, how often heads are right, and the checkpoints that it goes on from exactly.
What follows from the step is not stored: the learning rate, and which dialogues come next.
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

from spec_bench.settings.fields import one_line
from spec_bench.settings.validation import Ge, adapter
from spec_bench.system.errors import UsageError
from spec_bench.system.files import (
    atomic_replace,
    digest,
    move_aside,
    name_path_in_errors,
    open_own,
    write_csv,
)
from spec_bench.train.batches import IGNORED, DialogueBatches, step_indices
from spec_bench.train.settings import TrainSettings
from spec_bench.train.trainee import TrainableHead, loss_weights, weighted_loss

log = logging.getLogger(__name__)
# What reading a file that is none, or half of one, raises.
_FAULTS = (RuntimeError, ValueError, KeyError, TypeError, EOFError, OSError, UnpicklingError)
_DIALOGUES = 8  # whose accuracy is measured at a time


@dataclass(frozen=True)
class Accuracy:
    """Shares of positions."""

    loss: tuple[float, ...]  # K mean cross-entropies in nats
    # K lists; ranks[k][n] is the share of positions whose right token is the n-th best guess of
    # head k, both counted from 0. ReDrafter's are those under teacher forcing.
    ranks: tuple[tuple[float, ...], ...]
    counts: tuple[int, ...]  # K numbers of positions
    # K means of sum min(p, q) at temperature 1, p the target's distribution and q the head's: what
    # would be accepted of one token drawn. Empty for heads whose batches hold no p.
    overlaps: tuple[float, ...] = ()

    @property
    def best(self) -> tuple[float, ...]:
        """K shares of positions where the best guess is right."""
        return tuple(head[0] for head in self.ranks)


@torch.no_grad()
def measure(
    trainee: TrainableHead, batches: DialogueBatches, indices: Sequence[int], ranks: int
) -> Accuracy | None:
    """Accuracy on some dialogues, ranks up to V at most; None where there are none."""
    if not indices:
        return None
    trainee.eval()
    device = batches.model.device
    guesses = trainee.guesses
    loss, overlaps, counts = torch.zeros(3, guesses, dtype=torch.float64, device=device)
    hits = torch.zeros((), dtype=torch.long, device=device)
    for start in range(0, len(indices), _DIALOGUES):
        chosen = indices[start : start + _DIALOGUES]
        batch = batches.of(chosen)
        counts += torch.tensor(batches.counts(chosen), device=device)
        wanted = trainee.wanted(batch)
        right = []
        for guess, logits in enumerate(trainee.logits(batch)):
            tokens = batch.guessed[:, guess]
            if wanted is not None:
                p, q = (each.float().softmax(dim=-1) for each in (next(wanted), logits))
                overlaps[guess] += torch.minimum(p, q).sum(dim=-1)[tokens != IGNORED].sum()
            surprise = cross_entropy(logits.float(), tokens, ignore_index=IGNORED, reduction="none")
            # Heads of fewer tokens than the target's are asked for none that they do not know.
            loss[guess] += surprise.nan_to_num(posinf=0.0).sum()
            best = logits.topk(min(ranks, logits.shape[-1]), dim=-1).indices
            right.append((best == tokens[:, None]).sum(0))
        hits = hits + torch.stack(right)
    trainee.train()
    divisor = counts.clamp(min=1)
    return Accuracy(
        tuple((loss / divisor).tolist()),
        tuple(tuple(row) for row in (hits / divisor[:, None]).tolist()),
        tuple(map(int, counts.tolist())),
        () if wanted is None else tuple((overlaps / divisor).tolist()),
    )


def name_guesses(side: str, shares: Sequence[float]) -> dict[str, float]:
    """Shares of each guess under the papers' names for it."""
    return {f"{side}t+{i + 1}": round(share, 4) for i, share in enumerate(shares)}


@dataclass
class TrainingProgress:
    """How far a training has come."""

    step: Annotated[int, Ge(0)] = 0  # optimiser steps done
    tokens: int = 0  # positions trained on
    seconds: float = 0.0  # spent training, validation included
    window: dict[str, Any] | None = None  # sums since the last line of the log, by name


class Checkpoint:
    """One file in a training's folder, replaced as a whole; that of other settings or ``models``
    is refused.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], models: object = None) -> None:
        self.models = digest(models)
        self.file = folder / "checkpoint.pt"
        self.settings = digest(settings)

    def save(self, module: nn.Module, optimiser: Optimizer, progress: TrainingProgress) -> None:
        """Writes everything, atomically."""
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
            torch.save(state, stream)  # not by name: torch would not say why it cannot

    def load(self, module: nn.Module, optimiser: Optimizer) -> TrainingProgress:
        """Goes back to the last checkpoint; without one, or with half of one, which is set aside,
        nothing changes. A ValueError if it is of other settings.
        """
        if not self.file.is_file():
            return TrainingProgress()
        fresh = deepcopy((module.state_dict(), optimiser.state_dict()))
        try:
            state = torch.load(self.file, map_location="cpu", weights_only=True)
            if not isinstance(state, dict) or not isinstance(state["settings"], str):
                raise UsageError("it holds no training")
            models = state.get("models", self.models)  # none kept before there were digests
            if (state["settings"], models) == (self.settings, self.models):
                progress = adapter(TrainingProgress).validate_python(state["progress"])
                module.load_state_dict(state["module"])
                optimiser.load_state_dict(state["optimiser"])
                torch.set_rng_state(state["random"])
                if state["random_cuda"] and torch.cuda.is_available():
                    torch.cuda.set_rng_state_all(state["random_cuda"])
                return progress
        except _FAULTS as error:
            with suppress(FileNotFoundError):  # another process of the training was first
                name = move_aside(self.file).name
                said = "%s: %s; it is now %s, training begins anew"
                log.warning(said, self.file, one_line(error, 120), name)
            module.load_state_dict(fresh[0])
            optimiser.load_state_dict(fresh[1])
            return TrainingProgress()
        raise UsageError(
            f"{self.file.parent} holds a training with other settings or models; give this one "
            "another name=..., or remove that folder"
        )


class TrainingLog:
    """``log.csv``: a line every so many steps."""

    def __init__(self, file: Path, columns: Sequence[str]) -> None:
        self.file, self.columns = file, list(columns)

    def rewind(self, step: int) -> None:
        """Drops the lines of steps after ``step``, which are about to be done again."""
        rows = [row for row in self.rows() if int(row["step"]) <= step]
        write_csv(self.file, rows, self.columns)

    def add(self, row: Mapping[str, Any]) -> None:
        """Appends a line; what the row does not name stays empty."""
        with name_path_in_errors(self.file), open_own(self.file) as stream:
            csv.DictWriter(stream, self.columns).writerow(row)

    def rows(self) -> list[dict[str, str]]:
        """Returns all lines, as text."""
        if not self.file.is_file():
            return []
        with self.file.open(encoding="utf-8", newline="") as stream:
            return [row for row in csv.DictReader(stream) if row.get(self.columns[-1]) is not None]


@dataclass(frozen=True)
class TrainingRun:
    """Everything a training works with."""

    settings: TrainSettings
    trainee: TrainableHead  # the heads; frozen is everything else
    train: DialogueBatches  # dialogues to train on
    validation: DialogueBatches  # dialogues to validate on
    steps: int  # optimiser steps in all
    batch: int  # dialogues in a step
    processes: Accelerator  # that share each step's dialogues


def make_accelerator(device: str) -> Accelerator:
    """This process, or those that ``accelerate launch`` or ``torchrun`` started; ``cpu`` keeps them
    off the GPUs.
    """
    cpu = device == "cpu"
    # The others wait while the first answers prompts.
    patience = [InitProcessGroupKwargs(timeout=timedelta(days=2))]
    return Accelerator(
        device_placement=False, mixed_precision="no", cpu=cpu, kwargs_handlers=patience
    )


def split_batch(indices: Sequence[int], rank: int, count: int, parts: int) -> list[list[int]]:
    """This process's dialogues of a step, in ``parts`` pieces; pieces may be empty."""
    mine = list(indices[rank::count])
    return [mine[part::parts] for part in range(parts)]


def columns(guesses: int) -> list[str]:
    """Columns of the log; ``train t+i`` and ``validation t+i`` are accuracies of guess i."""
    per_guess = [f"{side} t+{i + 1}" for side in ("train", "validation") for i in range(guesses)]
    last = ("validation_loss", "tokens_per_s", "seconds")
    return ["step", "tokens", "loss", "learning_rate", *per_guess, *last]


def run_training(training: TrainingRun) -> TrainingProgress:
    """Trains to the end, from the last checkpoint where there is one; what was done, over all runs
    of this training.
    """
    settings = training.settings
    processes = training.processes
    asked = settings.asked
    first = processes.is_main_process
    trainee = training.trainee.to(training.train.model.device).train()
    plan = asked.optimiser
    optimiser = AdamW(
        trainee.parameters(), plan.learning_rate, plan.betas, weight_decay=plan.weight_decay
    )
    config = {**settings.config, "steps": training.steps}
    checkpoint = Checkpoint(settings.folder, config, settings.pair.get_marks())
    progress = checkpoint.load(trainee, optimiser)
    log = TrainingLog(settings.folder / "log.csv", columns(trainee.guesses))
    if first:
        log.rewind(progress.step)
    wrapped = processes.prepare_model(trainee)
    hidden = not (asked.sink.progress and first)
    bar = tqdm(total=training.steps, initial=progress.step, desc=asked.name, disable=hidden)
    began = time.perf_counter() - progress.seconds
    while progress.step < training.steps:
        rate = cosine_learning_rate(progress.step, training.steps, plan.warmup, plan.learning_rate)
        sums = _step(training, wrapped, optimiser, progress.step, rate)
        if progress.window is None:  # what the next line of the log will say
            began_at = {"seconds": progress.seconds, "tokens": progress.tokens}
            progress.window = {**began_at, "sums": 0.0}
        progress.window["sums"] += sums.double()
        progress.step += 1
        progress.tokens += int(sums[2, 0])
        progress.seconds = time.perf_counter() - began
        bar.update()
        last = progress.step == training.steps
        if progress.step % asked.log_every == 0 or last:
            row = _log_row(training, progress, rate, last)
            progress.seconds = row["seconds"] = round(time.perf_counter() - began, 2)
            progress.window = None
            if first:
                log.add(row)
            bar.set_postfix(loss=row["loss"])
        if first and (progress.step % asked.save_every == 0 or last):
            checkpoint.save(trainee, optimiser, progress)
    bar.close()
    processes.wait_for_everyone()
    return progress


def cosine_learning_rate(step: int, steps: int, warmup: float, peak: float) -> float:
    """The rate of one step, counted from 0: it rises to the peak over this share of the steps, then
    falls to zero by half a cosine.
    """
    rising = max(1, round(warmup * steps))
    if step < rising:
        return peak * (step + 1) / rising
    share = (step - rising) / max(1, steps - rising)
    return peak * 0.5 * (1 + math.cos(math.pi * share))


def _step(
    training: TrainingRun, wrapped: nn.Module, optimiser: Optimizer, step: int, rate: float
) -> Tensor:
    """Makes one update; [3, K] over all processes: per guess the summed loss, how often it was
    right, positions.
    """
    asked = training.settings.asked
    processes = training.processes
    settings = asked.optimiser
    device = training.train.model.device
    indices = step_indices(len(training.train.dialogues), training.batch, asked.seed, step)
    counts = training.train.counts(indices)
    weights = loss_weights(asked.head.decay, training.trainee.guesses)
    for group in optimiser.param_groups:
        group["lr"] = rate
    count = processes.num_processes
    parts = split_batch(indices, processes.process_index, count, settings.accumulate)
    sums = torch.zeros(2, len(counts), device=device)
    for number, part in enumerate(parts):
        # Gradients of the processes are exchanged with the last part's.
        apart = processes.no_sync(wrapped) if number + 1 < len(parts) else nullcontext()
        with apart:
            batch = training.train.of(part)
            low = settings.precision == "bfloat16"
            with torch.autocast(device.type, torch.bfloat16, enabled=low):
                losses = wrapped(*batch)
            # The exchange averages; a step's loss is the sum of what each process adds to it.
            (weighted_loss(losses.loss, counts, weights) * count).backward()
        sums += torch.stack([losses.loss.detach(), losses.right.float()])
    if settings.clip:
        nn.utils.clip_grad_norm_(training.trainee.parameters(), settings.clip)
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    total = processes.reduce(sums, reduction="sum").cpu()
    return torch.cat([total, torch.tensor([counts], dtype=total.dtype)])


def _log_row(
    training: TrainingRun, progress: TrainingProgress, rate: float, last: bool
) -> dict[str, Any]:
    """Returns a line of the log, without the seconds."""
    window = progress.window
    asked = training.settings.asked
    assert window is not None
    weights = loss_weights(asked.head.decay, training.trainee.guesses).double()
    loss, right, counts = window["sums"]
    spent = progress.seconds - window["seconds"]
    row: dict[str, Any] = {
        "step": progress.step,
        "tokens": progress.tokens,
        "loss": round(float(weights @ (loss / counts.clamp(min=1))), 5),
        "learning_rate": f"{rate:.4g}",
        "tokens_per_s": round((progress.tokens - window["tokens"]) / max(spent, 1e-9), 1),
        **name_guesses("train ", (right / counts.clamp(min=1)).tolist()),
    }
    if training.processes.is_main_process and (progress.step % asked.validate_every == 0 or last):
        indices = range(len(training.validation.dialogues))
        if (accuracy := measure(training.trainee, training.validation, indices, 1)) is not None:
            row |= name_guesses("validation ", accuracy.best)
            row["validation_loss"] = round(float(weights @ torch.tensor(accuracy.loss).double()), 5)
    return row
