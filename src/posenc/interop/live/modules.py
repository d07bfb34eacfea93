"""The rotary modules of a live model: which there are, and in which form they give out angles.

Every family has a rotary module of its own class, and they differ in the width, the order and the
dtype of what they return. The form is found by asking a copy of the module, with frequencies that
can be told apart, so nothing here lists families.
"""

import copy
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from posenc.contracts import RotaryEncoding

__all__ = ["Form", "SwappedForward", "layer_types", "probe", "rotary_modules"]

OTHER_MODALITIES = ("Vision", "Audio", "Image", "Video", "Speech")
WIDEST_ANGLE = 1.5  # radians: below a quarter turn cos and sin give the angle without ambiguity


@dataclass(frozen=True)
class Form:
    """What a rotary module returns: the pair and the coordinate behind each of its columns.

    Llama gives (cos, sin) with every pair twice, one half after the other; Cohere the same pairs
    side by side; gpt-oss each once; GPT-J sin first; Llama 4 complex numbers.
    """

    kind: Literal["cos_sin", "sin_cos", "complex"]
    pairs: tuple[int, ...]
    axes: tuple[int, ...]  # all 0 where a token has one position
    num_axes: int
    dtype: torch.dtype | None  # None: the dtype of the activations

    @property
    def num_pairs(self) -> int:
        return max(self.pairs) + 1

    def angles(self, rope: RotaryEncoding, positions: Tensor, x: Tensor) -> Any:
        """What the module would return at `positions`, from the tables of `rope`."""
        cos, sin = self._columns(rope, positions)
        if self.kind == "complex":
            return torch.complex(cos, sin).to(x.device)
        dtype = x.dtype if self.dtype is None else self.dtype
        cos, sin = cos.to(x.device, dtype), sin.to(x.device, dtype)
        return (cos, sin) if self.kind == "cos_sin" else (sin, cos)

    def _columns(self, rope: RotaryEncoding, positions: Tensor) -> tuple[Tensor, Tensor]:
        mixed = self.num_axes > 1 and positions.ndim == 3
        coordinates = getattr(rope, "num_axes", 1)
        if coordinates > 1:
            last = positions.movedim(0, -1) if mixed else positions[..., None]
            cos, sin = _tables(rope, last.expand(*last.shape[:-1], coordinates), 2)
        else:
            cos, sin = _tables(rope, positions, 1)
        if mixed and coordinates == 1:  # one table for each coordinate
            cos, sin = (part.movedim(0, -2)[..., self.axes, self.pairs] for part in (cos, sin))
            return cos, sin
        return self._spread(cos), self._spread(sin)

    def _spread(self, pairs: Tensor) -> Tensor:
        """`[..., pairs]` -> `[..., columns]`; the usual orders need no index on the device."""
        once = tuple(range(pairs.shape[-1]))
        if self.pairs == once:
            return pairs
        if self.pairs == 2 * once:
            return torch.cat((pairs, pairs), -1)
        return pairs[..., self.pairs]


class SwappedForward:
    """The forward of a rotary module whose angles come from posenc values, by layer type."""

    def __init__(
        self, original: Callable[..., Any], ropes: dict[str | None, tuple[RotaryEncoding, Form]]
    ) -> None:
        self.original = original
        self.ropes = ropes

    def __call__(
        self, x: Tensor, position_ids: Tensor | None = None, layer_type: str | None = None
    ) -> Any:
        found = self.ropes.get(layer_type, self.ropes.get(None))
        if found is None or position_ids is None:
            given = (position_ids, layer_type)
            return self.original(x, *(value for value in given if value is not None))
        rope, form = found
        return form.angles(rope, position_ids, x)


def rotary_modules(model: nn.Module) -> dict[str, nn.Module]:
    """The rotary modules of the text model, by name: those that take `position_ids`."""
    found = {}
    for name, module in model.named_modules():
        kind = type(module).__name__
        text = "Rotary" in kind and not any(word in kind for word in OTHER_MODALITIES)
        if text and "position_ids" in inspect.signature(type(module).forward).parameters:
            found[name] = module
    return found


def layer_types(module: nn.Module) -> list[str]:
    """The layer types that a module keeps frequencies for, or none where all layers share them."""
    names = [name for name, _ in module.named_buffers(recurse=False)]
    ends = [name.removesuffix("_inv_freq") for name in names if name.endswith("_inv_freq")]
    return [name for name in ends if name != "original" and not name.endswith("_original")]


