"""Whole models of transformers, and the same with posenc in place of their code for positions.

Random weights far from zero, every token that is real: padded on either side, and decoded step by
step. All in float64, but for models whose softmax is float32 whatever they are made in.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from ports import PORTS
from posenc import Alibi, Deberta, Learned, Sinusoidal, SwinBias, T5Bias
from posenc.positions import from_padding_mask
from support import eps, random

transformers.logging.set_verbosity_error()
VERSION = tuple(int(part) for part in transformers.__version__.split(".")[:2])
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(VERSION < (5, 24), reason="the ports follow the code of transformers 5.24"),
]

LENGTH, STEPS, PAD = 14, 3, 1
ROUNDINGS = 128  # of the largest output; what acts in the wrong place moves it by a thousandth
LEFT = torch.ones(2, LENGTH, dtype=torch.int64)
LEFT[0, :4] = LEFT[1, :1] = 0
PADDED = {"unpadded": torch.ones_like(LEFT), "left": LEFT, "right": LEFT.flip(1)}
SMALL: dict[str, Any] = {
    "vocab_size": 29, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 16, "max_position_embeddings": 40, "pad_token_id": PAD,
    "hidden_act": "gelu",
}  # fmt: skip
DECODER = {"is_decoder": True, "use_cache": True}
BLOOM = {"vocab_size": 29, "hidden_size": 24, "n_layer": 2, "n_head": 6, "pad_token_id": PAD}
MPT = {"vocab_size": 29, "d_model": 24, "n_layers": 2, "n_heads": 6, "max_seq_len": 40}
T5 = {"vocab_size": 29, "d_model": 24, "d_kv": 6, "d_ff": 16, "num_layers": 2, "num_heads": 4,
      "relative_attention_num_buckets": 8, "relative_attention_max_distance": 12,
      "pad_token_id": PAD, "decoder_start_token_id": 0}  # fmt: skip
OPT = {**SMALL, "ffn_dim": 16, "word_embed_proj_dim": 24}
WHISPER = {"num_mel_bins": 5, "d_model": 24, "encoder_layers": 2, "encoder_attention_heads": 2,
           "encoder_ffn_dim": 16, "max_source_positions": 20, "vocab_size": 29, "decoder_layers": 1,
           "decoder_attention_heads": 2, "decoder_ffn_dim": 16, "pad_token_id": PAD}  # fmt: skip
# √(3 · 12) is exact: DeBERTa rounds it to float32
DEBERTA = {**SMALL, "relative_attention": True, "position_biased_input": False,
           "pos_att_type": ["c2p", "p2c"], "norm_rel_ebd": "layer_norm", "type_vocab_size": 0,
           "position_buckets": 6, "max_relative_positions": 12}  # fmt: skip
SWIN = {"image_size": 28, "patch_size": 2, "embed_dim": 12, "depths": [2, 1], "num_heads": [2, 4],
        "window_size": 4, "drop_path_rate": 0.0}  # fmt: skip


def tiny(name: str, cls: str, keys: dict[str, Any]) -> Any:
    """A model of transformers, its weights drawn so that positions matter."""
    made = getattr(transformers, cls)(_config(name, keys)).eval()
    generator = torch.Generator().manual_seed(0)
    for key, weight in made.named_parameters():
        if weight.ndim > 1 and not ("whisper" in name and "embed_positions" in key):
            weight.data.normal_(std=0.4, generator=generator)
    return made


def _config(name: str, keys: dict[str, Any]) -> Any:
    kind = name.partition(":")[0]
    return transformers.AutoConfig.for_model(kind, **keys, attn_implementation="eager")


MODELS: dict[str, Callable[[], Any]] = {
    "bloom": lambda: tiny("bloom", "BloomModel", BLOOM),
    "mpt": lambda: tiny("mpt", "MptModel", MPT),
    "t5": lambda: tiny("t5", "T5Model", T5),
    "umt5": lambda: tiny("umt5", "UMT5Model", T5),
    "bert": lambda: tiny("bert", "BertModel", SMALL),
    "bert:decoder": lambda: tiny("bert", "BertModel", SMALL | DECODER),
    "roberta": lambda: tiny("roberta", "RobertaModel", SMALL),
    "roberta:decoder": lambda: tiny("roberta", "RobertaModel", SMALL | DECODER),
    "opt": lambda: tiny("opt", "OPTModel", OPT),
    "whisper": lambda: tiny("whisper", "WhisperModel", WHISPER).encoder,
    "deberta-v2": lambda: tiny("deberta-v2", "DebertaV2Model", DEBERTA),
    "deberta-v2:shared": lambda: tiny(
        "deberta-v2", "DebertaV2Model", DEBERTA | {"share_att_key": True}
    ),
    "deberta-v2:exact": lambda: tiny(
        "deberta-v2", "DebertaV2Model", DEBERTA | {"position_buckets": -1}
    ),
    "swin": lambda: tiny("swin", "SwinModel", SWIN),
}
PADDABLE = [name for name in MODELS if name not in ("whisper", "swin")]
CAUSAL = ("bloom", "mpt", "bert:decoder", "roberta:decoder", "opt")
ROUNDS_ITS_SOFTMAX = ("bloom", "mpt", "opt", "swin")


def own_model(name: str) -> Any:
    single = name in ROUNDS_ITS_SOFTMAX  # BLOOM's and MPT's masks are infinite there in float64
    torch.set_default_dtype(torch.float32 if single else torch.float64)
    return MODELS[name]()


def ported(name: str, own: Any) -> Any:
    """The same weights, with posenc for positions."""
    twin = copy.deepcopy(own)
    PORTS[name.partition(":")[0]](twin)
    return twin


def tokens(mask: Tensor) -> Tensor:
    ids = torch.randint(3, 29, mask.shape, generator=torch.Generator().manual_seed(7))
    return ids.where(mask == 1, PAD)


def whole(model: Any, name: str, mask: Tensor) -> Tensor:
    """Hidden states `[B, T, C]` of one call; of an encoder and decoder those of the decoder."""
    if name == "whisper":
        return model(random(2, 5, 40, dtype=torch.get_default_dtype())).last_hidden_state
    if name == "swin":
        return model(random(2, 3, 28, 28, dtype=torch.get_default_dtype())).last_hidden_state
    given = {"input_ids": tokens(mask), "attention_mask": mask}
    if name in ("t5", "umt5"):
        given |= {"decoder_input_ids": tokens(LEFT), "decoder_attention_mask": LEFT}
    return model(**given).last_hidden_state


def decoded(model: Any, name: str, mask: Tensor) -> Tensor:
    """The same hidden states, the last few tokens one by one beside a cache."""
    ids, cache, out = tokens(mask), None, []
    for stop in range(LENGTH - STEPS, LENGTH + 1):
        new = ids[:, stop - 1 if out else 0 : stop]
        given = {"input_ids": new, "attention_mask": mask[:, :stop]}
        if name == "roberta:decoder":  # by itself it counts padding once it decodes
            at = from_padding_mask(mask[:, :stop]) + PAD + 1
            given["position_ids"] = at[:, -new.shape[1] :]
        made = model(**given, cache=cache, use_cache=True)
        cache = made.cache
        out.append(made.last_hidden_state)
    return torch.cat(out, 1)


def assert_same(name: str, ours: Tensor, theirs: Tensor, real: Tensor | None = None) -> None:
    """Within a few roundings of the largest value: of float64, or of what the model rounds to."""
    if real is not None:
        ours, theirs = ours[real == 1], theirs[real == 1]
    limit = ROUNDINGS * eps(theirs.dtype) * theirs.abs().max()
    error = (ours - theirs).abs().max()
    assert error <= limit, f"off by {error:.3g} where {limit:.3g} is allowed"


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


@pytest.mark.parametrize("side", PADDED)
@pytest.mark.parametrize("name", PADDABLE)
def test_a_ported_model_gives_the_same_hidden_states(name: str, side: str) -> None:
    own, mask = own_model(name), PADDED[side]
    real = LEFT if name in ("t5", "umt5") else mask
    ours, theirs = (whole(model, name, mask) for model in (ported(name, own), own))
    assert_same(name, ours, theirs, real)


@pytest.mark.parametrize("name", ["whisper", "swin"])
def test_a_ported_encoder_of_sound_and_of_images(name: str) -> None:
    own = own_model(name)
    ours, theirs = (whole(model, name, LEFT) for model in (ported(name, own), own))
    assert_same(name, ours, theirs)


@pytest.mark.parametrize("side", PADDED)
@pytest.mark.parametrize("name", CAUSAL)
def test_a_ported_model_decodes_the_same(name: str, side: str) -> None:
    own, mask = own_model(name), PADDED[side]
    mask = mask.index_fill(1, torch.arange(LENGTH - STEPS, LENGTH), 1)
    ours, theirs = (decoded(model, name, mask) for model in (ported(name, own), own))
    assert_same(name, ours, theirs, mask)
    assert_same(name, ours, whole(ported(name, own), name, mask), mask)


@pytest.mark.parametrize("name", ["t5", "umt5"])
def test_a_ported_decoder_goes_on_beside_its_encoder(name: str) -> None:
    own = own_model(name)
    ours, theirs = (decoded_beside(model) for model in (ported(name, own), own))
    assert_same(name, ours, theirs, LEFT)
    assert_same(name, ours, whole(ported(name, own), name, PADDED["right"]), LEFT)


def decoded_beside(model: Any) -> Tensor:
    """An encoder whose text ends in padding; a decoder whose text begins with it."""
    mask, cache, out = PADDED["right"], None, []
    kept = model.encoder(tokens(mask), attention_mask=mask)
    for stop in range(LENGTH - STEPS, LENGTH + 1):
        new = tokens(LEFT)[:, stop - 1 if out else 0 : stop]
        made = model(
            encoder_outputs=kept, attention_mask=mask, decoder_input_ids=new,
            decoder_attention_mask=LEFT[:, :stop], cache=cache, use_cache=True,
        )  # fmt: skip
        cache = made.cache
        out.append(made.last_hidden_state)
    return torch.cat(out, 1)


def test_t5_shares_one_bias_and_umt5_has_one_a_layer() -> None:
    for name, count in (("t5", 1), ("umt5", 2)):
        twin = ported(name, own_model(name))
        for stack in (twin.encoder, twin.decoder):
            places = [block.layer[0].SelfAttention.place for block in stack.block]
            assert len({id(place.scheme.bias) for place in places}) == count


# What is wrong must show: the same models with positions that are one too many, or twice too far. ---


def one_further(encode: Any) -> Any:
    return lambda self, positions, **more: encode(self, positions + 1, **more)


def twice_as_far(value: Any) -> Any:
    return lambda self, head, q_pos, k_pos: value(self, head, 2 * q_pos, 2 * k_pos)


def transposed(value: Any) -> Any:
    return lambda self, head, q_pos, k_pos: value(self, head, q_pos.flip(-1), k_pos.flip(-1))


def one_bucket_off(bucket: Any) -> Any:
    return lambda self, distances: bucket(self, distances + 1)


FAULTS: dict[str, tuple[Any, str, Any]] = {
    **dict.fromkeys(("bloom", "mpt"), (Alibi, "value", twice_as_far)),
    **dict.fromkeys(("t5", "umt5"), (T5Bias, "value", twice_as_far)),
    **dict.fromkeys(("bert", "roberta", "opt"), (Learned, "encode", one_further)),
    "whisper": (Sinusoidal, "encode", one_further),
    "deberta-v2": (Deberta, "bucket", one_bucket_off),
    "swin": (SwinBias, "value", transposed),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_port_with_wrong_positions_is_noticed(name: str, monkeypatch: Any) -> None:
    own = own_model(name)
    cls, method, fault = FAULTS[name]
    monkeypatch.setattr(cls, method, fault(getattr(cls, method)))
    ours, theirs = (whole(model, name, PADDED["unpadded"]) for model in (ported(name, own), own))
    real = LEFT if name in ("t5", "umt5") else torch.ones(ours.shape[:2])
    with pytest.raises(AssertionError, match="off by"):
        assert_same(name, ours, theirs, real)
    assert (ours - theirs)[real == 1].abs().max() > 1e-3 * theirs.abs().max()


def test_roberta_counts_padding_once_it_decodes_and_posenc_does_not() -> None:
    """create_position_ids_from_input_ids adds the length of the cache, padding included."""
    name = "roberta:decoder"
    own = own_model(name)
    made = own(tokens(LEFT)[:, :-1], attention_mask=LEFT[:, :-1], use_cache=True)
    given = {"attention_mask": LEFT, "cache": made.cache}
    theirs = own(tokens(LEFT)[:, -1:], **given).last_hidden_state
    right = whole(own, name, LEFT)[:, -1:]
    assert (theirs - right).abs().max() > 1e-3 * right.abs().max()
    assert_same(name, decoded(ported(name, own), name, LEFT)[:, -1:], right)
