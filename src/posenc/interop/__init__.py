"""Other people's files: configs of models, their checkpoints, their live modules.

- `posenc.interop.hf`: configs read and written (`scheme_from_config`, `config_from_scheme`).
- `posenc.interop.transformers`: a loaded model under another rotation (`set_rope`).
- `posenc.interop.extend`: a config for longer texts (`extend_config`).
- `posenc.interop.checkpoints`: pairings of weights (`convert`, `detect`, `permute`).
- `posenc.interop.gguf`, `posenc.interop.meta`: headers of .gguf files, Meta's params.json.
- `posenc.interop.mistakes`: known mistakes in configs (`warnings_about`).

Nothing here is imported by `import posenc`.
"""

__all__: list[str] = []
