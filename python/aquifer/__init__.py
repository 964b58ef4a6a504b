# SPDX-License-Identifier: Apache-2.0
"""Aquifer: large batches of prompts through language models that need not fit the accelerator.

    import aquifer

    with aquifer.Engine("facebook/opt-125m") as engine:
        for result in engine.generate(["She said", {"prompt": "It was", "max_tokens": 8}]):
            print(result["text"])
        print(engine.score([("She said", " nothing")]))

`run(["generate", ...])` runs whole commands.  The package is a thin layer over libaquifer; records,
results and options are those of the program.
"""
from ._library import version
from .batch import Batch
from .commands import Done, run
from .engine import Engine, Record, Score, Text
from .errors import AquiferError, RecordError


def __getattr__(name: str) -> str:
    """The library's version, when it is asked for: only then is the library loaded."""
    if name == "__version__":
        return version().split()[0]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["AquiferError", "Batch", "Done", "Engine", "Record", "RecordError", "Score", "Text", "run",
           "version"]
