"""The papers' formulas in plain Python floats, one scalar at a time.

Nothing of ours and no tensors are imported here: a fault in the library cannot be repeated in the
value that it is compared with. Vectors are lists of one head's channels.
"""

import math
from collections.abc import Callable, Sequence

Vector = Sequence[float]


def dot(a: Vector, b: Vector) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


# --- Rotary: RoFormer, arXiv 2104.09864, section 3.2.2 -------------------------------------------


def frequency(pair: int, width: int, base: float) -> float:
    """Radians per position of one pair (eq. 15)."""
    return base ** (-2.0 * pair / width)


def frequencies(width: int, base: float) -> list[float]:
    return [frequency(pair, width, base) for pair in range(width // 2)]


def rotated(
    x: Vector,
    position: float,
    inv_freq: Vector,
    *,
    pairing: str = "half",
    amplitude: float = 1.0,
    start: int = 0,
) -> list[float]:
    """Each pair of channels as one complex number, turned by position · inv_freq (eq. 12)."""
    out = list(x)
    num_pairs = len(inv_freq)
    for pair, speed in enumerate(inv_freq):
        first, second = (pair, pair + num_pairs) if pairing == "half" else (2 * pair, 2 * pair + 1)
        angle = position * speed
        turn = complex(math.cos(angle), math.sin(angle)) * amplitude
        turned = complex(x[start + first], x[start + second]) * turn
        out[start + first], out[start + second] = turned.real, turned.imag
    return out


def blended(a: Vector, b: Vector, weight: float) -> list[float]:
    """weight · a + (1 − weight) · b."""
    return [weight * x + (1 - weight) * y for x, y in zip(a, b, strict=True)]


# --- Scaling methods: pair -> radians per position -----------------------------------------------


def linear_frequencies(width: int, base: float, factor: float) -> list[float]:
    """Chen 2023, arXiv 2306.15595, eq. 4: position / factor."""
    return [speed / factor for speed in frequencies(width, base)]


def ntk_frequencies(width: int, base: float, factor: float, rule: str = "bloc97") -> list[float]:
    """bloc97 2023 (YaRN paper, section 3.1); "fixed" is kexue.fm 9706, "plain" the base alone."""
    if rule == "bloc97":
        return frequencies(width, base * factor ** (width / (width - 2)))
    speeds = frequencies(width, base * factor)
    return speeds if rule == "plain" else [s / factor ** (2 / width) for s in speeds]


def dynamic_ntk_base(width: int, base: float, factor: float, trained: int, length: int) -> float:
    """emozilla 2023: the base in use at a length."""
    if length <= trained:
        return base
    return base * (factor * length / trained - (factor - 1)) ** (width / (width - 2))


def qwen_ntk_frequencies(width: int, base: float, trained: int, length: int) -> list[float]:
    """NTK-aware by the odd number 2ᵏ − 1 with 2ᵏ ≥ 2 · length / trained; 1 within the trained one."""
    power = 2
    while length * 2 > trained * power:
        power *= 2
    return ntk_frequencies(width, base, 1.0 if length <= trained else power - 1.0)


def yarn_ramp_ends(
    width: int, base: float, trained: int, fast: float, slow: float, truncate: bool
) -> tuple[float, float]:
    """Pairs that make exactly `fast` and `slow` turns over the trained length, as in YaRN's code.

    trained · base**(-2i/d) = 2π · turns, solved for i.
    """

    def pair_that_turns(turns: float) -> float:
        return width / 2 * math.log(trained / (2 * math.pi * turns), base)

    low, high = pair_that_turns(fast), pair_that_turns(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    return max(low, 0), min(high, width - 1)


def yarn_frequencies(
    width: int,
    base: float,
    factor: float,
    trained: int,
    *,
    fast: float = 32.0,
    slow: float = 1.0,
    truncate: bool = True,
) -> list[float]:
    """Peng 2023, arXiv 2309.00071, section 3.2: 0 keeps the speed, 1 divides it by the factor."""
    low, high = yarn_ramp_ends(width, base, trained, fast, slow, truncate)
    speeds = []
    for pair, speed in enumerate(frequencies(width, base)):
        if low == high:
            ramp = 0.0 if pair <= low else 1.0
        else:
            ramp = min(max((pair - low) / (high - low), 0.0), 1.0)
        speeds.append((1 - ramp) * speed + ramp * speed / factor)
    return speeds


def yarn_amplitude(factor: float, mscale: float = 1.0) -> float:
    """Peng 2023, section 3.4 (the square root of 1/t): what multiplies cos and sin."""
    return 0.1 * mscale * math.log(factor) + 1.0


def llama3_frequencies(
    width: int, base: float, factor: float, trained: int, low: float = 1.0, high: float = 4.0
) -> list[float]:
    """Meta's released code for Llama 3.1."""
    speeds = []
    for speed in frequencies(width, base):
        wavelength = 2 * math.pi / speed
        if wavelength < trained / high:
            speeds.append(speed)
        elif wavelength > trained / low:
            speeds.append(speed / factor)
        else:
            smooth = (trained / wavelength - low) / (high - low)
            speeds.append((1 - smooth) * speed / factor + smooth * speed)
    return speeds


def longrope_frequencies(width: int, base: float, divisors: Vector) -> list[float]:
    """Ding 2024, arXiv 2402.13753: a divisor for each pair."""
    return [s / d for s, d in zip(frequencies(width, base), divisors, strict=True)]


def longrope_amplitude(factor: float, trained: int) -> float:
    return math.sqrt(1 + math.log(factor) / math.log(trained))


def proportional_frequencies(
    width: int, base: float, fraction: float, factor: float = 1.0
) -> list[float]:
    """Barbero 2024, arXiv 2410.06205: slow pairs stand still."""
    num_turning = int(fraction * width // 2)
    speeds = frequencies(width, base)
    return [speed / factor if pair < num_turning else 0.0 for pair, speed in enumerate(speeds)]


# --- Added to embeddings -------------------------------------------------------------------------


def sinusoid(
    position: int,
    channel: int,
    dim: int,
    *,
    base: float = 10_000.0,
    denominator: str = "d",
    layout: str = "alternating",
) -> float:
    """Vaswani 2017, section 3.5; "d-2" and "concatenated" as in tensor2tensor and fairseq."""
    num_sines = (dim + 1) // 2 if denominator == "d" else dim // 2
    if layout == "alternating":
        pair, is_sine = channel // 2, channel % 2 == 0
    else:
        pair, is_sine = channel % num_sines, channel < num_sines
    if denominator == "d":
        exponent = 2 * pair / dim
    elif channel == 2 * num_sines:  # an odd dim has one channel left over: zero
        return 0.0
    else:
        exponent = pair / max(num_sines - 1, 1)
    angle = position / base**exponent
    return math.sin(angle) if is_sine else math.cos(angle)


def learned_row(position: int, *, offset: int = 0, padding_idx: int | None = None) -> int:
    """Row of the table for a position; RoBERTa's first token reads row padding_idx + 1."""
    return position + (offset if padding_idx is None else padding_idx + 1)


# --- Biases --------------------------------------------------------------------------------------


def alibi_slopes(num_heads: int) -> list[float]:
    """Press 2022, arXiv 2108.12409: the authors' `get_slopes`, recursive as they wrote it."""

    def geometric(n: int) -> list[float]:
        ratio = 2.0 ** (-(2.0 ** -(math.log2(n) - 3)))
        return [ratio * ratio**i for i in range(n)]

    if math.log2(num_heads).is_integer():
        return geometric(num_heads)
    closest = 2 ** math.floor(math.log2(num_heads))
    return geometric(closest) + alibi_slopes(2 * closest)[0::2][: num_heads - closest]


def alibi(slope: float, q_pos: int, k_pos: int, *, symmetric: bool = False) -> float:
    distance = abs(q_pos - k_pos) if symmetric else max(q_pos - k_pos, 0)
    return -slope * distance


def alibi_slopes_of(num_heads: int, bias_max: float) -> list[float]:
    """MPT's rule: the slopes of the power of two above, every second first, then the others."""
    above = 1
    while above < num_heads:
        above *= 2
    every = [2.0 ** (-bias_max * (i + 1) / above) for i in range(above)]
    return every if above == num_heads else (every[1::2] + every[0::2])[:num_heads]


def kerple(form: str, r1: float, r2: float, q_pos: int, k_pos: int) -> float:
    """Chi 2022, arXiv 2205.09921, section 4."""
    distance = abs(q_pos - k_pos)
    if form == "log":
        return -r1 * math.log(1 + r2 * distance)
    return -r1 * distance**r2


def sandwich(head: int, num_heads: int, q_pos: int, k_pos: int, *, width: int = 128) -> float:
    """Chi 2022, arXiv 2212.10356, section 5: p_q · p_k of two sinusoids, over the ratio 8h/H."""
    pairs = [10_000.0 ** (2 * i / width) for i in range(width // 2)]
    vectors = [
        [f(position / length) for length in pairs for f in (math.sin, math.cos)]
        for position in (q_pos, k_pos)
    ]
    return dot(vectors[0], vectors[1]) / (8.0 * (head + 1) / num_heads)


def fire(
    mlp: tuple[Vector, Vector, Vector, float],
    c: float,
    threshold: float,
    q_pos: int,
    k_pos: int,
) -> float:
    """Li 2023, arXiv 2310.04418, eq. 4 and 5, and the 1e-6 of its code; `mlp` gives one head."""

    def psi(x: float) -> float:
        return math.log(abs(c * x) + 1)

    share = psi(q_pos - k_pos) / (psi(max(abs(threshold), q_pos)) + 1e-6)
    first, offsets, second, last = mlp
    hidden = [max(w * share + b, 0.0) for w, b in zip(first, offsets, strict=True)]
    return dot(hidden, second) + last


def swinv2_coordinate(offset: int, side: int) -> float:
    """Liu 2022, arXiv 2111.09883, eq. 4, released code: up to 8, in base 8; a side of 1 is 0."""
    if side == 1:
        return 0.0
    share = 8.0 * offset / (side - 1)
    return math.copysign(math.log2(abs(share) + 1) / math.log2(8), share)


def swinv2(
    hidden: Sequence[Vector], offsets: Vector, out: Vector, cell: Vector, sides: tuple[int, int]
) -> float:
    """Eq. 3 and the released 16 · sigmoid, for one head and one (row, column) offset."""
    x = [swinv2_coordinate(int(d), side) for d, side in zip(cell, sides, strict=True)]
    units = [max(dot(row, x) + b, 0.0) for row, b in zip(hidden, offsets, strict=True)]
    return 16.0 / (1.0 + math.exp(-dot(units, out)))


def beit_row(q: tuple[int, int] | None, k: tuple[int, int] | None, window: tuple[int, int]) -> int:
    """Bao 2021, released code; None is the class token."""
    num_rows = (2 * window[0] - 1) * (2 * window[1] - 1) + 3
    if q is None or k is None:
        return num_rows - (1 if q is None and k is None else 3 if q is None else 2)
    return swin_row(q[0] - k[0], q[1] - k[1], window)


def cubic_weight(x: float) -> float:
    """Keys' kernel with a = −0.75, the bicubic of PyTorch."""
    x, a = abs(x), -0.75
    if x <= 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a if x < 2 else 0.0


def bicubic(grid: Sequence[Vector], height: int, width: int, row: int, column: int) -> float:
    """One value of `grid` resized to height × width: half-pixel centres, edges repeated."""

    def taps(index: int, old: int, new: int) -> list[tuple[int, float]]:
        place = (index + 0.5) * old / new - 0.5
        first = math.floor(place) - 1
        return [(min(max(i, 0), old - 1), cubic_weight(place - i)) for i in range(first, first + 4)]

    return math.fsum(
        a * b * grid[i][j]
        for i, a in taps(row, len(grid), height)
        for j, b in taps(column, len(grid[0]), width)
    )


def t5_bucket(
    relative: int, *, num_buckets: int = 32, max_distance: int = 128, bidirectional: bool = True
) -> int:
    """Raffel 2020, section 2.1, from the released mesh-tensorflow formula; relative = k − q."""
    first = 0
    if bidirectional:
        num_buckets //= 2
        first = num_buckets if relative > 0 else 0
        distance = abs(relative)
    else:
        distance = max(-relative, 0)
    exact = num_buckets // 2
    if distance < exact:
        return first + distance
    share = math.log(distance / exact) / math.log(max_distance / exact)
    # Edges are exact powers: float64 may land 1e-15 below one, no other distance comes so near.
    bucket = exact + math.floor(share * (num_buckets - exact) + 1e-9)
    return first + min(bucket, num_buckets - 1)


def swin_row(row_offset: int, column_offset: int, window: tuple[int, int]) -> int:
    """Liu 2021, eq. 4, released code: offsets shifted to start at 0, rows of 2·width − 1."""
    height, width = window
    return (row_offset + height - 1) * (2 * width - 1) + (column_offset + width - 1)


def shaw_row(relative: int, max_distance: int) -> int:
    """Shaw 2018, eq. 6: clip(k − q) counted from −max_distance."""
    return max(-max_distance, min(max_distance, relative)) + max_distance


# --- Attention of one head -----------------------------------------------------------------------


def softmax_attention(
    logits: Sequence[Vector],
    allowed: Callable[[int, int], bool],
    value: Callable[[int, int], Vector],
) -> list[list[float]]:
    """Σ_j softmax(logits)_ij · value(i, j) over the allowed keys; no key at all gives zeros."""
    out = []
    for i, row in enumerate(logits):
        keys = [j for j in range(len(row)) if allowed(i, j)]
        highest = max((row[j] for j in keys), default=0.0)
        weights = {j: math.exp(row[j] - highest) for j in keys}
        total = math.fsum(weights.values())
        width = len(value(i, 0))
        out.append(
            [
                math.fsum(weights[j] / total * value(i, j)[channel] for j in keys)
                for channel in range(width)
            ]
        )
    return out


def elu_plus_one(x: float) -> float:
    """Katharopoulos 2020, arXiv 2006.16236, eq. 7."""
    return x + 1 if x > 0 else math.exp(x)


def linear_attention(
    q: Sequence[Vector],
    k: Sequence[Vector],
    v: Sequence[Vector],
    allowed: Callable[[int, int], bool],
    turn_q: Callable[[int, Vector], Vector],
    turn_k: Callable[[int, Vector], Vector],
) -> list[list[float]]:
    """RoFormer, section 3.3, eq. 19, written out: turned features above, unturned below."""
    features_q = [[elu_plus_one(x) for x in row] for row in q]
    features_k = [[elu_plus_one(x) for x in row] for row in k]
    out = []
    for i, query in enumerate(features_q):
        keys = [j for j in range(len(k)) if allowed(i, j)]
        above = [dot(turn_q(i, query), turn_k(j, features_k[j])) for j in keys]
        below = math.fsum(dot(query, features_k[j]) for j in keys)
        out.append(
            [
                math.fsum(w * v[j][channel] for w, j in zip(above, keys, strict=True)) / below
                if keys
                else 0.0
                for channel in range(len(v[0]))
            ]
        )
    return out
