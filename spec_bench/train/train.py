"""One training: heads, data and target as the settings say, and the heads written."""

import logging
import shlex
import shutil
from collections.abc import Sequence
from typing import Any

import torch
from accelerate import Accelerator
from hydra.core.hydra_config import HydraConfig

from spec_bench.draft.base import heads_class
from spec_bench.draft.cached_head import FeatureHead
from spec_bench.draft.dflash import DFlashHead
from spec_bench.draft.network import DraftHeads, HeadPlan
from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.engine.loading import DTYPES, load_model
from spec_bench.engine.products import dense_weight
from spec_bench.jobs.work.models import load_pair_tokenizer
from spec_bench.measure.provenance import provenance
from spec_bench.sinks.wandb import build_wandb, log_training
from spec_bench.system.errors import UsageError
from spec_bench.system.files import write_json
from spec_bench.train.batches import (
    Dialogue,
    DialogueBatches,
    count_answer_tokens,
    find_learned_positions,
    list_steps,
)
from spec_bench.train.dialogues import check_data, read_dialogues, split
from spec_bench.train.loop import (
    TrainingProgress,
    TrainingRun,
    make_accelerator,
    measure,
    name_guesses,
    run_training,
)
from spec_bench.train.settings import DRAFT_MODEL, HeadSettings, TrainSettings
from spec_bench.train.trainee import BlockHead, TrainableHead, UnrolledHead, make_draft

_MOST_TRAIN = 64  # training dialogues that the accuracy of training is measured on
log = logging.getLogger(__name__)


def fresh_heads(
    head: HeadSettings, model: HuggingFaceModel, seed: int, dialogues: Sequence[Dialogue] = ()
) -> TrainableHead:
    """Heads that have learned nothing yet, as wide as the target and with its last layer where
    they start with that; those of a smaller vocabulary know the dialogues' most frequent tokens.
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
        return make_draft(head, config, output(), dialogues)
    ids = frequent(dialogues, head.draft_vocab) if (head.draft_vocab or vocab) < vocab else None
    plan = HeadPlan(
        head.guesses, head.blocks, head.recurrent, head.inner, head.init, config.to_dict(), ids,
        head.fc_norm, head.masks,
    )  # fmt: skip
    made = heads_class(head.kind).fresh(plan, width, vocab, output)
    return make_trainee(made, model, head.guesses, head.steps, head.noise)


def make_trainee(
    heads: DraftHeads,
    model: HuggingFaceModel,
    guesses: int,
    steps: int | None = None,
    noise: float = 0,
) -> TrainableHead:
    """What makes heads of a kind learn; arguments as ``SequenceHead``'s, the target for its
    last layer and its embeddings.
    """
    token = getattr(heads.shape, "mask_token", None)
    mask = None
    if token is not None:
        mask = model.embed(torch.tensor([token], device=model.device))[0].clone()

    def project(hidden: torch.Tensor) -> torch.Tensor:  # kept in float32, whatever the target is
        return model.project(hidden.to(model.module.dtype))

    given = (guesses, project, steps, noise, mask)
    if isinstance(heads, FeatureHead):
        return UnrolledHead(heads, *given)
    if isinstance(heads, DFlashHead):
        return BlockHead(heads, *given)
    return TrainableHead(heads, guesses)


def frequent(dialogues: Sequence[Dialogue], count: int | None) -> tuple[int, ...]:
    """Returns the target ids of the answers' most frequent tokens, in increasing order."""
    times = count_answer_tokens(dialogues)
    return tuple(sorted(sorted(times, key=lambda token: (-times[token], token))[:count]))


def train_heads(settings: TrainSettings) -> dict[str, Any]:
    """Trains heads as the settings say and writes them; what ``training.json`` holds, empty in all
    processes but the first. A ValueError if data, target or checkpoint cannot be right.
    """
    check_data(settings)
    asked = settings.asked
    sink = build_wandb(asked.sink.wandb, settings.folder)
    processes = make_accelerator(settings.pair.specs[0].device)
    if asked.engine.threads is not None:
        torch.set_num_threads(asked.engine.threads)
    training = _prepare(settings, processes)
    progress = run_training(training)
    if not processes.is_main_process:
        return {}
    facts = finish(training, progress)
    if sink is not None:
        log_training(sink, asked.name, facts, settings.folder / "log.csv")
    held_out = facts["accuracy"]["validation"]
    accuracy = held_out or facts["accuracy"]["train"]
    right = ", ".join(f"{guess} {share}" for guess, share in accuracy.items())
    where = "" if held_out else " on the training data, as no prompts were held out"
    print(
        f"{asked.name}: {facts['parameters']:,} parameters; share of right guesses{where}: {right} "
        f"(of {facts['positions'][0]} positions)"
    )
    models = [word for word in _typed() if word.startswith(("pair", "engine"))]
    plain = "task.chat=false " * (getattr(settings.task, "chat", True) is False)
    on = shlex.join(models) or f"pair={asked.pair.name}"
    how = asked.head.measured.replace("HEADS", shlex.quote(str(settings.out)))
    print(
        f"heads: {settings.out}\n"
        f"measure them, on prompts that they did not learn: spec-bench run {on} {how} "
        f"{plain}--data FILE"
    )
    return facts


