"""Linear attention with rotary positions: O(T) time and memory in the length.

Katharopoulos et al. 2020, arXiv 2006.16236; with rotation RoFormer, arXiv 2104.09864, section 3.3,
eq. 19: queries and keys turn after the feature map, the normaliser stays unrotated (and positive).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.attention.problem import Problem, checked
from posenc.contracts import Scheme, rows
from posenc.masks import Causal, Mask, SameSegment, Window, causal
from posenc.positions import assert_on_device
from posenc.rotate import rotate

__all__ = ["elu_plus_one", "linear_attention"]

NOPE = Scheme()
CHUNK = 128


def elu_plus_one(x: Tensor) -> Tensor:
    """The positive feature map of Katharopoulos et al., elementwise over the channels of one head."""
    return F.elu(x) + 1


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scheme: Scheme = NOPE,
    feature_map: Callable[[Tensor], Tensor] = elu_plus_one,
    q_pos: Tensor | None = None,
    k_pos: Tensor | None = None,
    mask: Mask | None = causal,
) -> Tensor:
    """`Σ (R φ(q))·(R φ(k)) v / Σ φ(q)·φ(k)` over the visible keys, `[B, H, Q, Dv]`.

    >>> out = linear_attention(q, k, v, scheme=Scheme(rotary=Rope(64)))             # causal
    >>> out = linear_attention(q, k, v, scheme=Scheme(rotary=Rope(64)), mask=None)  # bidirectional

    Shapes, positions and masks as in `attention`; `feature_map` keeps `[..., D]` to `[..., D']` and
    must be positive. Over whole sequences positions must rise along each segment (negative ones,
    padding, excepted); a decoding step takes any. A query that may see no key gets zeros.

    There is no scheme-wide linear form of a logit bias or of relative vectors: ValueError.
    """
    for part in (scheme.bias, scheme.relative, scheme.query_scale):
        if part is not None:
            raise ValueError(
                f"linear attention has no logits on which {type(part).__name__} could act: "
                "use attention(), or a scheme with additive and rotary parts only"
            )
    problem = checked(q, k, v, scheme, q_pos, k_pos, mask, None)
    parts = () if problem.mask is None else getattr(problem.mask, "parts", (problem.mask,))
    unknown = [part for part in parts if not isinstance(part, Causal | Window | SameSegment)]
    if unknown:
        raise ValueError(f"linear attention knows causal, window and same_segment, got {unknown}")
    features = _features(problem, feature_map)
    if problem.mask is None:
        out = _everything(features)
    elif q.shape[2] != k.shape[2]:
        out = _in_blocks(features, problem, lambda first, last: slice(0, k.shape[2]))
    else:
        _check_rising(problem)
        is_causal = any(isinstance(part, Causal) for part in parts)
        reach = min((part.size for part in parts if isinstance(part, Window)), default=None)
        if reach is not None:
            ahead = 0 if is_causal else reach - 1
            out = _in_blocks(
                features, problem, lambda a, b: slice(max(0, a - reach + 1), b + ahead)
            )
        elif is_causal:
            out = _scan(features, problem)
        else:
            out = _by_segment(features, problem)
    return out.to(q.dtype)


@dataclass(frozen=True, eq=False)
class _Features:
    """Feature-mapped queries and keys, turned (for the sum) and not (for the normaliser)."""

    q: Tensor
    k: Tensor
    turned_q: Tensor
    turned_k: Tensor
    v: Tensor

    def block(self, queries: slice, keys: slice) -> "_Features":
        return _Features(
            self.q[:, :, queries],
            self.k[:, :, keys],
            self.turned_q[:, :, queries],
            self.turned_k[:, :, keys],
            self.v[:, :, keys],
        )

    def within(self, allowed: Tensor) -> tuple[Tensor, Tensor]:
        """Numerator and normaliser over the allowed pairs `[B|1, 1, Q, K]`, written out."""
        weights = (self.turned_q @ self.turned_k.transpose(-1, -2)) * allowed
        total = ((self.q @ self.k.transpose(-1, -2)) * allowed).sum(-1, keepdim=True)
        return weights @ self.v, total

    def through(self, state: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        """Numerator and normaliser over the keys summed into a state."""
        return self.turned_q @ state, self.q @ total

    def state(self) -> tuple[Tensor, Tensor]:
        """`Σ R φ(k) vᵀ`, `[B, H, D', Dv]`, and `Σ φ(k)`, `[B, H, D', 1]`."""
        return self.turned_k.transpose(-1, -2) @ self.v, self.k.sum(-2)[..., None]

    def keeping(self, keys: Tensor) -> "_Features":
        """Keys outside `[B|1, K]` contribute nothing."""
        kept = keys[:, None, :, None]
        return replace(self, k=self.k * kept, turned_k=self.turned_k * kept)


def _features(problem: Problem, feature_map: Callable[[Tensor], Tensor]) -> _Features:
    wide = torch.promote_types(problem.q.dtype, torch.float32)
    group = problem.q.shape[1] // problem.k.shape[1]
    q, k = feature_map(problem.q.to(wide)), feature_map(problem.k.to(wide))
    k, v = k.repeat_interleave(group, 1), problem.v.to(wide).repeat_interleave(group, 1)
    if q.shape[:3] != problem.q.shape[:3]:
        raise ValueError(
            f"feature_map must keep batch, heads and tokens {list(problem.q.shape[:3])} and act on "
            f"the channels of one head, got {list(q.shape)}"
        )
    rotary = problem.scheme.rotary
    if rotary is None:
        return _Features(q, k, q, k, v)
    tables = rotary.tables(problem.q_pos, problem.k_pos, dtype=wide)
    amplitude = tables.attention_factor**2  # a softmax temperature: there is no softmax here
    return _Features(q, k, rotate(q, tables.q) / amplitude, rotate(k, tables.k), v)


def _ratio(numerator: Tensor, total: Tensor) -> Tensor:
    return numerator / torch.where(total == 0, 1.0, total)


def _everything(features: _Features) -> Tensor:
    return _ratio(*features.through(*features.state()))


def _in_blocks(features: _Features, problem: Problem, reach: Callable[[int, int], slice]) -> Tensor:
    """Each block of queries against the keys that it can reach, written out."""
    num_queries = problem.q.shape[2]
    outs = []
    for start in range(0, num_queries, CHUNK):
        queries = slice(start, min(start + CHUNK, num_queries))
        keys = reach(queries.start, queries.stop)
        keys = slice(keys.start, min(keys.stop, problem.k.shape[2]))
        allowed = problem.block(queries, keys).allowed()
        assert allowed is not None
        outs.append(_ratio(*features.block(queries, keys).within(allowed)))
    return torch.cat(outs, 2)


def _scan(features: _Features, problem: Problem) -> Tensor:
    """Causal: pairs inside a chunk written out, all earlier keys of the open segment in a state."""
    num_tokens = problem.k.shape[2]
    segments = _segments(problem)
    state: tuple[Tensor, Tensor] | None = None
    outs = []
    for start in range(0, num_tokens, CHUNK):
        here = slice(start, min(start + CHUNK, num_tokens))
        chunk, segment = features.block(here, here), segments[:, here]
        allowed = problem.block(here, here).allowed()
        assert allowed is not None
        numerator, total = chunk.within(allowed)
        carried = segments[:, max(start - 1, 0), None]
        if state is not None:
            continues = (segment == carried)[:, None, :, None]
            earlier, weight = chunk.through(*state)
            numerator, total = numerator + earlier * continues, total + weight * continues
        outs.append(_ratio(numerator, total))
        last = segment[:, -1:]
        new = chunk.keeping(segment == last).state()
        if state is not None:
            same = (last == carried)[:, :, None, None]
            new = (new[0] + state[0] * same, new[1] + state[1] * same)
        state = new
    return torch.cat(outs, 2)


def _by_segment(features: _Features, problem: Problem) -> Tensor:
    """Bidirectional inside segments: one state for each segment id."""
    segments = _segments(problem)
    numerator, total = 0.0, 0.0
    for segment in segments.unique():
        mine = segments == segment
        part = features.keeping(mine)
        above, below = part.through(*part.state())
        numerator = numerator + above * mine[:, None, :, None]
        total = total + below * mine[:, None, :, None]
    assert isinstance(numerator, Tensor) and isinstance(total, Tensor)
    return _ratio(numerator, total)


def _segments(problem: Problem) -> Tensor:
    """`[B|1, T]` ids: tokens see each other only where all segment masks agree."""
    parts = getattr(problem.mask, "parts", (problem.mask,))
    ids = [rows(part.k_segments) for part in parts if isinstance(part, SameSegment)]
    if not ids:
        return torch.zeros(1, problem.k.shape[2], dtype=torch.int64, device=problem.k.device)
    if len(ids) > 1:
        raise ValueError("linear attention takes one same_segment mask, got several")
    return ids[0]


def _check_rising(problem: Problem) -> None:
    if problem.contiguous:
        return
    k_pos, segments = rows(problem.k_pos), _segments(problem)
    later = (k_pos.diff(dim=-1) > 0) | (k_pos[:, 1:] < 0) | (segments.diff(dim=-1) != 0)
    if k_pos.device.type != "cpu" or torch.compiler.is_compiling():
        assert_on_device(later.all(), "positions must rise along each segment")
    elif not later.all() or not torch.equal(rows(problem.q_pos).expand_as(k_pos), k_pos):
        raise ValueError(
            "linear attention over a whole sequence needs q_pos = k_pos, rising along each segment "
            f"(pass mask=causal & same_segment(...) for packed documents), got k_pos {k_pos.tolist()}"
        )
