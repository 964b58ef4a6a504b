# SPDX-License-Identifier: Apache-2.0
"""Batch: a function of batches, for engines that spread data over processes and machines."""
from __future__ import annotations

import json
import threading
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from .engine import Engine

# Columns that a record may have beside its prompt, where the batch has them.
COLUMNS = ("id", "max_tokens", "temperature", "seed")

# Engines of this process by their options: who ships a function to workers (Dask) may make it anew
# for every batch, and a model is loaded once.
_open: Dict[str, Tuple[Engine, threading.Lock]] = {}
_opening = threading.Lock()


def _plain(value: Any) -> Any:
    """Scalars and lists of numpy as Python's own.  A column of integers with a gap has floats."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _missing(value: Any) -> bool:
    """None, or what numpy and pandas have in its place: NaN, NaT, and NA, which answers nothing."""
    if value is None:
        return True
    if isinstance(value, (str, list, tuple)) or getattr(value, "shape", ()) != ():
        return False
    try:
        return bool(value != value)
    except TypeError:
        return True


class Batch:
    """Continues the prompts of a batch; a call takes and gives what the engine around it has:

        a mapping of columns  (Ray Data, Hugging Face datasets)   the same with more columns
        a pandas DataFrame    (Dask, Ray Data)                     the same with more columns
        a list of records                                          a list of results

    The new columns are `text`, `tokens`, `finish_reason` and `error` (None, or what is wrong with
    the record), each with `prefix` in front of its name.

        ds.map_batches(aquifer.Batch, fn_constructor_args=("facebook/opt-125m",),
                       fn_constructor_kwargs={"prompt": "question", "max_tokens": 32},
                       batch_size=1024, concurrency=4)

    model, options   as of Engine; the model is loaded by the first batch, once a process
    prompt           the column with the prompts: texts, or lists of token ids
    columns          columns that become fields of the records where the batch has them.  Without an
                     `id`, what is sampled depends on a record's place; with one on nothing else
    prefix           of the new columns' names

    Large batches keep all seats busy: some multiples of `micro_batch * micro_batches`.
    """

    def __init__(self, model: Optional[str] = None, *, prompt: str = "prompt",
                 columns: Sequence[str] = COLUMNS, prefix: str = "", **options: Any) -> None:
        self._prompt = prompt
        self._columns = tuple(columns)
        self._prefix = prefix
        self._options: Dict[str, Any] = {"model": model, **options}

    def _engine(self) -> Tuple[Engine, threading.Lock]:
        key = json.dumps(self._options, sort_keys=True, default=str)
        with _opening:
            if key not in _open:
                _open[key] = (Engine(**self._options), threading.Lock())
            return _open[key]

    def close(self) -> None:
        """Frees the model of this process."""
        engine, lock = self._engine()
        with lock:
            engine.close()

    def __call__(self, batch: Any) -> Any:
        if isinstance(batch, (list, tuple)):
            return self._results(batch)
        if not hasattr(batch, "assign") and not isinstance(batch, Mapping):
            raise TypeError("expected a mapping of columns, a DataFrame or a list of records, found "
                            + type(batch).__name__)
        new = self._new_columns(self._results(self._records(batch)))
        if hasattr(batch, "assign"):
            return batch.assign(**new)
        return {**batch, **new}

    def _records(self, batch: Any) -> List[Dict[str, Any]]:
        if self._prompt not in batch:
            raise KeyError(f"no column '{self._prompt}' in the batch; it has "
                           + ", ".join(map(str, batch)))
        names = [name for name in self._columns if name in batch and name != self._prompt]
        records = []
        for values in zip(batch[self._prompt], *(batch[name] for name in names)):
            record = {name: _plain(v) for name, v in zip(names, values[1:]) if not _missing(v)}
            prompt = None if _missing(values[0]) else _plain(values[0])
            records.append({"prompt": prompt, **record})
        return records

    def _results(self, records: Sequence[Any]) -> List[Dict[str, Any]]:
        engine, lock = self._engine()
        with lock:
            return list(engine.generate(records, ordered=True))

    def _new_columns(self, results: List[Dict[str, Any]]) -> Dict[str, List[Any]]:
        errors = [r.get("error") for r in results]
        new = {"text": [r.get("text") for r in results],
               "tokens": [r.get("tokens", []) for r in results],
               "finish_reason": [r.get("finish_reason") for r in results],
               "error": [e and f"{e['code']}: {e['message']}" for e in errors]}
        return {self._prefix + name: values for name, values in new.items()}
