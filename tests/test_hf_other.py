"""Other forms than one config.json of one language model: params.json, GGUF, vision, two towers."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance.several_axes import VISION, modules
from posenc import LearnedLogScale, Llama3, Rope, Scheme, Yarn
from posenc.interop.gguf import scheme_from_fields
from posenc.interop.hf import (
    ConfigError,
    ModelScheme,
    config_from_scheme,
    scheme_from_config,
)
from posenc.interop.meta import scheme_from_params

CONFIGS = Path(__file__).with_name("configs")


def raw(name: str) -> dict[str, Any]:
    return json.loads((CONFIGS / f"{name}.json").read_text())


def rope_of(model: ModelScheme) -> Any:
    return model.scheme.rotary


def test_params_json_pairs_adjacent_channels() -> None:
    params = {path.stem: json.loads(path.read_text()) for path in CONFIGS.glob("params/*.json")}
    scaled = rope_of(scheme_from_params(params["llama-3.1-8b"]))
    assert scaled == Rope(128, 5e5, "adjacent", scaling=Llama3(8.0, 8192))
    assert rope_of(scheme_from_params(params["llama-2-7b"])) == Rope(128, 1e4, "adjacent")
    assert rope_of(scheme_from_params(params["code-llama-7b"])).base == 1e6
    newest = scheme_from_params(params["llama-3.2-1b"])  # its config.json stretches by 32
    assert rope_of(newest) == Rope(64, 5e5, "adjacent", scaling=Llama3(32.0, 8192))
    assert newest.defaults_used["rope_scaling_factor"] == 32.0
    assert "reference code stretches every model by 8" in newest.notes[0]
    said = scheme_from_params({**params["llama-3.2-1b"], "rope_scaling_factor": 8})
    assert rope_of(said).scaling == Llama3(8.0, 8192) and not said.notes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_theta": 1e-320}, "rope_theta = 1e-320: no finite rotation"),
        ({"rope_high_freq_factor": 0.25}, "rope_high_freq_factor = 0.25: .* at least 1"),
        ({"rope_theta": "5e5"}, "rope_theta = '5e5': expected a finite number"),
        ({"n_heads": 31}, "dim = 4096: expected a multiple of n_heads = 31"),
        ({"n_layers": True}, "n_layers = True"),
    ],
)
def test_mistakes_in_a_params_json_are_named(changes: dict[str, Any], message: str) -> None:
    params = json.loads((CONFIGS / "params/llama-3.1-8b.json").read_text())
    with pytest.raises(ConfigError, match=message):
        scheme_from_config({**params, **changes})


def test_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(raw("llama-3-8b")))
    assert scheme_from_config(tmp_path) == scheme_from_config(tmp_path / "config.json")
    (tmp_path / "params.json").write_text((CONFIGS / "params/llama-2-7b.json").read_text())
    assert rope_of(scheme_from_config(tmp_path / "params.json")).pairing == "adjacent"
    for text, message in (("[1]", "holds no JSON object"), ("{", "is not JSON")):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(ConfigError, match=message):
            scheme_from_config(tmp_path / "bad.json")
    with pytest.raises(ConfigError, match="no such file"):
        scheme_from_config(tmp_path / "nothing.json")


def test_the_fields_of_a_gguf_header() -> None:
    fields: dict[str, Any] = {
        "general.architecture": "llama", "llama.block_count": 32, "llama.embedding_length": 4096,
        "llama.attention.head_count": 32, "llama.context_length": 131072,
        "llama.rope.freq_base": 500000.0, "llama.rope.dimension_count": 128,
    }  # fmt: skip
    plain = rope_of(scheme_from_fields(fields))
    assert plain == Rope(128, 5e5, "adjacent")  # GGUF permutes Llama's weights
    yarn = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0,
            "llama.rope.scaling.original_context_length": 32768}  # fmt: skip
    assert rope_of(scheme_from_fields({**fields, **yarn})).scaling == Yarn(4.0, 32768)
    divisors = [1.0] * 30 + [8.0] * 34
    divided = rope_of(scheme_from_fields(fields, {"rope_freqs.weight": divisors})).frequencies()
    expected = plain.frequencies().inv_freq / torch.tensor(divisors, dtype=torch.float64)
    assert torch.allclose(divided.inv_freq, expected, rtol=1e-15)
    assert divided.attention_factor == 1.0
    with pytest.raises(ConfigError, match=r"general\.architecture = 'nosuch'"):
        scheme_from_fields({**fields, "general.architecture": "nosuch"})
    with pytest.raises(ConfigError, match=r"rope.freq_base = 0.25: Yarn needs a base above 1"):
        scheme_from_fields({**fields, **yarn, "llama.rope.freq_base": 0.25})
    with pytest.raises(ConfigError, match=r"rope.new_key = 1: expected no such key"):
        scheme_from_fields({**fields, "llama.rope.new_key": 1})


def test_a_gguf_file_needs_the_gguf_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ConfigError, match="pip install gguf"):
        scheme_from_config(tmp_path / "model.gguf")


def test_the_header_of_a_gguf_file(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(str(tmp_path / "model.gguf"), "qwen2")
    for name, value in (("block_count", 28), ("context_length", 131072), ("head_count", 28),
                        ("embedding_length", 3584), ("rope_freq_base", 1e6),
                        ("rope_scaling_type", gguf.RopeScalingType.YARN),
                        ("rope_scaling_factor", 4.0),
                        ("rope_scaling_orig_ctx_len", 32768)):  # fmt: skip
        getattr(writer, f"add_{name}")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    rope = rope_of(scheme_from_config(tmp_path / "model.gguf"))
    assert rope == Rope(128, 1e6, scaling=Yarn(4.0, 32768))
    (tmp_path / "bad.gguf").write_bytes(b"junk")
    with pytest.raises(ConfigError, match="is no GGUF file"):
        scheme_from_config(tmp_path / "bad.gguf")


IDLE = {"rope_theta": 1e6, "partial_rotary_factor": 0.5, "rope_scaling": None}
SMALL = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 3}
UNROTATED: dict[str, dict[str, Any]] = {
    "smollm3": {"no_rope_layers": [0, 0, 0]},
    "granite_swa": {"layer_rope_theta": [0, 0, 0]},
    "granitemoehybrid": {"position_embedding_type": "nope"},
    "zamba2": {"use_mem_rope": False, "attention_head_dim": 16,
               "layers_block_type": ["mamba", "hybrid", "mamba"]},
    "mistral_large4_text": {"no_rope_layers": [0, 0, 0], "qk_rope_head_dim": 16},
}  # fmt: skip


@pytest.mark.parametrize("name", UNROTATED)
def test_layers_that_never_rotate_are_read_beside_the_keys_of_a_rotation(name: str) -> None:
    config = {"model_type": name, **SMALL, **UNROTATED[name], **IDLE}
    model = scheme_from_config(config)
    assert [layer.rotary for layer in model.layers] == [None] * 3
    with pytest.raises(ConfigError, match="alibi = True: expected no such key"):
        scheme_from_config({**config, "alibi": True})


def test_nanochat_turns_the_other_way() -> None:
    model = scheme_from_config({"model_type": "nanochat", **SMALL, "rope_theta": 1e4})
    assert rope_of(model) == Rope(16, 1e4, direction=-1)
    assert scheme_from_config(config_from_scheme(model)) == model
    for direction, message in ((1, "this family turns by -1"), (-1, "no key says which way")):
        rope = Rope(16, 1e4, direction=direction)  # pyright: ignore[reportArgumentType]
        written = replace(model, layers=(Scheme(rotary=rope),) * 3) if direction == 1 else rope
        with pytest.raises(ConfigError, match=message):
            config_from_scheme(written)


def test_every_layer_of_mistral_large_4_has_a_learned_scale_of_its_own() -> None:
    config = {"model_type": "mistral_large4_text", **SMALL, "no_rope_layers": [1, 0, 1],
              "qk_nope_head_dim": 8, "qk_rope_head_dim": 8,
              "max_position_embeddings": 4096}  # fmt: skip
    model = scheme_from_config(config)
    scales: list[Any] = [layer.query_scale for layer in model.layers]
    assert all(isinstance(scale, LearnedLogScale) for scale in scales)
    assert len({id(scale) for scale in scales}) == 3
    assert [scale.num_heads for scale in scales] == [4] * 3
    assert [layer.rotary is None for layer in model.layers] == [False, True, False]
    at = torch.tensor([0, 5, 100])
    assert torch.equal(scales[0].factors(at), torch.ones(1, 4, 3))  # its start changes nothing
    assert scheme_from_config(config_from_scheme(model)) == model
    with pytest.raises(ValueError, match="do not share one scheme"):
        assert model.scheme


def test_schemes_that_learn_are_equal_by_what_a_config_says() -> None:
    def read(kind: str, buckets: int = 32) -> ModelScheme:
        sizes = {"d_model": 64, "num_heads": 4, "num_layers": 2, "num_decoder_layers": 2}
        return scheme_from_config(
            {"model_type": kind, **sizes, "relative_attention_num_buckets": buckets}
        )

    for kind in ("t5", "umt5"):
        assert read(kind) == read(kind) and hash(read(kind)) == hash(read(kind))
        assert read(kind) != read(kind, 64)
    shared, own = read("t5"), read("umt5")
    assert replace(shared, layers=own.layers) != shared  # one bias for all layers, or one for each
    assert shared != "t5"
    twin = read("t5")
    bias: Any = twin.layers[0].bias
    torch.nn.init.ones_(bias.weight)
    assert twin == shared  # weights are the checkpoint's, not the config's
    bloom = {"model_type": "bloom", "hidden_size": 64, "n_head": 4, "n_layer": 2}
    assert scheme_from_config(bloom) == scheme_from_config(bloom)
    assert scheme_from_config(bloom) != scheme_from_config({**bloom, "n_head": 8})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", VISION)
def test_a_vision_encoder_turns_by_rows_and_columns(name: str) -> None:
    config = modules(name, VISION[name])[1]
    keys = json.loads(json.dumps(config.to_dict(), default=str))
    model = scheme_from_config({"vision_config": keys}, part="vision_config")
    assert model.scheme.rotary == VISION[name].form(config)
    assert bool(VISION[name].shift) == any("count from 1" in note for note in model.notes)


def test_a_vision_config_that_is_not_understood_is_refused() -> None:
    loftr = {"model_type": "efficientloftr", "hidden_size": 256, "num_attention_heads": 8}
    assert rope_of(scheme_from_config({**loftr, "num_attention_layers": 4})).head_dim == 256
    with pytest.raises(ConfigError, match=r"partial_rotary_factor = 2\.0: expected a share whose"):
        scheme_from_config(
            {**loftr, "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 2.0}}
        )
    memory = {"model_type": "sam2_video", "memory_attention_hidden_size": 256,
              "memory_attention_num_attention_heads": 2, "memory_attention_num_layers": 3,
              "memory_attention_downsample_rate": 2}  # fmt: skip
    assert rope_of(scheme_from_config(memory)).head_dim == 64
    dino = {"model_type": "dinov3_vit", "hidden_size": 384, "num_attention_heads": 6}
    read = scheme_from_config({**dino, "num_hidden_layers": 12})
    assert rope_of(read).base == 100.0 and "centred" in read.notes[0]
    for name, message in (
        ("gemma4_vision", "two ropes of half the head"),
        ("vjepa2", "no rotation"),
    ):
        with pytest.raises(ConfigError, match=message):
            scheme_from_config({"model_type": name, **SMALL})


@pytest.mark.filterwarnings("ignore")
def test_an_encoder_beside_its_decoder() -> None:
    transformers = pytest.importorskip("transformers")
    keys = json.loads(json.dumps(transformers.DiaConfig().to_dict(), default=str))
    model = scheme_from_config(keys)
    assert (model.model_type, len(model.layers)) == ("dia_decoder", 18)
    assert model.encoder is not None and len(model.encoder.layers) == 12
    assert scheme_from_config(keys, part="encoder_config").layers == model.encoder.layers


DEBERTA = {**SMALL, "relative_attention": True, "pos_att_type": ["c2p", "p2c"],
           "max_position_embeddings": 32}  # fmt: skip


def test_layers_share_the_vectors_that_their_model_shares() -> None:
    model = scheme_from_config({"model_type": "deberta-v2", "position_buckets": 8, **DEBERTA})
    parts: list[Any] = [layer.relative for layer in model.layers]
    assert len({id(part.table) for part in parts}) == 1
    assert len({id(part.key) for part in parts}) == len({id(part.query) for part in parts}) == 3
    assert parts[0].num_buckets == 8 and model.softmax_scale == parts[0].scale == 48**-0.5
    assert model.additive is not None and model.max_length == 32
    conformer = scheme_from_config({"model_type": "parakeet_encoder", **SMALL})
    assert len({id(layer.relative) for layer in conformer.layers}) == 3
    names = {
        "hidden_size": "d_model",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    }
    xlnet = scheme_from_config(
        {"model_type": "xlnet", "clamp_len": 7, **{names[key]: SMALL[key] for key in SMALL}}
    )
    assert getattr(xlnet.layers[2].relative, "clamp", None) == 7
    assert any("segments" in note for note in xlnet.notes)


def test_the_first_deberta_has_a_vector_for_each_distance() -> None:
    model = scheme_from_config(
        {"model_type": "deberta", "position_biased_input": False, "position_buckets": 8, **DEBERTA}
    )
    part: Any = model.layers[0].relative
    assert (part.num_buckets, part.span, part.key.bias) == (None, 32, None)
    assert model.additive is None and part.query.bias is not None
    off = scheme_from_config({"model_type": "deberta", **DEBERTA, "relative_attention": False})
    assert off.layers == (Scheme(),) * 3 and off.additive is not None


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "deberta", **DEBERTA, "talking_head": True}, "mixed between heads"),
        ({"model_type": "deberta-v2", **DEBERTA, "pos_att_type": None}, "a list of terms"),
        ({"model_type": "deberta-v2", **DEBERTA, "pos_att_type": ["p2p"]}, "terms must be some of"),
        ({"model_type": "wav2vec2-bert", **SMALL, "position_embeddings_type": "rotary"},
         "'rotary' turns hidden states before they are projected"),
        ({"model_type": "wav2vec2-conformer", **SMALL, "position_embeddings_type": "relative_key"},
         "expected 'relative'"),
        ({"model_type": "granite_speech5_encoder", **SMALL, "context_size": 9,
          "max_position_embeddings": 8}, "at most the 8 distances that have a vector"),
        ({"model_type": "sam_vision_model", **SMALL, "image_size": 64, "patch_size": 16,
          "window_size": 2, "global_attn_indexes": [3]}, "indices of layers, from 0 to 2"),
        ({"model_type": "funnel", **SMALL}, "each has positions of its own"),
        ({"model_type": "transfo-xl", **SMALL}, "its code left transformers"),
    ],
)  # fmt: skip
def test_vectors_of_distances_that_are_not_understood_are_refused(
    config: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        scheme_from_config(config)
