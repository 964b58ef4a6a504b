#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What other people's programs keep of a prompt under each KV policy, and whether the engine keeps the same.

    python3 -m venv judge && judge/bin/pip install -r tests/judge/requirements.txt
    judge/bin/python tests/judge/judge.py --build build [--draws 10] [--seed N]     # judges random models and prompts
    judge/bin/python tests/judge/judge.py --build build --write tests/data/judged.json  # what test_judged compares with

A draw is a random LLaMA with grouped heads, written by the project's own generator and read by transformers; prompts
of random ids; and for each row of ROWS the sets of keys that the judge's own class leaves in its cache.
build/tests/test_judged runs the engine on the same model and compares. Exit status 1: they differ."""
import argparse
import dataclasses
import importlib.metadata
import json
import math
import os
import random
import subprocess
import sys
import tempfile

import kvpress
import safetensors.torch
import torch
import torch.nn.functional as F
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

sys.dont_write_bytecode = True
NEAR = 2e-5  # relative: scores so close may be ranked otherwise by other roundings


@dataclasses.dataclass
class MaxPooled(kvpress.SnapKVPress):
    """SnapKV with the pooling of its authors' runs, which kvpress does not offer."""

    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        weights = self.compute_window_attention(module, hidden_states, keys, self.window_size,
                                                kwargs["position_embeddings"])
        pooled = F.max_pool1d(weights.mean(dim=-2), self.kernel_size, stride=1, padding=self.kernel_size // 2)
        scores = pooled.view(1, keys.shape[1], -1, pooled.shape[-1]).mean(2)
        return F.pad(scores, (0, self.window_size), value=scores.max().item() + 1)


@dataclasses.dataclass
class GroupFirst(kvpress.SnapKVPress):
    """SnapKV's scores as Ada-KV's authors have them: of query heads together first, pooled by the largest then."""

    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        weights = self.compute_window_attention(module, hidden_states, keys, self.window_size,
                                                kwargs["position_embeddings"]).mean(dim=-2)
        weights = weights.view(1, keys.shape[1], -1, weights.shape[-1]).mean(2)
        scores = F.max_pool1d(weights, self.kernel_size, stride=1, padding=self.kernel_size // 2)
        return F.pad(scores, (0, self.window_size), value=scores.max().item() + 1)


@dataclasses.dataclass
class NewestUnheld(kvpress.TOVAPress):
    """TOVA as its paper and its authors' program have it: the newest token may go, which kvpress always keeps."""

    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        return attentions[:, :, -1, :].mean(1, keepdim=True).repeat(1, keys.shape[1], 1)


@dataclasses.dataclass
class Row:
    """A KV policy and its judge: `options` as a configuration file has them, press(ratio) the judge, whose cache says
    what is kept. Where only the scores are the judge's, choose(layer, layers, scores [heads][n]) gives the scores that
    count and [heads] positions."""

    name: str
    options: dict
    press: object
    attention: str = "sdpa"
    choose: object = None
    rules: object = None  # told the prompt's tokens


def best(scores, allowed, count):
    """Of the positions below `allowed`."""
    return sorted(sorted(range(allowed), key=lambda j: (-scores[j], -j))[:count])


def heavy_and_recent(budget):
    """H2O's choice, from sums of attention that the judge saw: its scores are means over the queries that see a key."""
    def choose(layer, layers, scores):
        n, recent = scores.shape[-1], budget - budget // 2
        sums = scores * torch.arange(n, 0, -1)
        return sums, [best(s, n - recent, budget // 2) + list(range(n - recent, n)) for s in sums.tolist()]
    return choose


def with_window(scores, window, counts):
    """Of each head its window and the best `counts` before."""
    n = scores.shape[-1]
    return scores, [best(s, n - window, c) + list(range(n - window, n)) for s, c in zip(scores.tolist(), counts)]


def pyramid_beside_window(budget, window, n, layer, layers, beta=20):
    """PyramidKV's numbers of keys as its authors' program has them (KVCache-Factory, pyramidkv_utils.py,
    PyramidKVCluster.update_kv); kvpress spreads another sum over the layers."""
    rest = budget - window
    low = rest // beta
    high = 2 * rest - low
    if high >= n - window:
        high = n - window
        low = 2 * rest - high
    return rest if n < 2 * rest else high - layer * ((high - low) // (layers - 1))


def pyramid(budget, window):
    def choose(layer, layers, scores):
        heads, n = scores.shape
        return with_window(scores, window, heads * [pyramid_beside_window(budget, window, n, layer, layers)])
    return choose


def mixed(budget, window, share=0.2, pyramidal=False):
    """Numbers of keys of heads that share, as Ada-KV's authors have them (FFY0/AdaKV, adaptive_snapkv,
    AdaptiveSnapKVCluster.update_kv): those among the best of all heads, mixed with an even part."""
    def choose(layer, layers, scores):
        heads, n = scores.shape
        each = pyramid_beside_window(budget, window, n, layer, layers) if pyramidal else budget - window
        ranked = sorted((-v, -j, h) for h, s in enumerate(scores[:, :n - window].tolist()) for j, v in enumerate(s))
        won = [0] * heads
        for _, _, h in ranked[:heads * each]:
            won[h] += 1
        return with_window(scores, window, [round(c * (1 - share) + int(each * share)) for c in won])
    return choose


@dataclasses.dataclass
class WholeMaps(kvpress.ObservedAttentionPress):
    """Attention itself, of which FastGen's rules are found: no class of kvpress finds them."""

    maps: list = dataclasses.field(default_factory=list)

    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        self.maps.append(attentions[0].double().view(keys.shape[1], -1, *attentions.shape[2:]).mean(1))
        return super().score(module, hidden_states, keys, values, attentions, kwargs)


def is_special(token):
    return token % 17 == 3


def is_punct(token):
    return token % 7 == 5


class Rules:
    """FastGen's choice (arXiv 2310.01801, its five rules, as AnswerDotAI/cold-compress recovers attention by masks),
    restated on whole maps of attention, [queries][keys] a head."""

    def __init__(self, mass, frequent, local, cap=None, sinks=4):
        self.mass, self.frequent, self.local, self.cap, self.sinks = mass, frequent, local, cap, sinks
        self.maps, self.ids = [], None

    def press(self, ratio):
        self.maps = []
        return WholeMaps(ratio, maps=self.maps)

    def mask(self, a, rule):
        """What the rule lets each query see, and scores of which the least kept is the border."""
        n = a.shape[0]
        newest = max(1, int(self.local * n + 1e-9))
        each = a.sum(0) / torch.arange(n, 0, -1)
        safe = torch.arange(n) < self.sinks
        safe |= torch.tensor([is_special(t) or (rule > 0 and is_punct(t)) for t in self.ids])
        at_last = safe | (torch.arange(n) >= n - newest) if rule == 3 else safe.clone()
        if rule == 4:
            at_last[:] = True
        kept = at_last.clone()
        if rule >= 2:
            free = [j for j in range(n) if not at_last[j]]
            kept[sorted(free, key=lambda j: (-each[j], -j))[:math.ceil(self.frequent * n - 1e-9)]] = True
        sees = kept.expand(n, n).clone()
        if rule == 3:
            sees |= torch.tril(torch.ones(n, n, dtype=torch.bool), 0) & ~torch.tril(torch.ones(n, n, dtype=torch.bool), -newest)
        return sees, kept, torch.where(at_last, 2.0, each)

    def of_head(self, a):
        rule, n = 0, a.shape[0]
        while True:
            sees, kept, scores = self.mask(a, rule)
            recovered = (a * sees).sum().item() / n
            assert rule == 4 or abs(recovered - self.mass) > NEAR, "too close to tell which rule is found"
            if rule == 4 or recovered >= self.mass:
                break
            rule += 1
        while self.cap and kept.sum() > self.cap and rule > 0:
            rule -= 1
            _, kept, scores = self.mask(a, rule)
        kept = kept.nonzero().flatten().tolist()
        if self.cap and len(kept) > self.cap:
            kept = kept[:self.sinks] + kept[len(kept) - self.cap + self.sinks:]
            scores = torch.where(torch.isin(torch.arange(n), torch.tensor(kept)), 2.0, 0.0)
        return scores, kept

    def choose(self, layer, layers, scores):
        scores, sets = zip(*(self.of_head(a) for a in self.maps[layer]))
        return torch.stack(scores), list(sets)


def by_rules(name, options, rules):
    return Row(name, {"kv-policy": "fastgen", **options}, rules.press, "eager", rules.choose, rules)


def rows(budget, observe):
    b, w = str(budget), observe
    snapkv = {"kv-policy": "snapkv", "kv-budget": b, "kv-observe": w}
    return [
        Row("snapkv", snapkv, lambda r: kvpress.SnapKVPress(r, window_size=w, kernel_size=5)),
        Row("snapkv max:7", {**snapkv, "kv-pool": "max:7"}, lambda r: MaxPooled(r, window_size=w, kernel_size=7)),
        Row("snapkv unpooled", {**snapkv, "kv-pool": "none"},
            lambda r: kvpress.SnapKVPress(r, window_size=w, kernel_size=1)),
        Row("pyramidkv", {**snapkv, "kv-policy": "pyramidkv"},
            lambda r: kvpress.PyramidKVPress(r, window_size=w, kernel_size=5), choose=pyramid(budget, w)),
        Row("ada-snapkv reserve", {**snapkv, "kv-policy": "snapkv", "kv-heads": "shared",
                                   "kv-floor": f"reserve:{max(0, int(budget * 0.9) - w)}"},
            lambda r: kvpress.AdaKVPress(kvpress.SnapKVPress(r, window_size=w, kernel_size=5), alpha_safeguard=0.9)),
        Row("ada-snapkv", {**snapkv, "kv-policy": "ada-snapkv"},
            lambda r: GroupFirst(r, window_size=w, kernel_size=7), choose=mixed(budget, w)),
        Row("ada-pyramid", {**snapkv, "kv-policy": "ada-pyramid"},
            lambda r: GroupFirst(r, window_size=w, kernel_size=7), choose=mixed(budget, w, pyramidal=True)),
        Row("tova", {"kv-policy": "tova", "kv-budget": b}, NewestUnheld, "eager"),
        Row("window", {"kv-policy": "window", "kv-budget": b, "kv-sinks": 4},
            lambda r: kvpress.StreamingLLMPress(r, n_sink=4)),
        Row("knorm", {"kv-policy": "knorm", "kv-budget": b}, kvpress.KnormPress),
        Row("keydiff", {"kv-policy": "keydiff", "kv-budget": b}, kvpress.KeyDiffPress),
        Row("expected", {"kv-policy": "expected", "kv-budget": b}, kvpress.ExpectedAttentionPress),
        Row("expected near", {"kv-policy": "expected", "kv-budget": b, "kv-ahead": 9, "kv-sinks": 1},
            lambda r: kvpress.ExpectedAttentionPress(r, n_future_positions=9, n_sink=1)),
        Row("expected shared", {"kv-policy": "expected", "kv-budget": b, "kv-heads": "shared",
                                "kv-floor": f"reserve:{int(budget * 0.5)}"},
            lambda r: kvpress.AdaKVPress(kvpress.ExpectedAttentionPress(r), alpha_safeguard=0.5)),
        Row("h2o", {"kv-policy": "h2o", "kv-budget": b}, kvpress.ObservedAttentionPress, "eager",
            heavy_and_recent(budget)),
        by_rules("fastgen", {"kv-mass": 0.8}, Rules(0.8, 0.3, 0.3)),
        by_rules("fastgen capped", {"kv-mass": 0.9, "kv-budget": b, "kv-frequent": "20%", "kv-local": "10%"},
                 Rules(0.9, 0.2, 0.1, budget)),
    ]


# ---- the judge ----------------------------------------------------------------------------------


def load(folder, attention):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        config = LlamaConfig(**json.load(f))
    config._attn_implementation = attention
    model = LlamaForCausalLM(config)
    weights = safetensors.torch.load_file(os.path.join(folder, "model.safetensors"))
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    return model.float().eval()


class Judge:
    """Models of one folder, and what their caches hold of each prompt when nothing is dropped."""

    def __init__(self, folder, prompts):
        self.models = {a: load(folder, a) for a in ("sdpa", "eager")}
        self.ids = [torch.tensor([p]) for p in prompts]
        self.full = {(a, i): self.cached(a, i) for a in self.models for i in range(len(prompts))}

    @torch.no_grad()
    def cached(self, attention, i):
        model = self.models[attention]
        cache = DynamicCache(config=model.config)
        model(self.ids[i], past_key_values=cache)
        return [layer.keys[0] for layer in cache.layers]

    def positions(self, attention, i, layers):
        """Where the keys of a cut cache stand in the whole one: [layers][heads] ascending positions."""
        found = []
        for whole, cut in zip(self.full[attention, i], layers):
            heads = []
            for a, b in zip(whole, cut):
                far = (b[:, None, :] - a[None]).abs().amax(-1)
                assert far.amin(1).max() < 1e-5
                heads.append(sorted(far.argmin(1).tolist()))
                assert len(set(heads[-1])) == len(heads[-1])
            found.append(heads)
        return found

    @staticmethod
    def unmasked(model, n):
        """The same where a press hides keys instead of dropping them."""
        found = []
        for layer in model.model.layers:
            _, heads, positions = layer.self_attn.masked_key_indices
            hidden = set(zip(heads.tolist(), positions.tolist()))
            layer.self_attn.masked_key_indices = None
            found.append([[j for j in range(n) if (h, j) not in hidden]
                          for h in range(model.config.num_key_value_heads)])
        return found

    def kept(self, row, budget, i):
        """[layers][heads] texts, as test_judged.c reads them."""
        n = self.ids[i].shape[1]
        press = row.press(1 - (budget + 0.5) / n)
        if row.rules:
            row.rules.ids = self.ids[i][0].tolist()
        model, scores = self.models[row.attention], []
        inner = getattr(press, "press", press)
        score = inner.score

        def noted(*given):
            scores.append(score(*given).clone())
            return scores[-1].clone()
        inner.score = noted
        with press(model):
            cut = self.cached(row.attention, i)
        sets = self.unmasked(model, n) if inner is not press else self.positions(row.attention, i, cut)
        scores = [s[0] for s in scores]
        if row.choose:
            scores, sets = zip(*(row.choose(l, len(scores), s) for l, s in enumerate(scores)))
        return [[text_of(s, k) for s, k in zip(*layer)] for layer in zip(scores, sets)]


def text_of(scores, kept):
    scores, kept = scores.tolist(), set(kept)
    border = min(scores[j] for j in kept)
    near = [j for j, s in enumerate(scores) if abs(s - border) <= NEAR * abs(border)]
    tied = set(near) if len(near) > 1 else set()
    return "".join((".-", "#+")[j in kept][j in tied] for j in range(len(scores)))


# ---- draws --------------------------------------------------------------------------------------

SHAPES = [  # layers, hidden, heads, KV heads, head size
    (2, 96, 6, 2, 16),
    (3, 64, 8, 1, 8),
    (2, 96, 4, 4, 24),
    (2, 128, 8, 2, 16),
]


def draw(seed, build):
    """A file of judged sets."""
    r = random.Random(seed)
    layers, hidden, heads, kv_heads, head_dim = SHAPES[(seed - 1) % len(SHAPES)]
    lengths, budget, observe = (60, 97, 150), 40, 8
    if seed > 1:
        budget, observe = r.randint(16, 90), r.randint(1, 12)
        lengths = [r.randint(budget + observe + 4, 260) for _ in range(3)]
    file = {
        "made_by": "tests/judge/judge.py",
        "versions": {p: importlib.metadata.version(p) for p in ("kvpress", "transformers", "torch")},
        "model": {"layers": layers, "hidden": hidden, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim,
                  "vocab": 97, "context": 320, "sharpness": 2, "seed": seed},
        "special": [t for t in range(97) if is_special(t)], "punct": [t for t in range(97) if is_punct(t)],
        "prompts": [[r.randrange(97) for _ in range(n)] for n in lengths],
        "rows": [],
    }
    with tempfile.TemporaryDirectory() as scratch:
        path, folder = os.path.join(scratch, "asked.json"), os.path.join(scratch, "model")
        with open(path, "w", encoding="utf-8") as f:
            json.dump(file, f)
        subprocess.run([os.path.join(build, "tests/write_judge_model"), path, folder], check=True)
        judge = Judge(folder, file["prompts"])
        for row in rows(budget, observe):
            file["rows"].append({
                "name": row.name, "options": row.options, "judge": type(row.press(0.5)).__name__,
                "kept": [judge.kept(row, budget, i) for i in range(len(lengths))]})
    return file


def write(path, file):
    """One prompt a line, one set a line."""
    text = json.dumps(file, indent=1)
    with open(path, "w", encoding="utf-8") as f:
        f.write(joined(text) + "\n")


def joined(text):
    """Lists of numbers on one line."""
    out, inside = [], False
    for line in text.split("\n"):
        bare = line.strip().rstrip(",")
        if inside and (bare.lstrip("-").isdigit() or bare == "]"):
            out[-1] += line.strip().replace(",", ", ")
            inside = bare != "]"
        else:
            inside = bare == "["
            out.append(line)
    return "\n".join(out)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--build", default="build")
    p.add_argument("--draws", type=int, default=1)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--write")
    a = p.parse_args()
    torch.set_num_threads(1)
    if a.write:
        write(a.write, draw(1, a.build))
        return
    wrong = 0
    for seed in range(a.seed, a.seed + a.draws):
        file = draw(seed, a.build)
        with tempfile.TemporaryDirectory() as scratch:
            path = os.path.join(scratch, "judged.json")
            write(path, file)
            env = {**os.environ, "AQ_JUDGED": path}
            done = subprocess.run([os.path.join(a.build, "tests/test_judged")], env=env, capture_output=True, text=True)
        m = file["model"]
        print(f"seed {seed}: {m['layers']} layers, {m['heads']} heads of {m['head_dim']}, {m['kv_heads']} of keys; "
              f"prompts of {', '.join(str(len(q)) for q in file['prompts'])}; "
              f"budget {file['rows'][0]['options']['kv-budget']}")
        print(done.stdout + done.stderr, flush=True)
        wrong += done.returncode != 0
    print(f"{a.draws - wrong} of {a.draws} draws: the engine keeps what the judges keep")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
