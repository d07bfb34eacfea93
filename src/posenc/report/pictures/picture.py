"""From a name of the registry to the numbers of its picture."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from posenc.contracts import RotaryEncoding, Scheme
from posenc.registry import ENCODINGS, SCALINGS, Encoding, Method, Shape
from posenc.report.pictures.additive import draw_additive
from posenc.report.pictures.bias import draw_bias
from posenc.report.pictures.nothing import draw_nothing
from posenc.report.pictures.panels import Panel, Picture
from posenc.report.pictures.related import RELATED_PICTURES
from posenc.report.pictures.relative import draw_relative
from posenc.report.pictures.rotary import draw_rotary
from posenc.report.pictures.scaling import FACTOR, TRAINED, draw_scaling, speeds
from posenc.rotary import Rope

__all__ = ["picture"]

TEXT, IMAGE, WINDOW = (Shape(dim=256, num_heads=4, length=n) for n in (256, 12 * 16, 6 * 8))
TABLE = Shape(dim=128, num_heads=2, length=64)
SEED = 0


def picture(name: str) -> Picture:
    """The picture of anything that has a page; KeyError for any other name.

    >>> [panel.title for panel in picture("alibi").rows[0]]
    ['Added to a logit, by distance', 'All pairs, head 0']

    Seeded: the same numbers every time, and the global generator is left as it was.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        if name in ENCODINGS:
            return _of_encoding(ENCODINGS[name])
        if name in RELATED_PICTURES:
            return RELATED_PICTURES[name](_of_encoding)
        return _of_scaling(SCALINGS[name])


def _of_encoding(entry: Encoding) -> Picture:
    shape = _shape(entry)
    scheme = entry.build(shape)
    note = _note(scheme, shape)
    at = torch.arange(shape.length) if entry.positions is None else entry.positions(shape)
    rows = tuple(_rows(scheme, entry, shape, at))
    return Picture(entry.title, note, rows or (draw_nothing(scheme, at),))


def _shape(entry: Encoding) -> Shape:
    """Small enough that each cell of a picture can be seen."""
    if entry.positions is None:
        return TABLE if entry.enters.startswith("additive") else TEXT
    return WINDOW if entry.enters in ("bias", "relative") else IMAGE


def _rows(scheme: Scheme, entry: Encoding, shape: Shape, at: Tensor) -> Iterator[tuple[Panel, ...]]:
    """The panels of each field that is set."""
    if scheme.additive is not None:
        yield draw_additive(scheme.additive, at, shape.window)
    if scheme.rotary is not None:
        yield draw_rotary(_scales(scheme.rotary), at, shape.window)
    if scheme.bias is not None:
        yield draw_bias(scheme.bias, at, entry.mask, shape.window)
    if scheme.relative is not None:
        yield draw_relative(scheme.relative, shape.num_heads, at, entry.mask, shape.window)


def _scales(rotary: RotaryEncoding) -> dict[str, RotaryEncoding]:
    """The rotation and, where its scale is learned, what it becomes at other scales."""
    scale = getattr(rotary, "scale", None)
    if not isinstance(scale, nn.Parameter) or not isinstance(rotary, nn.Module):
        return {"": rotary}
    made: dict[str, RotaryEncoding] = {}
    for value in (1.0, 0.25, 4.0):
        other = type(rotary)(rotary.rope, initial_scale=value)  # pyright: ignore
        made[f", scale {value:g}"] = other
    return made


def _note(scheme: Scheme, shape: Shape) -> str:
    """What it was drawn from; parts whose parameters are all zero are drawn at random."""
    size = f"width {shape.dim}, {shape.num_heads} heads, length {shape.length}"
    parameters = [p for part in scheme.modules().values() for p in part.parameters()]
    if not parameters:
        return f"{size}; nothing is learned"
    if any(bool(p.any()) for p in parameters):
        return f"{size}; parameters as initialised, seed {SEED}"
    for parameter in parameters:
        nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    return f"{size}; parameters begin at zero and are drawn at random here, seed {SEED}"


def _of_scaling(method: Method) -> Picture:
    rope = Rope(2 * len(speeds(None)), scaling=method.build(FACTOR, TRAINED))
    made = rope.at_length(int(FACTOR * TRAINED)).frequencies()
    note = f"{rope.head_dim} channels, base {rope.base:,.0f}, factor {FACTOR:g}"
    if made.attention_factor != 1:
        note += f"; logits times {made.attention_factor**2:.3f}"
    return Picture(method.title, note, (draw_scaling(method),))
