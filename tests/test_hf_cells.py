"""Configs whose tables have rows for cells, or a table for each axis, beside the models' own tables.

Models are built on the meta device: shapes alone, no weights.
"""

import importlib
import inspect
import re
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from posenc import AxialLearned, Learned, Sinusoidal
from posenc.interop.cells import CELLS
from posenc.interop.decomposed import DECOMPOSED
from posenc.interop.hf import (
    FAMILIES,
    ConfigError,
    LearnedAxes,
    LearnedPositions,
    scheme_from_config,
)
from posenc.interop.other_families import OTHER
from posenc.interop.refused import REFUSED
from posenc.interop.relative import RELATIVE
from posenc.interop.remote_families import REMOTE
from posenc.interop.rope_families import ROPE
from posenc.interop.vision import VISION
from posenc.interop.windows import WINDOWED
from posenc.positions import grid

transformers: Any = pytest.importorskip("transformers", reason="the peers of these tests")
pytestmark = pytest.mark.filterwarnings("ignore")
transformers.logging.set_verbosity_error()

TABLE = re.compile(r"(pos_embed|pos_emb|position_embeddings?|positional_embedding|_vlm|_table)\b")
OTHERS = re.compile(r"mid_|time_|cls_|rotary|temporal|rel_pos")
CELL_TYPES = [name for name, family in CELLS.items() if family.position == "cells"]
AXIAL_TYPES = [name for name, family in VISION.items() if family.table]


