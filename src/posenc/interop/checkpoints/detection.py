"""Which pairing a checkpoint was trained with, told from its weights alone.

Training gives slow and fast pairs different sizes, so the norms of the rows of a query or key head
follow a smooth curve over the frequencies. Ordered by the right pairing the curve shows twice, once
for each channel of a pair; under the wrong one it is cut up. Both readings are fitted with the same
smooth curves, and the difference is held against random orders of the channels.
"""

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posenc.contracts import Pairing
from posenc.interop.checkpoints.conversion import METADATA_KEY
from posenc.interop.checkpoints.files import CheckpointError, Header, Stored
from posenc.interop.checkpoints.heads import Layout, layout_from
from posenc.interop.checkpoints.layouts import Plan, plan
from posenc.interop.checkpoints.shards import load_config, read_headers

__all__ = ["Detection", "compare_pairings", "detect"]

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
NUM_CURVES = 6  # cosines over the frequencies, with variances that fall as k**-4
SMOOTHNESS = 4
RATIOS = [2.0**power for power in range(-4, 9)]  # variance of the curve over that of the noise
SURE = 4.0  # standard deviations
NOTHING = 0.05  # evidence for each head that is as good as none
_READINGS = ("half", "adjacent")
LEAST_SPREAD = 0.005  # of many heads without any curve: their differences are exactly 0
CLEARER = 1.5  # how much more evidence the winner needs: a smooth curve half fits the wrong order


@dataclass(frozen=True)
class Detection:
    """What the weights say. `pairing` is None where they do not say it clearly.

    `score` is the evidence for "half" minus that for "adjacent", in standard deviations of the same
    difference under random orders of the channels; `p_value` is how often those came as far.
    """

    pairing: Pairing | None
    score: float
    p_value: float
    evidence: Mapping[str, float]  # mean log likelihood gained by each reading, for each head
    num_heads: int
    noted: str | None = None  # the pairing in the metadata, where `posenc convert` wrote it

    def __str__(self) -> str:
        verdict = self.pairing or "undecided"
        gained = ", ".join(f"{name} {value:.2f}" for name, value in self.evidence.items())
        hints = []
        if self.pairing is None and max(self.evidence.values()) < NOTHING:
            hints.append("nothing learned yet to tell by")
        if self.noted is not None:
            hints.append(f"metadata says {self.noted}, by posenc convert")
        return (
            f"{verdict}: {self.score:+.1f} standard deviations (positive: half), "
            f"p = {self.p_value:.2g}, evidence {gained}, "
            + "; ".join([f"{self.num_heads} heads", *hints])
        )


def detect(
    source: str | os.PathLike[str], *, config: Mapping[str, Any] | None = None, seed: int = 0
) -> Detection:
    """The pairing that the weights of a safetensors checkpoint were trained with.

    >>> detect("llama").pairing                       # None where it cannot be told
    'half'

    The config tells the heads; what it says of the pairing is not used. One tensor is read at a time.
    """
    source = Path(source)
    layout = layout_from(load_config(source) if config is None else config)
    profiles: dict[int, list[Tensor]] = {}
    headers = read_headers(source)
    for header in headers:
        for profile in _profiles(header, layout):
            profiles.setdefault(profile.shape[1], []).append(profile)
    if not profiles:
        raise CheckpointError(f"{source} has no query or key weights in a dtype that can be read")
    widest = max(profiles, key=lambda width: sum(len(part) for part in profiles[width]))
    noted = sorted({said for header in headers if (said := header.metadata.get(METADATA_KEY))})
    found = compare_pairings(torch.cat(profiles[widest]), seed=seed)
    return replace(found, noted=" and ".join(noted) or None)


def compare_pairings(norms: Tensor, *, num_permutations: int = 499, seed: int = 0) -> Detection:
    """Compare the two readings of row norms `[heads, rotary_dim]`, one row for each head.

    >>> compare_pairings(q_weight.view(num_heads, head_dim, -1).norm(dim=-1))
    """
    if norms.ndim != 2 or norms.shape[1] % 2 or norms.shape[1] < 8:
        raise ValueError(
            f"norms must be [heads, rotary_dim] with an even rotary_dim of at least 8, "
            f"got {list(norms.shape)}"
        )
    heads = _standardised(norms)
    generator = torch.Generator().manual_seed(seed)
    width = heads.shape[1]
    orders = [torch.randperm(width, generator=generator) for _ in range(num_permutations)]
    orders = torch.stack([torch.arange(width), *orders])  # the first is the one to judge
    gained = {name: _evidence(heads, _curves(width, name)[:, orders]) for name in _READINGS}
    evidence = {name: values[0].item() for name, values in gained.items()}
    difference, *random = (gained["half"] - gained["adjacent"]).tolist()
    score = difference / max(torch.tensor(random).std().item(), LEAST_SPREAD)
    as_far = sum(abs(value) >= abs(difference) for value in random)
    winner: Pairing = "half" if difference > 0 else "adjacent"
    clear = max(evidence.values()) > CLEARER * min(evidence.values()) and abs(score) > SURE
    p_value = (1 + as_far) / (1 + num_permutations)
    return Detection(winner if clear else None, score, p_value, evidence, len(heads))


