"""Runs one training: prepares heads, data and target, trains, and writes the heads."""

import logging
import shlex
import shutil
from collections.abc import Sequence
from typing import Any

import torch
from accelerate import Accelerator
from hydra.core.hydra_config import HydraConfig

from spec_bench.draft.base import get_heads_class
from spec_bench.draft.cached_head import FeatureHead
from spec_bench.draft.dflash import DFlashHead
from spec_bench.draft.network import DraftHeads, HeadPlan
from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.engine.loading import DTYPES, load_model
from spec_bench.engine.products import dense_weight
from spec_bench.jobs.work.models import load_pair_tokenizer
from spec_bench.measure.provenance import collect_provenance
from spec_bench.sinks.wandb import build_wandb_sink, log_training
from spec_bench.system.errors import UsageError
from spec_bench.system.files import write_redacted_json
from spec_bench.train.batches import (
    Dialogue,
    DialogueBatches,
    count_answer_tokens,
    count_epoch_steps,
    find_learned_positions,
)
from spec_bench.train.dialogues import (
    get_training_dialogues,
    require_training_data,
    split_dialogues,
)
from spec_bench.train.draft_model import load_or_make_draft_model
from spec_bench.train.loop import (
    TrainingProgress,
    TrainingRun,
    label_guess_shares,
    make_accelerator,
    measure_accuracy,
    run_training,
)
from spec_bench.train.settings import DRAFT_MODEL, HeadSettings, TrainSettings
from spec_bench.train.training_heads import TrainableBlockHead, TrainableHead, TrainableUnrolledHead

_MAX_MEASURED_DIALOGUES = 64  # training dialogues for measuring the training accuracy
log = logging.getLogger(__name__)


def make_untrained_heads(
    head: HeadSettings,
    model: HuggingFaceModel,
    seed: int,
    dialogues: Sequence[Dialogue] = (),
) -> TrainableHead:
    """Makes the heads to train, or the draft model if ``head.kind`` is ``draft_model``. Heads with
    ``head.init=target`` start with the target's last layer; heads with a smaller vocabulary get the
    most frequent tokens of the answers.
    """
    table = model.module.get_input_embeddings().weight
    vocab, width = table.shape
    if width != model.hidden_size:
        raise UsageError(
            f"embeddings are {width} wide and hidden states {model.hidden_size}: heads for such a "
            "target are not supported"
        )
    torch.manual_seed(seed)

    def output() -> torch.Tensor:
        return dense_weight(model.module.get_output_embeddings()).detach().float().cpu()

    config = model.module.config.get_text_config()
    if head.kind == DRAFT_MODEL:
        return load_or_make_draft_model(head, config, output(), dialogues)
    own_vocab = head.draft_vocab or vocab
    ids = select_frequent_answer_tokens(dialogues, own_vocab) if own_vocab < vocab else None
    plan = HeadPlan(
        width, vocab, output, head.guesses, head.blocks, head.recurrent, head.inner, head.init,
        config.to_dict(), ids, head.fc_norm, head.masks,
    )  # fmt: skip
    heads = get_heads_class(head.kind).make_untrained(plan)
    return wrap_for_training(heads, model, head.guesses, head.steps, head.noise)


def wrap_for_training(
    heads: DraftHeads,
    model: HuggingFaceModel,
    guesses: int,
    learned_steps: int | None = None,
    noise: float = 0,
) -> TrainableHead:
    """Wraps heads for training by their kind. ``model`` gives its last layer and its embeddings;
    the other arguments are those of ``TrainableSequenceHead``.
    """
    token = getattr(heads.shape, "mask_token", None)
    mask = None
    if token is not None:
        mask = model.embed(torch.tensor([token], device=model.device))[0].clone()

    def project(hidden_states: torch.Tensor) -> torch.Tensor:  # the heads stay in float32
        return model.project(hidden_states.to(model.module.dtype))

    arguments = (guesses, project, learned_steps, noise, mask)
    if isinstance(heads, FeatureHead):
        return TrainableUnrolledHead(heads, *arguments)
    if isinstance(heads, DFlashHead):
        return TrainableBlockHead(heads, *arguments)
    return TrainableHead(heads, guesses)


def select_frequent_answer_tokens(dialogues: Sequence[Dialogue], count: int) -> tuple[int, ...]:
    """Selects the ``count`` most frequent tokens of the answers, as increasing ids."""
    counts = count_answer_tokens(dialogues)
    return tuple(sorted(sorted(counts, key=lambda token: (-counts[token], token))[:count]))


def train_heads(settings: TrainSettings) -> dict[str, Any]:
    """Trains heads and writes them. Returns the contents of ``training.json``; in all processes but
    the first an empty dictionary. Raises ValueError if data, target or checkpoint are wrong.
    """
    require_training_data(settings)
    config = settings.config
    sink = build_wandb_sink(config.sink.wandb, settings.checkpoint_folder)
    accelerator = make_accelerator(settings.pair.specs[0].device)
    if config.engine.threads is not None:
        torch.set_num_threads(config.engine.threads)
    training = _prepare_training(settings, accelerator)
    progress = run_training(training)
    if not accelerator.is_main_process:
        return {}
    facts = write_training_results(training, progress)
    if sink is not None:
        log_training(sink, config.name, facts, settings.checkpoint_folder / "log.csv")
    held_out = facts["accuracy"]["validation"]
    accuracy = held_out or facts["accuracy"]["train"]
    right = ", ".join(f"{guess} {share}" for guess, share in accuracy.items())
    note = "" if held_out else " on the training data, as no prompts were held out"
    print(
        f"{config.name}: {facts['parameters']:,} parameters; share of right guesses{note}: "
        f"{right} (of {facts['positions'][0]} positions)"
    )
    models = [word for word in _get_command_line_overrides() if word.startswith(("pair", "engine"))]
    plain = "task.chat=false " * (getattr(settings.task, "chat", True) is False)
    pair_words = shlex.join(models) or f"pair={config.pair.name}"
    measure_words = config.head.measured.replace("HEADS", shlex.quote(str(settings.heads_folder)))
    print(
        f"heads: {settings.heads_folder}\n"
        f"measure them, on prompts that they did not learn: spec-bench run {pair_words} "
        f"{measure_words} {plain}--data FILE"
    )
    return facts


