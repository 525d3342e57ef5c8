"""The slot cache, plans of a pass's writes to it, and the pool of caches that decoders share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from spec_bench.core.host_device import HostDeviceInts, cached_arange


def adjacent_slots(starts: Sequence[int], count: int, device: torch.device) -> Tensor:
    """Computes the slots [R, T] of T = ``count`` adjacent tokens from each row's first slot
    ``starts``.
    """
    return HostDeviceInts.wrap(starts).get_tensor(device).unsqueeze(1) + cached_arange(
        count, device
    )


@dataclass
class WritePlan:
    """The slots that a pass writes, and the number of slots that it reads."""

    row: int  # the first of the pass's R adjacent rows
    starts: Sequence[int]  # [R] first slot written in each row
    count: int  # T, tokens per row
    read_slots: int  # S, slots that attention reads

    @property
    def rows(self) -> slice:
        """The rows of the pass, as a slice."""
        return slice(self.row, self.row + len(self.starts))


_NO_PASS = WritePlan(0, [0], 0, 0)


@dataclass(frozen=True)
class LayerLayout:
    """Shape, dtype and device of a layer's keys and values."""

    heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_slot(self) -> int:
        """Bytes of a token's keys and values in this layer."""
        return self.heads * (self.key_dim + self.value_dim) * self.dtype.itemsize


class SlotLayer(CacheLayerMixin):
    """A layer's view of the storage, [rows, H, slots, dim]. transformers passes it keys and values,
    which it stores at the slots of the owner's plan.
    """

    def __init__(self, owner: SlotCache, place: int) -> None:
        super().__init__()
        self._place = place
        self.is_initialized = True
        self._owner = owner

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        *args: object,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor]:
        """Stores keys and values [R, H, T, dim] at the plan's slots; returns those of all slots
        that attention reads.
        """
        owner = self._owner
        plan = owner.plan
        if owner.layer_views is not None:
            keys, values, new_keys, new_values = owner.layer_views[self._place]
            new_keys.copy_(key_states)
            new_values.copy_(value_states)
            return keys, values
        reach = (plan.rows, slice(None), slice(0, plan.read_slots))
        keys = self.keys[reach]
        values = self.values[reach]
        if owner.common_start is not None:
            keys.narrow(2, owner.common_start, plan.count).copy_(key_states)
            values.narrow(2, owner.common_start, plan.count).copy_(value_states)
        else:
            rows, slots = owner.index[key_states.device]
            self.keys[rows, :, slots] = key_states.transpose(1, 2)
            self.values[rows, :, slots] = value_states.transpose(1, 2)
        return keys, values

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Does nothing, because the storage exists."""

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Returns (slots read, offset); only models that build their own masks call it."""
        return self._owner.plan.read_slots, 0

    def get_seq_length(self) -> int:
        """Returns the first slot that the current pass writes."""
        return self._owner.plan.starts[0]

    def get_max_length(self) -> int:
        """Returns the number of slots."""
        return self._owner.slots

    get_max_cache_shape = get_max_length


