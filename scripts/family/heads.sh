#!/usr/bin/env bash
# Trains the embedded target's heads again, into the package. The target's answers and hidden states are kept
# below results/train, so that a second or resumed training does not compute them again.
set -euo pipefail
cd "$(dirname "$0")/../.."
PATH=$PWD/.venv/bin:$PATH

train() { # a head's name, the training, other settings
    python -m spec_bench train "training=$2" out="spec_bench/embedded/heads/$1" "${@:3}"
}

prompts=results/train/world-prompts.jsonl
test -f $prompts || python scripts/family/world_prompts.py 20000 $prompts
for head in medusa redrafter redrafter_no_rnn; do
    train $head embedded head=$head
done
train eagle3 embedded_eagle head=eagle3
train eagle1 embedded_eagle head=eagle1 head.fc_norm=false head.init=random optimiser.epochs=1
train mtp embedded_eagle head=mtp head.guesses=5 head.fc_norm=false head.init=random optimiser.epochs=2
train dflash embedded_eagle head=dflash head.guesses=7 head.blocks=1 head.fc_norm=false head.init=random
rm spec_bench/embedded/heads/redrafter_no_rnn/model.safetensors # no decoder needs it
