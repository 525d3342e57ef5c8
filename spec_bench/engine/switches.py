"""torch's process-wide switches that move a number or a time of a pass on a GPU, set in one place.

cuDNN's attention builds a plan for every pair of lengths, tens of milliseconds each, and decoding
meets new lengths in nearly every pass. TF32 and sums in half precision make a token's logits depend
on how many tokens a pass holds by more than the weights' own rounding does.
"""

from __future__ import annotations

import torch


def set_switches() -> None:
    """Sets them; a CPU's passes do not change."""
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
