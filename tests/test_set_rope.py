"""Loaded transformers models under posenc rotations: the same where they agree, undone exactly."""

import copy
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import DynamicCache, StaticCache
from transformers.models.llama import modeling_llama

from causal_models import causal_model
from live_models import MROPE, TYPES, logits, model, mrope_model, tokens
from posenc import (
    AxialRope,
    DynamicNTK,
    LearnedScaleRope,
    Linear,
    MixedRope,
    MRope,
    Rope,
    Scheme,
    XPos,
    Yarn,
)
from posenc.additive import Sinusoidal
from posenc.bias import Alibi
from posenc.contracts import RotaryTables
from posenc.interop.checkpoints import convert
from posenc.interop.hf import scheme_from_config
from posenc.interop.live.functions import unwrapped, with_globals
from posenc.interop.live.modules import probe
from posenc.interop.model_scheme import ModelScheme
from posenc.interop.transformers import set_rope
from posenc.query_scale import LogScale
from posenc.relative import Shaw

COMPLEX = ("deepseek_v2", "llama4_text")  # torch.polar rounds cos and sin by a function of its own


def own_ropes(made: Any, change: Callable[[Rope], Rope] = lambda rope: rope) -> Any:
    """What the model's config says, with transformers' rounded angles; by layer type for Gemma 3."""
    scheme = scheme_from_config(made.config.to_dict())
    ropes: list[Any] = [layer.rotary for layer in scheme.layers]
    ropes = [rope and change(replace(rope, angle_dtype=torch.float32)) for rope in ropes]
    if made.config.model_type == "gemma3_text":
        return dict(zip(made.config.layer_types, ropes, strict=True))
    return next(rope for rope in ropes if rope is not None)


def assert_same(kind: str, actual: Tensor, expected: Tensor) -> None:
    if kind in COMPLEX:
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)
    else:
        assert torch.equal(actual, expected)


@pytest.mark.parametrize("kind", TYPES)
def test_the_same_rope_gives_the_same_logits_and_another_does_not(kind: str) -> None:
    made = model(kind)
    before, state = logits(made), {name: x.clone() for name, x in made.state_dict().items()}
    with set_rope(made, own_ropes(made)):
        assert_same(kind, logits(made), before)
    with set_rope(made, own_ropes(made, lambda rope: replace(rope, base=7.0))):
        assert (logits(made) - before).abs().max() > 1e-4
    assert torch.equal(logits(made), before)
    after = made.state_dict()
    assert after.keys() == state.keys() and all(torch.equal(after[n], state[n]) for n in state)


@pytest.mark.parametrize("kind", TYPES)
def test_cached_decoding_under_a_swap_is_a_full_forward(kind: str) -> None:
    made = model(kind)
    with set_rope(made, own_ropes(made, lambda rope: replace(rope, scaling=Linear(3.0)))):
        whole, cache = logits(made), DynamicCache(config=made.config)
        parts = [logits(made, part, cache=cache) for part in tokens().split([7, 1, 4], dim=1)]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-4, atol=2e-6)


SCALED = {
    "linear": (Linear(4.0), {"rope_type": "linear", "factor": 4.0}),
    "yarn": (
        Yarn(4.0, original_length=16),
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    ),
}


@pytest.mark.parametrize("method", SCALED)
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "mistral", "olmo2", "cohere", "gpt_oss",
                                  "glm4", "gpt_neox", "starcoder2", "nemotron"])  # fmt: skip
def test_a_swap_is_the_model_built_with_that_scaling(kind: str, method: str) -> None:
    plain, scaling = model(kind), SCALED[method][0]
    rope = own_ropes(plain, lambda rope: replace(rope, scaling=scaling))
    parameters = {"rope_theta": rope.base, **SCALED[method][1]}
    if rope.rotary_dim != rope.head_dim:
        parameters["partial_rotary_factor"] = rope.rotary_dim / rope.head_dim
    changes: dict[str, Any] = {"rotary_pct": 0.5} if kind == "gpt_neox" else {}
    built = model(kind, rope_parameters=parameters, **changes)
    expected = logits(built)
    assert (expected - logits(plain)).abs().max() > 1e-4
    with set_rope(plain, rope):
        assert torch.equal(logits(plain), expected)


