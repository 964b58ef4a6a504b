# SPDX-License-Identifier: Apache-2.0
"""Whole commands, as the program runs them."""
from __future__ import annotations

import json
from typing import Any, Callable, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from . import _library
from .errors import AquiferError


class Done(NamedTuple):
    """A command that has ended: its exit status (0, or 3 where some records gave errors; others
    where they were not to raise), what it wrote to standard output, and its lines as (level,
    text)."""
    status: int
    output: bytes
    messages: List[Tuple[str, str]]

    @property
    def text(self) -> str:
        return self.output.decode("utf-8", "replace")

    def json(self) -> Any:
        """The output as one JSON document."""
        return json.loads(self.output)


def run(words: Union[Sequence[str], Mapping[str, Any]], *,
        on_message: Optional[Callable[[str, str], None]] = None, check: bool = True) -> Done:
    """Runs a command: words as behind `aquifer` on a command line, or {"command": ..., option:
    value, ...}.  check: a status other than 0 and 3 raises AquiferError with the command's last
    error.

        aquifer.run(["generate", "--model", "opt", "--input", "in.jsonl", "--output", "out.jsonl"])
    """
    messages: List[Tuple[str, str]] = []
    output: List[bytes] = []

    def line(level: str, text: str) -> None:
        if level != "progress":
            messages.append((level, text))
        if on_message is not None:
            on_message(level, text)

    if isinstance(words, Mapping):
        options = json.dumps({k: v for k, v in words.items() if v is not None})
    else:
        parsed, text = _library.parse_args([str(w) for w in words])
        if parsed is None:
            return Done(0, (text or "").encode(), messages)
        options = parsed
    status = _library.run(options, _library.Hooks(line, output.append))
    if check and status not in (0, 3):
        errors = [text for level, text in messages if level == "error"]
        raise AquiferError(errors[-1] if errors else f"exit status {status}", status)
    return Done(status, b"".join(output), messages)