def default(model_type: str, **keys: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = transformers.CONFIG_MAPPING[model_type]()
    for key, value in keys.items():
        setattr(made, key, value)
    return made


def classes(config: Any) -> Iterator[type[nn.Module]]:
    """What a module defines for this class of configs, the model itself first."""
    if type(config) in transformers.MODEL_MAPPING:
        yield transformers.MODEL_MAPPING[type(config)]
    module = importlib.import_module(type(config).__module__.replace("configuration", "modeling"))
    for made in vars(module).values():
        if not inspect.isclass(made) or not issubclass(made, nn.Module):
            continue
        first = [*inspect.signature(made.__init__).parameters.values()][1:2]
        if [x.annotation for x in first] == [type(config)]:
            yield made


def own_table(config: Any) -> tuple[int, ...]:
    """The shape of the first table of positions that a model of this config has, as rows × width."""
    for cls in classes(config):
        try:
            with torch.device("meta"):
                made = cls(config)
        except (ImportError, NotImplementedError, TypeError):
            continue
        for name, weight in made.named_parameters():
            if TABLE.search(name) and not OTHERS.search(name):
                return weight.numel() // weight.shape[-1], weight.shape[-1]
    raise AssertionError(f"no table found for {type(config).__name__}")


def shrunk(config: Any) -> Any:
    for key in ("num_hidden_layers", "depth"):
        if isinstance(getattr(config, key, None), int):
            setattr(config, key, 1)
    return config


@pytest.mark.parametrize("name", [*CELL_TYPES, *AXIAL_TYPES])
def test_a_table_of_cells_has_the_rows_of_its_model(name: str) -> None:
    config = default(name)
    said = scheme_from_config(config.to_dict())
    assert isinstance(said.additive, LearnedPositions)
    rows, width = own_table(shrunk(config))
    assert (said.additive.num_positions + said.additive.offset, said.additive.dim) == (rows, width)
    assert said.notes  # what such a table is at another size, or where its tokens stand


WIDE: dict[str, dict[str, Any]] = {  # an image that is not square: (height, width)
    "vit": {"image_size": [32, 96]},
    "deit": {"image_size": [32, 96]},
    "yolos": {"num_detection_tokens": 7},
    "pixio": {"n_cls_tokens": 3},
    "vivit": {"num_frames": 6, "image_size": 64},
    "audio-spectrogram-transformer": {"max_length": 217, "time_stride": 7},
    "internvl_vision": {"image_size": [28, 56]},
    "radio": {"max_img_size": 320},
}


@pytest.mark.parametrize("name", WIDE)
def test_keys_about_cells_are_read(name: str) -> None:
    config = default(name, **WIDE[name])
    said: Any = scheme_from_config(config.to_dict()).additive
    usual: Any = scheme_from_config(default(name).to_dict()).additive
    assert (said.num_positions + said.offset, said.dim) == own_table(shrunk(config))
    assert said != usual


def test_class_tokens_come_before_the_cells() -> None:
    """Cell (y, x) of a ViT is row 1 + y · width + x of its table."""
    config = default("vit", image_size=32, patch_size=8, hidden_size=12, num_attention_heads=2)
    said: Any = scheme_from_config(config.to_dict()).additive
    table: Learned = said.build()
    module = importlib.import_module("transformers.models.vit.modeling_vit")
    own = module.ViTEmbeddings(config).eval()
    own.position_embeddings.data.normal_()
    own.patch_embeddings.projection.weight.data.zero_()
    own.patch_embeddings.projection.bias.data.zero_()
    own.cls_token.data.zero_()
    table.load_state_dict({"weight": own.position_embeddings[0]})
    cells = grid(4, 4)
    made = own(torch.zeros(1, 3, 32, 32))[0]
    assert torch.equal(made[1:], table.encode(cells[:, 0] * 4 + cells[:, 1]))
    assert torch.equal(made[:1], table.encode(torch.tensor([-1])))


def test_reformer_has_a_table_for_each_axis_or_one() -> None:
    config = default("reformer", axial_pos_shape=[4, 6], axial_pos_embds_dim=[64, 192])
    said = scheme_from_config(config.to_dict())
    assert said.additive == LearnedAxes((4, 6), (64, 192)) and said.max_length == 24
    module = importlib.import_module("transformers.models.reformer.modeling_reformer")
    own = module.AxialPositionEmbeddings(config)
    added: Any = said.additive
    table = added.build()
    assert isinstance(table, AxialLearned)
    for mine, theirs in zip(table.tables, own.weights, strict=True):
        assert mine.numel() == theirs.numel() and mine.shape[-1] == theirs.shape[-1]
    plain = scheme_from_config({**config.to_dict(), "axial_pos_embds": False})
    assert plain.additive == LearnedPositions(4096, 256)
    for key, value in (("axial_pos_embds_dim", [64, 64]), ("axial_pos_shape", [64]),
                       ("axial_pos_shape", [64, True])):  # fmt: skip
        with pytest.raises(ConfigError, match=key):
            scheme_from_config({**config.to_dict(), key: value})


@pytest.mark.parametrize(
    ("name", "key"),
    [("pix2struct_vision_model", "seq_len"), ("kosmos_2_5_vision_model", "max_num_patches")],
)
def test_rows_and_columns_of_pix2struct_are_added(name: str, key: str) -> None:
    config = default(name, **{key: 9})
    said = scheme_from_config(config.to_dict()).additive
    assert said == LearnedAxes((9, 9), (config.hidden_size,) * 2, "added")
    module = importlib.import_module(type(config).__module__.replace("configuration", "modeling"))
    own = next(getattr(module, x) for x in vars(module) if x.endswith("VisionEmbeddings"))(config)
    assert tuple(own.row_embedder.weight.shape) == (9, config.hidden_size)


SMALL = {"hidden_size": 12, "num_hidden_layers": 2, "image_size": 32, "patch_size": 8}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "vit", **SMALL, "patch_size": 64}, "patches of patch_size"),
        ({"model_type": "vit", **SMALL, "image_size": "32"}, "image_size = '32'"),
        ({"model_type": "dpt", **SMALL, "is_hybrid": True}, "is_hybrid = True: expected false"),
        ({"model_type": "aimv2_vision_model", **SMALL, "is_native": True}, "is_native"),
        ({"model_type": "vivit", **SMALL, "num_frames": 4, "tubelet_size": [8, 8, 8]},
         "at most num_frames = 4"),
        ({"model_type": "vivit", **SMALL, "num_frames": 4, "tubelet_size": [2, 0, 8]}, "above 0"),
        ({"model_type": "audio-spectrogram-transformer", **SMALL, "num_mel_bins": 4,
          "max_length": 64, "frequency_stride": 2, "time_stride": 2}, "num_mel_bins = 4"),
        ({"model_type": "pixio", **SMALL, "n_cls_tokens": -1}, "n_cls_tokens = -1"),
        ({"model_type": "siglip2_vision_model", **SMALL}, "num_patches is missing"),
        ({"model_type": "timesfm", **SMALL, "use_positional_embedding": True,
          "min_timescale": 2, "max_timescale": 100}, "min_timescale = 2.0: expected 1"),
    ],
)  # fmt: skip
def test_cells_that_do_not_fit_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        scheme_from_config(config)