def test_b59_yarn_with_a_softmax_scale_reaches_deepseek_s_attention() -> None:
    """B59: mscale_all_dim multiplies the softmax scale, of channels that do not turn as well."""
    keys = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 16,
            "mscale": 1.0, "mscale_all_dim": 1.0, "rope_theta": 10_000.0}  # fmt: skip
    built = model("deepseek_v3", rope_parameters=keys)
    rope, plain = own_ropes(built), model("deepseek_v3")
    assert rope.frequencies().softmax_scale == pytest.approx(1.8739, abs=1e-4)
    with set_rope(plain, rope):
        assert torch.equal(logits(plain), logits(built))
    scale = plain.model.layers[0].self_attn.scaling
    assert scale == pytest.approx(16**-0.5, rel=1e-12)
    with set_rope(built, own_ropes(plain)):
        assert torch.equal(logits(built), logits(plain))


def test_layer_types_are_swapped_by_name() -> None:
    made = model("gemma3_text")
    before, ropes = logits(made), own_ropes(made)
    assert ropes["full_attention"] != ropes["sliding_attention"]
    changed = replace(ropes["full_attention"], scaling=Linear(8.0))
    with set_rope(made, {"full_attention": changed}):
        first = logits(made)
    with set_rope(made, {**ropes, "full_attention": changed}):
        assert torch.equal(logits(made), first)
    assert (first - before).abs().max() > 1e-5
    with pytest.raises(ValueError, match=r"layer types .*got a single one"):
        set_rope(made, ropes["full_attention"])
    with pytest.raises(ValueError, match="one for global"):
        set_rope(made, {"global": ropes["full_attention"]})


def test_schemes_as_read_from_a_config_are_taken() -> None:
    for kind in ("llama", "gemma3_text"):
        made = model(kind)
        scheme, before = scheme_from_config(made.config.to_dict()), logits(made)
        with set_rope(made, scheme):
            torch.testing.assert_close(logits(made), before, rtol=1e-4, atol=2e-6)
    with set_rope(made := model("llama"), Scheme(rotary=own_ropes(made))):
        assert torch.equal(logits(made), logits(model("llama")))


@pytest.mark.parametrize("kind", MROPE)
def test_pairs_that_turn_with_several_coordinates_keep_their_own(kind: str) -> None:
    """A rope alone is shared out as the model shares its own; an MRope says it itself."""
    made = mrope_model(kind)
    positions = torch.stack([torch.arange(12).repeat(2, 1), *torch.randint(0, 9, (2, 2, 12))])

    def states(**arguments: Any) -> Tensor:
        with torch.no_grad():
            return made(tokens(), **arguments).last_hidden_state

    images, text = states(position_ids=positions), states()
    form = probe(made.rotary_emb)
    rope = Rope(2 * form.num_pairs, base=100.0, angle_dtype=torch.float32)
    rope = replace(rope, pairing="adjacent" if kind in ("glm4v", "ernie4_5_vl_moe") else "half")
    with set_rope(made, rope):
        assert torch.equal(states(position_ids=positions), images)
        assert torch.equal(states(), text)
    mrope = MRope(rope, *MROPE_SECTIONS[kind])
    with set_rope(made, mrope):
        torch.testing.assert_close(states(position_ids=positions), images, rtol=1e-5, atol=2e-6)
        torch.testing.assert_close(states(), text, rtol=1e-5, atol=2e-6)
    with set_rope(made, replace(mrope, rope=replace(rope, scaling=Linear(4.0)))):
        assert (states(position_ids=positions) - images).abs().max() > 1e-3


MROPE_SECTIONS: dict[str, Any] = {
    "qwen2_vl": ((2, 3, 3), "contiguous"),
    "qwen3_vl": ((3, 3, 2), "interleaved"),
    "glm4v": ((2, 3, 3), "contiguous"),
    "glm4v_moe": ((1, 1, 2), "contiguous"),
    "ernie4_5_vl_moe": ((2, 3, 3), "alternating"),
}


