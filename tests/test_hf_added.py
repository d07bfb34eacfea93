"""What is added to embeddings, read from configs of transformers' own classes."""

import importlib
from dataclasses import replace
from typing import Any

import pytest
import torch

from posenc import Learned, Sinusoidal
from posenc.interop.hf import ConfigError, LearnedPositions, scheme_from_config
from posenc.positions import from_padding_mask, sequence

transformers = pytest.importorskip("transformers", reason="the peers of these tests")
pytestmark = pytest.mark.filterwarnings("ignore")

PAD = 1
PLAIN = Sinusoidal(32, layout="concatenated")
TENSOR2TENSOR = replace(PLAIN, denominator="d-2")
FAIRSEQ = replace(TENSOR2TENSOR, offset=PAD + 1, zero_padding=True)
SINUSOIDS: dict[str, Sinusoidal] = {
    **dict.fromkeys(
        ("marian", "pegasus", "autoformer", "informer", "time_series_transformer"), PLAIN
    ),
    **dict.fromkeys(("pegasus_x", "tipsv2_text_model"), TENSOR2TENSOR),
    **dict.fromkeys(
        ("m2m_100", "nllb-moe", "fsmt", "speech_to_text", "kosmos_2_text_model",
         "kosmos_2_5_text_model"), FAIRSEQ,
    ),
    **dict.fromkeys(
        ("musicgen_decoder", "musicgen_melody_decoder"), replace(TENSOR2TENSOR, first="cosine")
    ),
    "xglm": replace(TENSOR2TENSOR, offset=2),
}  # fmt: skip
# the table's class, and the rows that a text of 40 tokens needs
TABLES: dict[str, tuple[str, str, LearnedPositions]] = {
    "opt": ("opt", "OPTLearnedPositionalEmbedding", LearnedPositions(40, 32, 2)),
    "biogpt": ("biogpt", "BioGptLearnedPositionalEmbedding", LearnedPositions(40, 32, 2)),
    "bart": ("bart", "BartLearnedPositionalEmbedding", LearnedPositions(40, 32, 2)),
    "mbart": ("mbart", "MBartLearnedPositionalEmbedding", LearnedPositions(40, 32, 2)),
    "plbart": ("plbart", "PLBartLearnedPositionalEmbedding", LearnedPositions(40, 32, 2)),
    "trocr": ("trocr", "TrOCRLearnedPositionalEmbedding", LearnedPositions(40, 32, 2)),
    "blenderbot": ("blenderbot", "BlenderbotLearnedPositionalEmbedding", LearnedPositions(40, 32)),
    "led": ("led", "LEDLearnedPositionalEmbedding", LearnedPositions(40, 32)),
}


def config(model_type: str, **keys: Any) -> dict[str, Any]:
    """The default config of a family, for 32 channels and 40 tokens."""
    sizes: dict[str, Any] = {"hidden_size": 32, "max_position_embeddings": 40, "pad_token_id": PAD}
    if model_type == "tipsv2_text_model":  # checks that its heads fit
        sizes["num_attention_heads"] = 4
    return transformers.AutoConfig.for_model(model_type, **sizes, **keys).to_dict()


@pytest.mark.parametrize("name", SINUSOIDS)
def test_sinusoids_of_a_config_are_those_of_its_family(name: str) -> None:
    said = scheme_from_config(config(name))
    assert said.additive == SINUSOIDS[name]
    assert said.encoder is None or said.encoder.additive == SINUSOIDS[name]


def test_padding_of_a_fairseq_model_adds_zeros() -> None:
    """M2M100's own module, for ids that are padded on either side."""
    said = scheme_from_config(config("m2m_100")).additive
    assert isinstance(said, Sinusoidal)
    modeling = importlib.import_module("transformers.models.m2m_100.modeling_m2m_100")
    theirs = modeling.M2M100SinusoidalPositionalEmbedding(40, 32, PAD)
    ids = torch.tensor([[5, 6, 7, PAD], [PAD, PAD, 5, 6]])
    ours = said.encode(from_padding_mask(ids != PAD))
    assert torch.equal(ours[ids == PAD], torch.zeros(3, 32))
    assert torch.allclose(ours, theirs(ids), rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_a_config_holds_its_checkpoints_rows(name: str) -> None:
    folder, cls, expected = TABLES[name]
    keys = {"max_decoder_position_embeddings": 40} if name == "led" else {}
    said = scheme_from_config(config(name, **keys))
    assert said.additive == expected
    table: Learned = expected.build()
    modeling = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
    own = getattr(modeling, cls)(40, 32)
    table.load_state_dict(own.state_dict())  # an error where the rows are not as many
    assert torch.equal(table.encode(sequence(40))[-1], own.weight[-1])


def test_led_has_a_longer_table_for_its_encoder() -> None:
    said = scheme_from_config(config("led", max_encoder_position_embeddings=64))
    assert said.encoder is not None and said.encoder.additive == LearnedPositions(64, 32)
    assert said.additive == LearnedPositions(1024, 32)
    assert (said.encoder.max_length, said.max_length) == (64, 1024)


def test_trocr_can_be_switched_to_fairseqs_sinusoids() -> None:
    assert (
        scheme_from_config(config("trocr", use_learned_position_embeddings=False)).additive
        == FAIRSEQ
    )
    with pytest.raises(ConfigError, match="use_learned_position_embeddings"):
        scheme_from_config({**config("trocr"), "use_learned_position_embeddings": "no"})


def test_prophetnet_is_refused_for_its_decoders_buckets() -> None:
    with pytest.raises(ConfigError, match=r"prophetnet.*buckets of distance"):
        scheme_from_config(config("prophetnet"))
