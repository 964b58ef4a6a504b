#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The page of `aquifer plan --html` in a real browser: wide and on a phone, light and dark.  Skipped
where there is no Chromium.  AQ_SCREENSHOTS names a folder that pictures are kept in."""
import json
import math
import os
import shlex
import sys
import unittest

from browser import CHROMIUM, Browser
from rig import MODEL, Rig

BOX = """machine: {name: Box, cores: 2}
host: {memory: 8GiB, memory_gb_s: {value: 50, source: "arXiv:2303.06865"}, product_f32_tflop_s: 0.2}
disk: {space: 50GB, read_gb_s: 2, write_gb_s: 2}
links: {h2d_gb_s: 4, d2h_gb_s: 4}
"""
VIEWS = [(width, dark) for width in (1400, 400) for dark in (False, True)]

# Text whose contrast with what lies behind it is less than `least`, by WCAG 2.1's formulas (relative
# luminance, contrast ratio).  Backgrounds are of one colour each, and opaque.
CONTRAST = """(least => {
  const rgb = c => c.match(/[0-9.]+/g).map(Number);
  const light = c => rgb(c).slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((s, v, i) => s + v * [0.2126, 0.7152, 0.0722][i], 0);
  const clear = c => rgb(c).length === 4 && rgb(c)[3] === 0;
  const behind = e => { while (e && clear(getComputedStyle(e).backgroundColor)) e = e.parentElement;
                        return getComputedStyle(e || document.documentElement).backgroundColor; };
  const found = [];
  let seen = 0;
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()) ||
                (e.matches("input, select") && e.type !== "range");
    if (!own || !e.getClientRects().length || e.closest("svg, script")) continue;
    seen++;
    const a = light(getComputedStyle(e).color), b = light(behind(e));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < least) found.push([e.tagName, e.textContent.slice(0, 40), ratio]);
  }
  return [seen, found];
})"""

# What is missing for people who do not see the page or use no mouse.
NAMELESS = """(() => {
  const found = [];
  const named = e => e.labels && e.labels.length && e.labels[0].textContent.trim() ||
    e.getAttribute("aria-label") || (e.tagName === "BUTTON" && e.textContent.trim());
  for (const e of document.querySelectorAll("input, select, textarea, button"))
    if (!named(e)) found.push(e.outerHTML);
  for (const e of document.querySelectorAll("[role=img], [role=region]"))
    if (!e.getAttribute("aria-label")) found.push(e.outerHTML.slice(0, 80));
  const ids = [...document.querySelectorAll("[id]")].map(e => e.id);
  ids.filter((id, i) => ids.indexOf(id) !== i).forEach(id => found.push("twice: " + id));
  for (const e of document.querySelectorAll("table"))
    if (!e.querySelector("th[scope]")) found.push("a table without heads");
  for (const [what, one] of [["h1", 1], ["main", 1], ["head > title", 1]])
    if (document.querySelectorAll(what).length !== one) found.push("not one " + what);
  if (!document.documentElement.lang) found.push("no language");
  const levels = [...document.querySelectorAll("h1, h2, h3")].map(e => Number(e.tagName[1]));
  levels.forEach((l, i) => { if (i && l > levels[i - 1] + 1) found.push("a level of headings is left out"); });
  return [document.querySelectorAll("input, select").length, found];
})()"""

SMALL_TEXT = """(least => [...document.querySelectorAll("body *")].filter(e =>
  [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()) && e.getClientRects().length &&
  !e.closest("script, title") && (e.closest("svg") || parseFloat(getComputedStyle(e).fontSize) < least))
  .map(e => e.outerHTML.slice(0, 80)))"""

# Numbers, and names with their numbers, of which a part is on another line.
BROKEN = """[...document.querySelectorAll(".n, .nb, .legend li, output")].filter(e =>
  [...e.childNodes].some(n => {
    const range = document.createRange();
    range.selectNodeContents(n);
    return n.nodeType === 3 && new Set([...range.getClientRects()].map(r => Math.round(r.top))).size > 1;
  })).map(e => e.textContent)"""


def js(value):
    return json.dumps(value)


class PlanBrowser(Rig):
    @classmethod
    def setUpClass(cls):
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.close)

    def setUp(self):
        super().setUp()
        self.page, box = self.path("page.html"), self.path("box.yaml")
        with open(box, "w", encoding="utf-8") as f:
            f.write(BOX)
        self.words = ["--model", MODEL, "--hardware", box, "--host-memory", "300MiB",
                      "--prompt-len", "20", "--gen-len", "12", "--html", self.page]

    def make(self, *words, status=0):
        return self.plan(*self.words, *words, status=status)

    def full(self):
        return self.make("--requests", "24", "--emulate-device", "24MiB", "--allow", "h2o=50%",
                         "--sweep", "host-memory=64MiB,300MiB,400MiB", "--html-points", "16")

    def show(self, width=1400, dark=False):
        self.browser.open(self.page, width, dark)
        return json.loads(self.browser.evaluate("document.getElementById('points').textContent"))

    def set(self, element, value, event="input"):
        self.browser.evaluate(
            f"(() => {{ const e = document.getElementById({js(element)}); e.value = {js(value)};"
            f"e.dispatchEvent(new Event({js(event)}, {{bubbles: true}})); }})()")

    def shown(self, element="rate"):
        return self.browser.evaluate(f"document.getElementById({js(element)}).textContent")

    def rate(self):
        return float(self.browser.evaluate("document.getElementById('rate').dataset.tokS") or 0)

    def point(self, data, variant, levels):
        index, size = 0, 1
        for axis, level in zip(data["axes"], levels):
            index = index * len(axis["high"]) + level
            size *= len(axis["high"])
        return data["points"][variant * size + index]

    def test_every_view_is_whole_legible_and_named(self):
        self.full()
        for width, dark in VIEWS:
            with self.subTest(width=width, dark=dark):
                data = self.show(width, dark)
                self.browser.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
                self.set("price", "1.5")
                background = self.browser.evaluate("getComputedStyle(document.body).backgroundColor")
                self.assertEqual(background, "rgb(22, 24, 28)" if dark else "rgb(252, 252, 250)")
                inner, wide = self.browser.evaluate("[innerWidth, document.documentElement.scrollWidth]")
                self.assertEqual(inner, width)
                self.assertLessEqual(wide, width)
                texts, faint = self.browser.evaluate(f"{CONTRAST}(4.5)")
                self.assertEqual(faint, [])
                self.assertGreater(texts, 100)
                inputs, nameless = self.browser.evaluate(NAMELESS)
                self.assertEqual(nameless, [])
                self.assertGreaterEqual(inputs, 3 + sum(len(a["high"]) > 1 for a in data["axes"]))
                self.assertEqual(self.browser.evaluate(f"{SMALL_TEXT}(11)"), [])
                self.assertEqual(self.browser.evaluate(BROKEN), [])
                self.assertEqual(self.browser.errors, [])
                self.assertEqual(self.browser.requests, ["file://" + self.page])
                if "AQ_SCREENSHOTS" in os.environ:
                    name = f"page-{width}-{'dark' if dark else 'light'}.png"
                    self.browser.screenshot(os.path.join(os.environ["AQ_SCREENSHOTS"], name))

    def test_the_contrast_check_sees_what_is_faint(self):
        self.full()
        self.show()
        self.browser.evaluate("document.querySelector('h1').style.color = '#999'")
        _, faint = self.browser.evaluate(f"{CONTRAST}(4.5)")
        self.assertEqual([f[0] for f in faint], ["H1"])

    def test_a_slider_shows_the_numbers_of_planned_points(self):
        doc = self.full()
        data = self.show()
        self.assertEqual(self.rate(), doc["predicted"]["gen_tok_s"])
        at = [axis["asked"] for axis in data["axes"]]
        for k, axis in enumerate(data["axes"]):
            for level in range(len(axis["high"])):
                levels = [*at[:k], level, *at[k + 1:]]
                self.set("axis-" + axis["key"], level * 8)
                point = self.point(data, data["variant"], levels)
                self.assertEqual(self.shown("state"), "planned")
                if not point["feasible"]:
                    self.assertEqual(self.shown(), "does not fit")
                    continue
                self.assertEqual(self.rate(), point["predicted"]["gen_tok_s"])
                self.assertIn(f"{point['plan']['seats']} sequences", self.shown("facts"))
                self.assertEqual(self.shown("what-if-command"), point["command"])
            self.set("axis-" + axis["key"], axis["asked"] * 8)
        for variant in range(len(data["variants"])):
            self.set("variant", variant, "change")
            self.assertEqual(self.rate(), self.point(data, variant, at)["predicted"]["gen_tok_s"])

    def test_between_points_it_says_so_and_names_the_plan_to_ask_for(self):
        self.make("--requests", "24", "--html-points", "8")
        data = self.show()
        k = [axis["key"] for axis in data["axes"]].index("prompt_len")
        axis, at = data["axes"][k], [a["asked"] for a in data["axes"]]
        self.set("axis-prompt_len", 4)  # half way from the first to the second
        ends = [self.point(data, data["variant"], [*at[:k], level, *at[k + 1:]]) for level in (0, 1)]
        rates = [p["predicted"]["gen_tok_s"] for p in ends]
        self.assertIn("interpolated", self.shown("state"))
        self.assertTrue(self.shown().startswith("about "))
        self.assertAlmostEqual(self.rate() / math.sqrt(rates[0] * rates[1]), 1, 9)
        tokens = round(math.sqrt(axis["high"][0] * axis["high"][1]))
        command = self.shown("what-if-command")
        self.assertIn(f"--prompt-len {tokens} ", command)
        self.assertNotIn("sequences", self.shown("facts"))  # nobody planned how many
        planned = self.plan(*shlex.split(command)[2:])
        self.assertEqual(planned["workload"]["prompt_len"], [tokens, tokens])
        self.browser.evaluate("document.querySelector('.stops button[aria-label^=Prompt]').click()")
        self.assertEqual(self.shown("state"), "planned")
        self.assertEqual(self.rate(), rates[0])

    def test_beside_a_point_that_does_not_fit_no_number_is_made_up(self):
        self.make("--host-memory", "64MiB", "--html-points", "2", status=2)
        data = self.show()
        self.assertEqual([p["feasible"] for p in data["points"]], [False, True])
        self.assertEqual(self.shown(), "does not fit")
        self.set("axis-host_memory", 4)
        self.assertEqual(self.shown(), "not known")
        self.assertEqual(self.rate(), 0)
        self.set("axis-host_memory", 8)
        self.assertEqual(self.rate(), data["points"][1]["predicted"]["gen_tok_s"])
        self.assertEqual(self.browser.errors, [])

    def test_hours_and_money_follow_requests_and_price(self):
        doc = self.full()
        self.show()
        self.assertNotIn("Cost", self.shown("facts"))
        told = self.browser.evaluate("document.querySelector('main b').textContent")
        self.assertIn(f"Time of 24 requests{told}", self.shown("facts"))  # as C writes it
        self.set("price", "7200000")  # 2000 a second
        total, rate = doc["predicted"]["total_s"], doc["predicted"]["gen_tok_s"]
        read = "[...document.querySelectorAll('#facts dt')].map(e => [e.textContent, " \
               "e.nextSibling.textContent])"

        def money(name):
            text = dict(self.browser.evaluate(read))[name]
            return float(text.replace(",", ""))

        self.assertAlmostEqual(money("Cost"), 2000 * total, delta=max(0.01, 2000 * total * 0.01))
        million = 2000 * 1e6 / rate
        self.assertAlmostEqual(money("Cost of a million generated tokens"), million, delta=million * 1e-2)
        self.set("requests", "24000")
        self.assertAlmostEqual(money("Cost"), 2000 * 24000 * 12 / rate, delta=2000 * 24000 * 12 / rate * 0.01)
        self.assertIn("scaled to 24000", self.shown("note"))
        self.set("requests", "-3")
        self.assertNotIn("Time of", self.shown("facts"))
        for wrong in ("", "-1", "0"):
            self.set("price", wrong)
            self.assertNotIn("Cost", self.shown("facts"))
        self.assertEqual(self.browser.errors, [])

    def test_a_price_that_was_given_is_there_to_change(self):
        box = os.path.join(self.dir, "box.yaml")
        doc = self.make("--requests", "24", "--price", f"{box}=3.5 EUR/h", "--html-points", "2")
        self.show()
        facts = self.shown("facts")
        self.assertRegex(facts, r"Cost[\d.]+ EURCost of a million generated tokens[\d.]+ EUR")
        self.assertEqual(self.browser.evaluate("document.getElementById('price').value"), "3.5")
        self.assertEqual(self.browser.evaluate("document.querySelector('[for=price]').textContent"),
                         "Price per hour (EUR)")
        self.assertIn(f"{doc['predicted']['money']:.3g} EUR", self.shown("cost"))
        self.set("price", "7")
        self.assertNotEqual(self.shown("facts"), facts)
        self.browser.evaluate("[...document.querySelectorAll('button')].find(b => b.textContent.startsWith('Back')).click()")
        self.assertEqual(self.shown("facts"), facts)
        self.assertEqual(self.browser.errors, [])

    def test_it_prints_and_copies(self):
        self.full()
        self.show(dark=True)
        self.browser.evaluate("window.took = null; Object.defineProperty(navigator, 'clipboard', "
                              "{value: {writeText: async t => { window.took = t; }}})")
        command = self.browser.evaluate("(() => { const p = document.querySelector('pre.command');"
                                        "p.nextSibling.click(); return p.textContent; })()")
        self.assertEqual(self.browser.evaluate("window.took"), command)
        self.browser.evaluate("dispatchEvent(new Event('beforeprint'))")
        self.browser.call("Emulation.setEmulatedMedia", media="print", features=[
            {"name": "prefers-color-scheme", "value": "dark"}])
        self.assertEqual(self.browser.evaluate("getComputedStyle(document.body).backgroundColor"),
                         "rgb(255, 255, 255)")
        self.assertEqual(self.browser.evaluate("document.querySelectorAll('details:not([open])').length"), 0)
        self.assertEqual(self.browser.evaluate(f"{CONTRAST}(4.5)")[1], [])
        self.browser.evaluate("dispatchEvent(new Event('afterprint'))")
        self.assertEqual(self.browser.evaluate("document.querySelectorAll('details[open]').length"), 0)

    def test_a_page_without_sliders_is_whole(self):
        self.make("--html-points", "0")
        self.browser.open(self.page, 400)
        self.assertLessEqual(self.browser.evaluate("document.documentElement.scrollWidth"), 400)
        self.assertEqual(self.browser.evaluate("document.querySelectorAll('input').length"), 0)
        self.assertEqual(self.browser.errors, [])


if __name__ == "__main__":
    if not CHROMIUM:
        print("skipped: no chromium here (Debian: chromium), so the page was not looked at")
        sys.exit(77)
    unittest.main()
