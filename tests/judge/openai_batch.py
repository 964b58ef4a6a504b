#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Batch files of completions and conversations, good and bad lines mixed, whose answers openai-python has to take:

    judge/bin/python tests/judge/openai_batch.py build/engine/cli/aquifer tests/data/tiny-opt [--lines 2000] [--seed 1]

Each kind of line has its verdict here: an answer, or an error of one code.  Bodies of answers are validated by the types of
openai-python in strict mode (pip install openai), as are the error bodies; every custom_id comes back once.  With echo the
first token has no log-probability: its null, which the service has too and the type does not know, is looked for and taken out."""
import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile

from openai.types import Completion, ErrorObject
from openai.types.chat import ChatCompletion

TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
WORDS = "the old house stood at end of lane and nobody came to see it in winter".split()


def text(r, most=12):
    return " ".join(r.choice(WORDS) for _ in range(1 + r.randrange(most)))


def talk(r):
    return [{"role": "system", "content": text(r)}] * r.randrange(2) + [{"role": "user", "content": text(r)}]


# A body's fields, and the error's code that is expected ("" for an answer).
GOOD = [
    lambda r: (COMPLETIONS, {"prompt": text(r), "max_tokens": 1 + r.randrange(12)}, ""),
    lambda r: (COMPLETIONS, {"prompt": text(r), "max_tokens": 8, "temperature": 0.8, "top_p": 0.9, "seed": r.randrange(99)}, ""),
    lambda r: (COMPLETIONS, {"prompt": text(r), "max_tokens": 6, "n": 3, "temperature": 1}, ""),
    lambda r: (COMPLETIONS, {"prompt": text(r), "max_tokens": 6, "logprobs": r.randrange(6)}, ""),
    lambda r: (COMPLETIONS, {"prompt": text(r), "max_tokens": 12, "stop": [" the", "\n"]}, ""),
    lambda r: (COMPLETIONS, {"prompt": text(r), "max_tokens": 3, "echo": True, "logprobs": 1}, ""),
    lambda r: (COMPLETIONS, {"prompt": text(r), "max_tokens": 0, "echo": True, "logprobs": 0}, ""),
    lambda r: (COMPLETIONS, {"prompt": [text(r), text(r)], "max_tokens": 4}, ""),
    lambda r: (COMPLETIONS, {"prompt": [2, 5 + r.randrange(99), 7], "max_tokens": 4}, ""),
    lambda r: (COMPLETIONS, {"prompt": [[2, 9], [2, 11, 12]], "max_tokens": 4}, ""),
    lambda r: (COMPLETIONS, {"prompt": text(r), "max_tokens": 4, "stream": False, "best_of": 1, "user": "u"}, ""),
    lambda r: (CHAT, {"messages": talk(r), "max_tokens": 8}, ""),
    lambda r: (CHAT, {"messages": talk(r), "max_completion_tokens": 6, "logprobs": True, "top_logprobs": r.randrange(5)}, ""),
    lambda r: (CHAT, {"messages": talk(r), "max_tokens": 5, "n": 2, "temperature": 0.7, "stop": "."}, ""),
]
BAD = [
    lambda r: (COMPLETIONS, {"prompt": text(r), "stream": True}, "unsupported_parameter"),
    lambda r: (COMPLETIONS, {"prompt": text(r), "logit_bias": {"5": 1}}, "unsupported_parameter"),
    lambda r: (COMPLETIONS, {"prompt": text(r), "suffix": "end"}, "unsupported_parameter"),
    lambda r: (COMPLETIONS, {"prompt": ""}, "empty_prompt"),
    lambda r: (COMPLETIONS, {"prompt": [2] * 3000, "max_tokens": 4}, "context_length_exceeded"),
    lambda r: (COMPLETIONS, {"prompt": [2, 99999999]}, "token_out_of_range"),
    lambda r: (COMPLETIONS, {"prompt": text(r), "temperature": "very"}, "invalid_parameter"),
    lambda r: (COMPLETIONS, {"prompt": text(r), "n": 2, "temperature": 0}, "invalid_parameter"),
    lambda r: (COMPLETIONS, {"max_tokens": 4}, "invalid_record"),
    lambda r: (CHAT, {"messages": "hello"}, "invalid_record"),
    lambda r: (CHAT, {"messages": talk(r), "response_format": {"type": "json_object"}}, "unsupported_parameter"),
    lambda r: ("/v1/embeddings", {"input": text(r)}, "unsupported_endpoint"),
]


def without_first_null(body):
    for choice in body["choices"]:
        logprobs = choice.get("logprobs")
        if logprobs and logprobs["text_offset"][:1] == [0] and logprobs["token_logprobs"][:1] == [None]:
            logprobs["token_logprobs"][0], logprobs["top_logprobs"][0] = 0.0, {}
    return body


def lines_of(count, seed):
    r, found = random.Random(seed), []
    for i in range(count):
        url, body, code = r.choice(BAD if r.randrange(6) == 0 else GOOD)(r)
        found.append(({"custom_id": f"c{i}", "method": "POST", "url": url, "body": {"model": "m", **body}}, code))
    return found


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("program")
    p.add_argument("model")
    p.add_argument("--lines", type=int, default=2000)
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    lines, bad, counts = lines_of(a.lines, a.seed), [], {}
    with tempfile.TemporaryDirectory() as folder:
        model, source, target = (os.path.join(folder, n) for n in ("model", "in.jsonl", "out.jsonl"))
        shutil.copytree(a.model, model)
        with open(os.path.join(model, "chat_template.jinja"), "w", encoding="utf-8") as f:
            f.write(TEMPLATE)
        with open(source, "w", encoding="utf-8") as f:
            f.writelines(json.dumps(line) + "\n" for line, _ in lines)
        done = subprocess.run([os.path.abspath(a.program), "generate", "--model", model, "--input", source, "--output", target,
                               "--quiet"], stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode != 3:
            sys.exit(f"expected exit status 3 (some records gave errors), found {done.returncode}: {done.stderr}")
        with open(target, encoding="utf-8") as f:
            answers = [json.loads(x) for x in f]
    echoes = {line["custom_id"]: line["body"].get("echo") for line, _ in lines}
    expected = {line["custom_id"]: (line["url"], code) for line, code in lines}
    if sorted(x["custom_id"] for x in answers) != sorted(expected):
        sys.exit("not every custom_id came back once")
    for x in answers:
        url, code = expected[x["custom_id"]]
        body, found = x["response"]["body"], (x["error"] or {}).get("code") or ""
        counts[found or url] = counts.get(found or url, 0) + 1
        try:
            if found != code or set(x) != {"id", "custom_id", "response", "error"}:
                raise ValueError(f"expected '{code}', found '{found}'")
            if code:
                ErrorObject.model_validate(body["error"], strict=True)
                if body["error"]["code"] != code or x["response"]["status_code"] != 400:
                    raise ValueError(f"the body's error is {body['error']}")
            else:
                if url == COMPLETIONS and echoes[x["custom_id"]]:
                    body = without_first_null(body)
                (ChatCompletion if url == CHAT else Completion).model_validate(body, strict=True)
        except ValueError as e:
            bad.append(f"{x['custom_id']}: {e}\n{json.dumps(x)[:400]}")
    for name, count in sorted(counts.items()):
        print(f"{count:6} {name}")
    print("\n".join(bad[:5] + [f"{len(answers)} lines, {len(bad)} not as expected"]))
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
