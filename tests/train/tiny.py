"""A target whose hidden states know nothing but the token they stand at, and texts to learn."""

import copy
import functools
from dataclasses import replace
from random import Random

import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from transformers import LlamaConfig, LlamaForCausalLM

from spec_bench.draft.medusa import MedusaHeads, MedusaShape
from spec_bench.draft.redrafter import RecurrentHead, RecurrentShape
from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.jobs.config.compose import register_config_plugins
from spec_bench.settings.configs import get_conf_dir
from spec_bench.train.batches import DialogueBatches
from spec_bench.train.dialogues import Dialogue
from spec_bench.train.loop import TrainingRun, make_accelerator, run_training
from spec_bench.train.settings import build_train_settings
from spec_bench.train.training_heads import TrainableHead

VOCAB, WIDTH = 12, 32
CPU = torch.device("cpu")


@functools.cache
def forgetful_target():
    """One layer that adds nothing: x_t is the normalised embedding of token t."""
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCAB, "hidden_size": WIDTH, "intermediate_size": 16}
    sizes |= {"num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 256}
    model = LlamaForCausalLM(LlamaConfig(**sizes)).eval()
    with torch.no_grad():
        model.model.embed_tokens.weight.normal_()
        model.model.layers[0].self_attn.o_proj.weight.zero_()
        model.model.layers[0].mlp.down_proj.weight.zero_()
    return HuggingFaceModel(model, VOCAB, CPU)


def two_streams(count, length=40, seed=0):
    """Texts in which token t settles token t + 2 and says nothing about token t + 1."""
    rng, after = Random(seed), list(range(VOCAB))
    Random(5).shuffle(after)
    dialogues = []
    for _ in range(count):
        ids = [rng.randrange(VOCAB), rng.randrange(VOCAB)]
        while len(ids) < length:
            ids.append(after[ids[-2]])
        dialogues.append(said(ids))
    return dialogues


def random_text(count, length=40, seed=0):
    """Texts in which nothing says anything about what follows."""
    rng = Random(seed)
    return [said([rng.randrange(VOCAB) for _ in range(length)]) for _ in range(count)]


def said(ids):
    """An answer to one token."""
    return Dialogue(tuple(ids), (False, *[True] * (len(ids) - 1)))


def trainee(kind, guesses, seed=0):
    torch.manual_seed(seed)
    if kind == "medusa":
        return TrainableHead(MedusaHeads(MedusaShape(WIDTH, VOCAB, guesses)), guesses)
    shape = RecurrentShape(WIDTH, VOCAB, 1, kind == "redrafter")
    return TrainableHead(RecurrentHead(shape), guesses)


@functools.cache
def composed(*overrides):
    register_config_plugins()
    with initialize_config_dir(str(get_conf_dir()), version_base="1.3"):
        return OmegaConf.to_container(compose("train", overrides=list(overrides)), resolve=True)


def settings(folder, kind, guesses, **changes):
    config = copy.deepcopy(composed("data.kind=task", "sink=quiet"))
    config |= {"name": "tiny", "results": str(folder), "out_dtype": "float32", "ranks": 4}
    config |= {"log_every": 2, "validate_every": 4, "save_every": 3}
    config["optimiser"] |= {"batch": 16, "learning_rate": 1e-2}
    config["head"] |= {"guesses": guesses, "decay": 1.0}
    for name in list(changes):
        for part in (config, config["optimiser"]):
            if name in part:
                part[name] = changes.pop(name)
    made = build_train_settings(config)
    return replace(made, identity={"kind": kind, "guesses": guesses, **changes})


def training(folder, kind, dialogues, steps, guesses=3, processes=None, **changes):
    """A training of fresh heads; the last eighth of the dialogues validates."""
    made = settings(folder, kind, guesses, **changes)
    cut, target = len(dialogues) * 7 // 8, forgetful_target()
    sides = (DialogueBatches(target, part, guesses) for part in (dialogues[:cut], dialogues[cut:]))
    return planned(made, trainee(kind, guesses), *sides, steps, processes)


def planned(made, learner, train, validation, steps, processes=None):
    batch, processes = made.config.optimiser.batch, processes or make_accelerator("cpu")
    return TrainingRun(made, learner, train, validation, steps, batch, processes)


def trained(*given, **named):
    plan = training(*given, **named)
    run_training(plan)
    return plan