@pytest.mark.parametrize("kind", ["llama", "olmo2", "cohere", "glm4", "gpt_oss", "gptj"])
def test_b27_in_bfloat16_the_same_rope_gives_the_same_logits(kind: str) -> None:
    """Some modules round cos and sin to the dtype of the activations, OLMo's keep float32."""
    made = model(kind)
    for weight in made.parameters():
        weight.data = weight.data.to(torch.bfloat16)
    before = logits(made)
    with set_rope(made, own_ropes(made)):
        assert torch.equal(logits(made), before)
        cast = copy.deepcopy(made).to(torch.bfloat16)
        assert torch.equal(logits(cast), before)
    if kind != "gptj":  # B27: a cast of everything rounds the frequencies that the model keeps
        assert not torch.equal(logits(model(kind).to(torch.bfloat16)), before)


# --- what a swap does not set ---


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("bias", Alibi(4)),
        ("query_scale", LogScale(4)),
        ("relative", Shaw(8, max_distance=4)),
        ("additive", Sinusoidal(32)),
    ],
)
def test_parts_that_a_swap_would_not_give_the_model_are_refused(part: str, value: Any) -> None:
    made = model("llama")
    before = logits(made)
    scheme = Scheme(**{"rotary": own_ropes(made), part: value})
    for asked in (scheme, ModelScheme("llama", (scheme, scheme))):
        with pytest.raises(ValueError, match=rf"not its {part}: layer 0 .*{type(value).__name__}"):
            set_rope(made, asked)
    own = scheme_from_config(made.config.to_dict())
    with pytest.raises(ValueError, match=r"not its softmax_scale: got 0\.5"):
        set_rope(made, replace(own, softmax_scale=0.5))
    assert torch.equal(logits(made), before)


def test_parts_that_the_config_says_already_are_no_obstacle() -> None:
    """Llama 4 scales the queries of layers that do not rotate, whatever the others turn by."""
    made = model("llama4_text", no_rope_layers=[1, 0], attn_temperature_tuning=True)
    own = scheme_from_config(made.config.to_dict())
    assert own.layers[1].query_scale is not None
    before = logits(made)
    with set_rope(made, own):
        torch.testing.assert_close(logits(made), before, rtol=1e-4, atol=2e-6)
    other = replace(own, layers=(own.layers[0], Scheme(query_scale=LogScale(4))))
    with pytest.raises(ValueError, match="not its query_scale: layer 1"):
        set_rope(made, other)


def test_a_scheme_of_other_layers_than_the_model_s_is_refused() -> None:
    made = model("llama")
    rotary = own_ropes(made)
    with pytest.raises(ValueError, match=r"other layers than the scheme: they differ in \[1\]"):
        set_rope(made, ModelScheme("llama", (Scheme(rotary=rotary), Scheme())))
    with pytest.raises(ValueError, match="has 2 layers, the scheme 3"):
        set_rope(made, ModelScheme("llama", (Scheme(rotary=rotary),) * 3))


def test_two_rotations_for_layers_of_one_type_are_refused() -> None:
    kinds = ["sliding_attention", "full_attention"] * 2
    made = model("gemma3_text", layer_types=kinds, num_hidden_layers=4)
    a, b, c = (Scheme(rotary=Rope(8, base=base)) for base in (1e4, 5e5, 7.0))
    with pytest.raises(ValueError, match=r"all full_attention layers: layer 3 .*base=7\.0"):
        set_rope(made, ModelScheme("gemma3_text", (a, b, a, c)))
    with set_rope(made, ModelScheme("gemma3_text", (a, b, a, b))) as swap:
        assert {kind: rope.base for kind, rope in swap.ropes.items()} == {
            "sliding_attention": 1e4, "full_attention": 5e5}  # fmt: skip


# --- another pairing than the model's own ---

CONVERTED = ["llama", "qwen2", "qwen3", "gpt_neox", "phi", "phi3", "stablelm", "falcon", "persimmon",
             "cohere", "glm4", "gptj", "codegen", "olmo2", "deepseek_v3", "starcoder2"]  # fmt: skip


