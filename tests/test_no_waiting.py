"""On a device nothing is read back: a host that waits stalls it, and a CUDA graph cannot hold that.

Meta tensors have no values at all, so that whoever asks for one raises.
"""

from copy import deepcopy
from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from posenc import (
    MultiHeadAttention,
    Scheme,
    attention,
    causal,
    linear_attention,
    rotate_qk,
    same_segment,
    window,
)
from posenc.masks import Mask
from support import DIM, HEAD_DIM, HEADS, NAMES, build, cells_of, mask_of, positions_of

LENGTH = 24
every_scheme = pytest.mark.parametrize("name", NAMES)
either = pytest.mark.parametrize("records", [False, True], ids=["no grad", "grad"])


def elsewhere(name: str) -> Scheme:
    """A registry entry whose parameters lie on a device."""
    scheme = build(name)
    parts = {field.name: getattr(scheme, field.name) for field in fields(scheme)}
    moved: dict[str, Any] = {
        n: deepcopy(p).to("meta") if isinstance(p, nn.Module) else p for n, p in parts.items()
    }
    return Scheme(**moved)


def qkv() -> list[Tensor]:
    return [torch.empty(2, HEADS, LENGTH, HEAD_DIM, device="meta", requires_grad=True)] * 3


@pytest.mark.parametrize("ask", [bool, float, Tensor.tolist, Tensor.nonzero])
def test_a_tensor_without_values_answers_no_question(ask: Any) -> None:
    with pytest.raises((RuntimeError, NotImplementedError)):
        ask(torch.ones((), device="meta"))


@either
@every_scheme
def test_attention_asks_a_device_for_no_value(name: str, records: bool) -> None:
    scheme, mask, (q, k, v) = elsewhere(name), mask_of(name), qkv()
    at = positions_of(name, LENGTH).to("meta")
    segments = same_segment(torch.empty(LENGTH, dtype=torch.int64, device="meta"))
    packed = segments if mask is None else segments & mask
    with torch.set_grad_enabled(records):
        attention(q, k, v, scheme=scheme, mask=mask, q_pos=at, k_pos=at)
        attention(q, k, v, scheme=scheme, mask=packed, q_pos=at, k_pos=at)
        attention(q[:, :, -1:], k, v, scheme=scheme, mask=mask, q_pos=at[-1:], k_pos=at)
        if scheme.num_axes == 1:
            attention(q, k, v, scheme=scheme, mask=mask)
            attention(q[:, :, -1:], k, v, scheme=scheme, mask=mask)
        if scheme.additive is not None:
            cells = cells_of(name)
            x = torch.empty(2, LENGTH, DIM, device="meta")
            scheme.additive(x, at if cells is None else cells.to("meta"))


@every_scheme
def test_rotation_by_prepared_tables_asks_a_device_for_no_value(name: str) -> None:
    scheme, at = elsewhere(name), positions_of(name, LENGTH).to("meta")
    if scheme.rotary is None:
        return
    q, k, _ = qkv()
    tables = scheme.rotary.tables(at, at)
    rotate_qk(q, k, tables)
    with torch.no_grad():
        rotate_qk(q.clone(), k.clone(), tables, inplace=True)
    if scheme.num_axes == 1:
        layer = MultiHeadAttention(DIM, HEADS, scheme=scheme, mask=mask_of(name)).to("meta")
        layer(torch.empty(2, LENGTH, DIM, device="meta"), at, tables=tables)


@either
@pytest.mark.parametrize("name", ["none", "rope", "learned-scale-rope"])
@pytest.mark.parametrize("seen", ["all", "causal", "sliding", "documents", "causal documents"])
def test_linear_attention_asks_a_device_for_no_value(seen: str, name: str, records: bool) -> None:
    segments = same_segment(torch.empty(LENGTH, dtype=torch.int64, device="meta"))
    masks: dict[str, Mask | None] = {
        "all": None,
        "causal": causal,
        "sliding": causal & window(5),
        "documents": segments,
        "causal documents": causal & segments,
    }
    scheme, (q, k, v) = elsewhere(name), qkv()
    with torch.set_grad_enabled(records):
        at = torch.arange(LENGTH, device="meta")
        linear_attention(q, k, v, scheme=scheme, mask=masks[seen], q_pos=at, k_pos=at)
        linear_attention(q, k, v, scheme=scheme, mask=masks[seen])
