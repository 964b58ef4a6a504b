#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the files of this folder with sentencepiece and tokenizers (made with 0.2.3 and 0.22.2):

    NAME.model     SentencePiece models, trained on the licence's text and some lines of families.py
    models.json    of each model: texts with the ids sentencepiece gives, ids with their text
    forms.json     small tokenizer.json in the forms of model families, each with texts, ids, texts decoded;
                   "bases" has the vocabulary and the merges that they share"""
import json, os, random, sys
import sentencepiece
from tokenizers import Tokenizer

sys.dont_write_bytecode = True
import families


def write(name, value):
    with open(os.path.join(families.HERE, name), "w", encoding="ascii") as f:
        json.dump(value, f, ensure_ascii=True, separators=(",", ":"))
        f.write("\n")


def make_models(models):
    out = []
    for name, model in models.items():
        with open(os.path.join(families.HERE, name + ".model"), "wb") as f:
            f.write(model)
        sp = sentencepiece.SentencePieceProcessor(model_proto=model)
        r = random.Random(name)
        texts = families.texts(name, 60)
        ids = [families.random_ids(r, sp.get_piece_size()) for _ in range(40)] if name in ("llama", "ties") else []
        out.append({"name": name, "bos": sp.bos_id(), "eos": sp.eos_id(), "pad": sp.pad_id(), "unk": sp.unk_id(),
                    "cases": [{"text": t, "ids": families.sentencepiece_ids(sp, t)} for t in texts if len(t) < 2000],
                    "decoded": [{"ids": i, "text": sp.decode(i)} for i in ids]})
    write("models.json", out)


def make_forms(models):
    bases = {"text": families.vocab_and_merges(models["llama"]), "bytes": families.byte_vocab_and_merges()}
    out = []
    for name, form in families.forms(len(bases["text"][0]), len(bases["bytes"][0])).items():
        t = Tokenizer.from_str(json.dumps(families.whole(form, bases)))
        cases = []
        for text in families.texts(name, 40):
            ids = t.encode(text).ids
            if len(text) < 2000:
                cases.append({"text": text, "ids": ids, "decoded": t.decode(ids, skip_special_tokens=False)})
        out.append({"name": name, "form": form, "cases": cases})
    write("forms.json", {"bases": bases, "forms": out})


def main():
    models = families.models()
    make_models(models)
    make_forms(models)


main()