def test_a_nested_config_leaves_out_what_its_class_takes() -> None:
    """CLIP's vision_config names neither its image nor its patch where they are the class's."""
    nested = {"model_type": "llava", "vision_config": {"model_type": "clip_vision_model"}}
    said = scheme_from_config(nested, part="vision_config")
    assert said.additive == LearnedPositions(49, 768, 1)
    assert said.defaults_used["vision_config.patch_size"] == 32


def test_a_switch_takes_the_table_away() -> None:
    config = {"model_type": "internvl_vision", **SMALL, "use_absolute_position_embeddings": False}
    assert scheme_from_config(config).additive is None


# Added to text and sound --------------------------------------------------------------------------

T2T = Sinusoidal(64, denominator="d-2", layout="concatenated")
SOUND = {"d_model": 64, "encoder_layers": 2, "max_source_positions": 30}
ADDED: dict[str, tuple[dict[str, Any], LearnedPositions | Sinusoidal | None]] = {
    "canary_decoder": ({}, Sinusoidal(64, amplitude=0.125)),
    "qwen2_5_omni_audio_encoder": (SOUND, T2T),
    "qwen3_omni_moe_audio_encoder": (SOUND, T2T),
    "videoprism_text_model": ({}, Sinusoidal(64, layout="concatenated")),
    "videomae": ({}, Sinusoidal(64)),
    "timesfm": ({"use_positional_embedding": True, "min_timescale": 1, "max_timescale": 500},
                Sinusoidal(64, 500.0, "d-2", "concatenated")),
    "qwen2_audio_encoder": (SOUND, LearnedPositions(30, 64)),
    "voxtral_encoder": ({"max_source_positions": 30}, LearnedPositions(30, 64)),
    "clvp_decoder": ({}, LearnedPositions(40, 64)),
    "cohere_asr": ({}, LearnedPositions(40, 64)),
    "pp_formulanet_text": ({"d_model": 64, "decoder_layers": 2}, LearnedPositions(40, 64, 2)),
    "luke": ({"pad_token_id": 1}, LearnedPositions(38, 64, 2, 1)),
    "lilt": ({"pad_token_id": 1}, LearnedPositions(38, 64, 2, 1)),
    "markuplm": ({"pad_token_id": 1}, LearnedPositions(38, 64, 2, 1)),
    "canine": ({"num_hash_buckets": 50}, LearnedPositions(50, 64)),
}  # fmt: skip


@pytest.mark.parametrize("name", ADDED)
def test_what_is_added_to_text_and_sound(name: str) -> None:
    """Sinusoids themselves are compared with the models' in the conformance page."""
    keys, expected = ADDED[name]
    said = scheme_from_config(
        {"model_type": name, "hidden_size": 64, "num_hidden_layers": 2,
         "max_position_embeddings": 40, **keys}
    )  # fmt: skip
    assert said.additive == expected and len(said.layers) == 2


@pytest.mark.parametrize("name", ["luke", "lilt", "markuplm", "clvp_decoder", "cohere_asr", "canine",
                                  "pp_formulanet_text", "qwen2_audio_encoder", "voxtral_encoder",
                                  "sam3_lite_text_text_model", "instructblip_qformer"])  # fmt: skip
