"""Linear attention with rotary positions: O(T) time and memory in the length.

Katharopoulos et al. 2020, arXiv 2006.16236; with rotation RoFormer, arXiv 2104.09864, section 3.3,
eq. 19: queries and keys turn after the feature map, the normaliser stays unrotated (and positive).
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from posenc.attention.problem import Problem, checked
from posenc.contracts import Scheme, rows
from posenc.masks import Causal, Mask, SameSegment, Window, causal, is_causal, parts_of
from posenc.positions import assert_on_device
from posenc.rotate import rotate

__all__ = ["elu_plus_one", "linear_attention"]

NOPE = Scheme()
CHUNK = 128


def elu_plus_one(x: Tensor) -> Tensor:
    """The positive feature map of Katharopoulos et al., elementwise over the channels of one head."""
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())  # elu(x) + 1 is 0 where exp(x) is not


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
    must be positive. Over whole sequences positions must rise along each segment (padding at −1
    before the first token excepted) and a segment is one run of tokens; a decoding step takes any.
    A query that may see no key gets zeros.

    There is no scheme-wide linear form of a logit bias or of relative vectors: ValueError.
    """
    for part in (scheme.bias, scheme.relative, scheme.query_scale):
        if part is not None:
            raise ValueError(
                f"linear attention has no logits on which {type(part).__name__} could act: "
                "use attention(), or a scheme with additive and rotary parts only"
            )
    problem = checked(q, k, v, scheme, q_pos, k_pos, mask, None)
    parts = parts_of(problem.mask)
    unknown = [part for part in parts if not isinstance(part, Causal | Window | SameSegment)]
    if unknown:
        raise ValueError(f"linear attention knows causal, window and same_segment, got {unknown}")
    with _without_autocast(q.device.type):
        return _summed(problem, _features(problem, feature_map), parts).to(q.dtype)


def _without_autocast(device: str) -> AbstractContextManager[Any]:
    """Sums are float32 or wider under autocast too: a state in bfloat16 forgets small terms."""
    active = device in ("cpu", "cuda") and torch.is_autocast_enabled(device)
    return torch.autocast(device, enabled=False) if active else nullcontext()


def _summed(problem: Problem, features: "_Features", parts: tuple[Mask, ...]) -> Tensor:
    q, k = problem.q, problem.k
    if problem.mask is None:
        out = _everything(features)
    elif q.shape[2] != k.shape[2]:
        out = _in_blocks(features, problem, lambda first, last: slice(0, k.shape[2]))
    else:
        _check_order(problem)
        causally = is_causal(problem.mask)
        reach = min([part.size for part in parts if isinstance(part, Window)], default=None)
        if reach is not None:
            num_keys = k.shape[2]
            if problem.k_pos.is_floating_point():  # many tokens may stand within one position
                reach = num_keys
            ahead = 0 if causally else reach - 1
            out = _in_blocks(
                features,
                problem,
                lambda a, b: slice(max(0, a - reach + 1), min(b + ahead, num_keys)),
            )
        elif causally:
            out = _scan(features, problem)
        else:
            out = _by_segment(features, problem)
    return out


@dataclass(frozen=True, eq=False)
class _Features:
    """Feature-mapped queries and keys, turned (for the sum) and not (for the normaliser)."""

    q: Tensor
    k: Tensor
    turned_q: Tensor
    turned_k: Tensor
    v: Tensor

    def pieces(self) -> "_Pieces":
        """Cut into chunks once: the gradient of a slice would be as long as the whole, each time."""
        tensors = (self.q, self.k, self.turned_q, self.turned_k, self.v)
        return _Pieces(*(x.split(CHUNK, 2) for x in tensors))

    def row(self, index: int) -> "_Features":
        """One row of the batch."""
        return self._each(lambda part: part[index : index + 1])

    def run(self, tokens: slice) -> "_Features":
        """Queries and keys of one run of tokens."""
        return self._each(lambda part: part[:, :, tokens])

    def _each(self, cut: Callable[[Tensor], Tensor]) -> "_Features":
        parts = {field.name: cut(getattr(self, field.name)) for field in fields(self)}
        return _Features(**parts)

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


