"""After verification: the cache rows of the accepted path move next to the context, in place."""

from torch import Tensor

from kernels.portable import cdiv, check_tensors, next_power_of_2, tl, triton

__all__ = ["compact", "compact_reference"]

VALUES = 8192  # what one program holds


@triton.jit(do_not_specialize=["context", "length"])
def compact_kernel(
    kv_ptr,
    start_ptr,
    path_ptr,
    count_ptr,
    context,
    length,
    WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    plane, lane = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK_W + tl.arange(0, BLOCK_W)
    place = tl.arange(0, BLOCK_M)
    start = tl.load(start_ptr).to(tl.int64)
    node = tl.load(path_ptr + place, mask=place < tl.minimum(tl.load(count_ptr), length), other=0)
    moved = (node > place)[:, None] & (lane < WIDTH)[None, :]
    rows = kv_ptr + (plane * context + start) * WIDTH + lane[None, :]
    values = tl.load(rows + node.to(tl.int64)[:, None] * WIDTH, mask=moved, other=0.0)
    tl.debug_barrier()  # a row may be read by one warp and overwritten by another
    tl.store(rows + place.to(tl.int64)[:, None] * WIDTH, values, mask=moved)


def compact(
    kv: Tensor,  # [layers, 2, context, hkv, d], contiguous
    start: Tensor,  # [1] int32 or int64: the slot of node 0
    path: Tensor,  # [m] int32: strictly increasing up to count, as `accept` gives it; m <= 1024
    count: Tensor,  # [1] int32
) -> None:
    """Moves slot start + path[i] to start + i for i < count in all layers, in place; other slots keep what they hold.

    path[i] >= i, so a program first reads all that it moves and then writes; rows already in place cost nothing.
    """
    check_tensors(kv, start, path, count)
    layers, _, context, hkv, d = kv.shape
    block_m = next_power_of_2(path.shape[0])
    block_w = min(next_power_of_2(hkv * d), max(16, VALUES // block_m))
    compact_kernel[(layers * 2, cdiv(hkv * d, block_w))](
        kv,
        start,
        path,
        count,
        context,
        path.shape[0],
        WIDTH=hkv * d,
        BLOCK_M=block_m,
        BLOCK_W=block_w,
        num_warps=8,
    )


def compact_reference(kv: Tensor, start: Tensor, path: Tensor, count: Tensor) -> None:
    """The twin of `compact` in plain torch; syncs the host."""
    first, kept = int(start), path[: int(count)].long()
    kv[:, :, first : first + len(kept)] = kv[:, :, first + kept].clone()
