"""Encodings that do not learn are values: frozen, comparable, and nothing a model has to carry."""

import copy
import pickle
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
import torch
from torch import nn

from posenc import (
    NTK,
    Alibi,
    AxialLearned,
    AxialSinusoidal,
    DynamicNTK,
    FourierBands,
    Learned,
    LearnedScaleRope,
    Linear,
    Llama3,
    LongRope,
    MultiHeadAttention,
    NTKByParts,
    Proportional,
    QwenNTK,
    RandomFourier,
    Rope,
    Scheme,
    Shaw,
    Sinusoidal,
    SwinBias,
    T5Bias,
    Yarn,
    causal,
    masks,
    window,
)
from posenc.positions import sequence
from posenc.registry import ENCODINGS, SCALINGS
from support import (
    CAUSAL,
    DIM,
    HEAD_DIM,
    HEADS,
    NAMES,
    assert_roundings,
    build,
    cells_of,
    mask_of,
    positions_of,
    random,
)

VALUES: dict[str, tuple[Any, Any]] = {  # a value, and one that differs in one field
    "rope": (Rope(64), Rope(64, base=500_000.0)),
    "rope pairing": (Rope(64, pairing="adjacent"), Rope(64)),
    "rope direction": (Rope(64, direction=-1), Rope(64)),
    "rope scaling": (Rope(64, scaling=Yarn(4.0, 2048)), Rope(64, scaling=Yarn(8.0, 2048))),
    "sinusoidal": (Sinusoidal(8), Sinusoidal(8, denominator="d-2")),
    "sinusoidal first": (Sinusoidal(8, first="cosine"), Sinusoidal(8)),
    "axial sinusoidal": (AxialSinusoidal(8), AxialSinusoidal(8, axis_order=(1, 0))),
    "bands": (FourierBands(4, (6, 8)), FourierBands(4, (6, 8), keep_positions=False)),
    "linear": (Linear(4.0), Linear(8.0)),
    "ntk": (NTK(4.0), NTK(4.0, rule="plain")),
    "dynamic": (DynamicNTK(2.0, 64), DynamicNTK(2.0, 64, length=99)),
    "by parts": (NTKByParts(4.0, 64), NTKByParts(4.0, 65)),
    "yarn": (Yarn(4.0, 64), Yarn(4.0, 64, truncate=False)),
    "llama3": (Llama3(4.0, 64), Llama3(4.0, 64, high_freq_factor=8.0)),
    "longrope": (LongRope((1.0,), (2.0,), 4.0, 64), LongRope((1.0,), (3.0,), 4.0, 64)),
    "qwen": (QwenNTK(64), QwenNTK(64, length=99)),
    "proportional": (Proportional(0.5), Proportional(0.25)),
    "causal": (causal, window(3)),
    "window": (window(3), window(4)),
}
every_value = pytest.mark.parametrize(("value", "other"), VALUES.values(), ids=VALUES.keys())


@every_value
def test_a_value_is_frozen(value: Any, other: Any) -> None:
    name = next(iter(vars(value)), "size")
    with pytest.raises(FrozenInstanceError):
        setattr(value, name, getattr(other, name, 0))


@every_value
def test_equal_configurations_are_equal_and_others_are_not(value: Any, other: Any) -> None:
    twin = replace(value)
    assert twin == value and hash(twin) == hash(value)
    assert value != other


@every_value
def test_the_repr_is_the_configuration(value: Any, other: Any) -> None:
    names = {"Causal": masks.Causal, "Window": masks.Window, "torch": torch}
    classes = {type(x).__name__: type(x) for pair in VALUES.values() for x in pair}
    assert eval(repr(value), {**classes, **names}) == value
    assert repr(value) != repr(other)


@every_value
def test_copies_and_pickles_are_equal(value: Any, other: Any) -> None:
    del other
    assert copy.deepcopy(value) == value
    assert pickle.loads(pickle.dumps(value)) == value


def test_a_whole_rotary_dim_is_the_default() -> None:
    assert Rope(64) == Rope(64, rotary_dim=64)
    assert Rope(64, base=10_000) == Rope(64)


def test_a_value_is_no_module_and_a_part_that_learns_is_one() -> None:
    for value, _ in VALUES.values():
        assert not isinstance(value, nn.Module)
    for part in (Learned(4, 4), LearnedScaleRope(Rope(8)), T5Bias(2), Shaw(8, max_distance=2)):
        assert list(part.parameters())
    assert not list(Alibi(2).parameters())


def test_a_rope_at_a_length_is_a_new_value_only_where_its_method_asks() -> None:
    for name, method in SCALINGS.items():
        rope = Rope(8, scaling=method.build(4.0, 64))
        if not hasattr(rope.scaling, "at_length"):
            assert rope.at_length(1000) is rope, name
    assert Rope(8).at_length(99) == Rope(8)
    rope = Rope(8, scaling=DynamicNTK(2.0, 64))
    assert rope.at_length(65) != rope.at_length(66)
    assert rope.at_length(1) == rope.at_length(64) == rope


