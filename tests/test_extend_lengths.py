"""Extensions of models with windows, and of models whose config does not say the trained length."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import oracles
from posenc import Linear, Proportional, Yarn
from posenc.interop.extend import extend_config
from posenc.interop.hf import ConfigError, scheme_from_config
from posenc_cli.models import extend

CONFIGS = Path(__file__).parent / "configs"
LONG_CHAT: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 1,
    "max_position_embeddings": 16384, "rope_scaling": {"type": "linear", "factor": 8.0},
}  # fmt: skip
PLAIN = {**LONG_CHAT, "rope_scaling": None}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}


def config_of(name: str) -> dict[str, Any]:
    return json.loads((CONFIGS / f"{name}.json").read_text())


def rope_of_layer(config: Any, layer: int = 0) -> Any:
    rotary: Any = scheme_from_config(config).layers[layer].rotary
    return rotary


# --- layers with a window ---


def test_gpt_oss_is_extended_as_it_was_itself() -> None:
    """It ships YaRN by 32 from 4,096 in all layers, the windowed ones too: one section for all."""
    config = config_of("gpt-oss-20b")
    new = extend_config(config, to=262_144)
    assert new.config["max_position_embeddings"] == 262_144
    assert new.config["rope_scaling"] == {**config["rope_scaling"], "factor": 64.0}
    meant = oracles.yarn_frequencies(64, 150_000.0, 64.0, 4096, truncate=False)
    for layer in (0, 1, 23):
        got = rope_of_layer(new.config, layer).frequencies()
        assert got.inv_freq.tolist() == pytest.approx(meant, rel=1e-12)
        assert got.attention_factor == pytest.approx(oracles.yarn_amplitude(64.0), rel=1e-15)
    told = "\n".join(new.explained)
    assert "factor 64 = 262144 / 4096" in told and "131072 -> 262144" in told
    assert "a window (128 tokens) share this rotation, so theirs changes as well" in told


@pytest.mark.parametrize(
    ("name", "config_class", "module"),
    [
        ("gpt-oss-20b", "GptOssConfig", "gpt_oss.modeling_gpt_oss.GptOssRotaryEmbedding"),
        ("gemma-2-9b", "Gemma2Config", "gemma2.modeling_gemma2.Gemma2RotaryEmbedding"),
        ("modernbert-base", "ModernBertConfig",
         "modernbert.modeling_modernbert.ModernBertRotaryEmbedding"),
    ],
)  # fmt: skip
def test_transformers_reads_what_was_written(name: str, config_class: str, module: str) -> None:
    transformers = pytest.importorskip("transformers")
    raw = config_of(name)
    to = 2 * raw["max_position_embeddings"]
    written = extend_config(raw, to=to).config
    config = getattr(transformers, config_class)(**written)
    place, _, kind = module.rpartition(".")
    imported = __import__(f"transformers.models.{place}", fromlist=[kind])
    theirs: Any = getattr(imported, kind)(config)
    typed = hasattr(theirs, "full_attention_inv_freq")
    buffers = {layer: f"{layer}_attention_inv_freq" for layer in ("full", "sliding")}
    model = scheme_from_config(written)
    for index, kind in enumerate(model.layer_types):
        assert kind is not None
        buffer = buffers[kind.removesuffix("_attention")] if typed else "inv_freq"
        ours: Any = model.layers[index].rotary
        torch.testing.assert_close(
            getattr(theirs, buffer).double(), ours.frequencies().inv_freq, rtol=2e-6, atol=0
        )
        amplitude = buffer.replace("inv_freq", "attention_scaling")
        amplitude = getattr(theirs, amplitude)
        assert amplitude == pytest.approx(ours.frequencies().attention_factor)
    assert config.max_position_embeddings == to


def test_layers_with_a_rotation_of_their_own_keep_it() -> None:
    """ModernBERT names a base for each type: an older config gets a section for the far one."""
    for method in ("yarn", "ntk"):
        config = config_of("modernbert-base")
        new = extend_config(config, to=16_384, method=method)
        assert list(new.config["rope_parameters"]) == ["full_attention"]
        assert new.config["local_rope_theta"] == 10_000.0
        model = scheme_from_config(new.config)
        meant = {
            "yarn": oracles.yarn_frequencies(64, 160_000.0, 2.0, 8192),
            "ntk": oracles.ntk_frequencies(64, 160_000.0, 2.0),
        }[method]
        for index, kind in enumerate(model.layer_types):
            expected = meant if kind == "full_attention" else oracles.frequencies(64, 10_000.0)
            rotary: Any = model.layers[index].rotary
            assert rotary.frequencies().inv_freq.tolist() == pytest.approx(expected, rel=1e-12)
        assert "window" not in "\n".join(new.explained)


@pytest.mark.parametrize("name", ["mistral-7b-v0.1", "command-r7b"])
def test_where_every_layer_has_a_window_no_rotation_need_change(name: str) -> None:
    config = config_of(name)
    new = extend_config(config, to=65_536)
    assert "all layers that rotate have a window (4096 tokens) and see no farther" in "\n".join(
        new.explained
    )


def test_a_window_longer_than_the_trained_length_is_no_window_here() -> None:
    config = {**PLAIN, "model_type": "mistral", "sliding_window": 8192}
    new = extend_config(config, to=8192, original_length=4096)
    assert "window" not in "\n".join(new.explained)


# --- the trained length ---


@pytest.mark.parametrize("method", ["linear", "yarn", "dynamic", "llama3", "ntk"])
def test_a_trained_length_that_no_key_says_can_be_given(method: str) -> None:
    """LongChat: 2,048 tokens, linear by 8, and 16,384 in the config."""
    new = extend_config(
        LONG_CHAT, to=32_768, method=method, replace_scaling=True, original_length=2048
    )
    plain = oracles.frequencies(32, 1e4)
    meant = {
        "linear": [s / 16 for s in plain],
        "yarn": oracles.yarn_frequencies(32, 1e4, 16.0, 2048),
        "dynamic": plain,
        "llama3": oracles.llama3_frequencies(32, 1e4, 16.0, 2048),
        "ntk": oracles.ntk_frequencies(32, 1e4, 16.0),
    }[method]
    rope = rope_of_layer(new.config)
    assert rope.frequencies().inv_freq.tolist() == pytest.approx(meant, rel=1e-12)
    assert new.explained[0] == "factor 16 = 32768 / 2048, new length / trained length"
    longest = new.config["max_position_embeddings"]
    assert longest == (2048 if method == "dynamic" else 32_768)
    assert f"max_position_embeddings 16384 -> {longest}" in new.explained
    if method == "dynamic":
        at_length = rope.at_length(32_768).frequencies().inv_freq.tolist()
        base = oracles.dynamic_ntk_base(32, 1e4, 16.0, 2048, 32_768)
        assert at_length == pytest.approx(oracles.frequencies(32, base), rel=1e-12)


def test_the_same_method_needs_no_replacing() -> None:
    new = extend_config(LONG_CHAT, to=32_768, method="linear", original_length=2048)
    assert rope_of_layer(new.config).scaling == Linear(16.0)
    with pytest.raises(ConfigError, match=r"another method starts .* original length 2048 \(--re"):
        extend_config(LONG_CHAT, to=32_768, original_length=2048)


def test_a_maximum_that_is_longer_than_the_trained_length() -> None:
    """Qwen2.5 says 131,072 where it was trained at 32,768."""
    config = config_of("qwen2.5-7b")
    assert config["max_position_embeddings"] == 131_072
    with pytest.raises(ConfigError, match="trained at 131072 tokens: 131072 is no extension"):
        extend_config(config, to=131_072)
    new = extend_config(config, to=131_072, original_length=32_768)
    assert rope_of_layer(new.config).scaling == Yarn(4.0, 32_768)
    assert not any("max_position_embeddings" in line for line in new.explained)


def test_a_config_without_any_length() -> None:
    config = config_of("falcon-7b")
    with pytest.raises(ConfigError, match=r"the trained length .* \(original_length=, --original-"):
        extend_config(config, to=8192)
    new = extend_config(config, to=8192, original_length=2048)
    assert rope_of_layer(new.config).scaling == Yarn(4.0, 2048)
    assert new.config["max_position_embeddings"] == 8192


def test_a_length_that_the_config_contradicts_is_refused() -> None:
    config = {**LONG_CHAT, "rope_scaling": YARN}
    same = extend_config(config, to=32_768, original_length=4096)
    assert same.config == extend_config(config, to=32_768).config
    with pytest.raises(
        ConfigError, match=r"original_length = 2048 was given, .* says 4096, by Yarn"
    ):
        extend_config(config, to=32_768, original_length=2048)


@pytest.mark.parametrize("given", [0, 1, -5, True, 2048.0, "2048"])
def test_a_length_that_is_none_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match="original_length must be an int of at least 2, got"):
        extend_config(LONG_CHAT, to=32_768, method="linear", original_length=given)


def test_pairs_that_stand_still_do_so_after_an_extension() -> None:
    """Gemma 4's global layers turn a quarter of their pairs: another method would turn them all."""
    config = config_of("gemma-4-text")
    new = extend_config(config, to=262_144, method="linear")
    model = scheme_from_config(new.config)
    far = [i for i, kind in enumerate(model.layer_types) if kind == "full_attention"]
    assert rope_of_layer(new.config, far[0]).scaling == Proportional(0.25, 2.0)
    assert "the pairs that turn are divided by 2" in "\n".join(new.explained)
    again = extend_config(new.config, to=524_288, method="linear", original_length=131_072)
    assert rope_of_layer(again.config, far[0]).scaling == Proportional(0.25, 4.0)
    with pytest.raises(ConfigError, match="does not say from which trained length"):
        extend_config(new.config, to=524_288, method="linear")
    for replaced in (False, True):
        with pytest.raises(ConfigError, match="only 'linear' divides them"):
            extend_config(config, to=262_144, replace_scaling=replaced)


def test_families_with_keys_of_their_own_say_so() -> None:
    told = extend_config(config_of("chatglm3-6b"), to=16_384).explained
    assert "the published code of chatglm reads keys of its own" in told[-1]
    assert not any("published code" in x for x in extend_config(PLAIN, to=32_768).explained)


def test_the_command_takes_a_trained_length(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LONG_CHAT))
    command = [str(path), "--to", "32768", "--method", "linear"]
    asked = CliRunner().invoke(extend, command)
    assert asked.exit_code == 2 and "--original-length" in asked.output
    done = CliRunner().invoke(extend, [*command, "--original-length", "2048"])
    assert done.exit_code == 0
    assert rope_of_layer(json.loads(done.stdout)).scaling == Linear(16.0)
    assert "factor 16 = 32768 / 2048" in done.stderr
    assert CliRunner().invoke(extend, [*command, "--original-length", "1"]).exit_code == 2
