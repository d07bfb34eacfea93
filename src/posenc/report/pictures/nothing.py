"""No encoding drawn: what the causal mask alone tells."""

import torch
from torch import Tensor

from posenc.attention import attention
from posenc.contracts import Scheme
from posenc.masks import Mask, causal
from posenc.report.pictures.bias import hidden
from posenc.report.pictures.panels import Heat, Lines, Panel

__all__ = ["draw_nothing"]

NUM_SHOWN = 64  # rows and columns of the matrix


def draw_nothing(scheme: Scheme, positions: Tensor) -> tuple[Panel, ...]:
    """Attention whose logits are all equal: the share of the first token, and all weights."""
    lines = {
        "causal mask": _weights(scheme, len(positions), causal)[:, 0],
        "no mask": _weights(scheme, len(positions), None)[:, 0],
    }
    first = positions[:NUM_SHOWN]
    weights = _weights(scheme, NUM_SHOWN, causal).log10()
    return (
        Lines(
            "Weight of the first token, all logits equal", positions, lines,
            "position of the query", "weight", logarithmic="y",
        ),
        Heat(
            "log10 of all weights under the causal mask", hidden(weights, causal, first, first),
            "position of the key", "position of the query",
        ),
    )  # fmt: skip


def _weights(scheme: Scheme, length: int, mask: Mask | None) -> Tensor:
    """`[T, T]`: attention to the identity is its weights."""
    zeros = torch.zeros(1, 1, length, length)
    return attention(zeros, zeros, torch.eye(length)[None, None], scheme=scheme, mask=mask)[0, 0]