@pytest.mark.parametrize("kind", CONVERTED)
def test_a_converted_twin_gives_the_same_logits(tmp_path: Path, kind: str) -> None:
    """Weights converted on disk, and the model told to turn the other pairs: both change nothing."""
    made, twin = model(kind), model(kind, seed=1)
    source, rope = tmp_path / "source", own_ropes(made)
    source.mkdir()
    made.config.save_pretrained(source)
    state = {name: x.clone() for name, x in made.state_dict().items()}
    save_file(state, source / "model.safetensors")
    pairing = "half" if rope.pairing == "adjacent" else "adjacent"
    done = convert(source, tmp_path / "out", to=pairing)
    assert done.noted == ("rope_interleave" if kind == "deepseek_v3" else None)
    twin.load_state_dict(load_file(tmp_path / "out" / "model.safetensors"))
    wrong, expected = logits(twin), logits(made)
    assert (wrong - expected).abs().max() > 3e-4, "this model cannot tell pairings apart"
    with set_rope(twin, replace(rope, pairing=pairing)):
        torch.testing.assert_close(logits(twin), expected, rtol=1e-4, atol=2e-6)
        cache = DynamicCache(config=twin.config)
        parts = [logits(twin, part, cache=cache) for part in tokens().split([8, 4], dim=1)]
        torch.testing.assert_close(torch.cat(parts, 1), expected, rtol=1e-4, atol=2e-6)
    assert torch.equal(logits(twin), wrong)
    convert(tmp_path / "out", tmp_path / "back", to=rope.pairing)
    back = load_file(tmp_path / "back" / "model.safetensors")
    assert back.keys() == state.keys() and all(torch.equal(back[n], state[n]) for n in state)


def test_deepseek_s_own_switch_reads_the_converted_weights(tmp_path: Path) -> None:
    made = model("deepseek_v3")
    made.save_pretrained(tmp_path / "source")
    convert(tmp_path / "source", tmp_path / "half", to="half")
    loaded = type(made).from_pretrained(tmp_path / "half").eval()
    assert loaded.config.rope_interleave is False
    torch.testing.assert_close(logits(loaded), logits(made), rtol=1e-4, atol=2e-6)


def test_a_swap_of_pairing_leaves_other_models_of_the_class_alone() -> None:
    """The module's global function is not patched: a second model turns as before, meanwhile too."""
    made, other = model("llama"), model("llama")
    before = logits(other)
    with set_rope(made, replace(own_ropes(made), pairing="adjacent")):
        assert torch.equal(logits(other), before)
        assert not torch.equal(logits(made), before)


def test_keys_that_are_normed_after_they_turned_cannot_be_turned_again() -> None:
    """HunYuan: the weights of a norm lie between the rotation and the cache."""
    made = causal_model("hunyuan_v1_dense")
    with set_rope(made, Rope(8, base=100.0)):
        cache = filled(made, tokens())
    with (
        set_rope(made, Rope(8)) as swap,
        pytest.raises(ValueError, match="HunYuanDenseV1ForCausalLM norms keys after it rotates"),
    ):
        swap.move_cache(cache)


# --- caches ---


def filled(made: Any, ids: Tensor, cache: Any = None) -> Any:
    cache = DynamicCache(config=made.config) if cache is None else cache
    logits(made, ids, cache=cache)
    return cache


def test_b44_keys_of_one_rotation_never_meet_queries_of_another() -> None:
    """The number of B44: at 2,049 tokens the base of dynamic scaling is 10,009.92."""
    dynamic = DynamicNTK(2.0, original_length=2048)
    rope = Rope(128, scaling=dynamic).at_length(2049)
    slowest = 2 / rope.frequencies().inv_freq[1].item() ** 64 / 2
    assert slowest == pytest.approx(10_009.92, abs=0.01)

    made, ids = model("llama"), tokens()
    rope = Rope(8, scaling=DynamicNTK(2.0, original_length=8))
    cache = filled(made, ids)
    with set_rope(made, rope), pytest.raises(ValueError, match="model's own rotation, but queries"):
        logits(made, ids[:, :1], cache=cache)
    with set_rope(made, rope):
        cache = filled(made, ids)
        logits(made, ids[:, :1], cache=cache)
    with set_rope(made, rope.at_length(8)):  # the same value: nothing changed
        logits(made, ids[:, :1], cache=cache)
    with set_rope(made, rope.at_length(64)), pytest.raises(ValueError, match="move_cache"):
        logits(made, ids[:, :1], cache=cache)
    with pytest.raises(ValueError, match="which was undone"):
        logits(made, ids[:, :1], cache=cache)
    with pytest.raises(ValueError, match="which was undone"):
        logits(made, ids[:, :1], cache=copy.deepcopy(cache))


