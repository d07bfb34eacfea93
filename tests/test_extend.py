"""Longer configs keep what the model says about its own scaling, and sections are found alike."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import oracles
from posenc import LearnedScaleRope, Linear, MRope, Rope, XPos, Yarn
from posenc.inspection import inspect
from posenc.interop import extend
from posenc.interop.checkpoints import convert
from posenc.interop.checkpoints.heads import layout_from
from posenc.interop.extend import _same_speed, extend_config
from posenc.interop.hf import FAMILIES, ConfigError, config_from_scheme, scheme_from_config
from posenc.interop.mistakes import warnings_about
from posenc.interop.rotations import scaling_of
from posenc.interop.text_section import text_section
from posenc.query_scale import StepLogScale

QWEN2: dict[str, Any] = {
    "model_type": "qwen2", "hidden_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 2, "max_position_embeddings": 32768, "rope_theta": 1_000_000.0,
}  # fmt: skip
YARN_4 = {"factor": 4.0, "original_max_position_embeddings": 32768}
DEEPSEEK: dict[str, Any] = {
    "model_type": "deepseek_v3", "hidden_size": 64, "num_attention_heads": 2,
    "num_key_value_heads": 2, "num_hidden_layers": 1, "max_position_embeddings": 16384,
    "rope_theta": 10_000.0, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "kv_lora_rank": 32,
    "v_head_dim": 16, "q_lora_rank": None,
}  # fmt: skip
MLA_YARN = {
    "type": "yarn", "factor": 4, "original_max_position_embeddings": 4096, "mscale": 1.0,
    "mscale_all_dim": 1.0, "beta_fast": 32, "beta_slow": 1,
}  # fmt: skip


def qwen2_vl(form: str, **scaling: Any) -> dict[str, Any]:
    config = {**QWEN2, "model_type": "qwen2_vl"}
    if form == "rope_parameters":
        base = config.pop("rope_theta")
        return {**config, "rope_parameters": {"rope_theta": base, **scaling}}
    return {**config, "rope_scaling": scaling}


def rope_in(config: dict[str, Any]) -> Any:
    rotary: Any = scheme_from_config(config).scheme.rotary
    return rotary


# --- what the model says about its scaling stays ---


def test_deepseek_keeps_the_correction_of_its_softmax_scale() -> None:
    """DeepSeek's code: mscale / mscale_all_dim on cos and sin, mscale_all_dim² on the softmax."""
    new = extend_config({**DEEPSEEK, "rope_scaling": MLA_YARN}, to=32768)
    got = rope_in(new.config).frequencies()
    assert got.attention_factor == 1.0
    assert got.softmax_scale == pytest.approx(oracles.yarn_amplitude(8.0) ** 2, rel=1e-15)
    assert got.inv_freq.tolist() == pytest.approx(
        oracles.yarn_frequencies(8, 1e4, 8.0, 4096), rel=1e-12
    )
    told = "\n".join(new.explained)
    assert "attention factor 1.0000 = (0.1·1·ln 8 + 1) / (0.1·1·ln 8 + 1)" in told
    assert f"softmax scale times {(0.1 * math.log(8) + 1) ** 2:.4f} = (0.1·1·ln 8 + 1)²" in told


@pytest.mark.parametrize("form", ["rope_scaling", "rope_parameters"])
def test_yarn_in_use_keeps_its_options(form: str) -> None:
    options = {"beta_fast": 64.0, "beta_slow": 2.0, "attention_factor": 1.0, "truncate": False}
    section = {"rope_type": "yarn", **YARN_4, **options}
    config = {**QWEN2, "max_position_embeddings": 131_072, form: section}
    if form == "rope_parameters":
        config[form] = {**section, "rope_theta": config.pop("rope_theta")}
    new = extend_config(config, to=262_144)
    got = rope_in(new.config).frequencies()
    meant = oracles.yarn_frequencies(128, 1e6, 8.0, 32768, fast=64.0, slow=2.0, truncate=False)
    assert got.inv_freq.tolist() == pytest.approx(meant, rel=1e-12)
    assert got.attention_factor == 1.0
    assert "attention_factor, which stays as the config gives it" in "\n".join(new.explained)


def test_llama_3_keeps_its_factors() -> None:
    section = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192,
               "low_freq_factor": 2.0, "high_freq_factor": 8.0}  # fmt: skip
    config = {**QWEN2, "max_position_embeddings": 65536, "rope_scaling": section}
    got = rope_in(extend_config(config, to=131_072, method="llama3").config).frequencies()
    meant = oracles.llama3_frequencies(128, 1e6, 16.0, 8192, 2.0, 8.0)
    assert got.inv_freq.tolist() == pytest.approx(meant, rel=1e-12)


