#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares `aquifer tokenize`, and --decode, with sentencepiece and tokenizers on random texts and ids:

    tokens.py PROGRAM [--count 100000] [--seed 1] [--only NAME ...] [--models FILE ...]

Forms and texts are those of tests/data/tokenizer-families; one text in ten has special tokens of its tokenizer.
--models takes published tokenizers instead (published.py says which); SentencePiece models are also tried as
tokenizer.json (legacy and Metaspace).  Needs what families.py needs, in the versions of make.py: from 0.23 on
tokenizers decodes an added token that is normalised with the space that its normaliser puts in front."""
import argparse, json, os, random, subprocess, sys, tempfile
import sentencepiece
from tokenizers import Tokenizer

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../data/tokenizer-families"))
sys.dont_write_bytecode = True
import families, published

BATCH = 20000


def program(args, folder, records, *options):
    lines = "".join(json.dumps(r) + "\n" for r in records)
    run = subprocess.run([args.program, "tokenize", "--model", folder, *options], input=lines.encode(), capture_output=True)
    if run.returncode:
        sys.exit("%s: %s" % (folder, run.stderr.decode()[:500]))
    return [json.loads(line) for line in run.stdout.decode().split("\n") if line]


class Report:
    ended = 0

    def __init__(self, name):
        self.name, self.counts, self.bad = name, {}, 0

    def compare(self, what, inputs, got, want):
        compared = different = 0
        for i, g, w in zip(inputs, got, want):
            if w is None:
                continue
            compared += 1
            if g != w:
                different += 1
                if self.bad + different <= 3:
                    print("  %s: %r: expected %r, found %r" % (what, i[:60], w[:60], g[:60]))
        a, b = self.counts.get(what, (0, 0))
        self.counts[what] = a + compared, b + different
        self.bad += different

    def end(self):
        Report.ended += 1
        print("%-20s %s" % (self.name, ", ".join("%s: %d of %d differ" % (k, b, a) for k, (a, b) in self.counts.items())), flush=True)
        return self.bad


def mixed(bytes_of, ids):
    """A run of bytes that is UTF-8 in part: tokenizers replaces all of it, sentencepiece and the program what is not."""
    run = b""
    for i in ids + [None]:
        if i in bytes_of:
            run += bytes_of[i]
            continue
        try:
            run.decode()
        except UnicodeDecodeError:
            if len(run.decode(errors="ignore")):
                return True
        run = b""
    return False


def salted(r, text, specials):
    for _ in range(r.randrange(1, 4) if specials and r.random() < .1 else 0):
        at = r.randrange(len(text) + 1)
        text = text[:at] + r.choice(specials) + text[at:]
    return text


def batches(args, name, specials):
    r = random.Random("%s %s" % (args.seed, name))
    for begin in range(0, args.count, BATCH):
        texts = families.FIXED if begin == 0 else []
        more = min(BATCH, args.count - begin)
        yield r, texts + [salted(r, families.random_text(r), specials) for _ in range(more)]


def put(folder, files):
    for name, data in files.items():
        with open(os.path.join(folder, name), "wb") as f:
            f.write(data)


def check_json(args, name, p):
    report, t = Report(name), Tokenizer.from_str(json.dumps(p.whole))
    vocab = p.whole["model"]["vocab"]
    bytes_of = {vocab.get("<0x%02X>" % b, -1): bytes([b]) for b in range(256)}
    around = t.encode("").ids
    behind = around[1:]  # of what stands around a text; --decode leaves it out
    with tempfile.TemporaryDirectory() as folder:
        put(folder, p.files)
        for r, texts in batches(args, name, [a["content"] for a in p.whole["added_tokens"]]):
            want = [e.ids for e in t.encode_batch(texts)]
            found = [o["ids"] for o in program(args, folder, [{"text": x} for x in texts])]
            report.compare("ids", texts, found, want)
            if p.own:
                report.compare("ids by " + p.library, texts, found, [around + p.own(x) for x in texts])
            ids = want + [[i for i in families.random_ids(r, p.end) if t.id_to_token(i)] for _ in texts]
            back = program(args, folder, [{"ids": i} for i in ids], "--decode", "--bos", "never")
            bare = [i[:-1] if behind and i[-1:] == behind else i for i in ids]
            text = [None if mixed(bytes_of, i) else t.decode(i, skip_special_tokens=False) for i in bare]
            report.compare("text", ids, [o["text"] for o in back], text)
    return report.end()


def check_model(args, name, model):
    report, sp = Report(name), sentencepiece.SentencePieceProcessor(model_proto=model)
    bos = [sp.bos_id()] if sp.bos_id() >= 0 else []
    names = families.sentencepiece_specials(sp)
    special = set(names.values())
    with tempfile.TemporaryDirectory() as folder:
        put(folder, {"tokenizer.model": model})
        for r, texts in batches(args, name, list(names)):
            want = [bos + families.cut(names, x, sp.encode) for x in texts]
            report.compare("ids", texts, [o["ids"] for o in program(args, folder, [{"text": x} for x in texts])], want)
            ids = [i[len(bos):] for i in want] + [families.random_ids(r, sp.get_piece_size()) for _ in texts]
            ids = [[i for i in x if i not in special] for x in ids]
            back = program(args, folder, [{"ids": i} for i in ids], "--decode")
            report.compare("text", ids, [o["text"] for o in back], [sp.decode(i) for i in ids])
    return report.end()


def of_form(form, tokens, merges):
    whole = families.whole(form, {form["base"]: (tokens, merges)})
    return published.Published({"tokenizer.json": json.dumps(whole).encode()}, whole)


def own_checks(args):
    """Small models and forms of families.py: a name, and what checks it."""
    models = families.models()
    for name, model in models.items():
        yield name + ".model", lambda name, model=model: check_model(args, name, model)
    bases = {"text": families.vocab_and_merges(models["llama"]), "bytes": families.byte_vocab_and_merges()}
    for name, form in families.forms(len(bases["text"][0]), len(bases["bytes"][0])).items():
        yield name, lambda name, form=form: check_json(args, name, of_form(form, *bases[form["base"]]))


def published_checks(args):
    for path in args.models:
        base = os.path.basename(path.rstrip("/"))
        p = published.read(path)
        if p:
            yield base, lambda name, p=p: check_json(args, name, p)
            continue
        with open(path, "rb") as f:
            model = f.read()
        yield base, lambda name, model=model: check_model(args, name, model)
        tokens, merges = families.vocab_and_merges(model)
        forms = families.forms(len(tokens), 0)
        for kind in ("legacy", "metaspace first"):
            yield "%s %s" % (base, kind), lambda name, p=of_form(forms[kind], tokens, merges): check_json(args, name, p)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("program")
    p.add_argument("--count", type=int, default=1000)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--only", nargs="*")
    p.add_argument("--models", nargs="*", default=[])
    args = p.parse_args()
    bad = 0
    for name, check in published_checks(args) if args.models else own_checks(args):
        if not args.only or name in args.only:
            bad += check(name)
    if not Report.ended:
        sys.exit("--only: no form or model is called so")
    return bad > 0


sys.exit(main())
