"""Added vectors in plain Python numbers, one channel at a time.

Like `oracles`: nothing of ours and no tensors are imported here.
"""

import math
from collections.abc import Sequence

Point = Sequence[float]
Matrix = Sequence[Sequence[float]]


# --- Sinusoids -----------------------------------------------------------------------------------


def sinusoid(
    position: float,
    channel: int,
    dim: int,
    *,
    base: float = 10_000.0,
    denominator: str = "d",
    layout: str = "alternating",
    first: str = "sine",
) -> float:
    """Vaswani 2017, section 3.5, at an even dim; the forms of fairseq, MusicGen and diffusers."""
    half = dim // 2
    if layout == "alternating":
        pair, is_first = channel // 2, channel % 2 == 0
    else:
        pair, is_first = channel % half, channel < half
    exponent = pair / half if denominator == "d" else pair / (half - 1)
    angle = position * base**-exponent
    return math.sin(angle) if is_first == (first == "sine") else math.cos(angle)


def timestep(
    time: float,
    channel: int,
    dim: int,
    *,
    flip_sin_to_cos: bool,
    downscale_freq_shift: float,
    scale: float,
) -> float:
    """diffusers' get_timestep_embedding (Ho 2020, arXiv 2006.11239), at an even dim."""
    half = dim // 2
    exponent = -math.log(10_000.0) * (channel % half) / (half - downscale_freq_shift)
    angle = scale * (time * math.exp(exponent))
    return math.sin(angle) if (channel < half) != flip_sin_to_cos else math.cos(angle)


# --- Several coordinates -------------------------------------------------------------------------


def axial_sinusoid(
    point: Point,
    channel: int,
    dim: int,
    *,
    bases: Sequence[float] = (10_000.0, 10_000.0),
    axis_order: Sequence[int] = (0, 1),
    layout: str = "alternating",
) -> float:
    """DETR (arXiv 2005.12872, A.4), ViT-MAE (arXiv 2111.06377, A.1): a block of channels an axis."""
    width = dim // len(point)
    axis = axis_order[channel // width]
    return sinusoid(point[axis], channel % width, width, base=bases[axis], layout=layout)


def diffusers_3d(cell: Sequence[int], channel: int, dim: int) -> float:
    """get_3d_sincos_pos_embed: a quarter for time, then columns and rows; sines before cosines."""
    time, row, column = cell
    if channel < dim // 4:
        return sinusoid(time, channel, dim // 4, layout="concatenated")
    width = 3 * dim // 8
    channel -= dim // 4
    at = column if channel < width else row
    return sinusoid(at, channel % width, width, layout="concatenated")


def detr_coordinate(
    mask: Sequence[Sequence[int]], row: int, column: int, axis: int, *, extent: float, offset: float
) -> float:
    """Real cells up to this one along an axis, over all real cells of that line (DETR, A.4)."""
    line = [r[column] for r in mask] if axis == 0 else list(mask[row])
    count = sum(line[: (row if axis == 0 else column) + 1])
    return (count + offset) / (sum(line) + 1e-6) * extent


def axial_learned(
    cell: Sequence[int],
    channel: int,
    tables: Sequence[Matrix],
    *,
    axis_order: Sequence[int] | None = None,
) -> float:
    """DETR's and Reformer's tables: the vector of each coordinate, one after another."""
    for axis in range(len(tables)) if axis_order is None else axis_order:
        row = tables[axis][cell[axis]]
        if channel < len(row):
            return row[channel]
        channel -= len(row)
    raise IndexError(channel)


# --- Fourier features ----------------------------------------------------------------------------


def random_fourier(point: Point, channel: int, matrix: Matrix) -> float:
    """Tancik 2020, arXiv 2006.10739, section 5: [sin 2πBv, cos 2πBv]."""
    half = len(matrix[0])
    product = math.fsum(x * line[channel % half] for x, line in zip(point, matrix, strict=True))
    angle = 2 * math.pi * product
    return math.sin(angle) if channel < half else math.cos(angle)


def fourier_bands(
    point: Point,
    channel: int,
    *,
    num_bands: int,
    resolution: Sequence[int],
    keep_positions: bool = True,
) -> float:
    """Perceiver, arXiv 2103.03206, section 3.2: bands from 1 to half the resolution."""
    if keep_positions:
        if channel < len(point):
            return point[channel]
        channel -= len(point)
    kind, wave = divmod(channel, num_bands * len(point))
    axis, band = divmod(wave, num_bands)
    top = resolution[axis] / 2
    speed = 1.0 + (top - 1.0) * band / (num_bands - 1)
    angle = math.pi * speed * point[axis]
    return math.cos(angle) if kind else math.sin(angle)


# --- Resampling a grid ---------------------------------------------------------------------------


def cubic(distance: float, a: float) -> float:
    """Keys 1981's kernel."""
    t = abs(distance)
    if t <= 1:
        return (a + 2) * t**3 - (a + 3) * t**2 + 1
    return a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a if t < 2 else 0.0


def resampled_line(
    values: Sequence[float],
    size: int,
    *,
    kernel: str,
    antialias: bool = False,
    align_corners: bool = False,
) -> list[float]:
    """One axis: each new cell is a weighted sum of old ones around its own centre."""
    old, out = len(values), []
    step = (old - 1) / max(size - 1, 1) if align_corners else old / size
    for i in range(size):
        centre = i * step if align_corners else (i + 0.5) * step - 0.5
        stretch = max(step, 1.0) if antialias else 1.0
        if kernel == "bilinear" and not antialias:
            centre = max(centre, 0.0)
        reach = stretch * (2 if kernel == "bicubic" else 1)
        weights: dict[int, float] = {}
        for j in range(math.floor(centre - reach), math.ceil(centre + reach) + 1):
            t = (j - centre) / stretch
            a = -0.5 if antialias else -0.75
            w = cubic(t, a) if kernel == "bicubic" else max(0.0, 1 - abs(t))
            if antialias and not 0 <= j < old:
                continue  # an antialiased kernel is cut at the border and made to sum to 1
            place = min(max(j, 0), old - 1)  # a plain one repeats the border
            weights[place] = weights.get(place, 0.0) + w
        total = math.fsum(weights.values()) if antialias else 1.0
        out.append(math.fsum(w * values[j] for j, w in weights.items()) / total)
    return out


def resampled(
    image: Sequence[Sequence[float]], grid: tuple[int, int], **options: object
) -> list[list[float]]:
    """Both axes, one after the other."""
    wide = [resampled_line(row, grid[1], **options) for row in image]  # type: ignore[arg-type]
    columns = [
        resampled_line([row[x] for row in wide], grid[0], **options)  # type: ignore[arg-type]
        for x in range(grid[1])
    ]
    return [[column[y] for column in columns] for y in range(grid[0])]
