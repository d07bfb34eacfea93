"""The other rotary forms, query scales and positions in plain Python numbers, one at a time.

Like `oracles`: nothing of ours and no tensors are imported here.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

Vector = Sequence[float]
Cell = tuple[int, ...]


def turned(
    x: Vector,
    angles: Vector,
    *,
    pairing: str = "half",
    amplitudes: Vector | None = None,
    start: int = 0,
) -> list[float]:
    """Each pair of channels as one complex number, turned by its own angle."""
    out, num_pairs = list(x), len(angles)
    for pair, angle in enumerate(angles):
        first, second = (pair, pair + num_pairs) if pairing == "half" else (2 * pair, 2 * pair + 1)
        amplitude = 1.0 if amplitudes is None else amplitudes[pair]
        turn = complex(math.cos(angle), math.sin(angle)) * amplitude
        z = complex(x[start + first], x[start + second]) * turn
        out[start + first], out[start + second] = z.real, z.imag
    return out


# --- M-RoPE: Qwen2-VL, arXiv 2409.12191, section 2.1 ---------------------------------------------


def mrope_axis(pair: int, sections: Sequence[int], order: str) -> int:
    """Which coordinate turns this pair."""
    if order == "contiguous":  # the axis in whose run of pairs this one falls
        ends = [sum(sections[: axis + 1]) for axis in range(len(sections))]
        return next(axis for axis, end in enumerate(ends) if pair < end)
    if order == "interleaved":  # an axis keeps its turns until its section is used up
        axis, turn = pair % len(sections), pair // len(sections)
        return axis if turn < sections[axis] else 0
    assert order == "alternating" and len(sections) == 3
    spatial = sections[1] + sections[2]
    return 0 if pair >= spatial else (1, 2)[pair % 2]


def ggml_axis(pair: int, sections: Sequence[int]) -> int:
    """ggml's interleaved sections: a pair whose turn is past its section has a fourth coordinate."""
    axis = pair % 3
    return axis if pair < 3 * sections[axis] else 3


def mrope_angles(
    position: Sequence[float], width: int, base: float, sections: Sequence[int], order: str
) -> list[float]:
    """Pair i at its usual speed base**(−2i/width), of the coordinate that it has."""
    return [
        position[mrope_axis(pair, sections, order)] * base ** (-2.0 * pair / width)
        for pair in range(width // 2)
    ]


# --- Axial and mixed: RoPE-ViT, arXiv 2403.13298, section 3.2 -------------------------------------


def axial_angles(
    position: Sequence[float],
    widths: Sequence[int],
    base: float,
    *,
    axis_order: Sequence[int],
    alternating: bool = False,
    dealt: bool = False,
) -> list[float]:
    """Speeds anew for each axis (or one spectrum dealt out), in blocks or in turn."""
    places = [(axis, i) for axis in axis_order for i in range(widths[axis] // 2)]
    if alternating:
        places.sort(key=lambda place: place[1])
    angles = []
    for axis, i in places:
        exponent = -2.0 * i / widths[axis]
        if dealt:
            exponent = -2.0 * (len(widths) * i + list(axis_order).index(axis)) / sum(widths)
        angles.append(position[axis] * base**exponent)
    return angles


def centred(sides: Sequence[int], extent: float, ends: bool) -> list[Vector]:
    """Where the centre of each cell is, on each axis in [−extent, extent]; the last axis fastest."""
    cells: list[Vector] = [()]
    for side in sides:
        if ends:
            along = [extent * (2 * i / (side - 1) - 1) for i in range(side)]
        else:
            along = [extent * ((2 * i + 1) / side - 1) for i in range(side)]
        cells = [(*cell, place) for cell in cells for place in along]
    return cells


def mixed_angles(position: tuple[float, float], speeds: Sequence[Vector]) -> list[float]:
    return [position[0] * row + position[1] * column for row, column in zip(*speeds, strict=True)]


# --- xPos: arXiv 2212.10554, section 2.1.2 -------------------------------------------------------


def xpos_amplitudes(
    position: int,
    width: int,
    side: str,
    *,
    base: float = 512.0,
    origin: int = 0,
    gamma: float = 0.4,
) -> list[float]:
    zetas = [(2 * pair / width + gamma) / (1 + gamma) for pair in range(width // 2)]
    power = (position - origin) / base * (1 if side == "query" else -1)
    return [zeta**power for zeta in zetas]


# --- Log-length scaling --------------------------------------------------------------------------


def llama4_scale(position: int, attn_scale: float, floor_scale: int) -> float:
    return 1 + attn_scale * math.log(1 + (position + 1) // floor_scale)


def ministral_scale(position: int, beta: float, original: int) -> float:
    return 1 + beta * math.log(1 + position // original)


def log_n_scale(position: int, trained: int) -> float:
    """Su 2021 and Qwen v1: log of the number of keys, to the base of the trained length."""
    return math.log(position + 1, trained) if position + 1 > trained else 1.0


def inkling_scale(position: int, alpha: float, floor: int) -> float:
    return 1 + alpha * math.log(max((position + 1) / floor, 1.0))


def beam_scale(position: int) -> float:
    return (1 + (position + 1) / 2048) ** 0.1


# --- Positions -----------------------------------------------------------------------------------


def multimodal(
    parts: Sequence[tuple[int, ...]],
    *,
    seconds: Fraction | None = None,
    tokens_per_second: Fraction = Fraction(1),
    after_time: bool = True,
) -> list[Cell]:
    """Parts are (n,) for text, (h, w) for an image, (t, h, w) for a video."""
    cells: list[Cell] = []
    at = 0
    for part in parts:
        if len(part) == 1:
            cells += [(at + i,) * 3 for i in range(part[0])]
            at += part[0]
            continue
        frames, height, width = part if len(part) == 3 else (1, *part)
        step = (
            seconds * tokens_per_second if seconds is not None and len(part) == 3 else Fraction(1)
        )
        times = [math.floor(frame * step) for frame in range(frames)]
        cells += [
            (at + time, at + row, at + column)
            for time in times
            for row in range(height)
            for column in range(width)
        ]
        at += max([height, width] + ([times[-1] + 1] if after_time else []))
    return cells


def shards(num_tokens: int, num_ranks: int, layout: str) -> list[list[int]]:
    if layout == "striped":
        return [list(range(rank, num_tokens, num_ranks)) for rank in range(num_ranks)]
    runs = num_ranks * (2 if layout == "zigzag" else 1)
    size = num_tokens // runs
    cut = [list(range(run * size, (run + 1) * size)) for run in range(runs)]
    if layout == "contiguous":
        return cut
    return [cut[rank] + cut[2 * num_ranks - 1 - rank] for rank in range(num_ranks)]