class SlotCache(Cache):
    """Keys and values for ``rows`` sequences of up to ``slots`` tokens, tree nodes included.

    Unlike in a growing cache, slots are allocated once per job, and each pass has a plan of its
    writes: a tree's nodes are adjacent, after the committed tokens, and a commit moves the accepted
    nodes into place. Each row has its own length. Slots from a row's length on hold leftovers,
    which the attention mask hides.

    Layers of the same layout share a storage tensor [layers, rows, H, slots, dim] for keys and
    another for values, so that a commit is one gather per layout instead of one per layer.
    """

    # the slot at which all rows of this pass start; None if they differ
    common_start: int | None = 0
    # for each layer, views of the keys and values that the pass reads and of those that it writes;
    # None if each layer makes its own
    layer_views: list[tuple[Tensor, Tensor, Tensor, Tensor]] | None = None
    # how often the storage was replaced; graphs recorded before must not be replayed
    growth_count: int = 0

    def __init__(self, layouts: Sequence[LayerLayout], rows: int, slots: int) -> None:
        self.plan = _NO_PASS
        # (row [R, 1], slot [R, T]) to write, where rows start at different slots
        self.index: dict[torch.device, tuple[Tensor, Tensor]] = {}
        self._layouts = list(layouts)
        super().__init__(layers=[SlotLayer(self, i) for i in range(len(layouts))])
        self._allocate(rows, slots)

    def _allocate(self, rows: int, slots: int) -> None:
        """Allocates new storage, all zeros."""
        self.rows = rows
        self.slots = slots
        self._storage: list[Tensor] = []
        self._members: list[list[int]] = []  # the layers of each pair of storage tensors
        self.layer_views = None
        for layout in dict.fromkeys(self._layouts):
            members = [
                i for i, member_layout in enumerate(self._layouts) if member_layout == layout
            ]
            keys, values = (
                torch.zeros(
                    (len(members), rows, layout.heads, slots, dim),
                    dtype=layout.dtype,
                    device=layout.device,
                )
                for dim in (layout.key_dim, layout.value_dim)
            )
            self._storage += [keys, values]
            self._members.append(members)
            for place, member in enumerate(members):
                layer = self.layers[member]
                layer.keys = keys[place]
                layer.values = values[place]

    def grow_and_clear(self, rows: int, slots: int) -> None:
        """Replaces the storage by a larger one of zeros, for at least ``rows`` and ``slots``; keeps
        a storage that is large enough.

        The old storage is freed before the new is allocated.
        """
        if rows <= self.rows and slots <= self.slots:
            return
        rows = max(rows, self.rows)
        slots = max(slots, self.slots)
        self.free()
        self.growth_count += 1
        self._allocate(rows, slots)

    def free(self) -> None:
        """Frees the storage, even while others hold the cache."""
        for layer in self.layers:
            layer.keys = layer.values = torch.empty((0, 0, 0, 0))
        self._storage.clear()
        self.layer_views = None
        self.rows = 0
        self.slots = 0

    @property
    def bytes(self) -> int:
        """Bytes of the storage."""
        return sum(block.nbytes for block in self._storage)

    def begin_pass(self, plan: WritePlan, *, views: bool = False) -> None:
        """Sets the plan of the next pass. Raises ValueError if a row has too few slots. With
        ``views`` the views of all layers are made in advance, which is quicker but cannot be
        traced.
        """
        needed = max(plan.starts) + plan.count
        if needed > self.slots:
            raise ValueError(f"the cache has {self.slots} slots per row, {needed} are needed")
        self.plan = plan
        self.common_start = (
            plan.starts[0] if HostDeviceInts.wrap(plan.starts).are_known_equal else None
        )
        self.layer_views = (
            self._cut_layer_views(plan, self.common_start)
            if views and self.common_start is not None
            else None
        )
        if self.common_start is None:
            for device in {layout.device for layout in self._layouts}:
                rows = cached_arange(plan.rows.stop, device)[plan.rows.start :].unsqueeze(1)
                self.index[device] = rows, adjacent_slots(plan.starts, plan.count, device)

    def end_pass(self) -> None:
        """Ends the pass: drops its plan and the plan's indices on the device."""
        self.plan = _NO_PASS
        self.layer_views = None
        self.index.clear()

    def _cut_layer_views(
        self, plan: WritePlan, start: int
    ) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Makes every layer's views for reading and writing, for a pass with a common start."""
        views: list[Any] = [None] * len(self.layers)
        for pair, members in enumerate(self._members):
            inputs = [
                block[:, plan.rows, :, : plan.read_slots] for block in self._storage[2 * pair :][:2]
            ]
            outputs = [part.narrow(3, start, plan.count) for part in inputs]
            parts = zip(*(part.unbind(0) for part in (*inputs, *outputs)), strict=True)
            for member, view in zip(members, parts, strict=True):
                views[member] = view
        return views

    def commit(self, row: int, length: int, nodes: Sequence[int]) -> None:
        """Keeps the tree nodes ``nodes`` of a row, in increasing order and root first: moves them
        from slots ``length + node`` to length, length + 1, ...
        """
        moves = [(target, node) for target, node in enumerate(nodes) if target != node]
        if not moves:
            return
        # Nodes move towards the front; the first nodes of the path may already be in place.
        first_target = moves[0][0]
        source = [length + node for _, node in moves]
        for block in self._storage:
            entries = block[:, row].index_select(2, torch.tensor(source, device=block.device))
            block[:, row, :, length + first_target : length + first_target + len(source)] = entries

    def commit_all(self, lengths: Sequence[int], nodes: Tensor) -> None:
        """Keeps tree nodes [R, T] of the first R rows, root first, without the host; ``lengths``
        [R] tokens were committed before. If a row keeps fewer than T nodes, leftovers follow them.
        """
        starts = HostDeviceInts.wrap(lengths).get_tensor(nodes.device).unsqueeze(1)
        self.move_slots(starts + nodes, starts + cached_arange(nodes.shape[1], nodes.device))

    def move_slots(self, sources: Tensor, targets: Tensor) -> None:
        """Copies slots ``sources`` [R, T] of the first R rows to ``targets`` [R, T], all of a row
        at once. A repeated target must have the same source each time.
        """
        if not sources.numel():
            return
        for block in self._storage:
            device = block.device
            rows = cached_arange(len(sources), device).unsqueeze(1)
            entries = block[:, rows, :, sources.to(device)]
            block[:, rows, :, targets.to(device)] = entries

    def move_row(
        self,
        source: int,
        target: int,
        length: int,
        start: int = 0,
    ) -> None:
        """Copies the slots from ``start`` to ``length`` of a row to another row."""
        for block in self._storage:
            block[:, target, :, start:length] = block[:, source, :, start:length]


class CachePool:
    """One cache per role (``target``, ``draft 0``, ...), as large as the largest request so far.

    The decoders of a job take turns, so they share the caches. Each prefills its rows before it
    decodes, so another decoder's leftovers do no harm. A cache grows in place, so that no decoder
    keeps an old, smaller one alive.
    """

    def __init__(self) -> None:
        self._models_and_caches: dict[str, tuple[Any, Any]] = {}

    def get_or_grow_cache(
        self,
        role: str,
        model: Any,
        rows: int,
        slots: int,
    ) -> Any:
        """Returns the role's cache, grown to at least ``rows`` x ``slots``, trees included. Two
        caches in use at the same time need two roles.
        """
        slots *= getattr(model, "stretch", 1)  # texts are longer in another tokenizer
        if self._models_and_caches.get(role, (None,))[0] is not model:
            self._models_and_caches.pop(role, None)  # before the new one is allocated
            self._models_and_caches[role] = model, model.allocate(rows, slots)
        cache = self._models_and_caches[role][1]
        cache.grow_and_clear(rows, slots)
        return cache

    def free(self) -> None:
        """Frees all storage immediately; caches and their layers refer to each other, so that
        otherwise it would stay until Python's garbage collection.
        """
        for _, cache in self._models_and_caches.values():
            cache.free()
        self._models_and_caches.clear()
