# SPDX-License-Identifier: Apache-2.0
"""Engine: one model, kept open between calls."""
from __future__ import annotations

import json
import re
import tempfile
from typing import (Any, Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional,
                    Sequence, Set, Tuple, Union)

from . import _library
from .commands import run
from .errors import RecordError

Text = Union[str, Sequence[int]]
Record = Union[str, Mapping[str, Any]]

WAITING_MIN = 64  # records that are submitted ahead, at least
_END = object()


class Score(NamedTuple):
    """How likely the model finds a continuation: the sum of the natural logarithms of its tokens'
    probabilities, how many tokens these are, and whether each was the likeliest."""
    loglikelihood: float
    tokens: int
    is_greedy: bool


def _progress(what: str, total: Optional[int], shown: bool) -> Any:
    """A bar of tqdm, where it is installed; else None."""
    if not shown:
        return None
    try:
        from tqdm.auto import tqdm  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        return None
    return tqdm(total=total, desc=what, unit="record")


def _seats_of(session: "_library.Session") -> int:
    """Sequences that a pass can seat.  With twice as many records no seat stays empty."""
    plan = json.loads(session.report())["plan"]
    return int(plan["micro_batch"] * plan["micro_batches"])


def _options_of(command: str) -> Set[str]:
    """Names of the options that a command has, from its own help."""
    _, text = _library.parse_args(["help", command, "--all"])
    return set(re.findall(r"^ +(?:-\w, )?--([a-z][a-z0-9-]*)", text or "", re.M))


