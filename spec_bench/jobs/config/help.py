"""``--help``, for people: the choices, with a line for each, and examples.

Made from the comments of the config files themselves, ours and those of other packages.
Knows files only; imports neither Hydra nor torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from spec_bench.settings.configs import conf_dir, conf_dirs, experiments_dirs

_WIDTH = 100
_PAPER = "paper.yaml"
_SETTING = re.compile(r"(\w+): (.*?)(?:\s+# (.*))?")
_RUN = """\
spec-bench: decodes a task's prompts with speculative decoders and with plain decoding,
and writes what it measured to results/NAME/results.csv. The same command resumes what was stopped.

usage: spec-bench [-m] [KEY=VALUE ...]
       spec-bench recommend [KEY=VALUE ...]            which decoder is fastest here
       spec-bench fit_tree [KEY=VALUE ...]             acceptances for sequoia's trees
       spec-bench convert FILE.gguf                    a model folder of it, once
       spec-bench watch NAME [--once]                  how far a sweep is
       spec-bench serve ENGINE [KEY=VALUE ...]         vLLM, SGLang, llama.cpp as rows
       spec-bench compare FOLDER FOLDER                what changed between two results
       spec-bench answers results/NAME/results.csv     as Spec-Bench's answer files
       spec-bench spider FOLDER                        whether its databases are whole

  spec-bench                                       rsd_s on xsum with the embedded models
  spec-bench decoder=sd spec=3 task=dolly          a decoder, its tree, a task
  spec-bench 'cells=[sd:3,rsd_c:2-2-1,rsd_s:4x3]'  several decoders, interleaved
  spec-bench pair.target=lmsys/vicuna-7b-v1.3 pair.draft=double7/vicuna-68m engine=cuda
  spec-bench budget=14                             every decoder's trees of 14 nodes
  spec-bench -m task=xsum,dolly seed=0,1           a sweep: every combination is a job
  spec-bench -m rsd=exp1 plan=true                 a paper's recipe: cells, hours, memory
  spec-bench decoder=medusa --cfg job              the whole config, nothing is run

--config-dir DIR adds configs of your own, --hydra-help tells Hydra's own flags.
"""
_TRAIN = """\
python -m spec_bench.train: trains draft heads on a target that stays as it is, and writes them to
results/train/NAME/heads. The same command goes on from the last checkpoint.

usage: python -m spec_bench.train [-m] [KEY=VALUE ...]

  python -m spec_bench.train head=redrafter pair=vicuna_7b engine=cuda data.path=sharegpt.json
  python -m spec_bench.train head=medusa data.kind=task task=xsum
"""
_GROUPS = {
    "config": ("pair", "task", "decoder", "generation", "engine", "energy", "sink", "experiment"),
    "train": ("head", "training", "pair", "task", "engine", "sink"),
}
_SETTINGS = {"config": ("generation", "engine"), "train": ("engine",)}
_COMMANDS = {
    "recommend": """\
usage: spec-bench recommend [KEY=VALUE ...]

Runs every candidate on three prompts, the fastest five on ten, and measures the fastest three in
turn with plain decoding on fresh prompts, from which the answer follows. Settings are a job's:

  pair=NAME, pair.target=FOLDER   the models; a target alone has decoders that need no draft
  task=NAME                       what is asked
  cells=[sd:3,rsd_s:4x3]          the candidates; otherwise those of conf/experiment/recommend.yaml
  prompts=10                      prompts of the search; all candidates decode the first three
  confirm.prompts=30              fresh prompts that the best are measured on
  confirm.best=3                  how many are measured on them
  name=recommend                  folder below results

  spec-bench recommend task=xsum
  spec-bench recommend pair.target=FOLDER 'cells=[prompt_lookup,suffix_lookup]'
""",
    "fit_tree": """\
usage: spec-bench fit_tree [width=8] [nodes=14,30] [KEY=VALUE ...]

Counts which of the draft's best children the target accepts and writes the shares to results/trees,
where sequoia finds them: sequoia:@14 is then the best tree of 14 nodes. Settings are a job's:

  width=8                         ranks that are looked at
  nodes=6,10,14,30                sizes whose expected block efficiency is printed
  pair=NAME task=NAME             what is fitted; several, separated by commas, one after the other
  prompts=20                      the task's last ones, so that a job's first stay unseen

  spec-bench fit_tree task=xsum,dolly nodes=14
""",
    "compare": """\
usage: spec-bench compare BEFORE AFTER [--alpha 0.05] [--margin 0.03] [--output FOLDER]

