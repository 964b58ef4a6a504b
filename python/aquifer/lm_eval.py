# SPDX-License-Identifier: Apache-2.0
"""Aquifer as a model of the lm-evaluation-harness (lm-eval on PyPI, 0.4):

    python -m aquifer.lm_eval --model aquifer --tasks hellaswag \\
        --model_args pretrained=DIR,kv_policy=h2o,kv_budget=20%

Run as a program this module is `lm_eval` with one model more; importing it registers the model for
`lm_eval.simple_evaluate(model="aquifer", model_args={...})`.  model_args are options of `aquifer
generate`, and

    pretrained      the model, as for Engine
    add_bos_token   BOS in front of texts; default: as the model's tokenizer does
    max_length      tokens of the context; default: the model's
    max_gen_toks    tokens that generate_until generates where a task does not say (default 256)

The harness divides texts into tokens of context and continuation, and long texts into windows, as
for its own models, so that values can be compared.  The results' config says under "aquifer" what
rounds or drops.
"""
from __future__ import annotations

import json
import tempfile
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

import lm_eval.models  # noqa: F401  the harness looks for its own only while there are none
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from . import AquiferError, Engine, RecordError, run, version

Ids = List[int]

# Names of the same, the strongest first, and what a record takes from a task as it is.
MAX_TOKENS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
SAMPLING = ("top_p", "top_k", "min_p", "repetition_penalty")


