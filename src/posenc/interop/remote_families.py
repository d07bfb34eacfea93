"""Families outside transformers in wide use, and names from before they moved in.

`dialect` names the function in dialects.py that says their config in the common keys.
"""

from dataclasses import replace

from posenc.interop.families import Family

__all__ = ["REMOTE"]

LLAMA = Family()
CHATGLM_NAMES = {"num_hidden_layers": "num_layers", "head_dim": "kv_channels",
                 "max_position_embeddings": "seq_length"}  # fmt: skip
GPT2_NAMES = {"hidden_size": "n_embd", "num_attention_heads": "n_head",
              "num_hidden_layers": "n_layer", "max_position_embeddings": "n_positions"}  # fmt: skip
FALCON_NAMES = {"num_attention_heads": "n_head", "num_hidden_layers": "n_layer"}
CHATGLM = Family(pairing="adjacent", fraction=0.5, aliases=CHATGLM_NAMES, dialect="chatglm")
FALCON = Family(aliases=FALCON_NAMES, dialect="falcon", head_dim_computed=True)
STABLELM = Family(fraction=0.25)

REMOTE: dict[str, Family] = {
    # ChatGLM2, ChatGLM3 and GLM-4 share one model_type; the last two names choose by hand.
    "chatglm": CHATGLM,
    "chatglm2": replace(CHATGLM, dialect="chatglm2"),
    "chatglm3": replace(CHATGLM, dialect="chatglm3"),
    "baichuan": replace(LLAMA, dialect="baichuan"),
    "qwen": Family(fraction=1.0, aliases={"head_dim": "kv_channels"}, dialect="qwen",
                   query_scale="qwen"),
    "internlm": replace(LLAMA, dialect="internlm"),
    **dict.fromkeys(
        ("internlm2", "minicpm", "deepseek", "xverse", "orion", "aquila", "skywork"), LLAMA
    ),
    "Yi": Family(theta=5e6),  # configuration_yi.py of 01-ai
    "stablelm_epoch": STABLELM,
    "kimi_k2": Family(pairing="adjacent", mla=True, softmax=True),
    "phi-msft": Family(fraction=1.0, aliases=GPT2_NAMES),
    **dict.fromkeys(("falcon", "RefinedWeb", "RefinedWebModel"), FALCON),
    # Of transformers, with keys of their own.
    "roformer": Family(pairing="adjacent"),
    "esm": Family(only_if=("position_embedding_type", "rotary"), dialect="esm"),
    "dbrx": Family(
        aliases={"hidden_size": "d_model", "num_attention_heads": "n_heads",
                 "num_hidden_layers": "n_layers", "max_position_embeddings": "max_seq_len"},
        dialect="dbrx",
    ),
}  # fmt: skip