@dataclass(frozen=True, eq=False)
class _Pieces:
    """Features in chunks of tokens."""

    q: tuple[Tensor, ...]
    k: tuple[Tensor, ...]
    turned_q: tuple[Tensor, ...]
    turned_k: tuple[Tensor, ...]
    v: tuple[Tensor, ...]

    def block(self, chunk: int, keys: slice) -> _Features:
        """One chunk of queries with a slice of the keys."""
        first, last = keys.start // CHUNK, (keys.stop - 1) // CHUNK
        inside = slice(keys.start - first * CHUNK, keys.stop - first * CHUNK)
        k, turned_k, v = (
            (x[first] if first == last else torch.cat(x[first : last + 1], 2))[:, :, inside]
            for x in (self.k, self.turned_k, self.v)
        )
        return _Features(self.q[chunk], k, self.turned_q[chunk], turned_k, v)


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
    num_queries, pieces = problem.q.shape[2], features.pieces()
    outs = []
    for start in range(0, num_queries, CHUNK):
        queries = slice(start, min(start + CHUNK, num_queries))
        keys = reach(queries.start, queries.stop)
        allowed = problem.block(queries, keys).allowed()
        assert allowed is not None
        outs.append(_ratio(*pieces.block(start // CHUNK, keys).within(allowed)))
    return torch.cat(outs, 2)


def _scan(features: _Features, problem: Problem) -> Tensor:
    """Causal: pairs inside a chunk written out, all earlier keys of the open segment in a state."""
    num_tokens, pieces = problem.k.shape[2], features.pieces()
    segments = _segments(problem)
    state: tuple[Tensor, Tensor] | None = None
    outs = []
    for start in range(0, num_tokens, CHUNK):
        here = slice(start, min(start + CHUNK, num_tokens))
        chunk, segment = pieces.block(start // CHUNK, here), segments[:, here]
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
    """Bidirectional inside segments: every segment is one run of tokens, with a state of its own."""
    segments = _segments(problem)
    if segments.shape[0] > 1:
        rows_apart = [_runs(features.row(b), segments[b]) for b in range(segments.shape[0])]
        return torch.cat(rows_apart, 0)
    return _runs(features, segments[0])


def _runs(features: _Features, segments: Tensor) -> Tensor:
    lengths = torch.unique_consecutive(segments, return_counts=True)[1].tolist()
    outs, start = [], 0
    for length in lengths:
        run = slice(start, start + length)
        outs.append(_everything(features.run(run)))
        start += length
    return torch.cat(outs, 2)


def _segments(problem: Problem) -> Tensor:
    """`[B|1, T]` ids: tokens see each other only where all segment masks agree."""
    parts = parts_of(problem.mask)
    ids = [rows(part.k_segments) for part in parts if isinstance(part, SameSegment)]
    if not ids:
        return torch.zeros(1, problem.k.shape[2], dtype=torch.int64, device=problem.k.device)
    if len(ids) > 1:
        raise ValueError("linear attention takes one same_segment mask, got several")
    return ids[0]


def _check_order(problem: Problem) -> None:
    """Raise unless storage order is what the states assume, in every row."""
    k_pos, segments = rows(problem.k_pos), _segments(problem)
    parts = parts_of(problem.mask)
    documents = [part for part in parts if isinstance(part, SameSegment)]
    for part in documents:
        ids, order = segments.sort(dim=-1, stable=True)
        in_one_run = (ids.diff(dim=-1) != 0) | (order.diff(dim=-1) == 1)
        _need(in_one_run, "every segment to be one run of tokens", segments)
        same = rows(part.q_segments) == rows(part.k_segments)
        _need(same, "the same segments for queries and keys", part.q_segments)
    ordered = any(isinstance(part, Causal | Window) for part in parts)
    if problem.contiguous or not ordered:
        return
    rising = (k_pos.diff(dim=-1) > 0) | (segments.diff(dim=-1) != 0)
    if documents or not any(isinstance(part, Window) for part in parts):
        # padding at −1 stands before the first token; a window would have to reach over all of it
        rising = rising | ((k_pos[:, 1:] < 0) & (k_pos[:, :-1] < 0))
    hint = "(pass mask=causal & same_segment(...) for packed documents and padding)"
    _need(rising, f"positions rising along each segment {hint}", k_pos)
    _need(rows(problem.q_pos) == k_pos, "q_pos = k_pos", rows(problem.q_pos))


def _need(condition: Tensor, what: str, given: Tensor) -> None:
    message = f"linear attention over a whole sequence needs {what}"
    if condition.device.type != "cpu" or torch.compiler.is_compiling():
        assert_on_device(condition.all(), message)
    elif not condition.all():
        row, token = (~rows(condition)).nonzero()[0].tolist()
        near = rows(given)[
            min(row, rows(given).shape[0] - 1), max(0, token - 1) : token + 2
        ].tolist()
        raise ValueError(f"{message}, got {near} about token {token} of row {row}")