@pytest.mark.parametrize("given", [True, False])
def test_ministral_keeps_the_scale_of_its_queries(given: bool) -> None:
    """1 + β·ln(1 + ⌊p / 16384⌋), in its code; also where no section says it, only the family."""
    config: dict[str, Any] = {**QWEN2, "model_type": "ministral3", "head_dim": 128}
    beta = 0.1
    if given:
        beta = 0.25
        config["rope_parameters"] = {
            "rope_theta": config.pop("rope_theta"), "rope_type": "yarn", "factor": 2.0,
            "original_max_position_embeddings": 16384, "llama_4_scaling_beta": beta,
            "mscale": 1.0, "mscale_all_dim": 1.0}  # fmt: skip
    after = scheme_from_config(extend_config(config, to=65536).config).scheme
    scale: Any = after.query_scale
    assert isinstance(scale, StepLogScale)
    got = scale.factors(torch.tensor([16383, 40_000, 60_000])).flatten().tolist()
    assert got == pytest.approx([1 + beta * math.log(1 + p) for p in (0, 2, 3)], rel=1e-6)


@pytest.mark.parametrize("kind", ["mrope", "default"])
@pytest.mark.parametrize("form", ["rope_scaling", "rope_parameters"])
def test_sections_of_images_stay(form: str, kind: str) -> None:
    sections = [24, 20, 20]
    name = "type" if form == "rope_scaling" else "rope_type"
    config = qwen2_vl(form, **{name: kind}, mrope_section=sections)
    new = extend_config(config, to=131_072).config
    assert new[form]["mrope_section"] == sections and new[form][name] == "yarn"
    rotary = rope_in(new)
    assert isinstance(rotary, MRope) and rotary.sections == tuple(sections)
    got = rotary.frequencies().inv_freq.tolist()
    assert got == pytest.approx(oracles.yarn_frequencies(128, 1e6, 4.0, 32768), rel=1e-12)


def test_a_config_that_could_not_say_it_is_refused() -> None:
    """Keys of the query's scale stand beside YaRN's length: linear scaling has no place for it."""
    config = {**QWEN2, "model_type": "ministral3", "head_dim": 128}
    with pytest.raises(ConfigError, match="original_max_position_embeddings"):
        extend_config(config, to=65536, method="linear", replace_scaling=True)


def without(*names: str) -> Any:
    """A writer of configs that forgets some keys."""

    def forgetful(rope: Any, *, form: Any) -> dict[str, Any]:
        keys = config_from_scheme(rope, form=form)
        section = "rope_parameters" if form == "current" else "rope_scaling"
        kept = {key: value for key, value in keys[section].items() if key not in names}
        return {**keys, section: kept}

    return forgetful


@pytest.mark.parametrize(
    ("part", "replacement"),
    [
        ("config_from_scheme", without("mscale")),  # the amplitude
        ("config_from_scheme", without("mscale", "mscale_all_dim")),  # both
        ("config_from_scheme", without("beta_fast")),
        ("_with_beta", lambda keys, model, layer: keys),
        ("_kept", lambda beside, old: {}),
    ],
)
def test_what_was_forgotten_is_seen_when_the_config_is_read_back(
    monkeypatch: pytest.MonkeyPatch, part: str, replacement: Any
) -> None:
    config: dict[str, Any] = {**DEEPSEEK, "rope_scaling": {**MLA_YARN, "beta_fast": 400}}
    if part == "_with_beta":
        config = {**QWEN2, "model_type": "ministral3", "head_dim": 128}
    if part == "_kept":
        config = qwen2_vl("rope_scaling", type="mrope", mrope_section=[24, 20, 20])
    assert extend_config(config, to=131_072)
    monkeypatch.setattr(extend, part, replacement)
    with pytest.raises(ConfigError, match="the config cannot say this: layer 0"):
        extend_config(config, to=131_072)


def test_a_softmax_scale_that_alone_was_lost_is_seen_when_read_back() -> None:
    meant = Rope(8, scaling=Yarn(8.0, 4096, mscale=1.0, mscale_all_dim=1.0, scale_softmax=True))
    said = replace(meant, scaling=Yarn(8.0, 4096, mscale=1.0, mscale_all_dim=1.0))
    assert _same_speed(meant, meant) and not _same_speed(meant, said)


# --- the trained length ---


@pytest.mark.parametrize("form", ["rope_scaling", "rope_parameters"])
def test_the_trained_length_is_found_under_sections(form: str) -> None:
    config = qwen2_vl(form, rope_type="yarn", **YARN_4, mrope_section=[16, 24, 24])
    config["max_position_embeddings"] = 131_072
    assert scheme_from_config(config).original_length == 32768
    new = extend_config(config, to=262_144)
    assert new.config[form]["factor"] == 8.0
    assert new.config[form]["original_max_position_embeddings"] == 32768