def _prepare_training(settings: TrainSettings, accelerator: Accelerator) -> TrainingRun:
    """Loads the target, reads the data and makes untrained heads."""
    config = settings.config
    spec = settings.pair.specs[0]
    tokenizer, _ = load_pair_tokenizer(settings.pair)
    model = load_model(spec)
    if accelerator.num_processes > 1 and spec.device_map is None:
        model.module.to(accelerator.device)
        model.device = accelerator.device
    model.module.requires_grad_(False)
    with accelerator.main_process_first():  # the first writes a cache for the others
        dialogues = get_training_dialogues(settings, model, tokenizer)
        train, validation = split_dialogues(dialogues, config.data.validation, config.seed)
        if not train:
            raise UsageError(f"data.validation={config.data.validation} leaves nothing to train on")
        trainee = make_untrained_heads(config.head, model, config.seed, train)
    # Each of several processes would compute the hidden states of all dialogues.
    kept_gib = config.data.kept_gib if accelerator.num_processes == 1 else 0
    batch_settings = (
        config.head.guesses,
        trainee.get_target_layers(model.blocks),
        config.data.hidden_batch,
        kept_gib,
    )
    sides = [trainee.batches_class(model, side, *batch_settings) for side in (train, validation)]
    optimiser = config.optimiser
    batch = min(optimiser.batch, len(train))
    if batch < accelerator.num_processes * optimiser.accumulate:
        raise UsageError(
            f"a step's {batch} dialogues cannot be shared by {accelerator.num_processes} processes "
            f"with optimiser.accumulate={optimiser.accumulate}"
        )
    steps = optimiser.steps or optimiser.epochs * count_epoch_steps(len(train), batch)
    log.info("%d answered prompts to train on, %d to validate on", len(train), len(validation))
    return TrainingRun(settings, trainee, sides[0], sides[1], steps, batch, accelerator)


def write_training_results(training: TrainingRun, progress: TrainingProgress) -> dict[str, Any]:
    """Writes the heads, ``accuracies.json``, ``training.json`` and ``log.csv`` to their folder.

    Returns the contents of ``training.json``. Rounds the heads to ``out_dtype`` before measuring.
    """
    settings = training.settings
    trainee = training.trainee
    config = settings.config
    trainee.round_and_save(settings.heads_folder, DTYPES[config.out_dtype])
    held_out = training.validation_batches
    train_batches = training.train_batches
    validation = measure_accuracy(trainee, held_out, range(len(held_out.dialogues)), config.ranks)
    train = measure_accuracy(
        trainee,
        train_batches,
        range(min(_MAX_MEASURED_DIALOGUES, len(train_batches.dialogues))),
        config.ranks,
    )
    accuracy = validation or train
    facts = {
        "head": config.head.name,
        "target": settings.pair.target,
        "target_revision": settings.pair.revisions[0],
        "parameters": trainee.heads.parameter_count,
        "stored_as": config.out_dtype,
        "settings": settings.identity,
        "data": {
            "train": _count_dialogues_tokens_positions(train_batches),
            "validation": _count_dialogues_tokens_positions(held_out),
        },
        "steps": progress.step,
        "dialogues_per_step": training.batch_size,
        "tokens": progress.tokens,
        "seconds": round(progress.seconds, 1),
        "processes": training.accelerator.num_processes,
        "accuracy": {
            "train": train and label_guess_shares("", train.best_guess_shares),
            "validation": validation and label_guess_shares("", validation.best_guess_shares),
        },
        "positions": accuracy and list(accuracy.counts),  # by guess
        "validation_loss": validation and _round_accuracy(validation.loss),
        # The command without paths of this machine.
        "provenance": collect_provenance()
        | {"command": ["python", "-m", "spec_bench.train", *_get_command_line_overrides()]},
    }
    files = {"training.json": facts}
    if accuracy:
        files["accuracies.json"] = {
            "measured_on": "validation" if validation else "training",
            "positions": list(accuracy.counts),
            "accuracies": [_round_accuracy(head) for head in accuracy.ranks],
            **({"overlaps": _round_accuracy(accuracy.overlaps)} if accuracy.overlaps else {}),
        }
    for name, content in files.items():
        write_redacted_json(settings.heads_folder / name, content)
    shutil.copyfile(settings.checkpoint_folder / "log.csv", settings.heads_folder / "log.csv")
    return facts


def _get_command_line_overrides() -> list[str]:
    """Returns the overrides from the command line."""
    return [*HydraConfig.get().overrides.task] if HydraConfig.initialized() else []


def _count_dialogues_tokens_positions(batches: DialogueBatches) -> dict[str, int]:
    return {
        "dialogues": len(batches.dialogues),
        "tokens": sum(len(dialogue.ids) for dialogue in batches.dialogues),
        "positions": sum(len(find_learned_positions(dialogue)) for dialogue in batches.dialogues),
    }


def _round_accuracy(values: Sequence[float]) -> list[float]:
    return [round(value, 5) for value in values]