def probe(module: nn.Module, layer_type: str | None = None) -> Form:
    """The form of a module's output, from what a copy of it returns.

    Raises ValueError where the rotation learns, or its output has a form that is not known.
    """
    kind = type(module).__name__
    learned = [name for name, _ in module.named_parameters()]
    if learned:
        raise ValueError(f"{kind} learns {', '.join(learned)}: a value cannot stand in for it")
    asked = _Asked(module, layer_type)
    at_zero, output = asked.at(0), asked.at(1)
    if isinstance(output, Tensor) and output.is_complex():
        order: Literal["cos_sin", "sin_cos", "complex"] = "complex"
    elif isinstance(output, tuple) and len(output) == 2:
        order = "cos_sin" if not at_zero[1].any() else "sin_cos"
    else:
        raise ValueError(f"{kind} returns a {type(output).__name__}: cos and sin were expected")
    angle = _angle(output, order).flatten()
    pairs = asked.pairs_of(angle)
    num_axes, axes = _axes(asked, order, len(pairs))
    low = asked.at(1, dtype=torch.bfloat16)
    kept = None if order == "complex" or low[0].dtype == torch.bfloat16 else low[0].dtype
    return Form(order, pairs, axes, num_axes, kept)


class _Asked:
    """A copy of a rotary module with frequencies that can be told apart, where it keeps any."""

    def __init__(self, module: nn.Module, layer_type: str | None) -> None:
        self.kind = type(module).__name__
        self.forward = inspect.unwrap(type(module).forward)  # without updates by length
        self.module, self.layer_type = copy.deepcopy(module), layer_type
        vars(self.module).pop("forward", None)  # asked while a swap is in place
        self.name = "inv_freq" if layer_type is None else f"{layer_type}_inv_freq"
        old = getattr(self.module, self.name, None)
        device = next((buffer.device for buffer in module.buffers()), torch.device("cpu"))
        self.device = torch.device("cpu") if device.type == "meta" else device
        if old is not None:
            count = old.numel()
            steps = torch.arange(1, count + 1, dtype=torch.float32, device=self.device)
            self.frequencies = steps * (WIDEST_ANGLE / (count + 1))
            setattr(self.module, self.name, self.frequencies)

    def at(self, position: int | list[int], *, dtype: torch.dtype = torch.float32) -> Any:
        ids = torch.tensor(position, device=self.device).view(-1, 1, 1)
        ids = ids[0] if isinstance(position, int) else ids
        x = torch.zeros(1, 1, 1, dtype=dtype, device=self.device)
        extra = () if self.layer_type is None else (self.layer_type,)
        with torch.no_grad():
            return self.forward(self.module, x, ids, *extra)

    def pairs_of(self, angle: Tensor) -> tuple[int, ...]:
        """The pair behind each column: by its frequency, or where that has no effect by equality."""
        known = getattr(self, "frequencies", None)
        if known is not None:
            distance = (angle[:, None] - known).abs()
            nearest = distance.argmin(1)
            if bool((distance.min(1).values < WIDEST_ANGLE / (4 * known.numel())).all()):
                return tuple(self._pair_numbers()[nearest].tolist())
        first: dict[float, int] = {}
        pairs = []
        for value in angle.tolist():
            pairs.append(first.setdefault(value, len(first)))
        if len(pairs) not in (len(first), 2 * len(first)):
            raise ValueError(f"{self.kind}: {len(pairs)} columns for {len(first)} frequencies")
        return tuple(pairs)

    def _pair_numbers(self) -> Tensor:
        """Which pair each stored frequency is of: ERNIE 4.5 VL stores them sorted by coordinate."""
        count = self.frequencies.numel()
        numbers = torch.arange(count, device=self.device)
        compute = getattr(type(self.module), "compute_default_rope_parameters", None)
        if compute is None or self.layer_type is not None:
            return numbers
        unscaled, _ = compute(self.module.config)
        ranked = (-unscaled).argsort(stable=True).argsort().to(self.device)
        return ranked if len(ranked) == count else numbers


def _axes(asked: _Asked, order: str, num_columns: int) -> tuple[int, tuple[int, ...]]:
    """How many coordinates a token has, and which one each column turns with."""
    for num_axes in (3, 2, 4):
        turned = []
        for axis in range(num_axes):
            try:
                output = asked.at([int(axis == other) for other in range(num_axes)])
            except RuntimeError:  # it asks for another number of coordinates
                break
            turned.append(_angle(output, order).abs() > 0)
        if len(turned) == num_axes and turned[0].ndim == 3:
            which = torch.stack([part.flatten() for part in turned]).int().argmax(0)
            return num_axes, tuple(which.tolist())
    return 1, (0,) * num_columns


def _angle(output: Any, order: str) -> Tensor:
    if order == "complex":
        return output.angle()
    cos, sin = output if order == "cos_sin" else output[::-1]
    return torch.atan2(sin.float(), cos.float())


def _tables(rope: RotaryEncoding, positions: Tensor, num_token_dims: int) -> tuple[Tensor, Tensor]:
    """cos and sin `[..., T, pairs]` at `[..., T]` positions (with axes behind: `[..., T, A]`)."""
    lead = positions.shape[: positions.ndim - num_token_dims]
    flat = positions.reshape(math.prod(lead), *positions.shape[len(lead) :])
    table = rope.tables(flat, flat).q
    shape = (*lead, *table.cos.shape[-2:])
    return table.cos.reshape(shape), table.sin.reshape(shape)