@pytest.mark.parametrize("method", ["linear", "yarn"])
def test_a_length_that_no_key_says_is_not_made_up(method: str) -> None:
    """LongChat: 2,048 tokens, linear by 8; max_position_embeddings holds the longer length."""
    config = {**QWEN2, "max_position_embeddings": 16384,
              "rope_scaling": {"type": "linear", "factor": 8.0}}  # fmt: skip
    for replaced in (False, True):
        with pytest.raises(ConfigError, match="does not say from which trained length"):
            extend_config(config, to=32768, method=method, replace_scaling=replaced)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda rope: rope,
        lambda rope: MRope(rope, (16, 24, 24)),
        XPos,
        LearnedScaleRope,
    ],
)
def test_the_scaling_is_seen_through_every_rotation_around_a_rope(wrap: Any) -> None:
    scaling = Linear(2.0)
    assert scaling_of(wrap(Rope(128, scaling=scaling))) == scaling
    assert scaling_of(wrap(Rope(128))) is None


def test_a_ramp_that_is_not_rounded_is_told_under_sections_too() -> None:
    config = qwen2_vl("rope_scaling", type="yarn", **YARN_4, mrope_section=[16, 24, 24],
                      truncate=False)  # fmt: skip
    config["max_position_embeddings"] = 131_072
    found = [warned.name for warned in warnings_about(config, scheme_from_config(config))]
    assert found == ["ramp-not-truncated"]
    assert inspect(config).rotations[0].method == Yarn.__name__


# --- one rule for where the language model is ---