class Engine:
    """A model with options, those of `aquifer generate` with `_` in place of `-`:

        with aquifer.Engine("facebook/opt-125m", kv_policy="h2o", kv_budget="20%") as engine:
            for result in engine.generate(["She said", "It was"]):
                print(result["text"])

    Weights are loaded by the first call that needs them (or by `open`), and freed by `close`, which
    the end of `with` calls.  `plan` and `eval` load for themselves, so they are best called before.

    model        a checkpoint directory, a packed store, or a name in the local Hugging Face cache;
                 None with shape="opt-125m", random_weights=1
    on_message   called with a level ("error", "warning", "info", "progress", "debug") and a line;
                 by default warnings and errors go to standard error
    max_prompt_tokens, max_total_tokens
                 bounds of the records to come, for which memory is planned (default: the model's
                 context)

    One thread at a time may use an engine.
    """

    def __init__(self, model: Optional[str] = None, *,
                 on_message: Callable[[str, str], None] = _library.to_stderr,
                 **options: Any) -> None:
        self._options: Dict[str, Any] = {k: v for k, v in options.items() if v is not None}
        if model is not None:
            self._options["model"] = str(model)
        self._on_message = on_message
        self._hooks = _library.Hooks(on_message)
        self._session: Optional[_library.Session] = None
        self._running: Optional[_library.Session] = None  # an iteration is not over
        self._submitted = self._seats = 0  # of this session

    # ---- open and close

    def open(self) -> "Engine":
        """Loads the weights, if they are not."""
        if self._session is None:
            self._session = _library.Session(json.dumps(self._options), self._hooks)
            self._submitted = self._seats = 0
        return self

    def close(self) -> None:
        """Frees the model; the engine can be opened again."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def __enter__(self) -> "Engine":
        return self.open()

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_session", None) is not None:
            self.close()

    # ---- records

    def generate(self, records: Iterable[Record], *, ordered: bool = False,
                 progress: bool = False) -> Iterator[Dict[str, Any]]:
        """Results of records, each as soon as it is there (ordered: in the order of the records).

        A record is a prompt, or a dictionary as in docs/generate.md: plain, an OpenAI batch line, or
        a harness request; results are those of docs/results.md.  A bad record does not raise: its
        result has "error".  Records are taken from the iterable as seats become free.  An iteration
        that ends early closes the engine, and with it drops the records under way.  progress: with
        a bar, where tqdm is installed.
        """
        total = len(records) if hasattr(records, "__len__") else None  # type: ignore[arg-type]
        bar = _progress("generate", total, progress)
        try:
            pairs = self._run(records)
            for result in (self._in_order(pairs) if ordered else (r for _, r in pairs)):
                if bar is not None:
                    bar.update()
                yield result
        finally:
            if bar is not None:
                bar.close()

    def score(self, pairs: Iterable[Tuple[Text, Text]], *, progress: bool = False) -> List[Score]:
        """Scores of (prompt, continuation) pairs, in their order: texts, or lists of token ids.
        Under a KV policy that drops, continuations are fed token by token.  A pair that cannot be
        scored raises RecordError."""
        return self._score([{"prompt": prompt, "continuation": continuation}
                            for prompt, continuation in pairs], progress)

    def score_texts(self, texts: Iterable[Text], *, progress: bool = False) -> List[Score]:
        """Scores of whole texts (rolling log-likelihoods): BOS stands in front, and texts longer
        than the context go through windows of it.  exp(-loglikelihood / tokens) is the perplexity."""
        return self._score([{"request_type": "loglikelihood_rolling", "arguments": [text]}
                            for text in texts], progress)

    def _score(self, records: List[Dict[str, Any]], progress: bool) -> List[Score]:
        scores = []
        for result in self.generate(records, ordered=True, progress=progress):
            if result.get("error"):
                raise RecordError(result["error"], result)
            r = result.get("result", result)
            scores.append(Score(r["loglikelihood"], r["tokens"], r["is_greedy"]))
        return scores

    def _run(self, records: Iterable[Record]) -> Iterator[Tuple[int, Dict[str, Any]]]:
        """(place in `records`, result), as they come."""
        session = self._opened()
        if self._running is session:
            raise RuntimeError("another iteration over this engine's results is not over yet")
        self._running = session
        before = self._submitted
        waiting, source, more = 0, iter(records), True
        try:
            while True:
                while more and waiting < max(WAITING_MIN, 2 * self._seats):
                    record = next(source, _END)
                    more = record is not _END
                    if more:
                        self._submit(session, record)
                        waiting += 1
                if not waiting:
                    return
                result = json.loads(session.next() or "null")
                if result is None:
                    raise AssertionError("the library owes a result")
                waiting -= 1
                self._seats = self._seats or _seats_of(session)
                yield session.number() - before, result
        finally:
            if self._running is session:
                self._running = None
            if waiting and self._session is session:
                self.close()

    def _opened(self) -> "_library.Session":
        self.open()
        assert self._session is not None
        return self._session

    def _submit(self, session: "_library.Session", record: Any) -> None:
        if isinstance(record, str):
            record = {"prompt": record}
        if not isinstance(record, Mapping):
            raise TypeError("expected a record as a text or a dictionary, found "
                            + type(record).__name__)
        session.submit(json.dumps(record))
        self._submitted += 1

    @staticmethod
    def _in_order(pairs: Iterator[Tuple[int, Dict[str, Any]]]) -> Iterator[Dict[str, Any]]:
        kept: Dict[int, Dict[str, Any]] = {}
        wanted = 0
        for at, result in pairs:
            kept[at] = result
            while wanted in kept:
                yield kept.pop(wanted)
                wanted += 1

    def report(self) -> Dict[str, Any]:
        """What was done so far, how fast, with how much memory, and what rounds or drops
        ("lossy"), as `--report` has it."""
        report: Dict[str, Any] = json.loads(self._opened().report())
        return report

    # ---- commands on the same model

    def tokenize(self, texts: Iterable[str], *, bos: str = "auto") -> List[List[int]]:
        """Token ids of texts; bos: "auto" (in front where the model's tokenizer puts it), "always"
        or "never"."""
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as f:
            for text in texts:
                f.write(json.dumps({"text": text}) + "\n")
            f.flush()
            done = run({"command": "tokenize", "model": self._options.get("model"),
                        "input": f.name, "bos": bos}, on_message=self._on_message)
        found = [json.loads(line) for line in done.text.splitlines()]
        for line in found:
            if line.get("error"):
                raise RecordError(line["error"], line)
        return [line["ids"] for line in found]

    def plan(self, **options: Any) -> Dict[str, Any]:
        """The document of `aquifer plan --json`: plan(prompt_len=512, gen_len=32, requests=1000).
        Raises AquiferError where nothing fits, unless check=False.  The engine's options that say how
        records are read count with input="prompts.jsonl" alone."""
        names = _options_of("plan")
        if not options.get("input"):
            names &= _options_of("bench")  # which reads no records
        return self._command("plan", {"json": True, **options}, names)

    def eval(self, **options: Any) -> Dict[str, Any]:
        """The document of `aquifer eval`: eval(text="text.txt", prompt_tokens=512,
        score_tokens=128)."""
        return self._command("eval", {"json": True, **options}, _options_of("eval"))

    def _command(self, command: str, options: Dict[str, Any], names: Set[str]) -> Dict[str, Any]:
        """names: which of the engine's own options the command takes."""
        check = options.pop("check", True)
        own = {k: v for k, v in self._options.items() if k.replace("_", "-") in names}
        done = run({"command": command, **own, **options}, on_message=self._on_message, check=check)
        document: Dict[str, Any] = done.json()
        return document
