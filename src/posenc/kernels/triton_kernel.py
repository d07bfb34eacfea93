"""The rotation of queries and keys as one Triton kernel. Importing this file needs Triton.

Offsets are 64-bit: a batch of long sequences has more elements than 32 bits count. Masked lanes read
NaN from a table, never cos = 1 and sin = 0: a wrong mask shows as NaN and not as an unrotated row.
"""

import triton
import triton.language as tl

__all__ = ["rotate_kernel"]


@triton.jit
def _turned(a, b, c, s):
    return a * c - b * s, b * c + a * s


@triton.jit
def _rotate_tile(
    x,
    out,
    cos,
    sin,
    index,  # of this tile, heads fastest, so that neighbours read one part of the table
    heads,
    tokens,
    x_batch,
    x_head,
    x_token,
    out_batch,
    out_head,
    out_token,
    table_batch,  # 0 where one table serves every row of the batch
    direction,
    START: tl.constexpr,
    PAIRS: tl.constexpr,
    REST: tl.constexpr,  # channels that are copied: none in place
    ADJACENT: tl.constexpr,
    GROUP: tl.constexpr,  # heads of one tile, which share what was read of the table
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_PAIRS: tl.constexpr,
    BLOCK_REST: tl.constexpr,
):
    groups = (heads + GROUP - 1) // GROUP
    blocks = (tokens + BLOCK_TOKENS - 1) // BLOCK_TOKENS
    first_head = index % groups * GROUP
    token = index // groups % blocks * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS).to(tl.int64)
    batch = index // groups // blocks
    is_token = (token < tokens)[:, None]

    pair = tl.arange(0, BLOCK_PAIRS)[None, :]
    entry = batch * table_batch + token[:, None] * PAIRS + pair
    is_entry = is_token & (pair < PAIRS)
    c = tl.load(cos + entry, mask=is_entry, other=float("nan"))
    s = tl.load(sin + entry, mask=is_entry, other=float("nan")) * direction

    x += batch * x_batch + START
    out += batch * out_batch + START
    x_row, out_row = token[:, None] * x_token, token[:, None] * out_token
    for turn in tl.static_range(GROUP):  # pyright: ignore
        head = first_head + turn
        is_row = is_token & (head < heads)
        source = x + head * x_head + x_row
        target = out + head * out_head + out_row
        if ADJACENT:
            channel = tl.arange(0, 2 * BLOCK_PAIRS)[None, :]
            is_channel = is_row & (channel < 2 * PAIRS)
            both = tl.load(source + channel, mask=is_channel).to(tl.float32)
            a, b = tl.split(tl.reshape(both, (BLOCK_TOKENS, BLOCK_PAIRS, 2)))
            a, b = _turned(a, b, c, s)  # pyright: ignore
            both = tl.reshape(tl.join(a, b), (BLOCK_TOKENS, 2 * BLOCK_PAIRS))
            tl.store(target + channel, both.to(out.dtype.element_ty), mask=is_channel)
        else:
            is_pair = is_row & (pair < PAIRS)
            a = tl.load(source + pair, mask=is_pair).to(tl.float32)
            b = tl.load(source + pair + PAIRS, mask=is_pair).to(tl.float32)
            a, b = _turned(a, b, c, s)  # pyright: ignore
            tl.store(target + pair, a.to(out.dtype.element_ty), mask=is_pair)
            tl.store(target + pair + PAIRS, b.to(out.dtype.element_ty), mask=is_pair)
        if REST > 0:
            place = tl.arange(0, BLOCK_REST)[None, :]
            channel = tl.where(place < START, place - START, place + 2 * PAIRS - START)
            is_rest = is_row & (place < REST)
            tl.store(target + channel, tl.load(source + channel, mask=is_rest), mask=is_rest)


# What grows with a sequence or a batch must not compile the kernel anew.
@triton.jit(do_not_specialize=["q_tiles", "q_heads", "q_tokens", "k_heads", "k_tokens"])
def rotate_kernel(
    q,
    q_out,
    q_cos,
    q_sin,
    k,
    k_out,
    k_cos,
    k_sin,
    q_tiles,  # programs of q; the others work on k
    q_heads,
    q_tokens,
    q_batch,
    q_head,
    q_token,
    q_out_batch,
    q_out_head,
    q_out_token,
    q_table,
    k_heads,
    k_tokens,
    k_batch,
    k_head,
    k_token,
    k_out_batch,
    k_out_head,
    k_out_token,
    k_table,
    direction,
    START: tl.constexpr,
    PAIRS: tl.constexpr,
    REST: tl.constexpr,
    ADJACENT: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_PAIRS: tl.constexpr,
    BLOCK_REST: tl.constexpr,
):
    """Tiles of q, then tiles of k: `[B, H, T, D]` with unit channel stride; strides in elements.

    cos and sin are contiguous float32 `[B or 1, T, PAIRS]`. `q_out` may be `q`. `direction` −1 is
    the transposed rotation, so the backward pass.
    """
    index = tl.program_id(0).to(tl.int64)
    if index < q_tiles:
        _rotate_tile(
            q, q_out, q_cos, q_sin, index, q_heads, q_tokens, q_batch, q_head, q_token,
            q_out_batch, q_out_head, q_out_token, q_table, direction,
            START, PAIRS, REST, ADJACENT, GROUP, BLOCK_TOKENS, BLOCK_PAIRS, BLOCK_REST,
        )  # fmt: skip
    else:
        _rotate_tile(
            k, k_out, k_cos, k_sin, index - q_tiles, k_heads, k_tokens, k_batch, k_head, k_token,
            k_out_batch, k_out_head, k_out_token, k_table, direction,
            START, PAIRS, REST, ADJACENT, GROUP, BLOCK_TOKENS, BLOCK_PAIRS, BLOCK_REST,
        )  # fmt: skip
