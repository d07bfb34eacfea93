"""Whatever learns: gradients through every implementation, and a life of copies, casts and saves."""

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from posenc import (
    BeitBias,
    Cope,
    Deberta,
    Decomposed,
    Fire,
    Learned,
    Scheme,
    Shaw,
    SwinBias,
    SwinV2Bias,
    T5Bias,
    TransformerXL,
    attention,
    causal,
    same_segment,
    window,
)
from posenc.masks import Mask
from support import HEADS, NAMES, assert_roundings, build, heads, mask_of, positions_of, random

LENGTH = 12
SEGMENTS = torch.tensor([0] * 5 + [1] * 7)


def parts(scheme: Scheme) -> list[nn.Module]:
    """What learns within attention."""
    return [x for x in (scheme.bias, scheme.relative, scheme.rotary) if isinstance(x, nn.Module)]


def built(name: str) -> Scheme:
    return build(name, length=LENGTH)


LEARNED = tuple(name for name in NAMES if any(list(x.parameters()) for x in parts(built(name))))
MODULES = tuple(name for name in NAMES if parts(built(name)) or isinstance(
    built(name).additive, nn.Module))  # fmt: skip
MASKS: dict[str, Mask | None] = {
    "own": None,
    "packed": same_segment(SEGMENTS),
    "window": window(5),
    "packed window": same_segment(SEGMENTS) & window(4),
}


def gradients(name: str, scheme: Scheme, impl: Any, mask: Mask | None, at: Tensor | None) -> list:
    """Of queries, keys, values and every parameter."""
    own = mask_of(name)
    mask = own if mask is None else mask if own is None else own & mask
    inputs = [x.requires_grad_() for x in heads(LENGTH)]
    weight = random(2, HEADS, LENGTH, 8, seed=5)
    out = attention(*inputs, scheme=scheme, mask=mask, k_pos=at, impl=impl)
    learned = [p for x in parts(scheme) for p in x.parameters() if p.requires_grad]
    return list(torch.autograd.grad((out * weight).sum(), [*inputs, *learned], allow_unused=True))


# A window is of one coordinate: windows of images are cut by the model.
CASES = [
    (name, mask)
    for name in LEARNED
    for mask in MASKS
    if built(name).num_axes == 1 or "window" not in mask
]


@pytest.mark.parametrize(("name", "masked"), CASES)
def test_gradients_of_every_parameter_are_those_of_the_reference(name: str, masked: str) -> None:
    scheme, mask = built(name), MASKS[masked]
    for part in parts(scheme):
        part.double()
    at = positions_of(name, LENGTH)
    exact = gradients(name, scheme, "reference", mask, at)
    learned = [x for x in exact[3:] if x is not None]
    assert any(x.abs().max() > 1e-4 for x in learned), "nothing learns"
    ways = [("sdpa", at)] + ([("sdpa", None)] if scheme.num_axes == 1 else [])
    for impl, k_pos in ways:
        for mine, wanted in zip(gradients(name, scheme, impl, mask, k_pos), exact, strict=True):
            assert (mine is None) == (wanted is None)
            if mine is not None:
                scale = max(1.0, wanted.abs().max().item())
                assert (mine - wanted).abs().max() <= 1e-9 * scale


@pytest.mark.parametrize("name", LEARNED)
def test_flex_gives_every_gradient_or_says_that_it_does_not(name: str) -> None:
    """On a CPU it has no backward: asked for gradients it refuses, it never drops one."""
    scheme = built(name)
    with pytest.raises((ValueError, RuntimeError, NotImplementedError)) as caught:
        gradients(name, scheme, "flex", None, positions_of(name, LENGTH))
    assert "flex" in str(caught.value).lower()


# A life -------------------------------------------------------------------------------------------


def all_parts(name: str) -> list[nn.Module]:
    scheme = built(name)
    added = [scheme.additive] if isinstance(scheme.additive, nn.Module) else []
    return parts(scheme) + added


@pytest.mark.parametrize("name", MODULES)
def test_copies_pickles_and_states_are_the_same_part(name: str) -> None:
    for part in all_parts(name):
        state = part.state_dict()
        stream = io.BytesIO()
        torch.save(state, stream)
        stream.seek(0)
        fresh = next(x for x in all_parts_of_another_seed(name) if type(x) is type(part))
        fresh.load_state_dict(torch.load(stream, weights_only=True))
        for twin in (copy.deepcopy(part), pickle.loads(pickle.dumps(part)), fresh):
            assert repr(twin) == repr(part) and list(twin.state_dict()) == list(state)
            for key, value in twin.state_dict().items():
                assert torch.equal(value, state[key]), key
                assert not value.numel() or value.data_ptr() != state[key].data_ptr()


def all_parts_of_another_seed(name: str) -> list[nn.Module]:
    scheme = build(name, length=LENGTH, seed=3)
    added = [scheme.additive] if isinstance(scheme.additive, nn.Module) else []
    return parts(scheme) + added


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", LEARNED)
def test_a_cast_part_is_the_part_with_rounded_numbers(name: str, dtype: torch.dtype) -> None:
    """A part in low precision beside activations in it: no nan, nothing but the parameters rounds."""
    scheme, at = built(name), positions_of(name, LENGTH)
    for part in parts(scheme):
        part.to(dtype)
    low = [x.to(dtype) for x in heads(LENGTH)]
    out = attention(*low, scheme=scheme, mask=mask_of(name), k_pos=at)
    assert out.dtype == dtype
    for part in parts(scheme):
        part.double()
    exact = attention(*(x.double() for x in low), scheme=scheme, mask=mask_of(name), k_pos=at,
                      impl="reference")  # fmt: skip
    assert_roundings(out, exact, 32)