def test_a_cache_made_inside_the_model_is_marked_too() -> None:
    made, ids = model("llama"), tokens()
    with set_rope(made, Rope(8, base=100.0)), torch.no_grad():
        cache = made(ids, use_cache=True).cache
        made(ids[:, :1], cache=cache)
    with set_rope(made, Rope(8, base=200.0)), pytest.raises(ValueError, match=r"base=100\.0"):
        logits(made, ids[:, :1], cache=cache)
    cache.reset()
    del cache


def test_hooks_go_away_with_the_last_cache() -> None:
    made, ids = model("llama"), tokens()
    with set_rope(made, Rope(8, base=100.0)):
        cache = filled(made, ids)
    assert made.model._forward_pre_hooks
    del cache
    logits(made)
    assert not made.model._forward_pre_hooks and not made.model._forward_hooks
    assert "forward" not in vars(made.model.rotary_emb)


@pytest.mark.parametrize("make", [
    lambda made: DynamicCache(config=made.config),
    lambda made: StaticCache(config=made.config, max_cache_len=32),
])  # fmt: skip
@pytest.mark.parametrize("kind", ["llama", "gpt_neox", "deepseek_v3", "cohere"])
def test_a_moved_cache_goes_on_under_the_new_length(kind: str, make: Any) -> None:
    """One layer, whose keys depend on nothing but their tokens: then a moved cache is exact."""
    made, ids = model(kind, num_hidden_layers=1), tokens()
    rope = own_ropes(made, lambda rope: replace(rope, scaling=DynamicNTK(2.0, original_length=8)))
    longer = rope.at_length(40)
    with set_rope(made, longer):
        expected = logits(made)[:, 8:]
    with set_rope(made, rope.at_length(8)):
        cache = filled(made, ids[:, :8], make(made))
    with set_rope(made, longer) as swap:
        swap.move_cache(cache)
        actual = logits(made, ids[:, 8:], cache=cache)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=2e-6)


def test_a_moved_cache_takes_the_positions_of_padded_rows() -> None:
    made, ids = model("llama", num_hidden_layers=1), tokens()
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    padded: dict[str, Any] = {"attention_mask": mask, "position_ids": positions}
    old, new = Rope(8, base=50.0), Rope(8, base=5000.0)
    with set_rope(made, new):
        expected = logits(made, **padded)[:, 8:]
    with set_rope(made, old):
        cache = DynamicCache(config=made.config)
        first = {"attention_mask": mask[:, :8], "position_ids": positions[:, :8]}
        logits(made, ids[:, :8], cache=cache, **first)
    with set_rope(made, new) as swap:
        swap.move_cache(cache, positions[:, :8])
        rest = {"attention_mask": mask, "position_ids": positions[:, 8:]}
        actual = logits(made, ids[:, 8:], cache=cache, **rest)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=2e-6)


def test_only_a_marked_cache_can_be_moved() -> None:
    made = model("llama")
    cache = filled(made, tokens())
    with set_rope(made, Rope(8)) as swap, pytest.raises(ValueError, match="filled under set_rope"):
        swap.move_cache(cache)


def test_generation_goes_on_as_it_would_by_hand() -> None:
    made, prompt = model("llama"), tokens()[:1, :6]
    with set_rope(made, Rope(8, scaling=Yarn(4.0, original_length=16))):
        written = made.generate(prompt, max_new_tokens=12, do_sample=False, eos_token_id=None)
        ids = prompt
        for _ in range(12):
            ids = torch.cat((ids, logits(made, ids)[:, -1:].argmax(-1)), 1)
    assert torch.equal(written, ids)


# --- swaps as such ---


def test_swaps_nest_and_are_undone_in_order() -> None:
    made, before = model("llama"), logits(model("llama"))
    outer = set_rope(made, Rope(8, base=100.0))
    first = logits(made)
    inner = set_rope(made, Rope(8, base=7.0, pairing="adjacent"))
    with pytest.raises(ValueError, match="newer swap"):
        outer.undo()
    inner.undo()
    assert torch.equal(logits(made), first)
    outer.undo()
    outer.undo()
    assert torch.equal(logits(made), before)