@register_model("aquifer")
class AquiferLM(TemplateLM):
    """Scores and texts by one Engine."""

    def __init__(self, pretrained: str, add_bos_token: Optional[bool] = None,
                 max_length: Optional[int] = None, max_gen_toks: int = 256,
                 device: Optional[str] = None, batch_size: Any = None, max_batch_size: Any = None,
                 **options: Any) -> None:
        # Batches are planned by the engine, whatever is asked for.
        super().__init__()
        self._model, self.max_gen_toks = pretrained, max_gen_toks
        self._engine = Engine(pretrained, device=device, context=max_length, **options)
        self._facts = self._engine.report()["model"]
        self._bos = self._ids_of_nothing("always")
        self._front = {None: self._ids_of_nothing("auto"), True: self._bos, False: []}
        self._add_bos_token = add_bos_token
        self._ids: Dict[str, Ids] = {}  # of texts, without BOS in front

    def _ids_of_nothing(self, bos: str) -> Ids:
        try:
            return self._engine.tokenize([""], bos=bos)[0]
        except AquiferError:  # the model has no BOS
            return []

    # ---- tokens

    @property
    def max_length(self) -> int:
        return int(self._facts["context"])

    @property
    def eot_token_id(self) -> int:
        return int(self._facts["eos"][0])

    @property
    def prefix_token_id(self) -> int:
        return self._bos[0] if self._bos else self.eot_token_id

    def _learn(self, texts: Iterable[str]) -> None:
        """Makes ids of texts, all at once: each call reads the tokenizer's files anew."""
        new = sorted(set(texts) - self._ids.keys())
        if new:
            self._ids.update(zip(new, self._engine.tokenize(new, bos="never")))

    def tok_encode(self, string: str, add_special_tokens: Optional[bool] = None,
                   **kwargs: Any) -> Ids:
        self._learn([string])
        ids = self._ids[string]
        if add_special_tokens is None and ids[:1] == [self.prefix_token_id]:
            return ids  # the text brings BOS along, as those of chat templates do
        given = self._add_bos_token if add_special_tokens is None else add_special_tokens
        return self._front[given] + ids

    # ---- requests

    def _results(self, records: Sequence[Mapping[str, Any]],
                 disable_tqdm: bool) -> Iterator[Dict[str, Any]]:
        for r in self._engine.generate(records, ordered=True, progress=not disable_tqdm):
            if r.get("error"):
                raise RecordError(r["error"], r)
            yield r

    def loglikelihood(self, requests: Any, disable_tqdm: bool = False) -> List[Tuple[float, bool]]:
        # What the harness is about to encode, one text after the other.
        self._learn(text for context, continuation in (r.args for r in requests)
                    for text in (context + continuation, context.rstrip()))
        scores = super().loglikelihood(requests, disable_tqdm=disable_tqdm)
        self._ids.clear()
        return scores

    def _loglikelihood_tokens(self, requests: Sequence[Tuple[Any, Ids, Ids]],
                              disable_tqdm: bool = False,
                              **kwargs: Any) -> List[Tuple[float, bool]]:
        records = []
        for _, context, continuation in requests:
            # Cut from the left, as by the harness; the last token is only predicted.
            ids = (context + continuation)[-(self.max_length + 1):]
            at = len(ids) - len(continuation)
            records.append({"prompt": ids[:at], "continuation": ids[at:]})
        scores = []
        for (texts, _, _), r in zip(requests, self._results(records, disable_tqdm)):
            scores.append((r["loglikelihood"], r["is_greedy"]))
            if texts is not None:
                self.cache_hook.add_partial("loglikelihood", texts, scores[-1])
        return scores

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> List[float]:
        texts = [r.args[0] for r in requests]
        self._learn(texts)
        windows = [[(None, *make_disjoint_window(pair)) for pair in get_rolling_token_windows(
            self.tok_encode(text), self.prefix_token_id, self.max_length, 1)] for text in texts]
        self._ids.clear()
        parts = iter(self._loglikelihood_tokens([w for of in windows for w in of], disable_tqdm))
        scores = [sum(next(parts)[0] for _ in of) for of in windows]
        for request, score in zip(requests, scores):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, score)
        return scores

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> List[str]:
        self._learn(r.args[0] for r in requests)
        records = [self._until(*r.args) for r in requests]
        self._ids.clear()
        texts = []
        for request, r in zip(requests, self._results(records, disable_tqdm)):
            texts.append(r["text"])
            self.cache_hook.add_partial("generate_until", request.args, texts[-1])
        return texts

    def _until(self, context: str, given: Mapping[str, Any]) -> Dict[str, Any]:
        most = next((given[name] for name in MAX_TOKENS if given.get(name) is not None),
                    self.max_gen_toks)
        if most >= self.max_length:
            raise ValueError(f"max_gen_toks: {most} tokens to generate leave no room for a prompt "
                             f"in a context of {self.max_length}")
        until = given.get("until") or []
        record = {"prompt": self.tok_encode(context)[most - self.max_length:], "max_tokens": most,
                  "stop": [until] if isinstance(until, str) else list(until), "temperature": 0}
        temperature = given.get("temperature", 0)
        if given.get("do_sample", temperature > 0):
            record["temperature"] = temperature
            record.update({name: given[name] for name in SAMPLING if name in given})
        return record

    # ---- what else the harness asks of a model

    @property
    def tokenizer_name(self) -> str:
        return self._model.replace("/", "__")

    def apply_chat_template(self, chat_history: List[Dict[str, str]],
                            add_generation_prompt: bool = True) -> str:
        record = {"messages": chat_history, "add_generation_prompt": add_generation_prompt,
                  "continue_final_message": not add_generation_prompt}
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as f:
            f.write(json.dumps(record) + "\n")
            f.flush()
            done = run({"command": "tokenize", "model": self._model, "chat": True,
                        "input": f.name})
        return str(done.json()["text"])

    def get_model_info(self) -> Dict[str, Any]:
        """For the results' config."""
        report = self._engine.report()
        return {"aquifer": {"version": version(), "model": report["model"],
                            "lossy": report["lossy"], "plan": report["plan"]}}


def main() -> None:
    from lm_eval.__main__ import cli_evaluate
    cli_evaluate()


if __name__ == "__main__":
    # The module is __main__ here: what is registered is that of its own name.
    import aquifer.lm_eval
    aquifer.lm_eval.main()
