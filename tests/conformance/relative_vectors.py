"""Vectors of distances in transformers' models: DeBERTa, Transformer-XL's kin, and Shaw's.

The model's own attention runs in float64 with random weights; `attention` is given the same queries,
keys and values, and the vectors that the config is read as.
"""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from conformance.check import Check
from conformance.theirs import attends, config_of, filled, heads_of, load, read, refused, tokens
from posenc import (
    Block,
    Deberta,
    Scheme,
    Shaw,
    TransformerXL,
    causal,
    same_segment,
    window,
)
from posenc.positions import sequence
from support import assert_roundings, random

__all__ = ["disentangled_checks", "shaw_checks", "transformer_xl_checks"]

ANGLES = 4  # roundings, where angles, and so waves, are rounded to float32 on their side
SIZES: dict[str, Any] = {"hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 2}


def projected(module: Any, x: Tensor, *names: str, heads: int = 3) -> list[Tensor]:
    return [heads_of(getattr(module, name)(x), heads) for name in names]


# --- DeBERTa -------------------------------------------------------------------------------------

DISENTANGLED: dict[str, tuple[str, str, list[dict[str, Any]]]] = {
    "deberta": ("Deberta", "DebertaEncoder", [
        {}, {"pos_att_type": ["c2p"]}, {"pos_att_type": "p2c"}, {"max_relative_positions": 9},
    ]),
    "deberta_v2": ("DebertaV2", "DebertaV2Encoder", [
        {}, {"position_buckets": 16, "norm_rel_ebd": "layer_norm", "share_att_key": True},
        {"position_buckets": 8, "pos_att_type": "p2c|c2p"}, {"pos_att_type": ["p2c"]},
    ]),
    "sew_d": ("SEWD", "SEWDTransformerEncoder", [
        {}, {"position_buckets": 16, "share_att_key": False, "norm_rel_ebd": "none"},
    ]),
}  # fmt: skip


def disentangled(name: str) -> None:
    prefix, encoder, variants = DISENTANGLED[name]
    published = {} if name == "sew_d" else {"pos_att_type": ["c2p", "p2c"]}
    for variant in variants:
        keys = {**SIZES, "relative_attention": True, "max_position_embeddings": 64}
        if name == "sew_d":
            keys["position_buckets"] = 32
        config = config_of(f"{prefix}Config", **{**keys, **published, **variant})
        made = filled(getattr(load(name), encoder)(config))
        for index, scheme in enumerate(read(config).layers):
            same_as_deberta(made, made.layer[index], scheme, read(config).softmax_scale)


def same_as_deberta(encoder: Any, layer: Any, scheme: Scheme, scale: float | None) -> None:
    attention, relative = layer.attention.self, scheme.relative
    assert isinstance(relative, Deberta)
    x = tokens(70, 24)
    # transformers divides by a root of float32
    assert scale is not None and abs(scale * (8 * (1 + len(relative.terms))) ** 0.5 - 1) < 1e-15
    q, k, v = content(attention, x)
    relative.double().table.data = encoder.rel_embeddings.weight.data
    if hasattr(encoder, "LayerNorm"):
        relative.norm.load_state_dict(encoder.LayerNorm.state_dict())
        assert getattr(relative.norm, "eps", None) == encoder.LayerNorm.eps
    take_projections(relative, attention)
    distances = encoder.get_rel_pos(x)
    given = {"relative_pos": distances, "rel_embeddings": encoder.get_rel_embedding()}
    their = attention(x, torch.ones(2, 1, 70, 70), **given)[0]
    attends(their, (q, k, v), scheme=scheme, scale=scale)


def content(attention: Any, x: Tensor) -> list[Tensor]:
    if not hasattr(attention, "in_proj"):
        return projected(attention, x, "query_proj", "key_proj", "value_proj")
    q, k, v = heads_of(attention.in_proj(x), 3).chunk(3, -1)
    q_bias, v_bias = (
        heads_of(bias[None, None], 3) for bias in (attention.q_bias, attention.v_bias)
    )
    return [q + q_bias, k, v + v_bias]


PROJECTIONS = {"key": ("pos_proj", "pos_key_proj"), "query": ("pos_q_proj", "pos_query_proj")}


def take_projections(relative: Deberta, attention: Any) -> None:
    for ours, names in PROJECTIONS.items():
        if getattr(relative, ours) is None:
            continue
        found = [getattr(attention, name) for name in names if hasattr(attention, name)]
        if not found:
            setattr(relative, ours, getattr(attention, f"{ours}_proj"))  # share_att_key
            continue
        getattr(relative, ours).load_state_dict(found[0].state_dict())


def log_buckets(name: str) -> None:
    distances = torch.arange(-600, 601)
    for buckets, longest in ((256, 512), (32, 128), (320, 1280)):
        part = Deberta(1, 4, num_buckets=buckets, max_distance=longest)
        theirs = load(name).make_log_bucket_position(distances, buckets, longest).long()
        ours = part.bucket(distances)
        inside = -buckets, buckets - 1  # rows of the table; what is beyond reads the last
        assert torch.equal(theirs.clamp(*inside), ours.clamp(*inside))


def disentangled_checks() -> list[Check]:
    return [
        Check("deberta", "`Deberta`", lambda: disentangled("deberta")),
        Check("deberta_v2", "`Deberta(num_buckets=…)`", lambda: disentangled("deberta_v2")),
        Check("deberta_v2: buckets", "`Deberta.bucket`", lambda: log_buckets("deberta_v2")),
        Check("sew_d", "`Deberta(num_buckets=…)`", lambda: disentangled("sew_d")),
        Check("sew_d: buckets", "`Deberta.bucket`", lambda: log_buckets("sew_d")),
    ]  # fmt: skip


# --- Transformer-XL, Conformers, XLNet, Funnel, Gemma's audio ------------------------------------


def with_weights(
    relative: Any, projection: Tensor, u: Tensor | None = None, v: Tensor | None = None
) -> Scheme:
    assert isinstance(relative, TransformerXL)
    relative.double().projection.data = projection.data
    for name, bias in (("content_bias", u), ("position_bias", v)):
        if bias is not None:
            getattr(relative, name).data = bias.data
        assert (getattr(relative, name) is None) == (bias is None)
    return Scheme(relative=relative)


CONFORMERS = {
    "seamless_m4t": ("SeamlessM4TConformer", "SeamlessM4TConfig"),
    "wav2vec2_bert": ("Wav2Vec2Bert", "Wav2Vec2BertConfig"),
    "wav2vec2_conformer": ("Wav2Vec2Conformer", "Wav2Vec2ConformerConfig"),
}
SEAMLESS = {"hidden_size": 24, "speech_encoder_attention_heads": 3, "speech_encoder_layers": 2}


def conformer(name: str) -> None:
    prefix, config_class = CONFORMERS[name]
    sizes = SEAMLESS if name == "seamless_m4t" else SIZES
    config = config_of(
        config_class, **sizes, position_embeddings_type="relative", max_source_positions=16
    )
    module = filled(getattr(load(name), f"{prefix}SelfAttention")(config))
    module.linear_out = nn.Identity()
    positions = getattr(load(name), f"{prefix}RelPositionalEmbedding")(config)
    relative: Any = TransformerXL(3, 8, layout="alternating")
    if name != "seamless_m4t":
        assert repr(read(config).layers[1].relative) == repr(relative)
        relative = read(config).layers[1].relative
    weights = (module.linear_pos.weight, module.pos_bias_u, module.pos_bias_v)
    scheme = with_weights(relative, *weights)
    x = tokens(21, 24)  # more than its table holds at first
    their, _ = module(x, relative_position_embeddings=positions(x))
    attends(their, projected(module, x, "linear_q", "linear_k", "linear_v"), ANGLES, scheme=scheme)


def fastspeech2() -> None:
    theirs = load("fastspeech2_conformer")
    config = config_of("FastSpeech2ConformerConfig", hidden_size=24)
    kept = {"num_attention_heads": 3, "attention_dropout_rate": 0.0, "positional_dropout_rate": 0.0}
    module = filled(theirs.FastSpeech2ConformerAttention(config, kept))
    module.linear_out = nn.Identity()
    x = tokens(21, 24)
    _, waves = theirs.FastSpeech2ConformerRelPositionalEncoding(config, kept)(x)
    weights = (module.linear_pos.weight, module.pos_bias_u, module.pos_bias_v)
    scheme = with_weights(TransformerXL(3, 8, layout="alternating"), *weights)
    their, _ = module(x, pos_emb=waves)
    attends(their, projected(module, x, "linear_q", "linear_k", "linear_v"), ANGLES, scheme=scheme)


NEMO = {
    "parakeet": ("ParakeetEncoder", "ParakeetEncoderConfig"),
    "nemotron_asr_streaming": ("NemotronAsrStreamingEncoder", "NemotronAsrStreamingEncoderConfig"),
}


def nemo(name: str) -> None:
    prefix, config_class = NEMO[name]
    config = config_of(config_class, **SIZES)
    module = filled(getattr(load(name), f"{prefix}Attention")(config, 0))
    module.o_proj = nn.Identity()
    positions = getattr(load(name), f"{prefix}RelPositionalEncoding")(config)
    weights = (module.relative_k_proj.weight, module.bias_u, module.bias_v)
    scheme = with_weights(read(config).layers[1].relative, *weights)
    x = tokens(21, 24)
    their, _ = module(x, positions(x))
    attends(their, projected(module, x, "q_proj", "k_proj", "v_proj"), ANGLES, scheme=scheme)


def gemma3n() -> None:
    """The logits of blocks of 12 queries beside 24 keys, wherever a key may be seen."""
    config = config_of("Gemma3nAudioConfig", hidden_size=24, conf_num_attention_heads=3,
                       conf_num_hidden_layers=2)  # fmt: skip
    module = filled(load("gemma3n").Gemma3nAudioRelativePositionEmbedding(config))
    scheme = with_weights(read(config).layers[1].relative, module.pos_proj.weight)
    q, k = random(2, 5, 12, 3, 8, seed=1), random(2, 5, 24, 3, 8, seed=2)
    theirs = module(q, k).movedim(2, 1).flatten(0, 1)  # [B · blocks, H, 12, 24]
    q, k = (x.flatten(0, 1).transpose(1, 2) for x in (q, k))
    q_pos, k_pos = sequence(12, start=12), sequence(24)
    assert scheme.relative is not None
    ours = q @ k.mT + scheme.relative.key_logits(q, k, Block(q_pos, k_pos))
    distance = q_pos[:, None] - k_pos
    seen = (distance >= 0) & (distance <= module.max_backward)
    assert seen.sum() == 12 * 13
    assert_roundings(theirs[..., seen].float(), ours[..., seen].detach(), ANGLES)


def gemma4() -> None:
    """All of its attention, with a cap on logits that none comes near."""
    config = config_of("Gemma4AudioConfig", **SIZES, attention_logit_cap=1e4)
    theirs = load("gemma4")
    module = filled(theirs.Gemma4AudioAttention(config, 0)).float()
    module.post = nn.Identity()
    scheme = with_weights(read(config).layers[1].relative, module.relative_k_proj.weight)
    x = tokens(31, 24).float()
    waves = theirs.Gemma4AudioRelPositionalEncoding(config)(x)
    query, key = torch.arange(36).view(3, 12, 1), torch.arange(3)[:, None, None] * 12 - 12
    key = key + torch.arange(24)
    hidden = (key < 0) | (key > query) | (query - key > 12) | (key >= 31)
    their, _ = module(x, waves, attention_mask=hidden[None, None])
    q, k, v = projected(module.double(), x.double(), "q_proj", "k_proj", "v_proj")
    q = q * module.q_scale * nn.functional.softplus(module.per_dim_scale)
    # float32 scores and softmax of theirs
    run = {"scheme": scheme, "scale": 1.0, "mask": causal & window(13)}
    attends(their, (q, k * module.k_scale, v), 2 * ANGLES, **run)


XLNET: dict[str, dict[str, Any]] = {
    "bi": {},
    "clamp_len": {"clamp_len": 3},
    "uni": {"attn_type": "uni"},
}


def xlnet() -> None:
    for variant in XLNET.values():
        for num_queries in (9, 5):  # the others are memory
            xlnet_with_memory(variant, num_queries)


def xlnet_with_memory(variant: dict[str, Any], num_queries: int) -> None:
    config = config_of("XLNetConfig", d_model=24, n_head=3, n_layer=2, d_inner=8, vocab_size=9,
                       **variant)  # fmt: skip
    model = filled(load("xlnet").XLNetModel(config))
    module = model.layer[1].rel_attn
    waves = model.relative_positional_encoding(num_queries, 9, bsz=2).double()
    x = tokens(9, 24).transpose(0, 1)
    h = x[9 - num_queries :]
    q, k, v, r = (torch.einsum("ibh,hnd->ibnd", part, weight) for part, weight in
                  ((h, module.q), (x, module.k), (x, module.v), (waves, module.r)))  # fmt: skip
    ahead = torch.ones(num_queries, 9, dtype=torch.float64).triu(10 - num_queries)
    is_causal = config.attn_type == "uni"
    mask = ahead[..., None, None].expand(-1, -1, 2, 1) if is_causal else None
    their = module.rel_attn_core(q, k, v, r, attn_mask=mask).permute(1, 0, 2, 3).flatten(-2)
    projection = module.r.flatten(1).T
    scheme = with_weights(
        read(config).layers[1].relative, projection, module.r_w_bias, module.r_r_bias
    )
    heads = (part.permute(1, 2, 0, 3) for part in (q, k, v))
    attends(their, heads, ANGLES, scheme=scheme, mask=causal if is_causal else None)


def xlnet_reads_half_a_batch_backwards() -> None:
    refused(config_of("XLNetConfig", bi_data=True), "read backwards")
    stub = SimpleNamespace(d_model=16, attn_type="bi", bi_data=True, clamp_len=-1)
    theirs = load("xlnet").XLNetModel
    stub.positional_embedding = theirs.positional_embedding
    waves = theirs.relative_positional_encoding(stub, 4, 4, bsz=2)
    assert torch.equal(waves[1:, 0], waves.flip(0)[:-1, 1])  # one row forward, one backward


def funnel_module(block: int, kind: str, **keys: Any) -> tuple[Any, Any, Any]:
    theirs = load("funnel")
    config = config_of("FunnelConfig", d_model=24, n_head=3, d_head=8, attention_type=kind, **keys)
    module = filled(theirs.FunnelRelMultiheadAttention(config, block))
    module.post_proj, module.layer_norm = nn.Identity(), nn.Identity()
    return theirs.FunnelAttentionStructure(config).eval(), module, config


def funnel(kind: str) -> None:
    """The first block, then queries pooled by two, then queries and keys."""
    x = tokens(8, 24)
    for block, queries, keys in ((0, 1, 1), (1, 2, 1), (1, 2, 2)):
        if kind == "factorized" and block:
            continue  # its waves are pooled beside the hidden states
        structure, module, config = funnel_module(block, kind, separate_cls=False)
        refused(config, "layers pool")
        inputs = structure.init_attention_inputs(x)
        query, key = x[:, ::queries], x[:, ::keys]
        their = module(query, key, key, inputs)[0] - query
        made = TransformerXL(3, 8, dim=24)
        weights = (module.r_kernel.flatten(1).T, module.r_w_bias, module.r_r_bias)
        scheme = with_weights(made, *weights)
        q = heads_of(module.q_head(query), 3)
        k, v = (heads_of(part(key), 3) for part in (module.k_head, module.v_head))
        at = {"q_pos": sequence(8)[::queries], "k_pos": sequence(8)[::keys]}
        # scores of theirs pass float32
        attends(their, (q, k, v), 2 * ANGLES, scheme=scheme, **at)


def funnel_sets_the_class_token_apart() -> None:
    structure, module, config = funnel_module(0, "relative_shift")
    refused(config, "distances to its class token count as nothing")
    cls_mask = structure.init_attention_inputs(tokens(8, 24))[3]
    waves = structure.get_position_embeds(8, torch.float64, torch.device("cpu"))
    q = random(2, 8, 3, 8)
    logits = module.relative_positional_attention(waves, q, 8, cls_mask.double())
    assert not logits[..., 0].any() and not logits[..., 0, :].any() and logits[..., 1:, 1:].all()


def transformer_xl_checks() -> list[Check]:
    alternating = '`TransformerXL(layout="alternating")`'
    gemma = '`TransformerXL(denominator="d-2", biases=False)`'
    return [
        *(Check(name, alternating, lambda name=name: conformer(name)) for name in CONFORMERS),
        Check("fastspeech2_conformer", alternating, fastspeech2),
        *(Check(name, alternating, lambda name=name: nemo(name)) for name in NEMO),
        Check("gemma3n_audio", gemma, gemma3n),
        Check("gemma4_audio", gemma, gemma4),
        Check("xlnet", "`TransformerXL(clamp=clamp_len)`", xlnet),
        Check("xlnet: bi_data", "", xlnet_reads_half_a_batch_backwards,
              "refused: half of the batch counts backwards (modeling_xlnet.py:952)"),
        Check("funnel: relative_shift", "`TransformerXL`, at positions pooled by two",
              lambda: funnel("relative_shift")),
        Check("funnel: factorized", "`TransformerXL`", lambda: funnel("factorized")),
        Check("funnel: separate_cls", "", funnel_sets_the_class_token_apart,
              "refused: distances to the class token, and from it, count as nothing "
              "(modeling_funnel.py:406)"),
    ]  # fmt: skip


# --- Shaw ----------------------------------------------------------------------------------------


def with_keys(relative: Any, keys: Tensor, values: Tensor | None = None) -> Scheme:
    assert isinstance(relative, Shaw) and relative.keys.shape == keys.shape
    relative.double().keys.data = keys.data
    if values is not None:
        assert relative.values is not None and relative.values.shape == values.shape
        relative.values.data = values.data
    assert relative.adds_values == (values is not None)
    return Scheme(relative=relative)


def wav2vec2_bert() -> None:
    config = config_of("Wav2Vec2BertConfig", **SIZES, left_max_position_embeddings=6,
                       right_max_position_embeddings=2)  # fmt: skip
    module = filled(load("wav2vec2_bert").Wav2Vec2BertSelfAttention(config))
    module.linear_out = nn.Identity()
    scheme = with_keys(read(config).layers[1].relative, module.distance_embedding.weight)
    x = tokens(21, 24)
    attends(module(x)[0], projected(module, x, "linear_q", "linear_k", "linear_v"), scheme=scheme)


def speecht5() -> None:
    """Row q − k + max, up to max − 1: ours in reverse, one row longer ahead than back."""
    theirs = load("speecht5")
    module = filled(theirs.SpeechT5Attention(24, 3))
    module.out_proj = nn.Identity()
    vectors = filled(theirs.SpeechT5RelativePositionalEncoding(8, 5))
    x = tokens(21, 24)
    scheme = with_keys(Shaw(8, max_distance=(4, 5), values=False), vectors.pe_k.weight.flip(0))
    their = module(x, position_bias=vectors(x))[0]
    attends(their, projected(module, x, "q_proj", "k_proj", "v_proj"), scheme=scheme)


def vits() -> None:
    for length in (3, 5, 21):
        config = config_of("VitsConfig", **SIZES, window_size=4)
        module = filled(load("vits").VitsAttention(config))
        module.out_proj = nn.Identity()
        scheme = with_keys(
            read(config).layers[1].relative, module.emb_rel_k[0], module.emb_rel_v[0]
        )
        x = tokens(length, 24)
        attends(module(x)[0], projected(module, x, "q_proj", "k_proj", "v_proj"), scheme=scheme)


def granite_speech() -> None:
    """Blocks of six tokens, the last one short."""
    config = config_of("GraniteSpeechEncoderConfig", hidden_dim=24, num_heads=3, dim_head=8,
                       num_layers=2, context_size=6, max_pos_emb=8)  # fmt: skip
    theirs = load("granite_speech")
    module = filled(theirs.GraniteSpeechConformerAttention(config))
    module.pre_norm = module.to_out = nn.Identity()
    scheme = with_keys(read(config).layers[1].relative, module.rel_pos_emb.weight.flip(0))
    encoder = theirs.GraniteSpeechCTCEncoder(config)
    x = tokens(21, 24)
    their = module(x, attention_dists=encoder.attention_dists)
    q = heads_of(module.to_q(x), 3)
    k, v = (heads_of(part, 3) for part in module.to_kv(x).chunk(2, -1))
    attends(their, (q, k, v), scheme=scheme, mask=same_segment(torch.arange(21) // 6))


def granite_speech5() -> None:
    config = config_of("GraniteSpeech5EncoderConfig", **SIZES, num_key_value_heads=3, head_dim=8,
                       context_size=6, max_position_embeddings=8)  # fmt: skip
    theirs = load("granite_speech5")
    module = filled(theirs.GraniteSpeech5EncoderAttention(config, 0))
    module.o_proj = nn.Identity()
    scheme = with_keys(read(config).layers[1].relative, module.rel_pos_emb.weight.flip(0))
    stub = SimpleNamespace(config=config)
    distances = theirs.GraniteSpeech5Encoder.compute_attention_dists(stub)
    x = tokens(21, 24)
    their, _ = module(x, position_embeddings=distances)
    heads = projected(module, x, "q_proj", "k_proj", "v_proj")
    attends(their, heads, scheme=scheme, mask=same_segment(torch.arange(21) // 6))


def phi4_has_a_number_for_each_clipped_distance() -> None:
    """Numbers, no vectors; and where one table serves both sides it reads past its end."""
    made = load("phi4_multimodal").Phi4MultimodalAudioRelativeAttentionBias
    keys = {"bias_max_distance": 4, "num_attention_heads": 2}
    config = config_of("Phi4MultimodalAudioConfig", bias_symmetric=False, **keys)
    bias = filled(made(config))(torch.zeros(1, 10, 1))[0, :, 9]
    assert torch.equal(bias[:, 0], bias[:, 5]) and not torch.equal(bias[:, 5], bias[:, 6])
    config = config_of("Phi4MultimodalAudioConfig", bias_symmetric=True, **keys)
    try:
        made(config)(torch.zeros(1, 10, 1))
    except IndexError:
        return
    raise AssertionError("a table of one side now serves distance 4")


def esmfold_describes_pairs() -> None:
    made = load("esm", "esmfold").EsmFoldRelativePosition
    theirs = filled(made(SimpleNamespace(position_bins=4, pairwise_state_dim=3)))
    pairs = theirs(torch.arange(10)[None])
    assert pairs.shape == (1, 10, 10, 3)  # a state of each pair, no logit
    assert torch.equal(pairs[0, 0, 4], pairs[0, 0, 9])


def inkling_projects_states_of_its_own() -> None:
    """Logits of states that no query is: a second projection of the hidden states."""
    config = config_of("InklingTextConfig", **SIZES, num_key_value_heads=1, head_dim=8)
    module = load("inkling").InklingAttention(config, 0)
    assert module.r_proj.out_features == module.num_heads * config.d_rel
    assert config.d_rel != module.head_dim


def shaw_checks() -> list[Check]:
    return [
        Check("wav2vec2_bert", "`Shaw(max_distance=(64, 8), values=False)`", wav2vec2_bert),
        Check("speecht5", "`Shaw(max_distance=(159, 160), values=False)`, rows in reverse; its "
              "config is not read", speecht5),
        Check("vits", '`Shaw(max_distance=4, outside="zero")`', vits),
        Check("granite_speech", "`Shaw(values=False)` within blocks, rows in reverse",
              granite_speech),
        Check("granite_speech5", "`Shaw(values=False)` within blocks, rows in reverse",
              granite_speech5),
        Check("phi4_audio", "", phi4_has_a_number_for_each_clipped_distance,
              "refused: a number for each clipped distance and head, which no bias here is "
              "(modeling_phi4_multimodal.py:823)"),
        Check("esmfold", "", esmfold_describes_pairs, "refused: vectors of clipped distances that "
              "join the state of a pair, not attention (modeling_esmfold.py:1275)"),
        Check("inkling", "", inkling_projects_states_of_its_own, "refused: vectors by distance meet "
              "a projection of the hidden states that is no query (modeling_inkling.py:129)"),
    ]  # fmt: skip