PLACES: dict[str, Any] = {
    "flat": ((), lambda text: text),
    "text_config": (("text_config",), lambda text: {"model_type": "x", "text_config": text}),
    "language_config": (
        ("language_config",), lambda text: {"model_type": "x", "language_config": text}),
    "llm_config": (("llm_config",), lambda text: {"model_type": "x", "llm_config": text}),
    "decoder_config": (
        ("decoder_config",), lambda text: {"model_type": "x", "decoder_config": text}),
    "Qwen2.5-Omni": (
        ("thinker_config", "text_config"),
        lambda text: {"model_type": "qwen2_5_omni", "num_attention_heads": 64, "thinker_config": {
            "model_type": "qwen2_5_omni_thinker", "text_config": text}}),
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_every_reader_looks_in_the_same_section(place: str) -> None:
    text = {**QWEN2, "rope_scaling": {"type": "yarn", **YARN_4}}
    path, around = PLACES[place]
    config = around(text)
    assert text_section(config) == (path, text)
    model = scheme_from_config(config)
    assert model == scheme_from_config(text)
    assert layout_from(config) == layout_from(text)
    found = [warned.name for warned in warnings_about(config, model)]
    assert found == ["length-never-raised"]
    new = extend_config(config, to=262_144)
    assert new.config == around(extend_config(text, to=262_144).config)


def test_an_unknown_config_is_flat() -> None:
    raw = {"model_type": "nobody's", "hidden_size": 64}
    assert text_section(raw) == ((), raw)


# --- keys about position that are not understood ---


@pytest.mark.parametrize("index", ["2", "07", "-1", "x"])
def test_a_layer_that_is_not_there_is_refused(index: str) -> None:
    with pytest.raises(ConfigError, match=rf"per_layer_config\.{index} = .* from 0 to 1"):
        scheme_from_config({**QWEN2, "per_layer_config": {index: {"head_dim": 64}}})
    twice = {"1": {"head_dim": 64}, "01": {"head_dim": 32}}
    with pytest.raises(ConfigError, match=r"per_layer_config\.01 = .*: expected layer 1 once"):
        scheme_from_config({**QWEN2, "per_layer_config": twice})
    own = scheme_from_config({**QWEN2, "per_layer_config": {"01": {"head_dim": 64}}}).layers
    assert [layer.rotary.head_dim for layer in own if isinstance(layer.rotary, Rope)] == [128, 64]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("position_embedding_type", "alibi"),
        ("position_embedding_type", "absolute"),
        ("position_embedding_type", "rope_gptj"),  # adjacent pairs, and Qwen2's are halves
        ("position_embedding_type", 7),
        ("positional_encoding_type", "sinusoidal"),
        ("use_relative_position_bias", True),
        ("use_absolute_position_embeddings", True),
    ],
)
def test_another_encoding_is_not_read_as_a_rotation(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{key} = .*no such key"):
        scheme_from_config({**QWEN2, key: value})


@pytest.mark.parametrize("kind", ["gpt2", "opt", "bloom"])
def test_a_named_encoding_is_never_passed_over(kind: str) -> None:
    """Families without rotation do not read that key either."""
    config = {"model_type": kind, "hidden_size": 64, "num_attention_heads": 4, "n_positions": 32,
              "max_position_embeddings": 32, "num_hidden_layers": 1}  # fmt: skip
    assert scheme_from_config(config)
    with pytest.raises(ConfigError, match="position_embedding_type = 'rope': expected"):
        scheme_from_config({**config, "position_embedding_type": "rope"})


def test_the_encoding_that_a_family_has_may_be_named() -> None:
    for named in ("rope", "rotary"):
        assert rope_in({**QWEN2, "position_embedding_type": named}) == rope_in(QWEN2)
    assert rope_in({**QWEN2, "model_type": "cohere", "position_embedding_type": "rope_gptj"})


# --- a converted config says what its weights are ---


def deepseek_folder(folder: Path, config: dict[str, Any]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    weights = {"q_proj": (2 * 24, 64), "kv_a_proj_with_mqa": (40, 64)}
    torch.manual_seed(0)
    named = {f"model.layers.0.self_attn.{name}.weight": torch.randn(size)
             for name, size in weights.items()}  # fmt: skip
    save_file(named, folder / "model.safetensors")
    return folder


KEYED = ("axk1", "deepseek_v3", "glm4_moe_lite", "mistral4", "sarvam_mla", "youtu")
KEYLESS = ("deepseek_v2", "kimi_k2")


@pytest.mark.parametrize("said", [{}, {"rope_interleave": True}])
@pytest.mark.parametrize("kind", [*KEYED, *KEYLESS])
def test_no_converted_config_contradicts_its_weights_in_silence(
    tmp_path: Path, kind: str, said: dict[str, Any]
) -> None:
    scaling = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
    config = {**DEEPSEEK, "model_type": kind, **scaling, **said}
    del config["rope_theta"]
    source = deepseek_folder(tmp_path / "source", config)
    done = convert(source, tmp_path / "half", to="half")
    read = rope_in(json.loads((tmp_path / "half" / "config.json").read_text())).pairing
    if kind in KEYED:
        assert done.noted == "rope_interleave" and read == "half"
        assert not inspect(tmp_path / "half").warnings
    else:
        assert done.noted is None and read == "adjacent"
        assert "must rotate half pairs" in done.told and "set_rope" in done.told
        assert [x.name for x in inspect(tmp_path / "half").warnings] == ["converted-weights"]
    convert(tmp_path / "half", tmp_path / "back", to="adjacent")
    first, again = (load_file(x / "model.safetensors") for x in (source, tmp_path / "back"))
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_weights_without_a_config_beside_them_say_which_key_to_set(tmp_path: Path) -> None:
    source = deepseek_folder(tmp_path / "source", DEEPSEEK)
    done = convert(source / "model.safetensors", tmp_path / "half.safetensors", to="half")
    assert done.noted is None and "must say rope_interleave = false" in done.told


def test_the_key_is_written_into_the_section_of_the_language_model(tmp_path: Path) -> None:
    config = {"model_type": "x", "text_config": DEEPSEEK}
    done = convert(deepseek_folder(tmp_path / "a", config), tmp_path / "b", to="half")
    written = json.loads((tmp_path / "b" / "config.json").read_text())
    assert done.noted and written == {
        "model_type": "x", "text_config": {**DEEPSEEK, "rope_interleave": False}}  # fmt: skip


@pytest.mark.parametrize("kind", KEYLESS)
def test_a_key_that_the_family_s_code_does_not_read_is_no_answer(kind: str) -> None:
    with pytest.raises(ConfigError, match="rope_interleave = False: expected True"):
        scheme_from_config({**DEEPSEEK, "model_type": kind, "rope_interleave": False})


def test_the_families_with_a_key_are_those_whose_code_reads_it() -> None:
    """Against transformers' own sources: which model code asks for config.rope_interleave."""
    transformers = pytest.importorskip("transformers")
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES  # noqa: PLC0415

    models = Path(transformers.__file__).parent / "models"
    sources = {path: path.read_text("utf-8") for path in sorted(models.glob("*/modeling_*.py"))}
    for kind, family in FAMILIES.items():
        if not family.mla or kind not in MODEL_MAPPING_NAMES:
            continue
        name = MODEL_MAPPING_NAMES[kind]
        name = name if isinstance(name, str) else name[0]
        code = next(text for text in sources.values() if f"\nclass {name}(" in text)
        assert family.interleave == ("config.rope_interleave" in code), kind
    assert set(KEYED) == {kind for kind, family in FAMILIES.items() if family.interleave}
