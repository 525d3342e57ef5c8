"""Tiny random Llama models with a tiny tokenizer, and a task of a few rows, in a folder."""

import re
from dataclasses import replace

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from spec_bench.decode.decoder import Decoder
from spec_bench.draft.heads import save_heads
from spec_bench.jobs import app
from spec_bench.jobs.config.flags import parse_job_arguments
from spec_bench.jobs.store.store import CellStore
from spec_bench.system.files import read_csv
from spec_bench.vocabulary import columns
from tests.heads import eagle3_head, eagle_head
from tests.question_files import written

TEXTS = [
    "the boat left the harbour at dawn and came back with the tide",
    "the mayor of the small town opened a new bridge over the river",
    "a storm took the roof of the old school and nobody was hurt",
    "two teams met in the rain and the younger one won by a goal",
]


def tiny_tokenizer(texts=TEXTS):
    """Bytes and some of their pairs."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<unk>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def make_family(folder):
    """Writes ``target`` and ``draft`` into the folder: random weights, one tokenizer."""
    fast = tiny_tokenizer()
    for seed, (name, layers, width) in enumerate([("target", 2, 32), ("draft", 1, 16)]):
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=len(fast),
            hidden_size=width,
            intermediate_size=2 * width,
            num_hidden_layers=layers,
            num_attention_heads=2,
            max_position_embeddings=256,
            bos_token_id=1,
            eos_token_id=2,
        )
        LlamaForCausalLM(config).save_pretrained(folder / name)
        fast.save_pretrained(folder / name)
    save_heads(eagle_head(32, len(fast)), folder / "eagle")
    third = eagle3_head(32, len(fast))
    third.shape = replace(third.shape, layer_ids=(0, 1, 1))  # of a target of two blocks
    save_heads(third, folder / "eagle3")


def make_task(folder, rows=4):
    """Writes rows in XSum's schema."""
    lines = (
        {"id": str(row), "document": TEXTS[row % len(TEXTS)], "summary": "the boat came back"}
        for row in range(rows)
    )
    return written(folder / "rows.jsonl", *lines)


def overrides(folder, results, *more):
    return [
        f"pair.target={folder / 'target'}",
        f"pair.draft={folder / 'draft'}",
        "task=xsum",
        "task.source.kind=local",
        f"task.source.path={folder / 'rows.jsonl'}",
        "generation.max_new_tokens=12",
        "generation.temperature=1.0",
        f"results={results}",
        "sink=quiet",
        "engine.threads=1",
        *more,
    ]


def main(monkeypatch, *arguments):
    """``python -m spec_bench`` in this process, its log left to pytest."""
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    return app.main(parse_job_arguments("run", [*arguments, "hydra/job_logging=none"]))


def failing(monkeypatch, error, decoder, prompt=None):
    """Makes a decoder fail at a prompt, or at any."""
    generate = Decoder.generate

    def fail(self, requests, *arguments):
        if self.name == decoder and prompt in (None, requests[0].prompt_id):
            raise error
        return generate(self, requests, *arguments)

    monkeypatch.setattr(Decoder, "generate", fail)


def eagle_heads(folder):
    return [f"pair.heads.{kind}={folder / kind}" for kind in ("eagle", "eagle3")]


def tokens_of(results, run_id):
    done = CellStore(results, run_id).load_first_repeat()
    return {prompt_id: generation.tokens for prompt_id, generation in done.items()}


def rows_of(results, name="default"):
    """The rows of an experiment's CSV, what a search screened first."""
    return [
        row for file in ("screening", "results") for row in read_csv(results / name / f"{file}.csv")
    ]


_DISTURBED = re.compile(r"(?:speedup: (?:stalled|disturbed):|intervals: ends over) [^;]*(; |$)")


def untimed(rows, *also):
    """Rows without what is measured anew every time, a busy machine's reason too, and without other
    columns.
    """
    rows = [{**each, "reason": _DISTURBED.sub("", each["reason"])} for each in rows]
    left = {name for each in columns.list_columns_of_kind("time", "energy") for name in each.names}
    left |= {"load_average", "clock_mhz", "stalls", "bandwidth_bytes_per_s", *also}
    return [{name: each[name] for name in each if name not in left} for each in rows]


def cut(results, run_id, lines, into=None):
    """Leaves a cell as a kill does: so many whole lines and a part of the next, and no result."""
    text = (results / "runs" / run_id / "generations.jsonl").read_text()
    kept = "".join(text.splitlines(keepends=True)[:lines])
    folder = (into or results) / "runs" / run_id
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cell.json").unlink(missing_ok=True)
    (folder / "generations.jsonl").write_text(kept + text[len(kept) :][:20])
