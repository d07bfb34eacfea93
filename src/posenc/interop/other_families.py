"""Families without rotation: learned tables, sinusoids, T5's bias, ALiBi, nothing at all.

Options of a learned or sinusoidal family: `rows` and `dim` are keys (rows is the number of
positions), `offset` rows come first, `padding` means RoBERTa's rule (the table counts the rows up
to pad_token_id), `encoder` are the options of an encoder of another kind. Others are those of
`Sinusoidal`, where `offset="padding"` is fairseq's rule (the text begins after pad_token_id).
"""

from dataclasses import replace
from typing import Any

from posenc.interop.families import Family

__all__ = ["OTHER"]

GPT2_NAMES = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer",
              "num_attention_heads": "n_head", "max_position_embeddings": "n_positions"}  # fmt: skip
T5_NAMES = {"hidden_size": "d_model", "num_hidden_layers": "num_layers",
            "num_attention_heads": "num_heads"}  # fmt: skip
DISTIL_NAMES = {"hidden_size": "dim", "num_hidden_layers": "n_layers",
                "num_attention_heads": "n_heads"}  # fmt: skip
BLOOM_NAMES = {"hidden_size": "n_embed", "num_hidden_layers": "n_layer",
               "num_attention_heads": "n_head", "max_position_embeddings": "seq_length"}  # fmt: skip
XLM_NAMES = {"hidden_size": "emb_dim", "num_hidden_layers": "n_layers"}
SEQ2SEQ = {"hidden_size": "d_model"}


def learned(aliases: dict[str, str] | None = None, **options: Any) -> Family:
    return Family(position="learned", options=options, aliases=aliases or {})


def sinusoids(**options: Any) -> Family:
    names = {"hidden_size": "d_model"}
    return Family(position="sinusoidal", options={"seq2seq": True, **options}, aliases=names)


def many(names: str, family: Family) -> dict[str, Family]:
    return dict.fromkeys(names.split(), family)


BERT = learned()
T5 = Family(position="t5", aliases=T5_NAMES)
MARIAN: dict[str, Any] = {"layout": "concatenated"}
TENSOR2TENSOR: dict[str, Any] = {"denominator": "d-2", "layout": "concatenated"}
FAIRSEQ: dict[str, Any] = {**TENSOR2TENSOR, "offset": "padding", "zero_padding": True}
MUSICGEN = Family(position="sinusoidal", options={**TENSOR2TENSOR, "first": "cosine"})
KOSMOS = Family(
    position="sinusoidal", options=FAIRSEQ,
    aliases={"hidden_size": "embed_dim", "num_hidden_layers": "layers",
             "num_attention_heads": "attention_heads"},
)  # fmt: skip