def test_a_table_of_text_has_the_rows_of_its_model(name: str) -> None:
    config = default(name)
    said: Any = scheme_from_config(config.to_dict()).additive
    tables = set()
    with torch.device("meta"):
        made = next(iter(classes(config)))(config)
    for key, weight in made.named_parameters():
        if re.search("position_embed|embed_positions|pos_emb", key):
            tables.add((weight.numel() // weight.shape[-1], weight.shape[-1]))
    assert (said.num_positions + said.offset, said.dim) in tables


def test_timesfm_has_no_positions_unless_it_is_asked() -> None:
    config = {"model_type": "timesfm", "hidden_size": 64, "num_hidden_layers": 2}
    assert scheme_from_config(config).additive is None


def test_seamless_counts_text_from_after_its_padding() -> None:
    said = scheme_from_config(default("seamless_m4t").to_dict())
    wanted = Sinusoidal(1024, 1e4, "d-2", "concatenated", offset=1, zero_padding=True)
    assert said.additive == wanted and said.encoder is not None and said.encoder.additive == wanted
    assert any("TransformerXL" in note for note in said.notes)
    module = importlib.import_module("transformers.models.seamless_m4t.modeling_seamless_m4t")
    own = module.SeamlessM4TSinusoidalPositionalEmbedding(40, 1024, 0)
    ids = torch.tensor([[5, 6, 7, 0]])
    ours = wanted.encode(torch.tensor([[0, 1, 2, -1]]))
    assert torch.allclose(ours, own(ids), rtol=0, atol=2e-6)


# Every model type of transformers -----------------------------------------------------------------

UNSAID = {  # the defaults of their own classes are incomplete, or contradict themselves
    "esm": "pad_token_id",
    "glm4_moe": "hidden_size",
    "glm4v_moe": "hidden_size",
    "glm4v_moe_text": "hidden_size",
    "hunyuan_vl": "mrope_section",
    "hunyuan_vl_text": "mrope_section",
    "qwen3_omni_moe": "hidden_size",
    "qwen3_omni_moe_text": "hidden_size",
    "qwen3_omni_moe_thinker": "hidden_size",
}
CANNOT_BE_MADE = ("gemma4_assistant", "nougat")
UNKNOWN = ("colmodernvbert", "colpali", "colqwen2")  # their one section is read by its own name


def test_every_model_type_is_read_or_refused_by_name() -> None:
    read = 0
    for name in transformers.CONFIG_MAPPING:
        if name in CANNOT_BE_MADE:
            continue
        config = default(name).to_dict()
        try:
            scheme_from_config(config)
            read += 1
        except ConfigError as error:
            said = str(error)
            if name in UNSAID:
                assert UNSAID[name] in said
            elif name in UNKNOWN:
                assert "a family that is known here" in said
            else:
                assert "is not supported: " in said or "of its parts these are: part=" in said, (
                    f"{name}: {said}"
                )
    assert read >= 600


OURS = {"num_axes", "max_distance", "head_dim"}  # names of this library


def test_a_reason_names_keys_that_the_config_has() -> None:
    for name, family in REFUSED.items():
        if name not in transformers.CONFIG_MAPPING or name in CANNOT_BE_MADE:
            continue
        words = set(re.findall(r"\b[a-z0-9]+(?:_[a-z0-9]+)+\b", str(family.refuse))) - OURS
        config = default(name)
        lacking = [word for word in words if not hasattr(config, word)]
        assert not lacking, f"{name} has no {lacking}"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("data2vec-audio", "num_conv_pos_embeddings convolutions of conv_pos_kernel_size frames"),
        ("sew", "squeeze_factor-th"),
        ("wav2vec2", "a grouped convolution over num_conv_pos_embeddings frames"),
        ("segformer", "inside every MLP"),
        ("cvt", "queries, keys and values are convolutions"),
        ("sam_mask_decoder", "has no position of its own"),
        ("sam_prompt_encoder", "half a pixel on"),
        ("hiera", "one table of its first cells"),
        ("pvt", "a table of its own"),
        ("patchtsmixer", "use_positional_encoding adds"),
        ("deformable_detr", "less a half"),
        ("rt_detr", "encode_proj_layers alone"),
        ("lw_detr", "sampled at the box"),
        ("sam2_vision_model", "its neck"),
        ("tvp", "combine='added'"),
        ("blip_2_qformer", "use_qformer_text_input"),
    ],
)
def test_a_reason_is_the_models_own(name: str, told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        scheme_from_config(default(name).to_dict())


def test_a_model_of_several_parts_names_those_that_are_known() -> None:
    config = default("musicgen").to_dict()
    with pytest.raises(ConfigError, match=r"part='decoder' \(musicgen_decoder\)"):
        scheme_from_config(config)
    assert scheme_from_config(config, part="decoder").additive is not None
    with pytest.raises(
        ConfigError, match=r"'nothing': expected a family .* model_type= of a known"
    ):
        scheme_from_config({"model_type": "nothing", "text": {"model_type": "neither"}})


def test_no_family_has_two_readings() -> None:
    groups = (ROPE, REMOTE, OTHER, VISION, WINDOWED, RELATIVE, DECOMPOSED, CELLS, REFUSED)
    twice = [name for name in FAMILIES if sum(name in group for group in groups) != 1]
    assert not twice
