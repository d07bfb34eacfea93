"""Softmax attention under any scheme: checks once, then hands over to one implementation."""

from dataclasses import replace
from typing import Literal

from torch import Tensor

from posenc.attention.problem import checked
from posenc.attention.reference import reference_attention
from posenc.attention.sdpa import by_kernel, sdpa_attention
from posenc.contracts import Scheme
from posenc.masks import Mask, causal

__all__ = ["AttentionImpl", "attention"]

AttentionImpl = Literal["auto", "reference", "sdpa", "native", "flex"]
NOPE = Scheme()


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scheme: Scheme = NOPE,
    q_pos: Tensor | None = None,
    k_pos: Tensor | None = None,
    mask: Mask | None = causal,
    scale: float | None = None,
    impl: AttentionImpl = "auto",
) -> Tensor:
    """Softmax attention, `[B, H, Q, D]` × `[B, H', K, D]` × `[B, H', K, Dv]` -> `[B, H, Q, Dv]`.

    >>> out = attention(q, k, v, scheme=Scheme(rotary=Rope(64)))          # causal
    >>> out = attention(q_last, k_all, v_all, scheme=scheme)              # one step of decoding
    >>> out = attention(q, k, v, scheme=scheme, mask=causal & window(128))

    Queries and keys come unrotated; keys and values may have fewer heads. `q_pos` defaults to the
    END of the keys, whose positions default to 0 … K-1. `scale` defaults to 1/√D. A query that may
    see no key gets zeros. `scheme.additive` belongs to the embeddings and is not applied here.

    `impl="reference"` is the float64 definition, "sdpa" PyTorch's fused kernel, "native" the compiled
    CPU kernel for biases by distance, "flex" FlexAttention; "auto" is "native" where that fits, else
    "sdpa". Raises ValueError where shapes, heads, positions or the mask do not fit.
    """
    problem = checked(q, k, v, scheme, q_pos, k_pos, mask, scale)
    if impl == "reference":
        return reference_attention(problem)
    if impl == "auto":
        return sdpa_attention(problem)
    if impl == "sdpa":
        return sdpa_attention(replace(problem, native=False))
    if impl == "native":
        return by_kernel(problem)
    if impl == "flex":
        from posenc.attention.flex import flexible_attention  # noqa: PLC0415  loads a compiler

        return flexible_attention(problem)
    raise ValueError(f"impl must be 'auto', 'reference', 'sdpa', 'native' or 'flex', got {impl!r}")
