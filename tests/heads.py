"""Small draft heads for tests: sure of something, right or wrong, so that trees are not trivial."""

import torch

from spec_bench.draft.dflash import DFlashHead, DFlashShape
from spec_bench.draft.eagle_files import EagleShape
from spec_bench.draft.eagle_network import Eagle1Head, Eagle3Head
from spec_bench.draft.medusa import MedusaHeads, MedusaShape
from spec_bench.draft.mtp import MtpHead, MtpShape
from spec_bench.draft.redrafter import RecurrentHead, RecurrentShape


def medusa_heads(hidden, vocab, heads=4, seed=0):
    """Random heads whose weights are large enough to prefer something."""
    torch.manual_seed(seed)
    made = MedusaHeads(MedusaShape(hidden, vocab, heads))
    return _shaken(made)


def recurrent_head(hidden, vocab, *, recurrent=True, seed=0):
    torch.manual_seed(seed)
    return _shaken(RecurrentHead(RecurrentShape(hidden, vocab, 1, recurrent)))


def eagle_head(hidden, vocab, seed=0):
    """A random EAGLE-1 head, two query heads to a key head."""
    torch.manual_seed(seed)
    shape = EagleShape(hidden, hidden, vocab, vocab, 2, 1, 8, 16, fc_bias=True)
    return _shaken(Eagle1Head(shape))


def eagle3_head(hidden, vocab, seed=0, layers=1, **changes):
    """A random EAGLE-3 head that knows two of three tokens."""
    torch.manual_seed(seed)
    ids = torch.tensor([token for token in range(vocab) if token % 3])
    sizes = (hidden, hidden, vocab, len(ids), 2, 1, 8, 16, layers)
    return _shaken(Eagle3Head(EagleShape(*sizes, **{"fc_norm": True} | changes), ids))


def p_eagle_head(hidden, vocab, seed=0, own_inputs=True):
    """A random P-EAGLE head of two layers: EAGLE-3's with a mask token."""
    return eagle3_head(hidden, vocab, seed, 2, fc_norm=False, mask_token=1, own_inputs=own_inputs)


def mtp_head(hidden, vocab, seed=0):
    """A random MTP layer of a Llama, two query heads to a key head."""
    torch.manual_seed(seed)
    config = {
        "model_type": "llama", "hidden_size": hidden, "vocab_size": vocab, "head_dim": 8,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
        "intermediate_size": 16,
    }  # fmt: skip
    return _shaken(MtpHead(MtpShape(config)))


def dflash_head(hidden, vocab, seed=0, block=16, markov_rank=0, **changes):
    """A random DFlash head of two layers, on two hidden states; with a rank a DSpark head."""
    torch.manual_seed(seed)
    sizes = (hidden, hidden, vocab, vocab, 2, 1, 8, 16, 2)
    more = {"block": block, "mask_token": 1, "layer_ids": (0, 1), "from_known": markov_rank > 0}
    shape = DFlashShape(*sizes, **more, markov_rank=markov_rank, **changes)
    return _shaken(DFlashHead(shape))


HEADS = {
    "medusa": medusa_heads,
    "redrafter": recurrent_head,
    "eagle": eagle_head,
    "eagle3": eagle3_head,
    "mtp": mtp_head,
    "dflash": dflash_head,
}


def heads_of(drafter, hidden, vocab):
    """What a decoder's drafter needs on its target, or None."""
    if drafter.get("parallel"):
        return p_eagle_head(hidden, vocab)
    return HEADS[drafter["kind"]](hidden, vocab) if drafter["kind"] in HEADS else None


def _shaken(made):
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return made.eval()
