"""What an operation is on a device: whether it runs there at all, and whether the host waits."""

import torch

NONE = {
    "empty", "empty_like", "empty_strided", "new_empty", "detach", "lift_fresh", "alias", "lift",
    "_unsafe_view", "_reshape_alias", "set_", "resize_", "_local_scalar_dense", "new_empty_strided",
}  # fmt: skip
WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim",
         "unique_consecutive", "is_nonzero", "equal"}  # fmt: skip
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
# Operations that take a 0-dim operand of the host although they are not pointwise.
SCALARS_TOO = {"where", "masked_fill", "masked_fill_", "fill_", "scatter", "scatter_", "lerp",
               "index_fill_", "clamp", "copy_"}  # fmt: skip
ATTENTION = "scaled_dot_product_attention"
KERNELS = {  # asked for by name
    "_scaled_dot_product_flash_attention": "flash: ",
    "_scaled_dot_product_efficient_attention": "efficient: ",
    ATTENTION: "",
}


def cost(func, name, args):
    """(whether the device does something, whether the host waits) of a dispatched operation."""
    waits = name in WAITS or (name == "repeat_interleave" and func._overloadname == "Tensor")
    if name in INDEXING:
        waits = any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])
    return not (func.is_view or name in NONE), waits


def flash(*given, **named):
    """A CPU's answer for the flash kernel, which takes no mask and no single precision."""
    assert len(given) == 3 and given[0].dtype != torch.float32
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*given, **named)


def efficient(query, key, value, mask, sums, **named):
    """A CPU's answer for the memory-efficient kernel, whose sums are filled up to 32 tokens."""
    assert sums and (mask is None or mask.shape[1] == query.shape[1])
    output, total = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, attn_mask=mask, **named
    )
    return output, torch.nn.functional.pad(total, (0, -total.shape[-1] % 32), value=torch.inf)


STAND_INS = dict(zip(KERNELS, (flash, efficient), strict=False))


def attention(args):
    """What attention was asked for: mask, alignment of its rows to 8 elements, shared heads."""
    query, key, mask = args[0], args[1], args[3] if len(args) > 3 else None
    grouped = ", grouped" if query.shape[-3] != key.shape[-3] else ""
    if mask is None:
        return f"no mask, {query.dtype}{grouped}"
    inner = getattr(mask, "inner", mask)
    aligned = all(s % 8 == 0 for s in inner.stride()[:-1]) and inner.stride(-1) == 1
    kind = "aligned" if aligned else "padded in every call"
    return f"mask {str(mask.dtype)[6:]} {kind}{grouped}"
