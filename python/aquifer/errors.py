# SPDX-License-Identifier: Apache-2.0
"""What can go wrong."""
from __future__ import annotations

from typing import Any, Mapping


class AquiferError(Exception):
    """An error of the library: one sentence, the exit status that the program ends with for it (1
    usage, 2 cannot run here, 3 records in error, 4 I/O, 130 interrupted), and the negative errno
    (0: none)."""

    def __init__(self, text: str, exit_status: int, code: int = 0) -> None:
        super().__init__(text)
        self.text, self.exit_status, self.code = text, exit_status, code


class RecordError(AquiferError):
    """A record that could not be run: `record_code` is one of docs/results.md, `result` its whole
    error record."""

    def __init__(self, error: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        super().__init__(f"{error['code']}: {error['message']}", 3)
        self.record_code, self.result = error["code"], result