@pytest.mark.parametrize("name", LEARNED)
def test_a_part_of_another_size_is_not_loaded(name: str) -> None:
    for part in parts(built(name)):
        larger = {
            k: torch.cat((v.reshape(-1), v.reshape(-1))) for k, v in part.state_dict().items()
        }
        with pytest.raises(RuntimeError, match="size mismatch"):
            part.load_state_dict(larger)
        with pytest.raises(RuntimeError, match="Missing key"):
            part.load_state_dict({})


@pytest.mark.parametrize("name", LEARNED)
def test_a_part_made_on_meta_has_shapes_and_no_values(name: str) -> None:
    with torch.device("meta"):
        scheme = built(name)
    for part in parts(scheme):
        assert all(p.device.type == "meta" for p in part.parameters())
        part.to_empty(device="cpu")
        part.load_state_dict(
            next(x for x in parts(built(name)) if type(x) is type(part)).state_dict()
        )
    run: dict[str, Any] = {"mask": mask_of(name), "k_pos": positions_of(name, LENGTH)}
    q, k, v = heads(LENGTH)
    made = attention(q, k, v, scheme=scheme, **run)
    assert torch.equal(made, attention(q, k, v, scheme=built(name), **run))


# DeBERTa ------------------------------------------------------------------------------------------


def test_deberta_reads_both_sides_and_depends_on_offsets_alone() -> None:
    """Its law: no mask of its own, so what stands after a query moves it, by its offset alone."""
    scheme = built("deberta")
    q, k, v = heads(LENGTH)
    at = torch.arange(LENGTH)
    whole = attention(q, k, v, scheme=scheme, mask=None)
    order = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(1))
    shuffled = attention(
        q[:, :, order], k[:, :, order], v[:, :, order], scheme=scheme, mask=None,
        q_pos=at[order] - 70, k_pos=at[order] - 70,
    )  # fmt: skip
    assert_roundings(shuffled, whole[:, :, order], 64)
    mirrored = attention(q, k, v, scheme=scheme, mask=None, q_pos=-at, k_pos=-at)
    assert (mirrored - whole).abs().max() > 0.01, "left and right are told apart"
    assert (attention(q, k, v, scheme=scheme, mask=causal) - whole).abs().max() > 0.01
    packed = attention(q, k, v, scheme=scheme, mask=same_segment(SEGMENTS))
    alone = attention(q[:, :, 5:], k[:, :, 5:], v[:, :, 5:], scheme=scheme, mask=None)
    assert_roundings(packed[:, :, 5:], alone, 64)


# Sizes --------------------------------------------------------------------------------------------

SIZES: dict[str, Any] = {
    "swin window": lambda x: SwinBias(4, window=x),
    "swinv2 window": lambda x: SwinV2Bias(4, window=x),
    "beit window": lambda x: BeitBias(4, window=x),
    "decomposed window": lambda x: Decomposed(8, window=x),
    "decomposed head": lambda x: Decomposed(x, window=3),
    "shaw head": lambda x: Shaw(x, max_distance=3),
    "shaw reach": lambda x: Shaw(8, max_distance=x),
    "shaw heads": lambda x: Shaw(8, max_distance=3, num_heads=x),
    "transformer-xl heads": lambda x: TransformerXL(x, 8),
    "transformer-xl head": lambda x: TransformerXL(4, x),
    "transformer-xl width": lambda x: TransformerXL(4, 8, dim=x),
    "transformer-xl clamp": lambda x: TransformerXL(4, 8, clamp=x),
    "deberta heads": lambda x: Deberta(x, 8, max_distance=64),
    "deberta head": lambda x: Deberta(4, x, max_distance=64),
    "deberta width": lambda x: Deberta(4, 8, dim=x, max_distance=64),
    "deberta reach": lambda x: Deberta(4, 8, max_distance=x),
    "deberta buckets": lambda x: Deberta(4, 8, max_distance=64, num_buckets=x),
    "cope head": lambda x: Cope(x, max_positions=8),
    "cope positions": lambda x: Cope(8, max_positions=x),
    "t5 heads": T5Bias,
    "t5 buckets": lambda x: T5Bias(4, num_buckets=x),
    "t5 reach": lambda x: T5Bias(4, max_distance=x),
    "fire width": lambda x: Fire(4, width=x),
    "learned rows": lambda x: Learned(x, 8),
    "learned offset": lambda x: Learned(8, 8, offset=x),
    "learned padding": lambda x: Learned(8, 8, padding_idx=x),
}
NUMBERS: dict[str, Any] = {
    "-1": -1, "True": True, "2.5": 2.5, "nan": float("nan"), "text": "4", "list": [],
    "tensor": torch.tensor(6), "floats": (3.0, 3.0), "bools": (3, True), "three": (3, 3, 3),
}  # fmt: skip


@pytest.mark.parametrize("given", NUMBERS.values(), ids=NUMBERS.keys())
@pytest.mark.parametrize("what", SIZES)
def test_a_size_that_is_no_count_is_named(what: str, given: Any) -> None:
    """Never a TypeError of PyTorch, never a part of a size that nobody asked for."""
    with pytest.raises(ValueError, match=r"got .+") as caught:
        SIZES[what](given)
    assert "\n" not in str(caught.value)