def test_swaps_inside_swaps_change_pairing_and_scale_from_what_is_there() -> None:
    made = model("deepseek_v3")
    own = own_ropes(made)
    yarn = Yarn(40.0, 16, mscale=1.0, mscale_all_dim=1.0, scale_softmax=True)
    scaled = replace(own, scaling=yarn)
    expected = {}
    for rope in (
        own,
        scaled,
        half := replace(own, pairing="half"),
        replace(scaled, pairing="half"),
    ):
        with set_rope(made, rope):
            expected[rope] = logits(made)
    assert len({tuple(x[0, -1, :5].tolist()) for x in expected.values()}) == 4
    with set_rope(made, half):
        for rope, wanted in expected.items():
            with set_rope(made, rope):
                assert torch.equal(logits(made), wanted), rope
            assert torch.equal(logits(made), expected[half])
    assert torch.equal(logits(made), expected[own])
    attention = made.model.layers[0].self_attn
    assert not [name for name in vars(attention) if "posenc" in name or name == "forward"]


def test_a_swapped_model_survives_a_copy_and_a_cast() -> None:
    made = model("llama")
    with set_rope(made, Rope(8, base=100.0)) as swap:
        expected, twin = logits(made), copy.deepcopy(made)
        assert torch.equal(logits(twin), expected)
        low = logits(copy.deepcopy(made).to(torch.bfloat16))
        assert low.dtype == torch.bfloat16
        torch.testing.assert_close(low.float(), expected, rtol=0.2, atol=0.2)
        assert swap.rotation == Rope(8, base=100.0)


LONG = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "factor": 4.0,
        "long_factor": [2.0, 3.0, 4.0, 5.0], "original_max_position_embeddings": 16}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {}, "gemma3_text": {}, "deepseek_v3": {}, "glm4": {},
    "phi3": {"rope_parameters": LONG, "original_max_position_embeddings": 16},
}  # fmt: skip


@pytest.mark.parametrize("kind", FAMILIES)
def test_an_error_inside_leaves_nothing_and_a_copy_outlives_its_swap(kind: str) -> None:
    made = model(kind, **FAMILIES[kind])
    other = own_ropes(made, lambda rope: replace(rope, base=7.0, scaling=None))
    before = logits(made)
    seen: dict[str, Any] = {}

    def fails() -> None:
        with set_rope(made, other):
            seen["first"], seen["twin"] = logits(made), copy.deepcopy(made)
            with set_rope(made, own_ropes(made)):
                assert_same(kind, logits(made), before)
                raise KeyError("inside")

    with pytest.raises(KeyError, match="inside"):
        fails()
    first, twin = seen["first"], seen["twin"]
    assert torch.equal(logits(made), before) and torch.equal(logits(twin), first)
    assert (first - before).abs().max() > 1e-4
    left = [name for module in made.modules() for name in vars(module)]
    assert "forward" not in left and not any("posenc" in name for name in left)
    with set_rope(twin, own_ropes(made)):
        torch.testing.assert_close(logits(twin), before, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen3_vl"])
def test_cached_decoding_with_several_coordinates_is_a_full_forward(kind: str) -> None:
    made = mrope_model(kind)
    positions = torch.stack([torch.arange(12).repeat(2, 1), *torch.randint(0, 9, (2, 2, 12))])
    cache, spans = DynamicCache(config=made.config), ((0, 7), (7, 8), (8, 12))
    with set_rope(made, MRope(Rope(16, base=7.0), *MROPE_SECTIONS[kind])), torch.no_grad():
        whole = made(tokens(), position_ids=positions).last_hidden_state
        parts = [
            made(tokens()[:, a:b], position_ids=positions[:, :, a:b], cache=cache) for a, b in spans
        ]
    joined = torch.cat([part.last_hidden_state for part in parts], 1)
    torch.testing.assert_close(joined, whole, rtol=1e-4, atol=2e-6)


@pytest.mark.slow
def test_a_model_that_was_compiled_before_is_swapped_and_undone() -> None:
    made = model("llama", num_hidden_layers=1)
    before, rope = logits(made, use_cache=False), Rope(8, base=7.0)
    compiled: Any = torch.compile(made, backend="eager")
    for whole in (made, compiled):
        with torch.no_grad():
            assert torch.equal(compiled(tokens(), use_cache=False).logits, before)
            with set_rope(whole, rope):
                expected = logits(made, use_cache=False)
                assert torch.equal(compiled(tokens(), use_cache=False).logits, expected)
            assert torch.equal(compiled(tokens(), use_cache=False).logits, before)
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.parametrize("pairing", ["half", "adjacent"])
def test_a_swapped_model_compiles_into_one_graph(pairing: Any) -> None:
    made = model("llama", num_hidden_layers=1)
    with set_rope(made, Rope(8, base=100.0, pairing=pairing)), torch.no_grad():
        expected = logits(made, use_cache=False)
        compiled: Any = torch.compile(made, backend="eager", fullgraph=True)
        assert torch.equal(compiled(tokens(), use_cache=False).logits, expected)
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        (Rope(16), r"turns 8 channels of a head, but .* turns 16"),
        ({"full_attention": Rope(8)}, "one rope, got one for full_attention"),
        ({}, "one rope, got"),
    ],
)
def test_ropes_that_do_not_fit_are_refused(rope: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        set_rope(model("llama"), rope)


@dataclass(frozen=True)
class Around:
    """Somebody's rotation around another one."""

    rope: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rope, name)

    def tables(
        self, q_pos: Tensor, k_pos: Tensor, *, dtype: torch.dtype = torch.float32
    ) -> RotaryTables:
        return self.rope.tables(q_pos, k_pos, dtype=dtype)


