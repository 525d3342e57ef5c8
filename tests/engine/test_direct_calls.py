"""Modules that are called directly answer as before, hooks of their own included."""

import torch
from torch import nn

from spec_bench.engine.products import call_directly


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def test_numbers_names_and_classes_stay_what_they_were():
    plain, direct = small(), small()
    call_directly(direct)
    inputs = torch.randn(5, 3)
    assert torch.equal(direct(inputs), plain(inputs))
    assert [type(part).__name__ for part in direct] == ["Linear", "ReLU", "Linear"]
    assert isinstance(direct[0], nn.Linear)
    assert direct.state_dict().keys() == plain.state_dict().keys()


def test_a_hook_that_is_set_later_is_met():
    model = small()
    call_directly(model)
    seen = []
    model[0].register_forward_hook(lambda own, given, made: seen.append(made.shape[-1]))
    model[2].register_forward_pre_hook(lambda own, given: (given[0] * 0,))
    outputs = model(torch.randn(1, 3))
    assert seen == [4]
    assert torch.equal(outputs[0], model[2].bias)


def test_a_forward_put_on_one_module_is_called():
    """As accelerate does, which spreads a model's layers over devices."""
    model = small()
    call_directly(model)
    model[1].forward = torch.zeros_like
    assert torch.equal(model(torch.randn(2, 3))[0], model[2].bias)


def test_a_class_that_adds_to_a_call_keeps_it():
    class Doubled(nn.Linear):
        def __call__(self, inputs):
            return 2 * super().__call__(inputs)

    own = Doubled(2, 2)
    expected = own(torch.ones(1, 2))
    call_directly(own)
    assert torch.equal(own(torch.ones(1, 2)), expected)


def test_what_is_put_in_a_parts_place_later_is_used():
    """A part, a weight and a buffer: rotary embeddings make their buffers anew."""

    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(2, 2, bias=False)
            self.register_buffer("shift", torch.zeros(2))

        def forward(self, inputs):
            return self.inner(inputs) + self.shift

    model = Shifted()
    call_directly(model)
    model.shift = torch.ones(2)
    model.inner.weight = nn.Parameter(torch.eye(2))
    assert model(torch.tensor([3.0, 4.0])).tolist() == [4.0, 5.0]
    model.inner.weight.data = 2 * torch.eye(2)
    assert model(torch.tensor([3.0, 4.0])).tolist() == [7.0, 9.0]
    model.inner = nn.Identity()
    assert model(torch.tensor([3.0, 4.0])).tolist() == [4.0, 5.0]


def test_weights_that_are_exchanged_around_a_pass_are_looked_for_at_every_pass():
    """As accelerate and tensor parallelism do: a forward on the module, other weights in it."""
    model = small()
    last = model[2]
    own = last.forward

    def exchanged(inputs):
        kept = dict(last._parameters)
        last._parameters.update(weight=torch.zeros(2, 4), bias=torch.full((2,), 7.0))
        made = own(inputs)
        last._parameters.update(kept)
        return made

    last.forward = exchanged
    call_directly(model)
    assert model(torch.randn(1, 3)).tolist() == [[7.0, 7.0]]
