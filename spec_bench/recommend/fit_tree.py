"""``spec-bench fit``: measures the acceptance rates from which Sequoia's trees are built.

Decodes with W children below the root, drawn without replacement, and counts how often the target
accepts the child of each rank. The shares are used at every depth (Sequoia, arXiv 2402.12374,
section 3.1). They are written to ``results/trees``, where ``sequoia`` finds them: ``sequoia:@14``
is then the best tree of 14 nodes for this pair, task and sampling. The prompts are the task's last
ones, because jobs take the first. Settings are those of a job; several values, separated by commas,
are fitted one after the other. Two settings are added: ``width=8``, the number of ranks, and
``nodes=14,30``, the tree sizes for which the expected block efficiency is printed.
"""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from spec_bench.jobs.config.fitting import FITS_FOLDER, TreeFit
from spec_bench.jobs.config.settings import JobSettings
from spec_bench.settings.arguments import parse_positive_ints

_OWN_DEFAULTS = {"width": "8", "nodes": "6,10,14,30"}


def main(options: Namespace) -> None:
    """Runs the command. Raises UsageError if the settings are wrong."""
    from spec_bench.jobs.config.compose import split_swept_values

    job_words = [word for word in options.words if word.partition("=")[0] not in _OWN_DEFAULTS]
    shape = _OWN_DEFAULTS | dict(
        word.split("=", 1) for word in options.words if word not in job_words
    )
    width, *_ = parse_positive_ints("width", shape["width"])
    sizes = parse_positive_ints("nodes", shape["nodes"])
    for words in product(*map(split_swept_values, job_words)):
        _fit_write_and_print(words, width, sizes)


def _fit_write_and_print(job_words: Sequence[str], width: int, tree_sizes: Sequence[int]) -> None:
    from spec_bench.jobs.app import build_unpinned_settings
    from spec_bench.jobs.config.compose import compose_config
    from spec_bench.tree.node_list import (
        build_sequoia_list,
        compute_expected_accepted_tokens,
        pool_rising_rates,
    )

    settings = build_unpinned_settings(
        compose_config([*job_words, "sink=quiet", f"cells=[rsd_c:{width}]"])
    )
    fit = measure_acceptance_by_rank(settings, width)
    path = fit.write(settings.results_folder / FITS_FOLDER)
    shares = " ".join(f"{share:.3f}" for share in fit.accepted)
    print(f"{fit.pair}, {fit.task}, temperature {fit.sampling.temperature:g}: {path}")
    print(f"  accepted by rank, in {fit.iterations} iterations: {shares}")
    for nodes in tree_sizes:
        block_efficiency = 1 + compute_expected_accepted_tokens(
            build_sequoia_list(fit.accepted, nodes), pool_rising_rates(fit.accepted)
        )
        print(f"  cells=[sequoia:@{nodes}]  {block_efficiency:.3f} tokens per target call")


def measure_acceptance_by_rank(settings: JobSettings, width: int) -> TreeFit:
    """Decodes a task's last prompts with ``width`` children below the root; returns the fit with
    the share of iterations that accepted each rank. Raises UsageError if the models cannot be
    loaded or a prompt does not fit.
    """
    from spec_bench.decode.decoder import Decoder
    from spec_bench.jobs.work.models import load_models, load_pair_tokenizer
    from spec_bench.jobs.work.prompts import JobPrompts

    settings, cell = settings.pin_revisions_and_stop_rule(), settings.cells[-1]
    last_examples = settings.task.read_examples()[-len(settings.examples) :]
    tokenizer, tokens = load_pair_tokenizer(settings.pair)
    requests = JobPrompts.from_settings(
        replace(settings, examples=tuple(last_examples)), tokenizer
    ).requests
    models = load_models(settings.pair, tokens)
    sampling = settings.sampling
    # A graph of several rows would also count the fillers of missing rows.
    rows = 1 if getattr(models[0], "recorder", None) else settings.engine.batch_size
    decoder = cell.config.build(models[0], models[1:2], sampling, rows)
    assert isinstance(decoder, Decoder)
    counts = decode_and_count_accepted_ranks(decoder, requests, width, settings.request.seed)
    pair = settings.pair
    total = sum(counts)
    return TreeFit(
        pair=pair.name,
        target=pair.target,
        draft=pair.drafts[0],
        revisions=(pair.revisions[0] or "", pair.revisions[1] or ""),
        task=settings.task.name,
        sampling=replace(sampling, probability_dtype="float32"),
        prompts=len(requests),
        iterations=total,
        accepted=tuple(round(count / total, 6) for count in counts[:-1]),
    )


def decode_and_count_accepted_ranks(
    decoder: Any, requests: Sequence[Any], width: int, seed: int
) -> list[int]:
    """Counts the decoded iterations by the rank of the accepted child (0, 1, ..., ``width`` - 1);
    the last count is of those that accepted none.
    """
    import torch

    counts = torch.zeros(width + 1, dtype=torch.long, device=decoder.target.device)
    walk = decoder.walk

    def walk_and_count(scored_tree: Any, rule: Any) -> Any:
        result = walk(scored_tree, rule)
        rank = torch.where(result.accepted > 0, result.path[:, 1] - 1, width)
        counts.index_add_(0, rank, torch.ones_like(rank))  # works in a graph, too
        return result

    decoder.walk = walk_and_count
    decoder.check_and_reserve(requests)
    decoder.record_graphs(requests)
    counts.zero_()  # discards the trial iterations of recording
    decoder.generate(requests, seed)
    return [int(count) for count in counts.tolist()]
