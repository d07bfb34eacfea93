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
AUDIO = {"hidden_size": "d_model", "num_hidden_layers": "encoder_layers"}
HEARD = Family(
    position="sinusoidal", aliases=AUDIO, options={**TENSOR2TENSOR, "rows": "max_source_positions"}
)
SEAMLESS = replace(
    sinusoids(**FAIRSEQ, unused=("rotary_embedding_base", "position_embeddings_type")),
    aliases={},
    notes=("its text encoder and decoder; those of units have sinusoids too",),
)
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
        "aimv2_text_model splinter tapas visual_bert xclip_text_model clvp_decoder "
        "instructblip_qformer instructblipvideo_qformer sam3_lite_text_text_model",
        BERT,
    ),
    **many("albert convbert electra squeezebert", learned(dim="embedding_size")),
    "rembert": learned(dim="input_embedding_size"),
    "canine": learned(rows="num_hash_buckets"),
    "cohere_asr": replace(BERT, notes=("the encoder is a section: part='encoder_config'",)),
    "pp_formulanet_text": learned(
        {"hidden_size": "d_model", "num_hidden_layers": "decoder_layers"}, offset=2
    ),
    **many("audioflamingo3_encoder moss_transcribe_diarize_audio voxtral_encoder",
           learned(rows="max_source_positions")),
    "qwen2_audio_encoder": learned(AUDIO, rows="max_source_positions"),
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
    "lilt": replace(learned(padding=True), notes=(
        "a second stream has boxes and a table of the same rows; its logits are added",)),
    "luke": replace(learned(padding=True), notes=(
        "an entity has the mean of the vectors of its tokens, from a table of its own",)),
    "markuplm": replace(learned(padding=True), notes=("embeddings of XPaths are added too",)),
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
    "seamless_m4t": replace(SEAMLESS, notes=(
        *SEAMLESS.notes, "its speech encoder: TransformerXL(layout='alternating')")),
    "seamless_m4t_v2": replace(SEAMLESS, notes=(
        *SEAMLESS.notes, "its speech encoder: Shaw(max_distance=(left_max_position_embeddings, "
        "right_max_position_embeddings), values=False)")),
    "canary_decoder": Family(position="sinusoidal", options={"amplitude": "1/sqrt(dim)"}),
    **many("qwen2_5_omni_audio_encoder qwen3_omni_moe_audio_encoder", HEARD),
    "qwen3_asr_encoder": replace(HEARD, notes=(
        "positions start again with each chunk of max_position_embeddings",)),
    "videoprism_text_model": Family(position="sinusoidal", options=MARIAN),
    "videomae": Family(position="sinusoidal", notes=(
        "positions count tubelets: frames slowest, then rows, then columns",)),
    "timesfm": Family(position="sinusoidal", options={
        **TENSOR2TENSOR, "if": "use_positional_embedding", "timescales": True}, notes=(
        "positions count patches from the first that is not padding",)),
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
    **many("jamba nemotron_h mamba mamba2 falcon_mamba "
           "moonshine_streaming_encoder moshi_depth rwkv xlstm zamba", Family(position="none")),
    **many("glm5_next_text kimi_linear",
           Family(position="none", options={"unused": ("qk_rope_head_dim",)})),
}  # fmt: skip
