"""Trains the embedded model family and writes its tasks.

Stages, each resumed where it stopped and not repeated once finished (work files lie in
``results/family``): tokenizer, task samples, target (a shallow model first, then deepened), plain
draft, the target's own outputs, draft distilled from them, evaluation, model card.
"""

import argparse
import json
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from random import Random

import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.family.world.batches import WEIGHTS, batches
from scripts.family.world.databases import SCHEMAS, build
from scripts.family.world.distillation import (
    distillation_batches,
    distillation_loss,
    sample_outputs,
)
from scripts.family.world.evaluation import acceptance, greedy_scores, seen_in_training
from scripts.family.world.model_card import write_card
from scripts.family.world.questions import questions
from scripts.family.world.samples import TASKS, draw_sample, turns
from scripts.family.world.training import Schedule, deepen, llama, train, weighted_loss
from scripts.family.world.vocabulary import train_tokenizer

ROOT = Path(__file__).resolve().parents[2]
SEEDS = {
    "tokenizer": 1,
    "samples": 2,
    "target": 100,
    "draft": 101,
    "outputs": 102,
    "distil": 103,
    "deep": 1100,
    "long": 1200,
    "hard": 1300,
}
BATCH_TOKENS = 4096
HARD = {"squad": 4.0, "alpaca": 2.0}  # tasks learned last, drawn more often in the last cycle


@dataclass(frozen=True)
class Plan:
    """Sizes of the family and of its training."""

    shallow: int = 6  # layers trained first
    times: int = 3  # how often each is repeated in the target
    width: int = 192  # hidden size of the target, with heads of 64
    inner: int = 512  # its feed-forward size
    # Hidden size of the drafts: one layer, one head. As small against the target as the published
    # 115M drafts against 7B; too small to copy well, as real drafts are.
    draft_width: int = 64
    draft_inner: int = 128  # their feed-forward size
    # of the shallow model
    shallow_schedule: Schedule = field(default_factory=lambda: Schedule(700, 3e-3, 100, 1))
    # of the target, right after it was deepened
    deep_schedule: Schedule = field(default_factory=lambda: Schedule(520, 2e-3, 30, 320))
    # of the target, a second cycle with batches of half the size
    long_schedule: Schedule = field(default_factory=lambda: Schedule(3000, 1.5e-3, 50, 1500))
    # of the target, a last cycle with more of the hard tasks
    hard_schedule: Schedule = field(default_factory=lambda: Schedule(750, 1e-3, 20, 500))
    # of the plain draft
    draft_schedule: Schedule = field(default_factory=lambda: Schedule(800, 5e-3, 50, 400))
    # of the distilled draft, which starts from the plain one
    distil_schedule: Schedule = field(default_factory=lambda: Schedule(360, 3e-3, 20, 240))
    outputs: int = 4500  # dialogues that the target answers for the distillation
    held_out: int = 120  # samples per task that ship


QUICK = Plan(
    shallow=1,
    times=2,
    width=64,
    inner=96,
    shallow_schedule=Schedule(6, 3e-3, 2, 1),
    deep_schedule=Schedule(4, 1e-3, 2, 2),
    long_schedule=Schedule(4, 1e-3, 2, 2),
    hard_schedule=Schedule(4, 1e-3, 2, 2),
    draft_schedule=Schedule(6, 3e-3, 2, 2),
    distil_schedule=Schedule(4, 1e-3, 1, 2),
    outputs=16,
    held_out=4,
)