OTHER: dict[str, Family] = {
    # A table -------------------------------------------------------------------------------------
    **many(
        "align_text_model bert bert-generation big_bird blip_text_model chinese_clip_text_model "
        "clip_text_model clipseg_text_model dpr ernie flava_text_model fnet git "
        "groupvit_text_model layoutlm megatron-bert metaclip_2_text_model mobilebert "
        "owlv2_text_model owlvit_text_model roc_bert siglip2_text_model siglip_text_model "
        "aimv2_text_model splinter tapas visual_bert xclip_text_model",
        BERT,
    ),
    **many("albert convbert electra squeezebert", learned(dim="embedding_size")),
    "rembert": learned(dim="input_embedding_size"),
    "distilbert": learned(DISTIL_NAMES),
    **many("gpt2 gpt-sw3 gpt_bigcode imagegpt decision_transformer openai-gpt",
           learned(GPT2_NAMES)),
    "gpt_neo": learned({"num_hidden_layers": "num_layers"}),
    **many("xlm flaubert", learned(XLM_NAMES)),
    **many("mra nystromformer yoso", learned(offset=2)),
    **many("opt biogpt", learned(offset=2)),
    **many("altclip_text_model bridgetower_text_model camembert clap_text_model data2vec-text ibert "
           "longformer roberta roberta-prelayernorm xlm-roberta xlm-roberta-xl xmod",
           learned(padding=True)),
    **many("bart mbart mvp plbart", learned(SEQ2SEQ, offset=2, seq2seq=True)),
    **many("bigbird_pegasus blenderbot blenderbot-small", learned(SEQ2SEQ, seq2seq=True)),
    "whisper": learned(
        SEQ2SEQ, rows="max_target_positions", seq2seq=True,
        encoder={"kind": "sinusoidal", "rows": "max_source_positions", **TENSOR2TENSOR},
    ),
    "led": learned(
        SEQ2SEQ, rows="max_decoder_position_embeddings", seq2seq=True,
        encoder={"kind": "learned", "rows": "max_encoder_position_embeddings"},
    ),
    "trocr": Family(
        position="learned",
        options={"offset": 2, "unless": ("use_learned_position_embeddings", FAIRSEQ)},
        aliases={"hidden_size": "d_model", "num_hidden_layers": "decoder_layers"},
    ),
    # Sinusoids -----------------------------------------------------------------------------------
    **many("marian pegasus autoformer informer time_series_transformer", sinusoids(**MARIAN)),
    "pegasus_x": sinusoids(**TENSOR2TENSOR),
    **many("m2m_100 nllb-moe fsmt speech_to_text", sinusoids(**FAIRSEQ)),
    **many("kosmos_2_text_model kosmos_2_5_text_model", KOSMOS),
    **many("musicgen_decoder musicgen_melody_decoder", MUSICGEN),
    "tipsv2_text_model": Family(position="sinusoidal", options=TENSOR2TENSOR),
    "xglm": Family(position="sinusoidal", options={**TENSOR2TENSOR, "offset": 2},
                   aliases={"hidden_size": "d_model", "num_hidden_layers": "num_layers"}),
    "ctrl": Family(position="sinusoidal", options=MARIAN, aliases=GPT2_NAMES),
    # T5's bias -----------------------------------------------------------------------------------
    **many("t5 mt5 switch_transformers pop2piano", T5),
    "umt5": replace(T5, options={"per_layer": True}),
    "longt5": replace(T5, options={"local": "encoder_attention_type"}),
    "pix2struct_text_model": Family(
        position="t5", options={"decoder_only": True},
        aliases={"num_hidden_layers": "num_layers", "num_attention_heads": "num_heads"},
    ),
    "mpnet": Family(position="t5", options={"padding": True}),
    # ALiBi ---------------------------------------------------------------------------------------
    "bloom": Family(position="alibi", aliases=BLOOM_NAMES),
    "mpt": Family(
        position="alibi", options={"mpt": True},
        aliases={"hidden_size": "d_model", "num_hidden_layers": "n_layers",
                 "num_attention_heads": "n_heads", "max_position_embeddings": "max_seq_len"},
    ),
    # Order comes of the layers themselves --------------------------------------------------------
    **many("jamba nemotron_h mamba mamba2 falcon_mamba", Family(position="none")),
    # Named and refused ---------------------------------------------------------------------------
    "prophetnet": Family(refuse="its decoder adds buckets of distance to a learned table"),
    "wavlm": Family(refuse="its T5 bias (num_buckets, max_bucket_distance) is gated by the queries, "
                           "and a convolution adds positions"),
    "udop": Family(refuse="it adds biases of two further axes to T5's"),
    "cpmant": Family(refuse="its buckets depend on segments too"),
    "transfo-xl": Family(refuse="its code left transformers: build TransformerXL(n_head, d_head, "
                                "dim=d_model, clamp=clamp_len) by hand"),
    "funnel": Family(refuse="its layers pool, so each has positions of its own, and distances to its "
                            "class token count as nothing: build TransformerXL by hand"),
}  # fmt: skip