def _prepare(settings: TrainSettings, processes: Accelerator) -> TrainingRun:
    """Loads the target, reads the data, makes fresh heads."""
    asked = settings.asked
    spec = settings.pair.specs[0]
    tokenizer, _ = load_pair_tokenizer(settings.pair)
    model = load_model(spec)
    if processes.num_processes > 1 and spec.device_map is None:
        model.module.to(processes.device)
        model.device = processes.device
    model.module.requires_grad_(False)
    with processes.main_process_first():  # which writes what it computes
        dialogues = read_dialogues(settings, model, tokenizer)
        train, validation = split(dialogues, asked.data.validation, asked.seed)
        if not train:
            raise UsageError(f"data.validation={asked.data.validation} leaves nothing to train on")
        trainee = fresh_heads(asked.head, model, asked.seed, train)
    # Of several processes each would compute more than its own share.
    kept_gib = asked.data.kept_gib if processes.num_processes == 1 else 0
    given = (asked.head.guesses, trainee.layers(model.blocks), asked.data.hidden_batch, kept_gib)
    sides = [trainee.batches(model, side, *given) for side in (train, validation)]
    optimiser = asked.optimiser
    batch = min(optimiser.batch, len(train))
    if batch < processes.num_processes * optimiser.accumulate:
        raise UsageError(
            f"a step's {batch} dialogues cannot be shared by {processes.num_processes} processes "
            f"with optimiser.accumulate={optimiser.accumulate}"
        )
    steps = optimiser.steps or optimiser.epochs * list_steps(len(train), batch)
    log.info("%d answered prompts to train on, %d to validate on", len(train), len(validation))
    return TrainingRun(settings, trainee, sides[0], sides[1], steps, batch, processes)


def finish(training: TrainingRun, progress: TrainingProgress) -> dict[str, Any]:
    """Writes ``settings.out``: heads, ``accuracies.json``, ``training.json``, which it returns, and
    ``log.csv``. The heads are rounded to ``out_dtype`` first: what is stored is what is measured.
    """
    settings = training.settings
    trainee = training.trainee
    asked = settings.asked
    trainee.save(settings.out, DTYPES[asked.out_dtype])
    held_out = training.validation
    seen = training.train
    validation = measure(trainee, held_out, range(len(held_out.dialogues)), asked.ranks)
    train = measure(trainee, seen, range(min(_MOST_TRAIN, len(seen.dialogues))), asked.ranks)
    measured = validation or train
    facts = {
        "head": asked.head.name,
        "target": settings.pair.target,
        "target_revision": settings.pair.revisions[0],
        "parameters": trainee.heads.parameter_count,
        "stored_as": asked.out_dtype,
        "settings": settings.config,
        "data": {"train": _size(seen), "validation": _size(held_out)},
        "steps": progress.step,
        "dialogues_per_step": training.batch,
        "tokens": progress.tokens,
        "seconds": round(progress.seconds, 1),
        "processes": training.processes.num_processes,
        "accuracy": {
            "train": train and name_guesses("", train.best),
            "validation": validation and name_guesses("", validation.best),
        },
        "positions": measured and list(measured.counts),  # that the accuracy is of, by guess
        "validation_loss": validation and _round_accuracy(validation.loss),
        # Without the folder that this machine has it in.
        "provenance": provenance() | {"command": ["python", "-m", "spec_bench.train", *_typed()]},
    }
    files = {"training.json": facts}
    if measured:
        files["accuracies.json"] = {
            "measured_on": "validation" if validation else "training",
            "positions": list(measured.counts),
            "accuracies": [_round_accuracy(head) for head in measured.ranks],
            **({"overlaps": _round_accuracy(measured.overlaps)} if measured.overlaps else {}),
        }
    for name, value in files.items():
        write_json(settings.out / name, value)
    shutil.copyfile(settings.folder / "log.csv", settings.out / "log.csv")
    return facts


def _typed() -> list[str]:
    """Returns the settings that were asked for on the command line."""
    return [*HydraConfig.get().overrides.task] if HydraConfig.initialized() else []


def _size(batches: DialogueBatches) -> dict[str, int]:
    return {
        "dialogues": len(batches.dialogues),
        "tokens": sum(len(dialogue.ids) for dialogue in batches.dialogues),
        "positions": sum(len(find_learned_positions(dialogue)) for dialogue in batches.dialogues),
    }


def _round_accuracy(values: Sequence[float]) -> list[float]:
    return [round(value, 5) for value in values]
