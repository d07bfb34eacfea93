"""Other people's files: configs of models, their checkpoints, their live modules.

`posenc.interop.hf` reads and writes configs. Nothing here is imported by `import posenc`.
"""

__all__: list[str] = []