Says what changed between two folders of results and exits with 1 if something became worse. Measure
the second time with another results=FOLDER; the same folder would find its cells complete.

  --alpha SHARE                   chance of a false alarm over all comparisons
  --margin SHARE                  changes smaller than this are no change
  --output FOLDER                 also writes compare.md and compare.html

  spec-bench compare results/mine other/mine
""",
    "watch": """\
usage: spec-bench watch NAME [--results FOLDER] [--once]

Shows how far the sweep of that name is, from any machine that sees its folder: a line a job, what
failed and why, the end in sight. Status 2 if a job has failed.

  --results FOLDER                default: results
  --once                          prints it once, for scripts

  spec-bench watch rsd-exp1 --once
""",
    "serve": """\
usage: spec-bench serve ENGINE [--with ngram,draft_model] [KEY=VALUE ...]

Starts servers of an engine (conf/server: llama_cpp, vllm, sglang), plain and speculating, has a job
ask them in turn, and ends them, however this command ends. The same command goes on.

  --with METHODS                  ways of speculation; none: the plain server alone
  --program PATH                  the engine's command, if it is not on the PATH
  --model FILE --draft FILE       what it loads; default: the pair's
  --arguments='-t 8'              more of the engine's own
  --requests 4 --context 4096     requests under way together; their tokens, at most
  --gpus 1                        of each server, where this machine has any
  --patience 1200 --logs FOLDER   seconds until a server must answer; its output

  spec-bench serve vllm --with ngram pair=llama31_8b_1b task=xsum prompts=20
""",
    "answers": """\
usage: spec-bench answers results/NAME/results.csv [--output FOLDER] [--texts]

Writes the answers of a finished experiment as Spec-Bench's answer files, one for each decoder.

  --output FOLDER                 default: answers beside the table
  --texts                         also writes texts.csv

  spec-bench answers results/quickstart/results.csv --texts
""",
}


def command_help(arguments: list[str]) -> str | None:
    """Returns the short help of a subcommand; None where the general one is asked for."""
    return _COMMANDS.get(arguments[0]) if arguments else None


def help_text(config: str = "config") -> str:
    """Returns what ``--help`` prints of ``config``, or of ``train``, the training of heads."""
    parts = [_RUN if config == "config" else _TRAIN, "Settings, with their values unless set:"]
    parts += _lines(_settings(conf_dir() / f"{config}.yaml", ""))
    for group in _SETTINGS[config]:
        parts += _lines(_settings(conf_dir() / group / "default.yaml", f"{group}."))
    for group in _GROUPS[config]:
        files = [file for folder in conf_dirs() for file in sorted(folder.glob(f"{group}/*.yaml"))]
        parts += ["", f"{group}=...", *_lines((file.stem, _about(file)) for file in files)]
    if config == "config":
        launchers = sorted((conf_dir() / "hydra" / "launcher").glob("*.yaml"))
        parts += ["", "hydra/launcher=... with -m: where a sweep's jobs run"]
        parts += _lines((file.stem, _about(file)) for file in launchers)
        parts += ["", "Recipes of papers:"]
        found = [file for each in experiments_dirs() for file in sorted(each.glob("*/*.yaml"))]
        recipes = (file for file in found if file.name != _PAPER)
        parts += _lines((f"{file.parent.name}={file.stem}", _about(file)) for file in recipes)
    return "\n".join(parts) + "\n"


def _settings(file: Path, prefix: str) -> Iterator[tuple[str, str]]:
    """Yields the settings that a file has itself, not those nested below another."""
    for line in file.read_text(encoding="utf-8").splitlines():
        if (match := _SETTING.fullmatch(line)) and match[1] != "defaults":
            if match[2].startswith("#"):  # a group of settings, with its comment
                continue
            yield f"{prefix}{match[1]}={match[2]}".replace(": ", ":"), match[3] or ""


def _about(file: Path) -> str:
    """Returns the first sentence of a file's comment, or what fits of it in a line."""
    lines = file.read_text(encoding="utf-8").splitlines()
    comment: list[str] = []
    for line in lines:
        if not line.startswith("#"):
            break
        if not line.startswith("# @"):
            comment.append(line.removeprefix("#").strip())
    # A sentence ends before a capital letter, but not after "et al." or the like.
    return re.split(r"(?<!\bal)\.\s(?=[A-Z`])", " ".join(comment))[0].rstrip(".")


def _lines(entries: Iterator[tuple[str, str]]) -> list[str]:
    """Two columns; a name too long for the first pushes the second along."""
    lines = (f"  {name:<26} {about}".rstrip() for name, about in entries)
    return [
        line if len(line) <= _WIDTH else f"{line[: _WIDTH - 4].rpartition(' ')[0]} ..."
        for line in lines
    ]