def _profiles(header: Header, layout: Layout) -> Iterator[Tensor]:
    """Norms of the rows that turn, `[heads, rotary_dim]`, for each run of heads in each weight."""
    for tensor in header.tensors:
        if not tensor.name.endswith("weight") or len(tensor.shape) != 2 or "lora" in tensor.name:
            continue
        try:
            found = plan(tensor, layout)
        except CheckpointError:
            continue  # what would stop a conversion only leaves less to go by here
        if found is None or tensor.num_bytes == 0:
            continue
        if tensor.dtype in DTYPES and _is_projection(tensor, found):
            yield from _rotated(_row_norms(header, tensor), found)


def _is_projection(tensor: Stored, found: Plan) -> bool:
    runs, groups = found
    return tensor.shape[0] == groups * sum(run.rows for run in runs)


def _row_norms(header: Header, tensor: Stored) -> Tensor:
    rows = torch.frombuffer(header.read(tensor), dtype=DTYPES[tensor.dtype]).view(tensor.shape)
    return torch.cat([part.to(torch.float32).norm(dim=1) for part in rows.split(1024)])


def _rotated(norms: Tensor, found: Plan) -> Iterator[Tensor]:
    runs, groups = found
    parts = norms.view(groups, -1).split([run.rows for run in runs], dim=1)
    for run, part in zip(runs, parts, strict=True):
        if run.rotary_dim >= 8:
            heads = part.reshape(-1, run.head_dim)
            yield heads[:, run.start : run.start + run.rotary_dim]


def _standardised(norms: Tensor) -> Tensor:
    """Log norms with mean 0 and variance 1 in each head; heads without any are left out."""
    logs = norms.double().log()
    logs = logs - logs.mean(1, keepdim=True)
    spread = logs.std(1, keepdim=True)
    usable = spread[:, 0].isfinite() & (spread[:, 0] > 0)
    if not usable.any():
        raise ValueError(
            "every head has rows of norm zero or all alike, or not finite: there is nothing to tell"
        )
    return (logs / spread)[usable]


def _curves(width: int, pairing: str) -> Tensor:
    """Cosines over the frequencies, laid over the channels by this pairing, `[curves, width]`."""
    channel, pairs = torch.arange(width), width // 2
    frequency = (channel % pairs if pairing == "half" else channel // 2).double()
    numbers = torch.arange(1, min(NUM_CURVES, pairs - 1) + 1).double()
    values = torch.cos(math.pi / pairs * numbers[:, None] * (frequency + 0.5))
    return values / values.norm(dim=1, keepdim=True)


def _evidence(heads: Tensor, curves: Tensor) -> Tensor:
    """Mean log likelihood that smooth curves `[curves, orders, width]` gain over noise, `[orders]`.

    Each order takes the ratio of curve to noise that fits best.
    """
    free, count = heads.shape[1] - 1, curves.shape[0]
    falling = torch.arange(1, count + 1).double() ** -SMOOTHNESS * (heads.shape[1] / 4)
    inflated = 1 + torch.tensor(RATIOS).double()[:, None] * falling  # [ratios, curves]
    total, penalty = heads.square().sum(1), torch.log(inflated).sum(1) / 2
    gained = []
    for some in curves.split(max(1, 200_000 // len(heads)), dim=1):
        fitted = torch.einsum("hw,cow->ohc", heads, some).square()
        rest = total[:, None] - fitted @ (1 - 1 / inflated).T  # [orders, heads, ratios]
        gain = -free / 2 * torch.log(rest / total[:, None]).mean(1) - penalty
        gained.append(gain.max(1).values.clamp(min=0.0))  # no curve at all is a reading too
    return torch.cat(gained)
