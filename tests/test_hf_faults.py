"""Faults of other readers of configs, each with its small input and the right answer."""

import math
from typing import Any

import pytest

import oracles
from posenc import Linear, Llama3, LongRope, MRope, QwenNTK, Rope, T5Bias, Yarn
from posenc.interop.extend import extend_config
from posenc.interop.hf import ConfigError, scheme_from_config
from posenc.interop.mistakes import warnings_about


def llama(**changes: Any) -> dict[str, Any]:
    config = {"model_type": "llama", "hidden_size": 256, "num_attention_heads": 4,
              "num_hidden_layers": 2, "max_position_embeddings": 131072}  # fmt: skip
    return config | changes


def rope_of(config: dict[str, Any]) -> Any:
    return scheme_from_config(config).scheme.rotary


def test_b54_truncate_reaches_the_ramp_from_the_config() -> None:
    section = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
               "truncate": False, "original_max_position_embeddings": 4096}  # fmt: skip
    for config in (
        llama(rope_theta=150000, rope_scaling=section),
        {**llama(rope_parameters={"full_attention": {**section, "rope_theta": 150000}}),
         "model_type": "laguna", "head_dim": 64, "partial_rotary_factor": 1.0},
    ):  # fmt: skip
        frequencies = rope_of(config).frequencies()
        picked = [frequencies.inv_freq[i].item() for i in (8, 12, 17)]
        assert picked == pytest.approx([0.0508133, 0.00679496, 0.000129319], rel=1e-5)
        assert frequencies.attention_factor == pytest.approx(1.3466, abs=1e-4)


def test_b56_b57_attention_factor_is_read_and_final() -> None:
    section = {"rope_type": "yarn", "factor": 64.0, "original_max_position_embeddings": 2048}
    assert factor(section) == pytest.approx(1.4158883, abs=1e-7)
    assert factor({**section, "attention_factor": 1.0}) == 1.0
    assert factor({**section, "factor": 128.0, "attention_factor": 1.4852}) == 1.4852


def factor(section: dict[str, Any]) -> float:
    return rope_of(llama(rope_scaling=section)).frequencies().attention_factor


@pytest.mark.parametrize(("all_dim", "scale"), [(0.707, 1.5896), (1.0, 1.8739)])
def test_b59_deepseeks_softmax_scale_comes_with_its_config(all_dim: float, scale: float) -> None:
    section = {"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": all_dim,
               "original_max_position_embeddings": 4096}  # fmt: skip
    deepseek = {**llama(rope_scaling=section), "model_type": "deepseek_v3",
                "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}  # fmt: skip
    assert rope_of(deepseek).frequencies().softmax_scale == pytest.approx(scale, abs=1e-4)
    assert rope_of(llama(rope_scaling=section)).frequencies().softmax_scale == 1.0  # not Llama's


def test_b66_longrope_takes_its_amplitude_from_the_lengths_or_the_override() -> None:
    section = {"type": "su", "short_factor": [1.0] * 32, "long_factor": [2.0] * 32}
    phi3 = {**llama(rope_scaling=section), "model_type": "phi3",
            "original_max_position_embeddings": 4096}  # fmt: skip
    assert rope_of(phi3).frequencies().attention_factor == pytest.approx(1.1902381, abs=1e-7)
    shorter = rope_of({**phi3, "max_position_embeddings": 2048})
    assert shorter.frequencies().attention_factor == 1.0
    both = rope_of({**phi3, "rope_scaling": {**section, "short_mscale": 1.1, "long_mscale": 1.3}})
    assert both.frequencies().attention_factor == 1.1
    assert both.at_length(4097).frequencies().attention_factor == 1.3
    early = rope_of({**phi3, "rope_scaling": {**section, "type": "yarn"}})  # Phi-3's first configs
    assert isinstance(early.scaling, LongRope)
    assert early.frequencies().attention_factor == pytest.approx(0.1 * math.log(32) + 1)


def test_b68_qwens_stretch_is_a_power_of_two_less_one() -> None:
    config = {"model_type": "qwen", "hidden_size": 4096, "num_attention_heads": 32,
              "num_hidden_layers": 2, "seq_length": 8192, "rotary_emb_base": 10000,
              "use_dynamic_ntk": True}  # fmt: skip
    rope = rope_of(config)
    assert isinstance(rope.scaling, QwenNTK)
    factors = [rope.at_length(n).scaling.factor for n in (8192, 8193, 16385)]
    assert factors == [1, 3, 7]
    stretched = rope.at_length(8193).frequencies().inv_freq[1].item()
    base = 10000 * 3 ** (128 / 126)
    assert stretched == pytest.approx(base ** (-2 / 128), rel=1e-12)


def test_b71_b72_the_base_is_found_where_it_is_and_never_assumed() -> None:
    assert rope_of(llama(rope_theta=1e6)).base == 1e6
    assert rope_of(llama(rope_parameters={"rope_theta": 500000})).base == 500000
    with pytest.raises(ConfigError, match="keys that agree"):
        rope_of(llama(rope_theta=1e4, rope_parameters={"rope_theta": 5e5}))
    unsaid = scheme_from_config(llama())
    assert unsaid.defaults_used["rope_parameters.rope_theta"] == 10000.0


def test_b77_b78_llama3_scaling_is_read_with_whole_numbers_and_all_its_keys() -> None:
    section = {"factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
               "original_max_position_embeddings": 8192, "rope_type": "llama3"}  # fmt: skip
    assert rope_of(llama(rope_scaling=section)).scaling == Llama3(8.0, 8192, 1.0, 4.0)
    with pytest.raises(ConfigError, match="low_freq_factor is missing"):
        rope_of(llama(rope_scaling={k: x for k, x in section.items() if k != "low_freq_factor"}))


def test_b80_both_names_of_the_method_must_agree() -> None:
    same = {"type": "linear", "rope_type": "linear", "factor": 4}
    assert rope_of(llama(rope_scaling=same)).scaling == Linear(4)
    with pytest.raises(ConfigError, match=r"rope_type = 'dynamic' but .*type = 'linear'"):
        rope_of(llama(rope_scaling={**same, "rope_type": "dynamic"}))


def test_b83_the_ramp_begins_at_the_trained_length() -> None:
    section = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}
    rope = rope_of(llama(rope_scaling=section, max_position_embeddings=163840))
    assert rope.scaling == Yarn(40.0, 4096)


