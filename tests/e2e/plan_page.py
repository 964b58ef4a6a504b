#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The page that `aquifer plan --html` writes, as text: what it says, that it needs nothing else, and
that each point of its table is the plan that the program makes of the same options."""
import ctypes
import html.parser
import json
import os
import re
import shlex
import struct
import unittest

from rig import MODEL, PROGRAM, Rig, refuse_constant

BOX = """machine: {name: "Box </script><b> & \\"co\\"", cores: 2}
host:
  memory: 8GiB
  memory_gb_s: {value: 50, source: "sheet, https://example.org/a?b=1&c=2. And arXiv:2303.06865."}
  product_f32_tflop_s: 0.2
  product_bf16_tflop_s: {value: 0.8, source: "no link: https:// or arXiv: alone, javascript:x"}
disk: {space: 50GB, read_gb_s: 2, write_gb_s: 2}
links: {h2d_gb_s: 4, d2h_gb_s: 4}
"""
EMPTY = {"meta", "input", "br", "wbr"}


class Reader(html.parser.HTMLParser):
    """Every element that is opened is closed, in order; keeps what tests ask for."""

    def __init__(self, text):
        super().__init__()
        self.stack, self.scripts, self.text, self.links, self.images = [], [], [], [], []
        self.feed(text)
        self.close()
        assert self.stack == [], self.stack

    def handle_starttag(self, tag, attrs):
        if tag not in EMPTY:
            self.stack.append(tag)
        attrs = dict(attrs)
        if tag == "a":
            self.links.append(attrs["href"])
        if tag == "script":
            self.scripts.append([attrs, ""])
        if attrs.get("role") == "img":
            self.images.append(attrs.get("aria-label"))

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.stack and self.stack.pop() == tag, tag

    def handle_data(self, data):
        if self.stack and self.stack[-1] == "script":
            self.scripts[-1][1] += data
        elif self.stack and self.stack[-1] != "style":
            self.text.append(data)


class PlanPage(Rig):
    def setUp(self):
        super().setUp()
        self.box, self.page = self.path("box.yaml"), self.path("page.html")
        with open(self.box, "w", encoding="utf-8") as f:
            f.write(BOX)
        self.words = ["--model", MODEL, "--hardware", self.box, "--host-memory", "300MiB"]
        self.lengths = ["--prompt-len", "20", "--gen-len", "12"]

    def read(self):
        with open(self.page, encoding="utf-8") as f:
            return f.read()

    def make(self, *words, status=0):
        """The document, the page and the table in it."""
        doc = self.plan(*self.words, *words, "--html", self.page, status=status)
        page = Reader(self.read())
        data = [text for attrs, text in page.scripts if attrs.get("id") == "points"]
        return doc, page, json.loads(data[0], parse_constant=refuse_constant) if data else None

    def places(self, data):
        """(variant, levels, point) of all points, in the order of the table."""
        places = [[]]
        for axis in data["axes"]:
            places = [[*p, level] for p in places for level in range(len(axis["high"]))]
        every = [(v, p) for v in range(len(data["variants"])) for p in places]
        self.assertEqual(len(every), len(data["points"]))
        return [(v, p, point) for (v, p), point in zip(every, data["points"])]

    def typed(self, data, variant, levels):
        words = shlex.split(data["plan_words"] + data["variants"][variant]["words"])
        for axis, level in zip(data["axes"], levels):
            low, high = axis["low"][level], axis["high"][level]
            words += ["--" + axis["key"].replace("_", "-"), f"{low}-{high}" if low < high else str(high)]
        return words + (["--requests", str(data["requests"])] if data["requests"] else [])

    def check_points(self, data):
        for variant, levels, point in self.places(data):
            words = self.typed(data, variant, levels)
            doc = self.plan(*words, status=0 if point["feasible"] else 2)
            if not point["feasible"]:
                self.assertEqual(point["reason"], doc["reason"])
                continue
            for key in ("predicted", "plan", "bound_by", "range", "command"):
                self.assertEqual(point[key], doc[key], (key, words))
            for tier, m in point["memory"].items():
                self.assertEqual([m["used"], m["budget"]],
                                 [doc["memory"][tier]["used"], doc["memory"][tier]["budget"]])

    def test_points_are_the_plans_of_the_same_options(self):
        doc, _, data = self.make(*self.lengths, "--requests", "24", "--allow", "h2o=50%",
                                 "--html-points", "8")
        self.assertEqual(len(data["points"]), 8)
        self.assertEqual(data["requests"], 24)
        self.check_points(data)
        asked = [point for variant, levels, point in self.places(data) if variant == data["variant"]
                 and levels == [axis["asked"] for axis in data["axes"]]]
        self.assertEqual(asked[0]["predicted"], doc["predicted"])
        self.assertEqual([v["name"] for v in data["variants"]][:2], ["as asked for", "h2o=50%"])
        rates = {point["predicted"]["gen_tok_s"] for point in data["points"]}
        self.assertGreater(len(rates), 2)  # it does make a difference what is chosen

    def test_points_that_do_not_fit_have_the_reason(self):
        doc, page, data = self.make(*self.lengths, "--host-memory", "64MiB", "--html-points", "4",
                                    status=2)
        self.assertIs(doc["feasible"], False)
        self.assertIn("does not fit", page.text)
        self.check_points(data)
        self.assertEqual({p["feasible"] for p in data["points"]}, {True, False})

    def test_emulated_devices_ranges_and_inputs_have_points_too(self):
        _, _, data = self.make("--prompt-len", "10-20", "--gen-len", "8", "--emulate-device",
                               "24MiB", "--html-points", "4")
        self.assertIn([[10, 20], [20, 40]], [[axis["low"], axis["high"]] for axis in data["axes"]])
        self.check_points(data)
        self.write(self.many(12))
        _, page, data = self.make("--input", self.input, "--html-points", "3", "--prompt-template",
                                  'It\'s "{prompt}"\\n\\\\n$HOME', "--price", f"{self.box}=1 CHF/h",
                                  "--price", f"{self.box}=$2/h")
        self.assertEqual(data["points"][0]["predicted"]["price_per_hour"], "$2")
        self.assertEqual([axis["key"] for axis in data["axes"]], ["host_memory"])
        self.assertIn(self.input, "".join(page.text))
        self.check_points({**data, "requests": None})

    def test_a_table_of_lengths_has_no_sliders_for_them(self):
        table = self.path("lengths.txt")
        with open(table, "w", encoding="utf-8") as f:
            f.write("20 12 9\n60 30 3\n")
        for words, requests in ([], 12), (["--requests", "40"], 40):
            _, page, data = self.make("--lengths", table, *words, "--allow", "int8",
                                      "--html-points", "6")
            self.assertEqual([axis["key"] for axis in data["axes"]], ["host_memory"])
            self.assertEqual(data["requests"], requests)
            self.assertIn(f"--lengths {table}", data["plan_words"])
            self.assertIn(f"generated tokens, from {table}", "".join(page.text))
            self.check_points(data)

    def opened(self, path, *words):
        """How often the program opens the file while it plans (inotify)."""
        libc = ctypes.CDLL(None, use_errno=True)
        fd = libc.inotify_init1(os.O_NONBLOCK)
        self.addCleanup(os.close, fd)
        opened, closed = 0x20, 0x10  # IN_OPEN; alike ones that follow each other come as one event
        self.assertGreaterEqual(libc.inotify_add_watch(fd, path.encode(), opened | closed), 0)
        self.plan(*self.words, *words)
        events = struct.iter_unpack("iIII", os.read(fd, 1 << 16))
        return sum(mask == opened for _, mask, _, _ in events)

    def test_a_file_is_read_as_often_as_without_the_page(self):
        self.write(self.many(4))
        table = self.path("lengths.txt")
        with open(table, "w", encoding="utf-8") as f:
            f.write("20 12 9\n")
        for path, words in ((self.input, ["--input", self.input]), (table, ["--lengths", table])):
            alone = self.opened(path, *words)
            self.assertGreaterEqual(alone, 1)
            self.assertEqual(self.opened(path, *words, "--html", self.page, "--html-points", "4"),
                             alone)

    def test_what_was_chosen_of_several_things_is_a_variant(self):
        _, _, data = self.make(*self.lengths, "--host-memory", "96MiB", "--requests", "400", "--allow",
                               "int4,kv-int4", "--html-points", "4")
        names = [v["name"] for v in data["variants"]]
        self.assertEqual(names[:3], ["as asked for", "int4", "kv-int4"])
        self.check_points(data)
        self.assertEqual(data["variant"], 3)  # on this box it is the fastest
        self.assertEqual(names[3:], ["int4 + kv-int4"])

    def test_reading_a_part_is_a_variant_too(self):
        doc, _, data = self.make("--prompt-len", "200", "--gen-len", "40", "--allow",
                                 "kv-int8,kv-read=96", "--html-points", "4")
        self.assertEqual(doc["plan"]["kv"]["read"], 96)
        names = [v["name"] for v in data["variants"]]
        self.assertEqual(names, ["as asked for", "kv-int8", "kv-read=96", "kv-int8 + kv-read=96"])
        self.assertEqual(data["variant"], 3)
        self.assertEqual(["--kv-read 96" in v["words"] for v in data["variants"]],
                         [False, False, True, True])
        self.check_points(data)

    def test_the_number_of_points_is_bounded_and_none_leave_the_sliders_out(self):
        for count in (1, 5, 24):
            _, _, data = self.make(*self.lengths, "--html-points", str(count))
            self.assertTrue(1 <= len(data["points"]) <= count)
        _, page, data = self.make(*self.lengths, "--html-points", "0")
        self.assertIsNone(data)
        self.assertEqual(page.scripts, [])
        self.assertNotIn("What if", page.text)
        done = self.run_program([PROGRAM, "plan", *self.words, *self.lengths, "--html", self.page,
                                 "--html-points", "2"])
        self.assertRegex(done.stderr.decode(), r"planning 2 points.*\n.*that took ")

    def test_bad_numbers_of_points_are_named(self):
        plan = [PROGRAM, "plan", *self.words, *self.lengths]
        for words, part in [(["--html-points", "4"], "expected --html FILE"),
                            (["--html", self.page, "--html-points", "1001"], "1000"),
                            (["--html", self.page, "--html-points", "-1"], "--html-points"),
                            (["--html", self.page, "--html-points", "2", "--allow", "int8,int4"],
                             "expected at least 3")]:
            done = self.run_program([*plan, *words], 1)
            self.assertIn(part, done.stderr.decode())

    def test_it_needs_nothing_else_and_is_inert_where_names_are_hostile(self):
        _, page, _ = self.make(*self.lengths, "--sweep", "micro-batch=4,8", "--html-points", "4")
        text = self.read()
        for outside in (" src=", "url(", "@import", "<link", "<iframe", "<img"):
            self.assertNotIn(outside, text)
        self.assertIn("default-src 'none'", text)
        self.assertNotIn("<b> &", text)
        self.assertEqual(len(page.scripts), 2)  # a name did not end one of them, or begin another
        self.assertIn('Box </script><b> & "co"', "".join(page.text))
        self.assertEqual(set(page.links), {"https://example.org/a?b=1&c=2",
                                           "https://arxiv.org/abs/2303.06865"})

    def test_it_says_the_workload_the_date_the_version_and_the_seats(self):
        doc, page, _ = self.make(*self.lengths, "--requests", "24", "--sweep", "micro-batch=4,8",
                                 "--html-points", "0")
        text = " ".join(" ".join(page.text).split())
        version = self.run_program([PROGRAM, "--version"]).stdout.decode().split()[1]
        self.assertIn("24 requests of 20 prompt tokens and 12 generated tokens", text)
        self.assertRegex(text, r"Planned 20\d\d-\d\d-\d\d by aquifer " + re.escape(version))
        self.assertIn(f"{doc['plan']['seats']} sequences run at once", text)
        self.assertIn(doc["range"]["from"], text)
        self.assertIn("Numbers of the machine, and their sources", text)
        self.assertRegex(text, r"tok/s time seats bound by")
        self.assertTrue(page.images and all(page.images))
        for tier, m in doc["memory"].items():
            for purpose, size in m["items"].items():
                if size > 0.05 * m["used"]:  # in words, for paper and phones
                    self.assertRegex(text, re.escape(purpose) + r" [0-9.]+ [KMG]iB")
        for row in doc["sensitivity"]:
            self.assertIn(row["change"], text)
        self.assertRegex(self.read(), r"<td class=\"n\">[+-][0-9.]+&nbsp;%")

    def test_a_lane_that_works_is_drawn(self):
        doc, _, _ = self.make(*self.lengths, "--emulate-device", "24MiB", "--emulate-link", "4/4",
                              "--html-points", "0")
        drawn = dict(re.findall(r'<span>(\w+)</span>.*?<path class="b" d="M0 16([^"]*)"', self.read()))
        self.assertEqual(set(drawn), set(doc["links"]))
        busy = [lane for lane, link in doc["links"].items() if link["busy"] > 0.005]
        self.assertTrue(busy)
        for lane in busy:
            self.assertTrue(re.search(r"V(\d|1[0-5])H", drawn[lane]), lane)

    def test_the_same_input_makes_the_same_page(self):
        pages = []
        for _ in range(2):
            self.make(*self.lengths, "--allow", "h2o=50%", "--html-points", "8")
            pages.append(re.sub(r"<time.*?</time>", "", self.read()))
        self.assertEqual(*pages)


if __name__ == "__main__":
    unittest.main()
