"""The functions that apply cos and sin in a live model, and the same ones for the other pairing.

transformers calls `apply_rotary_pos_emb` as a global of each modelling file. To change it for one
model only, that model's attention modules get a `forward` of their own with other globals.
"""

import dis
import functools
import inspect
import re
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from posenc.contracts import Pairing
from posenc.interop.live.modules import Form

__all__ = [
    "Apply",
    "applied_in",
    "direction_of",
    "normed_after",
    "other_pairing",
    "pairing_of",
    "unwrapped",
    "with_globals",
]

APPLY = re.compile(r"apply_\w*(rotary|rope)")
NORM = re.compile(r"(q|k|qk|query|key)_\w*norm")
ROTATED = ("q", "k", "x", "xq", "xk", "tensor", "query", "key")
TABLES = ("cos", "sin", "freqs_cis")

Apply = Callable[..., Any]


def applied_in(model: nn.Module) -> Iterator[tuple[nn.Module, str, Apply]]:
    """(module, global name, function) for every function that a forward of the text model applies."""
    for name, module in model.named_modules():
        forward = unwrapped(type(module).forward)
        code = getattr(forward, "__code__", None)
        if code is None or re.search(r"vision|visual|audio|indexer", name):
            continue
        for used in code.co_names:
            function = forward.__globals__.get(used)
            if APPLY.match(used) and callable(function) and "vision" not in used:
                yield module, used, function


def unwrapped(function: Any) -> Any:
    """The function inside decorators, partial functions and methods, however many there are."""
    while True:
        if isinstance(function, functools.partial | functools.partialmethod):
            function = function.func
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif isinstance(function, types.MethodType):
            function = function.__func__
        else:
            return function


def pairing_of(function: Apply, form: Form) -> tuple[Pairing, Pairing] | None:
    """Which channels a function turns together, in what it takes and in what it returns.

    Found from what it does to single channels; None where it is called in a way that is not known.
    The two differ in DeepSeek's, which takes adjacent pairs and returns halves.
    """
    width = 2 * form.num_pairs
    channels = torch.eye(width)[:, None, None]  # one in each row, [B, H, T, D]
    moved, still = (_applied(function, form, channels, pair) for pair in (0, None))
    if moved is None or still is None or moved.shape != channels.shape:
        return None
    taken = [row for row in range(width) if not torch.equal(moved[row], still[row])]
    given = sorted(int(still[row].argmax()) for row in taken)
    kinds: dict[tuple[int, ...], Pairing] = {(0, form.num_pairs): "half", (0, 1): "adjacent"}
    before, after = kinds.get(tuple(taken)), kinds.get(tuple(given))
    return None if before is None or after is None else (before, after)


def direction_of(function: Apply, form: Form) -> int | None:
    """Which way a function turns pairs by the tables that it is given: 1, or -1 (nanochat)."""
    channels = torch.eye(2 * form.num_pairs)[:, None, None]
    moved = _applied(function, form, channels, 0)
    return None if moved is None or moved.shape != channels.shape else int(moved[0].sum().sign())


def other_pairing(function: Apply, form: Form, own: Pairing, *, back: bool = False) -> Apply:
    """The function for queries and keys in the other pairing: they are brought to its own first.

    What it returns is in its own order, and so are cached keys: scores are the same. With `back` it
    is brought to the order of the weights again, which a norm behind the rotation needs.
    """
    signature, columns = inspect.signature(function), len(form.pairs) // form.num_pairs
    other: Pairing = "adjacent" if own == "half" else "half"

    def apply(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        table = next(bound.arguments[name] for name in TABLES if name in bound.arguments)
        width = table.shape[-1] * 2 // columns  # layer types may turn different widths (Gemma 4)
        for name in ROTATED:
            value = bound.arguments.get(name)
            if isinstance(value, Tensor):
                bound.arguments[name] = _reordered(value, width, own)
        output = function(*bound.args, **bound.kwargs)
        if not back:
            return output
        if isinstance(output, Tensor):
            return _reordered(output, width, other)
        return tuple(_reordered(x, width, other) for x in output)

    return apply


def normed_after(module: nn.Module) -> bool:
    """Whether an attention module norms queries or keys, with weights, after it rotated them.

    HunYuan and IDEFICS do. What a forward applies is read off its code, in the order it stands there.
    """
    names = [str(step.argval) for step in dis.get_instructions(unwrapped(type(module).forward))]
    applied = max(index for index, name in enumerate(names) if APPLY.match(name))
    norms = {name for name in names[applied:] if NORM.match(name)}
    parts = [part for name in norms if isinstance(part := getattr(module, name, None), nn.Module)]
    return any(True for part in parts for _ in part.parameters())


def with_globals(function: Any, changed: dict[str, Any]) -> Any:
    """A copy of a function, through its decorators, that sees other globals."""
    if isinstance(function, functools.partial):
        inside = with_globals(function.func, changed)
        return functools.partial(inside, *function.args, **function.keywords)
    inner = getattr(function, "__wrapped__", None)
    if inner is None:
        names = {**function.__globals__, **changed}
        names.pop(
            "__name__", None
        )  # or torch.compile looks the names up in the module of that name
        return _copied(function, names, function.__closure__)
    new = with_globals(inner, changed)
    cells = tuple(
        types.CellType(new) if cell.cell_contents is inner else cell
        for cell in function.__closure__ or ()
    )
    if not any(cell.cell_contents is new for cell in cells):
        raise ValueError(f"{function.__qualname__} is decorated in a way that cannot be followed")
    copied = _copied(function, function.__globals__, cells)
    copied.__wrapped__ = new
    return copied


def _copied(function: Any, names: dict[str, Any], cells: Any) -> Any:
    copied = types.FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, cells
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    copied.__dict__.update(function.__dict__)
    copied.__qualname__, copied.__module__ = function.__qualname__, function.__module__
    return copied


def _reordered(x: Tensor, width: int, to: Pairing) -> Tensor:
    turned, rest = x[..., :width], x[..., width:]
    grid = turned.unflatten(-1, (2, -1) if to == "adjacent" else (-1, 2))
    return torch.cat((grid.transpose(-1, -2).flatten(-2), rest), -1)


def _applied(function: Apply, form: Form, x: Tensor, pair: int | None) -> Tensor | None:
    """x with one pair turned by a quarter; None where the function is called in an unknown way."""
    columns = torch.tensor(form.pairs)
    sin = (columns == pair if pair is not None else columns < 0).float()[None, None]
    tables = {"cos": 1 - sin, "sin": sin, "freqs_cis": torch.complex(1 - sin, sin)}
    arguments: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name in ROTATED:
            arguments[name] = x
        elif name in TABLES:
            arguments[name] = tables[name]
        elif parameter.default is inspect.Parameter.empty:
            return None
    try:
        output = function(**arguments)
    except (RuntimeError, IndexError, TypeError, ValueError):
        return None
    return output[0] if isinstance(output, tuple) else output
