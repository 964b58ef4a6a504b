#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Aquifer as a model of the lm-evaluation-harness beside the harness's own `hf` model: the same
four tasks (choices, continuations, texts, generation) on small random checkpoints, every value compared.

    python3 -m venv harness && harness/bin/pip install 'lm-eval[hf]==0.4.13'
    PYTHONPATH=python AQUIFER_LIBRARY=build/engine/libaquifer.so.0 harness/bin/python tests/judge/harness.py

--few takes a few documents, one checkpoint and one setting: minutes on a busy machine.

Checkpoints: an OPT and a LLaMA with the weights that transformers draws, and "steep", a LLaMA with
weights ten times as large, where roundings of f32 grow: scores of texts of 1,485 tokens, about
-16,000, are 2e-4 to 6e-4 off in the harness's own f32, and 1e-4 even with our reference kernels,
whose sums are in f64.

Needs no network once the packages are there.  Exit status 1: a value is further than LIMIT from the
harness's own in f64; with steep weights, also further than f32 can tell a score of that size from
its neighbour (half a unit in the last place: 5e-4 at -16,000, less than LIMIT above -2,048).
"""
import json
import math
import os
import random
import shutil
import sys
import tempfile

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

import lm_eval  # noqa: E402
import torch  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM, OPTConfig, OPTForCausalLM  # noqa: E402

import aquifer.lm_eval  # noqa: E402,F401  registers the model

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "tiny-opt")
LIMIT = 1e-4
CONTEXT = 256
F32 = {"compute": "f32", "kv_format": "f32", "device": "cpu", "micro_batch": 16}


def write_models(folder):
    """Random checkpoints with the tokenizer of the test data, which puts BOS in front of texts."""
    torch.manual_seed(7)
    opt = OPTConfig.from_pretrained(DATA, max_position_embeddings=CONTEXT)
    llama = {"vocab_size": 4096, "hidden_size": 128, "intermediate_size": 256,
             "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
             "max_position_embeddings": CONTEXT, "bos_token_id": 2, "eos_token_id": 2,
             "tie_word_embeddings": False}
    for name, model in (("opt", OPTForCausalLM(opt)),
                        ("llama", LlamaForCausalLM(LlamaConfig(**llama))),
                        ("steep", LlamaForCausalLM(LlamaConfig(**llama, initializer_range=0.2)))):
        path = os.path.join(folder, name)
        model.float().save_pretrained(path)
        for file in ("vocab.json", "merges.txt", "tokenizer_config.json",
                     "special_tokens_map.json"):
            shutil.copy(os.path.join(DATA, file), path)
        yield path


def write_task(folder, name, records, fields):
    data = os.path.join(folder, name + ".jsonl")
    with open(data, "w", encoding="utf-8") as f:
        f.writelines(json.dumps(r) + "\n" for r in records)
    with open(os.path.join(folder, name + ".yaml"), "w", encoding="utf-8") as f:
        json.dump({"task": name, "dataset_path": "json", "test_split": "test",  # is YAML, too
                   "dataset_kwargs": {"data_files": {"test": data}}, **fields}, f)


def write_tasks(folder, few):
    draw = random.Random(7)
    with open(os.path.join(DATA, "golden", "eval.txt"), encoding="utf-8") as f:
        words = f.read().split()

    def text(count):
        at = draw.randrange(len(words) - count)
        return " ".join(words[at:at + count])

    choices = [{"q": text(draw.randint(1, 60)), "gold": draw.randint(0, 3),
                "choices": [text(draw.randint(1, 8)) for _ in range(4)]} for _ in range(8 if few else 60)]
    for at, q in enumerate(("", choices[1]["q"] + " \n", text(2 * CONTEXT),
                            "</s>" + choices[3]["q"])):
        choices[at]["q"] = q
    write_task(folder, "choices", choices, {
        "output_type": "multiple_choice", "doc_to_text": "{{q}}", "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{gold}}", "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}]})
    write_task(folder, "continued", [{"q": text(draw.randint(1, 60)), "a": text(draw.randint(1, 20))}
                                     for _ in range(6 if few else 20)], {
        "output_type": "loglikelihood", "doc_to_text": "{{q}}", "doc_to_target": " {{a}}",
        "metric_list": [{"metric": "perplexity"}, {"metric": "acc"}]})
    write_task(folder, "texts", [{"text": text(n)} for n in ((3, 300) if few else (3, 50, 300, 900))], {
        "output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{text}}",
        "metric_list": [{"metric": "word_perplexity"}, {"metric": "byte_perplexity"}]})
    write_task(folder, "generated", [{"q": text(draw.randint(3, 40))} for _ in range(3 if few else 12)], {
        "output_type": "generate_until", "doc_to_text": "{{q}}", "doc_to_target": "x",
        "generation_kwargs": {"until": ["\n", " the"], "max_gen_toks": 24, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}]})


def values(model, args, tasks):
    """{(task, document): its values}, and what the harness makes of them."""
    r = lm_eval.simple_evaluate(model=model, model_args=args,
                                tasks=["choices", "continued", "texts", "generated"],
                                task_manager=tasks, batch_size=8, bootstrap_iters=0)
    found = {}
    for task, samples in r["samples"].items():
        for s in samples:
            found[task, s["doc_id"]] = list(flat(s["resps"]))
    return found, r


def flat(x):
    if not isinstance(x, (list, tuple)):
        x = float(x) if str(x).replace("-", "").replace(".", "").replace("e", "").isdigit() else x
        yield x
        return
    for y in x:
        yield from flat(y)


def compare(a, b):
    """Largest difference of values by task, how many there are, and how many texts differ."""
    most, count, other = {}, 0, 0
    for task, x, y in pairs(a, b):
        count += 1
        if isinstance(x, float) and isinstance(y, float):
            most[task] = max(most.get(task, 0), abs(x - y))
        else:
            other += x != y
    return most, count, other


def pairs(a, b):
    assert a.keys() == b.keys()
    return ((key[0], x, y) for key in a for x, y in zip(a[key], b[key], strict=True))


def too_far(a, b, steep):
    """How many values of b are further from a's than the limit, with steep weights than half a unit
    in the last place of an f32 of that size, too."""
    def allowed(x):
        return max(LIMIT, 2.0 ** (math.frexp(x)[1] - 25) if steep else 0)

    return sum(isinstance(x, float) and isinstance(y, float) and abs(x - y) > allowed(x)
               for _, x, y in pairs(a, b))


def main():
    failed, few = False, sys.argv[1:] == ["--few"]
    with tempfile.TemporaryDirectory() as folder:
        write_tasks(folder, few)
        tasks = TaskManager(include_path=folder, include_defaults=False)
        for path in list(write_models(folder))[:1 if few else None]:
            name = os.path.basename(path)
            for bos in (None,) if few else (None, True, False):
                given = {"pretrained": path, **({} if bos is None else {"add_bos_token": bos})}
                theirs, r = values("hf", {**given, "dtype": "float64", "device": "cpu"}, tasks)
                f32, _ = values("hf", {**given, "dtype": "float32", "device": "cpu"}, tasks)
                ours, mine = values("aquifer", {**given, **F32}, tasks)
                most, count, other = compare(theirs, ours)
                single = compare(theirs, f32)[0]
                print(f"{name}, add_bos_token {bos}: {count} values, hf in f64 against aquifer: "
                      f"{most}, {other} others differ; against hf in f32: {single}")
                far = [too_far(theirs, x, name == "steep") for x in (ours, f32)]
                print(f"    further than allowed: {far[0]} of ours, {far[1]} of hf's in f32")
                failed |= far[0] + other > 0
                for task in r["results"]:
                    print("   ", task, *[{k: float(v) for k, v in x["results"][task].items()
                                          if k.endswith(",none") and "stderr" not in k} for x in (r, mine)])
            for share in ("100%", "20%"):
                args = {**given, **F32, "kv_policy": "h2o", "kv_budget": share}
                kept, r = values("aquifer", args, tasks)
                print(f"{name}, h2o {share}: against the full cache {compare(ours, kept)};",
                      r["config"]["aquifer"]["lossy"])
                failed |= (kept == ours) != (share == "100%")
    sys.exit(failed)


if __name__ == "__main__":
    main()