class Model(nn.Module):
    """A model that holds values beside what learns."""

    def __init__(self, name: str) -> None:
        super().__init__()
        scheme = build(name)
        self.additive, self.scheme = scheme.additive, scheme
        self.layer = MultiHeadAttention(DIM, HEADS, scheme=scheme, mask=mask_of(name))
        with torch.device("cpu"):
            self.cells = cells_of(name)

    def forward(self, x: torch.Tensor, at: torch.Tensor | None = None) -> torch.Tensor:
        x = x if self.additive is None else self.additive(x, self._places(at))
        return self.layer(x, at)

    def _places(self, at: torch.Tensor | None) -> torch.Tensor | None:
        return at if self.cells is None or at is None else self.cells.to(at.device)[at]


@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_holds_what_learns_and_nothing_else(name: str) -> None:
    model = Model(name)
    learned = {key for key in model.state_dict() if not key.startswith(("layer.q", "layer.k"))}
    learned -= {"layer.v.weight", "layer.out.weight"}
    parts = model.scheme.modules()
    assert {key.removeprefix("layer.learned.") for key in learned} == {
        f"{field}.{key}" for field, part in parts.items() for key in part.state_dict()
    }
    twin = Model(name)
    twin.load_state_dict(model.state_dict(), strict=True)


@pytest.mark.parametrize("name", [n for n in CAUSAL if not ENCODINGS[n].has_limit])
def test_casting_a_model_casts_no_angle(name: str) -> None:
    """bfloat16 weights, angles as before: positions 256 and 257 stay apart, far ones right."""
    torch.manual_seed(0)
    model = Model(name).to(torch.bfloat16)
    wide = copy.deepcopy(model).double()  # the rounded weights, computed exactly
    x = random(1, 3, DIM, dtype=torch.bfloat16)
    far = getattr(model.scheme.rotary, "reach", 100_003) - 3
    for at in ([256, 257, 259], [far, far + 1, far + 3]):
        positions = torch.tensor(at)
        exact = wide(x.double(), positions)
        out = model(x, positions)
        assert out.dtype == torch.bfloat16
        assert_roundings(out, exact.detach(), 8)


@pytest.mark.parametrize("name", NAMES)
def test_a_model_on_meta_has_shapes_and_becomes_real_without_help(name: str) -> None:
    torch.manual_seed(0)
    real = Model(name)
    with torch.device("meta"):
        model = Model(name)
    if real.scheme.num_axes == 1:
        at = torch.arange(5, device="meta")
        assert model(torch.empty(2, 5, DIM, device="meta"), at).shape == (2, 5, DIM)
    model.to_empty(device="cpu").load_state_dict(real.state_dict())
    x = random(2, 5, DIM, dtype=torch.float32)
    at = torch.zeros(5, 2, dtype=torch.int64) if real.scheme.num_axes == 2 else sequence(5)
    assert torch.equal(model(x, at), real(x, at))


@pytest.mark.parametrize("name", NAMES)
def test_copies_and_pickles_of_a_model_compute_the_same(name: str) -> None:
    model = Model(name)
    x = random(2, 5, DIM, dtype=torch.float32)
    at = torch.zeros(5, 2, dtype=torch.int64) if model.scheme.num_axes == 2 else sequence(5)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(x, at), model(x, at))
        assert twin.state_dict().keys() == model.state_dict().keys()


@pytest.mark.parametrize("name", NAMES)
def test_tables_are_made_where_the_positions_are(name: str) -> None:
    scheme = build(name)
    if scheme.rotary is None:
        return
    at = positions_of(name, 5).to("meta")
    assert scheme.rotary.tables(at, at).q.cos.device.type == "meta"


def test_the_repr_of_a_module_names_its_options() -> None:
    parts = [
        (Learned(8, 4, padding_idx=1), "8, 4, offset=2, padding_idx=1"),
        (AxialLearned((3, 5), (2, 4)), "(3, 5), (2, 4), axis_order=(0, 1), combine='concatenated'"),
        (AxialLearned((3, 5), 4, combine="added"), "(3, 5), 4, axis_order=(0, 1), combine='added'"),
        (RandomFourier(8, scale=2.0), "8, num_axes=2, scale=2.0, learned=False"),
        (T5Bias(2), "2, num_buckets=32, max_distance=128, bidirectional=True"),
        (Alibi(2, symmetric=True), "2, symmetric=True, learned=False"),
        (SwinBias(2, window=(3, 4)), r"2, window=(3, 4)"),
        (Shaw(8, max_distance=4, values=False), "8, max_distance=4, values=False"),
        (LearnedScaleRope(Rope(HEAD_DIM), blend=0.5), f"{Rope(HEAD_DIM)}, blend=0.5"),
    ]
    for part, text in parts:
        assert repr(part) == f"{type(part).__name__}({text})"


def test_a_scheme_lists_what_learns_by_field() -> None:
    assert Scheme().modules() == {}
    hybrid = Scheme(additive=Learned(4, 4), rotary=Rope(8), bias=Alibi(2))
    assert list(hybrid.modules()) == ["additive", "bias"]


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_a_model_on_a_gpu_computes_what_it_computes_here(name: str) -> None:
    torch.manual_seed(0)
    model = Model(name)
    x = random(2, 5, DIM, dtype=torch.float32)
    at = torch.zeros(5, 2, dtype=torch.int64) if model.scheme.num_axes == 2 else sequence(5)
    here = model(x, at).detach()
    there = copy.deepcopy(model).cuda()(x.cuda(), at.cuda()).detach().cpu()
    assert_roundings(there, here, 256)
