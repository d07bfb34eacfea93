"""Which layer of a model is which: types, windows, and layers without attention or rotation."""

from posenc.interop.families import Family
from posenc.interop.keys import Keys, shown

__all__ = [
    "MAX_LAYERS",
    "WITHOUT_ATTENTION",
    "layer_types",
    "listed_layers",
    "num_layers",
    "spelled",
    "windows",
]

MAX_LAYERS = 4096

# Layers that mix tokens by recurrence or convolution, or not at all: position enters elsewhere.
WITHOUT_ATTENTION = frozenset(
    {"linear_attention", "recurrent", "conv", "mamba", "mamba2", "lightning_attention"}
    | {"mlp", "moe", "dense"}
)

_LETTERS = {
    "F": "full_attention",
    "S": "sliding_attention",
    "L": "linear_attention",
    "R": "recurrent",
    "K": "conv",
    "I": "indexed_attention",
    "C": "compressed_sparse_attention",
    "H": "heavily_compressed_attention",
    "Z": "hybrid",
}
_LISTS = ("layer_types", "layers_block_type", "block_types")


def num_layers(keys: Keys) -> int:
    """How many layers the model has; a list of their types says it too."""
    name = next((name for name in _LISTS[:2] if name in keys), None)
    if "num_hidden_layers" not in keys and name is not None:
        listed = keys.get(name)
        if isinstance(listed, list | tuple) and 0 < len(listed) <= MAX_LAYERS:
            return len(listed)
    return keys.integer("num_hidden_layers", high=MAX_LAYERS)


def layer_types(keys: Keys, family: Family, count: int) -> tuple[str | None, ...]:
    """The type of each layer: the config's list, or the family's published order."""
    name = next((name for name in _LISTS if name in keys), None)
    if name is not None:
        return _listed(keys, name, count)
    if "attn_layer_indices" in keys:  # Bamba: every other layer is a recurrence
        attends = set(_indices(keys, "attn_layer_indices", count))
        return tuple("full_attention" if i in attends else "linear_attention" for i in range(count))
    if not family.layers:
        return (None,) * count
    return spelled(_with_period(keys, family), count)


def spelled(order: str, count: int) -> tuple[str, ...]:
    """The types that an order spells: head|cycle|tail in letters; "<" counts from the last layer.

    >>> spelled("F|SSF|", 4)
    ('full_attention', 'sliding_attention', 'full_attention', 'sliding_attention')
    """
    head, cycle, tail = _parts(order)
    if cycle.startswith("<"):
        letters = [cycle[1:][(count - 1 - i) % len(cycle[1:])] for i in range(count)]
    else:
        letters = [cycle[i % len(cycle)] for i in range(count)]
    letters[: len(head)] = head
    if tail and count:
        letters[-len(tail) :] = tail
    return tuple(_LETTERS[letter] for letter in letters[:count])


def windows(keys: Keys, family: Family, types: tuple[str | None, ...]) -> tuple[int | None, ...]:
    """Sliding windows in tokens; empty where no layer has one."""
    if "sliding_window" not in keys or not keys.flag("use_sliding_window", default=True):
        return ()
    slides = [family.windowed if kind is None else "sliding" in kind for kind in types]
    if not any(slides):
        return ()
    width = keys.integer("sliding_window", low=0)
    return tuple(width or None if slide else None for slide in slides)


def listed_layers(keys: Keys, name: str, count: int) -> tuple[bool, ...]:
    """Whether each layer is in a list of indices."""
    inside = set(_indices(keys, name, count))
    return tuple(i in inside for i in range(count))


def _listed(keys: Keys, name: str, count: int) -> tuple[str | None, ...]:
    """The list under a key; layers that predict further tokens may be listed after the rest."""
    listed = keys.get(name)
    length = len(listed) if isinstance(listed, list | tuple) else -1
    further = "num_nextn_predict_layers"
    more = keys.integer(further, low=0) if further in keys else 0
    cycles = name == "block_types" and 0 < length < count  # RecurrentGemma gives one cycle
    kinds = keys.sequence(name, length if cycles or length == count + more else count, "layer")
    for kind in kinds:
        if not isinstance(kind, str):
            keys.fail(name, kind, "a list of layer types, as strings")
    return tuple(kinds[i % len(kinds)] for i in range(count))


def _indices(keys: Keys, name: str, count: int) -> tuple[int, ...]:
    listed = keys.get(name)
    if not isinstance(listed, list | tuple):
        keys.fail(name, listed, "a list of layer indices")
    for index in listed:
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < count:
            keys.fail(name, index, f"indices of layers, from 0 to {count - 1}")
    return tuple(listed)


def _with_period(keys: Keys, family: Family) -> str:
    """The family's order, with the period that the config gives."""
    order = family.layers
    if not family.period or family.period not in keys:
        return order
    period = keys.get(family.period)
    if isinstance(period, str) and period and set(period) <= {"L", "G"}:  # EXAONE: local, global
        return period.replace("L", "S").replace("G", "F")
    if family.unless_no_window and "sliding_window" not in keys and shown(period) == "0":
        return "F"
    size = keys.integer(family.period, high=MAX_LAYERS)
    head, cycle, tail = _parts(order)
    odd_last = len(cycle) == 2 or cycle[0] == cycle[1]
    cycle = cycle[0] * (size - 1) + cycle[-1] if odd_last else cycle[0] + cycle[1] * (size - 1)
    return f"{head}|{cycle}|{tail}"


def _parts(order: str) -> tuple[str, str, str]:
    parts = order.split("|")
    if len(parts) == 1:
        return "", order, ""
    if len(parts) == 2:  # cycle|tail
        return "", parts[0], parts[1]
    return parts[0], parts[1], parts[2]