@pytest.mark.parametrize("wrap", [
    lambda rope: rope,
    Around,
    lambda rope: Around(Around(rope)),
    lambda rope: Around(MRope(rope, (2, 2))),
])  # fmt: skip
def test_the_direction_of_a_rope_is_seen_through_all_that_is_around_it(wrap: Any) -> None:
    """nanochat turns backwards: what reaches its functions is the same value turning forward."""
    made, rope = model("nanochat"), Rope(8, base=100.0, direction=-1)
    with set_rope(made, rope):
        expected = logits(made)
    with set_rope(made, wrap(rope)):
        assert torch.equal(logits(made), expected)
    with pytest.raises(ValueError, match=r"turns pairs by -1 · p·θ, and its code fixes that"):
        set_rope(made, wrap(replace(rope, direction=1)))


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        (XPos(Rope(8)), "XPos gives queries and keys other amplitudes"),
        (LearnedScaleRope(Rope(8)), "LearnedScaleRope learns: a swap takes a value"),
        (MixedRope(8, num_heads=4), "MixedRope learns"),
    ],
)
def test_rotations_that_one_table_cannot_say_are_refused(rope: Any, message: str) -> None:
    made = model("llama")
    before = logits(made)
    with pytest.raises(ValueError, match=message):
        set_rope(made, rope)
    assert torch.equal(logits(made), before)


def test_other_channels_and_other_coordinates_than_the_model_s_are_refused() -> None:
    made = model("glm4")  # the leading 4 of 8 channels
    rope = own_ropes(made)
    with pytest.raises(ValueError, match=r"turns the leading channels .* the trailing ones"):
        set_rope(made, replace(rope, placement="trailing"))
    with set_rope(made, Rope(4, base=rope.base, pairing=rope.pairing, angle_dtype=torch.float32)):
        assert torch.equal(logits(made), logits(model("glm4")))
    vision = mrope_model("qwen2_vl")
    with pytest.raises(ValueError, match=r"gives tokens 3 coordinates, .* reads 2"):
        set_rope(vision, AxialRope(16))


# --- forwards that somebody has wrapped ---


def hooked(made: Any) -> Any:
    """As accelerate's add_hook_to_module leaves a model whose parts move between devices."""

    def new_forward(module: Any, *args: Any, **kwargs: Any) -> Any:
        module.calls = getattr(module, "calls", 0) + 1
        return module._old_forward(*args, **kwargs)

    for module in made.modules():
        old = module.forward
        module._hf_hook, module._old_forward = object(), old
        module.forward = functools.update_wrapper(functools.partial(new_forward, module), old)
    return made


