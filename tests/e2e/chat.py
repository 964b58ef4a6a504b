#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Conversations as a user runs them: the small trained model with a chat template beside it."""
import json
import os
import shutil
import subprocess
import unittest

from rig import MODEL, PROGRAM, Rig

TEMPLATE = """{{ bos_token }}
{%- for m in messages %}
{{- '\\n' ~ m.role | upper }}{{ ' ' ~ mood if mood is defined }}: {{ m.content | trim }}
{%- endfor %}
{%- if tools %}{{ '\\nTOOLS: ' ~ tools | tojson }}{% endif %}
{%- if add_generation_prompt %}{{ '\\nASSISTANT:' }}{% endif %}
"""
DATED = "{{ bos_token }}It is {{ strftime_now('%Y-%m-%d %H:%M:%S') }}. {{ messages[-1].content }}"
TALK = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": " Hello, you. "}]
PROMPT = "</s>\nSYSTEM: Be kind.\nUSER: Hello, you.\nASSISTANT:"


class Chat(Rig):
    def setUp(self):
        super().setUp()
        self.model = self.path("model")
        shutil.copytree(MODEL, self.model)
        self.template(TEMPLATE)

    def template(self, text):
        with open(os.path.join(self.model, "chat_template.jinja"), "w", encoding="utf-8") as f:
            f.write(text)

    def words(self, *words, source=None, target=None):
        return [self.model if w == MODEL else w
                for w in super().words(*words, source=source, target=target)]

    @staticmethod
    def line(custom_id, url="/v1/chat/completions", **body):
        return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"model": "m", **body}}

    def batch(self):
        with open(self.output, encoding="utf-8") as f:
            return {r.get("custom_id", r.get("id")): r for r in map(json.loads, f)}

    def tokenize(self, *lines, words=()):
        text = "".join(json.dumps(x) + "\n" for x in lines)
        done = self.run_program([PROGRAM, "tokenize", "--chat", "--model", self.model, *words],
                                input=text.encode())
        return [json.loads(x) for x in done.stdout.splitlines()]

    # ---- what comes out

    def test_a_conversation_gets_what_its_prompt_gets(self):
        prompt, = self.tokenize({"messages": TALK})
        self.assertEqual(prompt["text"], PROMPT)
        self.write([self.line("chat", messages=TALK, max_completion_tokens=12, logprobs=True,
                              top_logprobs=3),
                    self.line("ids", "/v1/completions", prompt=prompt["ids"], max_tokens=12,
                              logprobs=3),
                    self.line("text", "/v1/completions", prompt=PROMPT, max_tokens=12),
                    {"id": "plain", "messages": TALK, "max_tokens": 12}])
        self.generate("--no-bos")
        found = self.batch()
        chat, ids, text = (found[k]["response"]["body"] for k in ("chat", "ids", "text"))
        self.assertEqual(found["chat"]["response"]["status_code"], 200)
        self.assertIsNone(found["chat"]["error"])
        self.assertEqual(chat["object"], "chat.completion")
        self.assertTrue(chat["id"].startswith("chatcmpl-"))
        choice, other = chat["choices"][0], ids["choices"][0]
        self.assertEqual(choice["message"], {"role": "assistant", "content": other["text"],
                                             "refusal": None})
        self.assertEqual(other["text"], text["choices"][0]["text"])
        self.assertNotIn("text", choice)
        self.assertEqual(choice["finish_reason"], other["finish_reason"])
        self.assertEqual(chat["usage"], ids["usage"])
        self.assertEqual([t["logprob"] for t in choice["logprobs"]["content"]],
                         other["logprobs"]["token_logprobs"])
        self.assertEqual([{a["token"]: a["logprob"] for a in t["top_logprobs"]}
                          for t in choice["logprobs"]["content"]], other["logprobs"]["top_logprobs"])
        for t in choice["logprobs"]["content"]:
            self.assertEqual(bytes(t["bytes"]).decode(), t["token"])
        plain = found["plain"]
        self.assertEqual(plain["message"], {"role": "assistant", "content": plain["text"]})
        self.assertEqual(plain["text"], other["text"])
        self.assertEqual(plain["usage"], ids["usage"])

    def test_samples_stops_and_seeds_are_those_of_completions(self):
        how = {"n": 3, "temperature": 0.9, "seed": 5, "max_tokens": 16, "stop": ["the", "\n"]}
        self.write([self.line("a", messages=TALK, **how)])
        self.generate()
        chat = self.batch()["a"]["response"]["body"]["choices"]
        prompt, = self.tokenize({"messages": TALK})
        self.write([self.line("a", "/v1/completions", prompt=prompt["ids"], **how)])
        self.generate("--overwrite")
        texts = self.batch()["a"]["response"]["body"]["choices"]
        self.assertEqual([c["index"] for c in chat], [0, 1, 2])
        self.assertEqual([c["message"]["content"] for c in chat], [c["text"] for c in texts])
        self.assertEqual([(c["finish_reason"], c["stop_reason"]) for c in chat],
                         [(c["finish_reason"], c["stop_reason"]) for c in texts])

    def test_records_say_what_the_template_gets(self):
        tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
        plain, mood, tools, going_on, no_prompt, parts, listed = self.tokenize(
            {"messages": TALK}, {"messages": TALK, "chat_template_kwargs": {"mood": "gay"}},
            {"messages": TALK, "tools": [tool]},
            {"messages": [*TALK, {"role": "assistant", "content": "Good day, "}],
             "continue_final_message": True},
            self.line("x", messages=TALK, add_generation_prompt=False),
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"},
                                                       {"type": "text", "text": "b"}]}]},
            TALK)
        self.assertEqual(plain["text"], PROMPT)
        self.assertEqual(listed, plain)
        self.assertEqual(mood["text"], PROMPT.replace("SYSTEM", "SYSTEM gay")
                         .replace("USER", "USER gay"))
        self.assertIn("TOOLS: " + json.dumps([tool]) + "\nASSISTANT:", tools["text"])
        self.assertEqual(going_on["text"], PROMPT + " Good day,")
        self.assertEqual(no_prompt["id"], "x")
        self.assertEqual(no_prompt["text"], PROMPT.removesuffix("\nASSISTANT:"))
        self.assertEqual(parts["text"], "</s>\nUSER: a\nb\nASSISTANT:")

    def test_a_bad_conversation_is_an_error_record(self):
        bad = {
            "none": {"messages": []}, "text": {"messages": "hello"}, "role": {"messages": [{}]},
            "part": {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "tool_choice": {"messages": TALK, "tool_choice": "required"},
            "response_format": {"messages": TALK, "response_format": {"type": "json_object"}},
            "stream": {"messages": TALK, "stream": True}, "n": {"messages": TALK, "n": 2},
            "top_logprobs": {"messages": TALK, "top_logprobs": 2},
            "logprobs": {"messages": TALK, "logprobs": 2}, "echo": {"messages": TALK, "echo": True},
            "logit_bias": {"messages": TALK, "logit_bias": {"1": 2}},
            "chat_template": {"messages": TALK, "chat_template": "x"},
            "prompt": {"messages": TALK, "prompt": "x"},
            "chat_template_kwargs": {"messages": TALK, "chat_template_kwargs": {"messages": []}},
            "continue_final_message": {"messages": TALK, "continue_final_message": True,
                                       "add_generation_prompt": True},
            "tools": {"messages": TALK, "tools": {}}, "documents": {"messages": TALK, "documents": [1]},
        }
        self.write([self.line(k, **body) for k, body in bad.items()] +
                   [self.line("completions", "/v1/completions", messages=TALK)] +
                   [self.line("good", messages=TALK, max_tokens=1)])
        self.generate("--allow-errors", status=3)
        found = self.batch()
        self.assertEqual(found["good"]["response"]["status_code"], 200)
        for name in [*bad, "completions"]:
            with self.subTest(name):
                self.assertEqual(found[name]["response"]["status_code"], 400)
                if name in found[name]["error"]["message"]:
                    continue
                self.assertIn("messages", found[name]["error"]["message"])

    # ---- templates

    def test_a_model_without_a_template_takes_no_messages(self):
        os.remove(os.path.join(self.model, "chat_template.jinja"))
        self.write([{"id": 1, "messages": TALK}])
        done = self.generate(status=1)
        self.assertIn(b"no chat template", done.stderr)
        done = self.run_program([PROGRAM, "tokenize", "--chat", "--model", self.model], 2,
                                input=b"[]\n")
        self.assertIn(b"no chat template", done.stderr)

    def test_a_template_that_is_not_supported_is_refused_by_name_and_line(self):
        self.template("{{ bos_token }}\n{% include 'other' %}")
        self.write([{"id": 1, "messages": TALK}, {"id": 2, "prompt": "x", "max_tokens": 1}])
        done = self.generate(status=3)
        self.assertIn(b"chat template 'chat_template.jinja': line 2: tag 'include'", done.stderr)
        self.assertEqual(self.batch()[2]["usage"]["completion_tokens"], 1)

    def test_another_template_is_another_run(self):
        self.write([{"id": 1, "messages": TALK, "max_tokens": 1}])
        self.generate()
        self.template(TEMPLATE.replace("ASSISTANT", "BOT"))
        done = self.generate(status=1)
        self.assertIn(b"chat_template", done.stderr)

    def test_the_first_conversation_may_come_later(self):
        prompt = {"id": 1, "prompt": "It was", "max_tokens": 1}
        self.write([prompt])
        self.generate()
        before = self.results()
        self.write([prompt, {"id": 2, "messages": TALK, "max_tokens": 1}])
        self.generate()
        self.assertEqual({k: v for k, v in self.results().items() if k in before}, before)
        self.assertEqual(len(self.results()), 2)
        self.generate("--limit", "1")  # it has no conversation, but its output has
        self.template(TEMPLATE.replace("ASSISTANT", "BOT"))
        done = self.generate(status=1)
        self.assertIn(b"chat_template", done.stderr)

    def test_a_run_that_goes_on_keeps_its_time(self):
        self.template(DATED)
        records = [{"id": i, "messages": TALK, "max_tokens": 1} for i in range(3)]
        self.write(records)
        self.generate("--chat-time", "2024-02-29T12:00:00", "--limit", "2", "--allow-change", "input")
        one, = self.tokenize({"messages": TALK})
        self.assertRegex(one["text"], r"^</s>It is 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\.  Hello")
        one, = self.tokenize(TALK, words=("--chat-time", "2024-02-29"))
        self.assertEqual(one["text"], "</s>It is 2024-02-29 00:00:00.  Hello, you. ")
        with open(self.output + ".manifest.json", encoding="utf-8") as f:
            self.assertEqual(json.load(f)["values"]["chat_time"], "2024-02-29T12:00:00")
        before = self.results()
        done = self.generate()  # the same records by the same keys: nothing but the third runs
        self.assertIn(b"2024-02-29T12:00:00", done.stderr)
        after = self.results()
        self.assertEqual(len(after), 3)
        self.assertEqual({k: after[k] for k in before}, before)
        done = self.generate("--chat-time", "2024-03-01", status=1)
        self.assertIn(b"chat_time", done.stderr)
        done = self.generate("--chat-time", "2024-02-30", status=1)
        self.assertIn(b"--chat-time", done.stderr)
        self.generate("--overwrite")
        with open(self.output + ".manifest.json", encoding="utf-8") as f:
            self.assertNotEqual(json.load(f)["values"]["chat_time"], "2024-02-29T12:00:00")

    # ---- generation_config.json

    def suggest(self, **fields):
        name = os.path.join(self.model, "generation_config.json")
        with open(name, encoding="utf-8") as f:
            config = json.load(f)
        with open(name, "w", encoding="utf-8") as f:
            json.dump({**config, **fields}, f)

    def test_suggested_sampling_is_used_only_when_asked_for(self):
        self.suggest(do_sample=True, temperature=0.6, top_p=0.9, top_k=20, max_length=7,
                     max_new_tokens=3, no_repeat_ngram_size=0)
        self.write([{"id": 1, "prompt": "Once upon a time", "max_tokens": 8}])
        done = self.generate()
        self.assertIn(b"generation_config.json suggests temperature 0.6, top_p 0.9, top_k 20: not "
                      b"used; --generation-config all", done.stderr)
        greedy = self.results()
        self.generate("--generation-config", "all", status=1)  # other values than the manifest's
        done = self.generate("--generation-config", "all", "--overwrite")
        self.assertNotIn(b"suggests", done.stderr)
        self.assertIn(b"temperature 0.6, top_p 0.9, top_k 20", done.stderr)
        sampled = self.results()
        self.assertEqual(sampled[1]["usage"]["completion_tokens"], 8)
        self.generate("--overwrite", "--temperature", "0.6", "--top-p", "0.9", "--top-k", "20")
        self.assertEqual(self.results(), sampled)
        done = self.generate("--overwrite", "--generation-config", "all", "--temperature", "0")
        self.assertIn(b"temperature 0, top_p 0.9", done.stderr)
        self.assertEqual(self.results()[1]["text"], greedy[1]["text"])

    def test_suggestions_that_are_not_supported_are_refused_by_name(self):
        self.write([{"id": 1, "prompt": "Once", "max_tokens": 1}])
        for key, value in (("no_repeat_ngram_size", 3), ("num_beams", 4), ("watermarking_config", {"a": 1}),
                           ("temperature", -1), ("top_p", 0), ("top_k", 2.5)):
            with self.subTest(key):
                shutil.copy(os.path.join(MODEL, "generation_config.json"), self.model)
                self.suggest(do_sample=True, **{key: value})
                done = self.generate("--generation-config", "all", "--overwrite", status=1)
                self.assertIn(key.encode(), done.stderr)
                self.generate("--overwrite")


if __name__ == "__main__":
    unittest.main()
