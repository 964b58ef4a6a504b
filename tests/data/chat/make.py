#!/usr/bin/env python3
"""Makes constructs.json and goldens.json: what transformers' own environment makes of each case and
each template.  Needs transformers 5.2.0 with jinja2 3.1.6; the tests read the files alone."""
import datetime
import json
import pathlib

import jinja2
import transformers
from transformers.utils import chat_template_utils

import cases

HERE = pathlib.Path(__file__).parent


class Fixed(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2025, 3, 4, 5, 6, 7)


chat_template_utils.datetime = Fixed


def render(template, variables):
    """The text, or the kind of error."""
    try:
        return {"text": chat_template_utils._compile_jinja_template(template).render(**variables)}
    except Exception as e:  # templates raise whatever Python raises
        return {"error": f"{type(e).__name__}: {e}"}


def write(name, data):
    text = json.dumps(data, ensure_ascii=False, indent=1)
    (HERE / name).write_text(text + "\n", encoding="utf-8")


def constructs():
    out = []
    for template in cases.constructs():
        out.append({"template": template, **render(template, cases.VARIABLES)})
    refused = [{"template": t, "line": line, "what": what} for t, line, what in cases.REFUSED]
    return {"variables": cases.VARIABLES, "answers": out, "refused": refused}


def goldens():
    out = {}
    for path in sorted((HERE / "templates").glob("*.jinja")):
        template = path.read_text(encoding="utf-8")
        rows = {}
        for name, conversation in cases.CONVERSATIONS.items():
            variables = {"tools": None, "documents": None, "add_generation_prompt": True,
                         **cases.TOKENS, **conversation}
            rows[name] = render(template, variables)
        out[path.stem] = rows
    return out


def main():
    made_by = f"transformers {transformers.__version__}, jinja2 {jinja2.__version__}"
    write("constructs.json", {"made_by": made_by, **constructs()})
    write("goldens.json", {"made_by": made_by, "tokens": cases.TOKENS,
                           "conversations": cases.CONVERSATIONS, "templates": goldens()})


main()