@pytest.mark.parametrize("pairing", ["half", "adjacent"])
@pytest.mark.parametrize("kind", ["llama", "deepseek_v3", "nanochat"])
def test_hooks_of_accelerate_stay_where_they_are(kind: str, pairing: Any) -> None:
    rope = own_ropes(model(kind), lambda rope: replace(rope, base=100.0, pairing=pairing))
    with set_rope(plain := model(kind), rope):
        expected = logits(plain)
    made = hooked(model(kind))
    before, held = logits(made), [dict(vars(module)) for module in made.modules()]
    for _ in range(2):
        with set_rope(made, rope):
            calls = made.model.layers[0].self_attn.calls
            assert torch.equal(logits(made), expected)
            assert made.model.layers[0].self_attn.calls == calls + 1
            with set_rope(made, own_ropes(made)):
                assert torch.equal(logits(made), before)
            assert torch.equal(logits(made), expected)
        assert torch.equal(logits(made), before)
    for module, old in zip(made.modules(), held, strict=True):
        assert vars(module)["forward"] is old["forward"]
        assert vars(module).keys() == old.keys()
        assert vars(module)["_old_forward"] is old["_old_forward"]


def decorated(function: Any) -> Any:
    @functools.wraps(function)
    def around(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return around


def test_decorated_and_partial_functions_are_seen_through(monkeypatch: pytest.MonkeyPatch) -> None:
    rope = Rope(8, base=100.0, pairing="adjacent")
    with set_rope(plain := model("llama"), rope):
        expected = logits(plain)
    apply = modeling_llama.apply_rotary_pos_emb
    forward = modeling_llama.LlamaAttention.forward
    wrapped = decorated(decorated(functools.partial(apply, unsqueeze_dim=1)))
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", wrapped)
    monkeypatch.setattr(modeling_llama.LlamaAttention, "forward", decorated(decorated(forward)))
    with set_rope(made := model("llama"), rope):
        assert torch.equal(logits(made), expected)
    partly = functools.partial(decorated(functools.partial(forward)))
    innermost = inspect.unwrap(forward)
    assert unwrapped(partly) is unwrapped(made.model.layers[0].self_attn.forward) is innermost
    calls = []
    moved = with_globals(partly, {"apply_rotary_pos_emb": lambda *a, **k: calls.append(a) or a[:2]})
    states = torch.zeros(1, 2, 32)
    moved(made.model.layers[0].self_attn, states, (states, states), None)
    assert len(calls) == 1


def test_a_forward_of_somebody_else_s_is_refused() -> None:
    made = model("llama")
    attention = made.model.layers[0].self_attn
    attention.forward = lambda *args, **kwargs: None
    with pytest.raises(ValueError, match="the forward of LlamaAttention was replaced already"):
        set_rope(made, Rope(8, pairing="adjacent"))


def test_what_is_no_rope_or_no_rotating_model_is_refused() -> None:
    with pytest.raises(TypeError, match=r"a rope is needed, got 10000\.0"):
        set_rope(model("llama"), 10_000.0)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="Linear has no rotary module"):
        set_rope(torch.nn.Linear(2, 2), Rope(8))


def test_b75_a_config_changed_after_the_model_was_built_has_no_effect_and_a_swap_has() -> None:
    made, before = model("llama"), logits(model("llama"))
    made.config.rope_parameters = {"rope_type": "linear", "factor": 8.0, "rope_theta": 10_000.0}
    assert torch.equal(logits(made), before)
    with set_rope(made, scheme_from_config(made.config.to_dict())):
        assert (logits(made) - before).abs().max() > 1e-4


def test_b30_a_model_made_on_meta_rotates_right_under_a_swap() -> None:
    """to_empty leaves the model's own frequencies as uninitialised memory; a value has none."""
    made = model("llama")
    with torch.device("meta"):
        empty = type(made)(made.config)
    empty = empty.to_empty(device="cpu").eval()
    empty.load_state_dict(made.state_dict())
    empty.model.rotary_emb.inv_freq.fill_(2.4e19)
    with set_rope(empty, own_ropes(made)):
        assert torch.equal(logits(empty), logits(made))