def test_b87_sections_make_it_m_rope_whatever_the_type_says() -> None:
    for kind in (
        {"rope_type": "default"},
        {"type": "mrope"},
        {"type": "mrope", "rope_type": "default"},
    ):
        section = {**kind, "mrope_section": [8, 12, 12]}
        rope = rope_of({**llama(rope_scaling=section), "model_type": "qwen2_vl"})
        assert isinstance(rope, MRope) and rope.sections == (8, 12, 12)
    with pytest.raises(ConfigError, match=r"mrope_section = .*no such key"):
        rope_of(llama(rope_scaling={"rope_type": "default", "mrope_section": [8, 12, 12]}))
    short = {"type": "mrope", "mrope_section": [8, 8, 8]}
    with pytest.raises(ConfigError, match="add up to 32"):
        rope_of({**llama(rope_scaling=short), "model_type": "qwen2_vl"})


def test_b90_b92_partial_rotation_holds_with_several_axes_and_any_key() -> None:
    glm = {**llama(rope_scaling={"rope_type": "default", "mrope_section": [2, 3, 3]}),
           "model_type": "glm4v_text", "partial_rotary_factor": 0.25}  # fmt: skip
    mrope = rope_of(glm)
    assert isinstance(mrope, MRope) and mrope.frequencies().inv_freq.numel() == 8
    neox = {**llama(rotary_pct=0.5), "model_type": "gpt_neox"}
    assert rope_of(neox) == Rope(64, rotary_dim=32)
    with pytest.raises(ConfigError, match="keys that agree"):
        rope_of({**neox, "partial_rotary_factor": 0.25})


def test_b93_a_proportional_share_is_not_a_smaller_rotary_width() -> None:
    section = {"rope_type": "proportional", "partial_rotary_factor": 0.25}
    rope = rope_of(llama(hidden_size=32, rope_parameters={**section, "rope_theta": 1e4}))
    assert rope.rotary_dim == 8
    assert rope.frequencies().inv_freq.tolist() == [1, 0, 0, 0]


def test_b85_the_training_factor_goes_into_the_config_and_comes_back() -> None:
    """A model tuned for 32k tokens from 4k: without linear scaling by 8 its output is empty."""
    tuned = extend_config(llama(max_position_embeddings=4096), to=32768, method="linear").config
    assert tuned["max_position_embeddings"] == 32768
    rope = rope_of(tuned)
    assert rope == Rope(64, scaling=Linear(8.0))
    expected = [oracles.frequency(i, 64, 1e4) / 8 for i in range(32)]
    assert rope.frequencies().inv_freq.tolist() == pytest.approx(expected, rel=1e-13)
    left_out = {k: x for k, x in tuned.items() if k not in ("rope_scaling", "rope_parameters")}
    assert rope_of(left_out) != rope


@pytest.mark.parametrize("kind", ["smollm3", "llama4_text"])
def test_b102_layers_without_rotation_are_every_fourth(kind: str) -> None:
    """no_rope_layers holds 1 where a layer rotates; left out, the interval says the same."""
    still = list(range(3, 36, 4))
    base = {**llama(num_hidden_layers=36), "model_type": kind}
    listed = [int((layer + 1) % 4 != 0) for layer in range(36)]
    for config in (
        {**base, "no_rope_layer_interval": 4},
        {**base, "no_rope_layers": listed},
        base,
    ):
        model = scheme_from_config(config)
        assert [i for i in range(36) if not model.uses_rope(i)] == still
        assert model.layers[3].rotary is None and model.layers[0].rotary is not None
    assert still == [3, 7, 11, 15, 19, 23, 27, 31, 35]
    name = {w.name: w.text for w in warnings_about({**base, "no_rope_layers": listed}, model)}
    assert str(still) in name["no-rope-layers"]


def test_b149_t5_has_a_bias_of_its_own_on_each_side_and_none_across() -> None:
    t5 = {"model_type": "t5", "d_model": 64, "num_layers": 2, "num_heads": 4, "d_kv": 16}
    model = scheme_from_config(t5)
    assert model.encoder is not None
    sides = (model.encoder.scheme.bias, model.scheme.bias)
    assert [bias.bidirectional for bias in sides if isinstance(bias, T5Bias)] == [True, False]
    assert model.encoder.scheme.bias is not model.scheme.bias
