"""Weights laid out by columns: the same model, only its products rounded otherwise."""

import pytest
import torch
from torch import nn

from spec_bench.engine.checkpoint import SMALLEST, lay_by_columns
from spec_bench.engine.loading import ModelSpec, load_model

NEEDS_MKL = pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="needs MKL")


class Tied(nn.Module):
    """An embedding whose matrix the head shares, and a layer too small to matter."""

    def __init__(self, tokens, width):
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.small = nn.Linear(width, width)
        self.head = nn.Linear(width, tokens, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.small(self.embedding(tokens)))


@NEEDS_MKL
def test_only_large_matrices_move_and_nothing_but_their_layout_changes():
    model = Tied(SMALLEST // 64, 64)
    tokens = torch.tensor([[0, 7, SMALLEST // 64 - 1]])
    before, values = model(tokens), model.head.weight.detach().clone()
    assert lay_by_columns(model) == 1
    assert model.head.weight is model.embedding.weight
    assert model.head.weight.stride() == (1, SMALLEST // 64)
    assert model.small.weight.is_contiguous()
    assert torch.equal(model.head.weight, values)
    assert torch.allclose(model(tokens), before, atol=1e-5)
    assert lay_by_columns(model) == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions_are_left_alone(dtype):
    layer = nn.Linear(SMALLEST // 64, 64, dtype=dtype)
    assert lay_by_columns(layer) == 0
    assert layer.weight.is_contiguous()


@NEEDS_MKL
def test_a_loaded_model_has_its_large_matrices_by_columns():
    model = load_model(ModelSpec("random:opt_125m"))
    layer = model.module.model.decoder.layers[0]
    assert layer.fc1.weight.stride() == (1, 3072)
    assert layer.self_attn.q_proj.weight.stride() == (1, 768)
