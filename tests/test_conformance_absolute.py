"""Sinusoids of transformers' model families beside the options that docs/encodings.md gives them."""

import importlib
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from posenc import Sinusoidal

pytest.importorskip("transformers", reason="the peers of these tests")

LENGTH, DIM, PAD = 64, 32, 1
FAIRSEQ: dict[str, Any] = {"denominator": "d-2", "offset": PAD + 1, "zero_padding": True}


def module(name: str) -> Any:
    return importlib.import_module(f"transformers.models.{name}.modeling_{name}")


def written(name: str, cls: str) -> Tensor:
    return getattr(module(name), cls)(LENGTH, DIM).create_weight()


def embedded(name: str, cls: str, *more: Any) -> Tensor:
    return getattr(module(name), cls).get_embedding(LENGTH, DIM, *more)


PLAIN: dict[str, tuple[str, dict[str, Any]]] = {
    "marian": ("MarianSinusoidalPositionalEmbedding", {}),
    "pegasus": ("PegasusSinusoidalPositionalEmbedding", {}),
    "autoformer": ("AutoformerSinusoidalPositionalEmbedding", {}),
    "informer": ("InformerSinusoidalPositionalEmbedding", {}),
    "roformer": ("RoFormerSinusoidalPositionalEmbedding", {}),
    "time_series_transformer": ("TimeSeriesSinusoidalPositionalEmbedding", {}),
}
PADDED = {
    "m2m_100": "M2M100SinusoidalPositionalEmbedding",
    "nllb_moe": "NllbMoeSinusoidalPositionalEmbedding",
    "seamless_m4t": "SeamlessM4TSinusoidalPositionalEmbedding",
    "kosmos2": "Kosmos2TextSinusoidalPositionalEmbedding",
    "speech_to_text": "Speech2TextSinusoidalPositionalEmbedding",
    "fsmt": "SinusoidalPositionalEmbedding",
    "xglm": "XGLMSinusoidalPositionalEmbedding",
}
AUDIO = ("qwen2_5_omni", "qwen3_asr", "qwen3_omni_moe")


def assert_within_their_rounding(theirs: Tensor, options: dict[str, Any]) -> None:
    """float32 angles of theirs: a frequency and a product, each rounded, then the function."""
    said: dict[str, Any] = {"layout": "concatenated"} | options
    encoding = Sinusoidal(DIM, **said)
    positions = torch.arange(len(theirs))
    ours = encoding.encode(positions).double()
    angle = (positions + encoding.offset).double()[:, None]  # of the fastest pair, the largest
    bound = 2.0**-24 * (2 + 6 * angle) * max(1.0, float(theirs.abs().max()))
    assert ((theirs.double() - ours).abs() <= bound).all()


@pytest.mark.parametrize("name", PLAIN)
def test_sinusoids_over_d(name: str) -> None:
    cls, options = PLAIN[name]
    assert_within_their_rounding(written(name, cls), options)


@pytest.mark.parametrize("name", PADDED)
def test_fairseqs_sinusoids_count_from_after_the_padding_row(name: str) -> None:
    rows = embedded(name, PADDED[name], PAD)
    assert_within_their_rounding(rows[PAD + 1 :], FAIRSEQ)
    padding = Sinusoidal(DIM, layout="concatenated", **FAIRSEQ).encode(torch.tensor([-1]))
    assert not padding.any() and not rows[PAD].any()


@pytest.mark.parametrize("name", AUDIO)
def test_qwens_audio_encoders(name: str) -> None:
    rows = module(name).SinusoidsPositionEmbedding(LENGTH, DIM).positional_embedding
    assert_within_their_rounding(rows, {"denominator": "d-2"})


def test_whispers_encoder() -> None:
    assert_within_their_rounding(module("whisper").sinusoids(LENGTH, DIM), {"denominator": "d-2"})


def test_pegasus_x() -> None:
    made = module("pegasus_x").PegasusXSinusoidalPositionalEmbedding(DIM)
    rows = made(torch.zeros(1, LENGTH, DIM)).reshape(-1, LENGTH, DIM)[0]
    assert_within_their_rounding(rows, {"denominator": "d-2"})


def test_musicgen_has_cosines_first() -> None:
    rows = embedded("musicgen", "MusicgenSinusoidalPositionalEmbedding")
    assert_within_their_rounding(rows, {"denominator": "d-2", "first": "cosine"})


def test_canary_divides_by_the_root_of_its_width() -> None:
    made = module("canary").CanaryPositionalEmbedding(LENGTH, DIM)
    rows = made(torch.arange(LENGTH)[None]).reshape(LENGTH, DIM)
    assert_within_their_rounding(rows, {"amplitude": 1 / math.sqrt(DIM)})


def test_fun_asr_counts_from_one() -> None:
    made = module("fun_asr_nano").FunAsrNanoPositionEmbedding(LENGTH, DIM)
    rows = made(torch.zeros(1, 8, DIM)).reshape(-1, DIM)
    assert len(rows) == 8
    assert_within_their_rounding(rows, {"denominator": "d-2", "offset": 1})


def test_videomae_takes_turns() -> None:
    rows = module("videomae").get_sinusoid_encoding_table(LENGTH, DIM)[0]
    assert_within_their_rounding(rows, {"layout": "alternating"})
