"""Linear attention with rotary positions: O(T) time and memory in the length.

Katharopoulos et al. 2020, arXiv 2006.16236; with rotation RoFormer, arXiv 2104.09864, section 3.3,
eq. 19: queries and keys turn after the feature map, the normaliser stays unrotated (and positive).
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from posenc.attention.batched import all_chunks, all_windows, as_one
from posenc.attention.features import Features, features_of, ratio, segments_of
from posenc.attention.problem import Problem, checked
from posenc.contracts import Scheme, rows
from posenc.masks import Causal, Mask, SameSegment, Window, causal, is_causal, parts_of
from posenc.positions import assert_on_device

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
        return _summed(problem, features_of(problem, feature_map), parts).to(q.dtype)


def _without_autocast(device: str) -> AbstractContextManager[Any]:
    """Sums are float32 or wider under autocast too: a state in bfloat16 forgets small terms."""
    active = device in ("cpu", "cuda") and torch.is_autocast_enabled(device)
    return torch.autocast(device, enabled=False) if active else nullcontext()


def _summed(problem: Problem, features: Features, parts: tuple[Mask, ...]) -> Tensor:
    num_queries, num_keys = problem.q.shape[2], problem.k.shape[2]
    if problem.mask is None:
        return _everything(features)
    if num_queries != num_keys:
        if _in_graph():
            return as_one(features, problem)
        return _in_blocks(features, problem, lambda first, last: slice(0, num_keys))
    _check_order(problem)
    causally = is_causal(problem.mask)
    reach = min([part.size for part in parts if isinstance(part, Window)], default=None)
    if reach is not None:
        return _sliding(features, problem, reach, causally=causally)
    if _in_graph() or (not causally and problem.q.device.type != "cpu"):
        return all_chunks(features, problem, causally=causally)
    return _scan(features, problem) if causally else _by_segment(features, problem)


def _in_graph() -> bool:
    """Whether a loop over the length would be a graph for each length."""
    return torch.compiler.is_compiling()


def _sliding(features: Features, problem: Problem, reach: int, *, causally: bool) -> Tensor:
    num_keys = problem.k.shape[2]
    is_real = problem.k_pos.is_floating_point()  # many tokens may stand within one position
    if _in_graph():
        if is_real:
            return as_one(features, problem)
        return all_windows(features, problem, reach, causally=causally)
    reach = num_keys if is_real else reach
    ahead = 0 if causally else reach - 1
    return _in_blocks(
        features, problem, lambda a, b: slice(max(0, a - reach + 1), min(b + ahead, num_keys))
    )


def _everything(features: Features) -> Tensor:
    return ratio(*features.through(*features.state()))


def _in_blocks(features: Features, problem: Problem, reach: Callable[[int, int], slice]) -> Tensor:
    """Each block of queries against the keys that it can reach, written out."""
    num_queries, pieces = problem.q.shape[2], features.pieces(CHUNK)
    outs = []
    for start in range(0, num_queries, CHUNK):
        queries = slice(start, min(start + CHUNK, num_queries))
        keys = reach(queries.start, queries.stop)
        allowed = problem.block(queries, keys).allowed()
        assert allowed is not None
        outs.append(ratio(*pieces.block(start // CHUNK, keys).within(allowed)))
    return torch.cat(outs, 2)


def _scan(features: Features, problem: Problem) -> Tensor:
    """Causal: pairs inside a chunk written out, all earlier keys of the open segment in a state."""
    num_tokens, pieces = problem.k.shape[2], features.pieces(CHUNK)
    segments = segments_of(problem)
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
        outs.append(ratio(numerator, total))
        last = segment[:, -1:]
        new = chunk.keeping(segment == last).state()
        if state is not None:
            same = (last == carried)[:, :, None, None]
            new = (new[0] + state[0] * same, new[1] + state[1] * same)
        state = new
    return torch.cat(outs, 2)


def _by_segment(features: Features, problem: Problem) -> Tensor:
    """Bidirectional inside segments: every segment is one run of tokens, with a state of its own."""
    segments = segments_of(problem)
    if segments.shape[0] > 1:
        rows_apart = [_runs(features.row(b), segments[b]) for b in range(segments.shape[0])]
        return torch.cat(rows_apart, 0)
    return _runs(features, segments[0])


def _runs(features: Features, segments: Tensor) -> Tensor:
    lengths = torch.unique_consecutive(segments, return_counts=True)[1].tolist()
    outs, start = [], 0
    for length in lengths:
        run = slice(start, start + length)
        outs.append(_everything(features.run(run)))
        start += length
    return torch.cat(outs, 2)


def _check_order(problem: Problem) -> None:
    """Raise unless storage order is what the states assume, in every row."""
    k_pos, segments = rows(problem.k_pos), segments_of(problem)
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
