"""Entries beside the registry drawn, each from an example that its picture names."""

from collections.abc import Callable
from dataclasses import asdict

import torch
from torch import Tensor

from posenc.bias import AxesBias, T5Bias
from posenc.contracts import Scheme
from posenc.positions import grid
from posenc.registry import RELATED, Encoding, Method, Shape
from posenc.report.pictures.panels import Picture
from posenc.report.pictures.scaling import draw_lists, draw_scaling
from posenc.rotary import MRope, Rope
from posenc.scaling import LongRope, QwenNTK

__all__ = ["RELATED_PICTURES"]

# Phi-3-mini-128k: 96 channels, trained at 4,096, extended 32 times.
PHI_3_SHORT = (
    *(1.05, 1.05, 1.05, 1.1, 1.1, 1.1, 1.25, 1.25, 1.4, 1.45, 1.55, 1.85, 1.9, *(2.0,) * 19),
    *(2.1, 2.1, 2.2, 2.35, 2.35, 2.35, 2.35, 2.4, 2.4, 2.65, 2.7, 2.9, 2.95, 3.05, 3.05, 3.05),
)
PHI_3_LONG = (
    *(1.03, 1.05, 1.05, 1.08, 1.23, 1.23, 1.3, 1.45, 1.6, 1.65, 1.9, 2.86, 3.69, 5.42, 5.49, 5.49),
    *(9.09, 11.58, 15.66, 15.77, 15.79, 18.36, 21.99, 23.08, 30.01, 32.35, 32.59, 35.56, 39.95),
    *(53.84, 56.2, 57.95, 59.29, 59.77, 59.92, 61.19, 61.96, 62.5, 63.37, 63.48, 63.48, 63.66),
    *(63.85, 64.08, 64.76, 64.8, 64.81, 64.81),
)


def _longrope() -> Picture:
    method = LongRope(PHI_3_SHORT, PHI_3_LONG, factor=32.0, original_length=4096)
    rope = Rope(96, scaling=method)
    amplitude = rope.frequencies().attention_factor
    note = (
        f"the lists of Phi-3-mini-128k: 96 channels, base {rope.base:,.0f}, factor 32; "
        f"logits times {amplitude**2:.3f}"
    )
    return Picture(RELATED["longrope"].title, note, (draw_lists(rope, method),))


def _qwen() -> Picture:
    entry = RELATED["qwen-ntk"]
    method = Method(
        entry.name, entry.title, entry.source, entry.summary, lambda _, length: QwenNTK(length)
    )
    note = "128 channels, base 10,000, at four times the trained length: NTK by 7"
    return Picture(entry.title, note, (draw_scaling(method),))


def _cells_at_time_0(shape: Shape) -> Tensor:
    cells = grid(*shape.window)
    return torch.cat((torch.zeros_like(cells[:, :1]), cells), -1)


def _mrope(shape: Shape) -> Scheme:
    sections = (12, 10, 10)  # Qwen3-VL's (24, 20, 20) for half as many channels
    return Scheme(rotary=MRope(Rope(shape.head_dim), sections, order="interleaved"))


def _axes(shape: Shape) -> Scheme:
    rows, columns = (T5Bias(shape.num_heads, num_buckets=8, max_distance=6) for _ in range(2))
    return Scheme(bias=AxesBias([rows, columns]))


def _encoding(
    name: str, build: Callable[[Shape], Scheme], positions: Callable[[Shape], Tensor]
) -> Encoding:
    return Encoding(**asdict(RELATED[name]), build=build, mask=None, positions=positions)


# By name, with how a picture of an encoding is made: that module imports this one.
RELATED_PICTURES: dict[str, Callable[[Callable[[Encoding], Picture]], Picture]] = {
    "longrope": lambda _: _longrope(),
    "qwen-ntk": lambda _: _qwen(),
    "mrope": lambda draw: draw(_encoding("mrope", _mrope, _cells_at_time_0)),
    "axes": lambda draw: draw(_encoding("axes", _axes, lambda shape: grid(*shape.window))),
}