class Family:
    """The stages, in order. Each method leaves its product on disk.

    Args:
        plan: sizes.
        work: checkpoints and logs.
        shipped: the package's folder.
    """

    def __init__(self, plan: Plan, work: Path, shipped: Path) -> None:
        self.plan, self.work, self.shipped = plan, work, shipped
        self.facts: dict[str, dict] = {}
        work.mkdir(parents=True, exist_ok=True)
        self.tokenizer = self._tokenizer()

    def _tokenizer(self) -> PreTrainedTokenizerFast:
        folder = self.work / "tokenizer"
        if not folder.exists():
            train_tokenizer(SEEDS["tokenizer"]).save_pretrained(folder)
        return PreTrainedTokenizerFast.from_pretrained(folder)

    def write_samples(self) -> None:
        """Held-out samples of every task and Spider's databases."""
        folder = self.shipped / "tasks"
        folder.mkdir(parents=True, exist_ok=True)
        for task in TASKS:
            rng, lines = Random(f"{SEEDS['samples']} {task}"), {}
            while len(lines) < self.plan.held_out:
                sample = draw_sample(task, rng, len(lines))
                lines.setdefault(turns(task, sample)[0][0], json.dumps(sample, ensure_ascii=False))
            text = "\n".join(lines.values()) + "\n"
            (folder / f"{task}.jsonl").write_text(text, encoding="utf-8")
        asked = (json.dumps(each, ensure_ascii=False) for each in questions(SEEDS["samples"]))
        (folder / "spec_bench.jsonl").write_text("\n".join(asked) + "\n", encoding="utf-8")
        for db in SCHEMAS:
            build(db, folder / "spider" / "database" / db / f"{db}.sqlite")

    def target(self) -> LlamaForCausalLM:
        """The trained target."""
        plan, vocab = self.plan, len(self.tokenizer)
        torch.manual_seed(SEEDS["target"])
        model = llama(vocab, plan.shallow, plan.width, plan.width // 64, plan.inner)
        self.facts["target, shallow"] = self._train(
            "target_shallow", model, self._text("target"), weighted_loss, plan.shallow_schedule
        )
        model = deepen(model, plan.times)
        self.facts["target, deepened"] = self._train(
            "target", model, self._text("deep"), weighted_loss, plan.deep_schedule
        )
        self.facts["target, second cycle"] = self._train(
            "target_long",
            model,
            self._text("long", BATCH_TOKENS // 2),
            weighted_loss,
            plan.long_schedule,
        )
        self.facts["target, hard tasks"] = self._train(
            "target_hard",
            model,
            self._text("hard", BATCH_TOKENS // 2, HARD),
            weighted_loss,
            plan.hard_schedule,
        )
        self.export(model, "target")
        return model

    def drafts(self, target: LlamaForCausalLM) -> dict[str, LlamaForCausalLM]:
        """The plain draft, and the one distilled from the target's own outputs."""
        torch.manual_seed(SEEDS["draft"])
        plain = llama(len(self.tokenizer), 1, self.plan.draft_width, 1, self.plan.draft_inner)
        self.facts["draft"] = self._train(
            "draft", plain, self._text("draft"), weighted_loss, self.plan.draft_schedule
        )
        self.export(plain, "draft")
        outputs = sample_outputs(
            target, self.tokenizer, SEEDS["outputs"], self.plan.outputs, self.work
        )
        distilled = llama(len(self.tokenizer), 1, self.plan.draft_width, 1, self.plan.draft_inner)
        distilled.load_state_dict(plain.state_dict())
        data = distillation_batches(outputs, SEEDS["distil"], BATCH_TOKENS)
        self.facts["draft_distilled"] = self._train(
            "draft_distilled",
            distilled,
            data,
            lambda draft, *batch: distillation_loss(draft, target, *batch),
            self.plan.distil_schedule,
        )
        self.export(distilled, "draft_distilled")
        return {"draft": plain, "draft_distilled": distilled}

    def evaluate(self, target: LlamaForCausalLM, drafts: dict[str, LlamaForCausalLM]) -> None:
        """Scores and acceptance rates, into the model card."""
        models = {"target": target, **drafts}
        scores = {
            name: greedy_scores(model, self.tokenizer, self.shipped / "tasks")
            for name, model in models.items()
        }
        rates = {
            name: acceptance(target, draft, self.tokenizer, self.shipped / "tasks")
            for name, draft in drafts.items()
        }
        sizes = {name: sum(p.numel() for p in model.parameters()) for name, model in models.items()}
        card = {
            "sizes": sizes,
            "training": self.facts,
            "scores": scores,
            "acceptance": rates,
            "seen": seen_in_training(self.tokenizer, self.shipped / "tasks", self._read()),
            "seeds": SEEDS,
            "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
        }
        (self.work / "card.json").write_text(json.dumps(card, indent=2))
        write_card(card, self.plan, self.shipped / "MODEL_CARD.md")

    def export(self, model: LlamaForCausalLM, name: str) -> None:
        """Writes a model and the tokenizer as a standard folder, weights in float16."""
        folder = self.shipped / "models" / name
        shutil.rmtree(folder, ignore_errors=True)
        state = {key: value.half() for key, value in model.state_dict().items()}
        half = LlamaForCausalLM(model.config).half()
        half.load_state_dict(state)
        half.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        # What ships is what is measured: round the running model alike.
        model.load_state_dict({key: value.float() for key, value in state.items()})

    def _text(
        self, seed: str, tokens: int = BATCH_TOKENS, weights: Mapping[str, float] = WEIGHTS
    ) -> Iterator[tuple[Tensor, Tensor]]:
        backend = self.tokenizer.backend_tokenizer
        return batches(backend, SEEDS[seed], tokens, weights_of=weights)

    def _read(self) -> Iterator[Iterator[tuple[Tensor, Tensor]]]:
        """All batches that the target was trained on, once more."""
        plan = self.plan
        yield islice(self._text("target"), plan.shallow_schedule.steps)
        yield islice(self._text("deep"), plan.deep_schedule.steps)
        yield islice(self._text("long", BATCH_TOKENS // 2), plan.long_schedule.steps)
        yield islice(self._text("hard", BATCH_TOKENS // 2, HARD), plan.hard_schedule.steps)

    def _train(self, name, model, data, loss_of, schedule) -> dict[str, float]:
        return train(name, model, data, loss_of, schedule, self.work)


def main() -> None:
    """Runs all stages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a toy family in under a minute")
    parser.add_argument("--work", type=Path, default=ROOT / "results" / "family")
    parser.add_argument("--out", type=Path, default=ROOT / "spec_bench" / "embedded")
    parser.add_argument("--samples-only", action="store_true", help="write the tasks and stop")
    options = parser.parse_args()
    torch.set_num_threads(2)
    family = Family(QUICK if options.quick else Plan(), options.work, options.out)
    family.write_samples()
    if options.samples_only:
        return
    target = family.target()
    drafts = family.drafts(target)
    family.evaluate(target, drafts)


if __name__ == "__main__":
    main()
