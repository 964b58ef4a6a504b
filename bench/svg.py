# SPDX-License-Identifier: Apache-2.0
"""Line and bar charts as SVG, with nothing but Python's standard library.

    p = Plot("title", "x", "y", x_log=True); p.line("name", [(x, y, error), ...]); p.save("a.svg")
"""
import math
from xml.sax.saxutils import escape

# Okabe and Ito, "Color universal design", 2008: told apart with any colour vision.
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999"]
DASHES = ["", "6 3", "2 3", "8 3 2 3"]


def ticks_linear(low, high, about=6):
    step = 10 ** math.floor(math.log10((high - low) / about))
    step *= min((1, 2, 5, 10), key=lambda f: abs((high - low) / (step * f) - about))
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, int(math.floor(high / step + 1e-9)) + 1)]


def ticks_log(low, high):
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    wide = math.log10(high / low) > 2.5
    ticks = [10.0 ** d * f for d in decades for f in ((1,) if wide else (1, 2, 5))]
    return [t for t in ticks if low * 0.999 <= t <= high * 1.001]


def label(value):
    return f"{value:.6g}" if value == 0 or 1e-4 <= abs(value) < 1e6 else f"{value:.0e}"


class Plot:
    def __init__(self, title, x_name, y_name, x_log=False, y_log=False, x_ticks=None, y_range=None,
                 x_range=None, width=720, height=440, legend=190):
        self.title, self.x_name, self.y_name = title, x_name, y_name
        self.x_log, self.y_log, self.x_ticks = x_log, y_log, x_ticks
        self.y_range, self.x_range = y_range, x_range
        self.width, self.height, self.legend = width, height, legend
        self.lines, self.levels, self.groups = [], [], []

    def line(self, name, points, colour=None, dash="", markers=True):
        """points: (x, y) or (x, y, error of y)."""
        self.lines.append((name, [tuple(p) + (0,) * (3 - len(p)) for p in points],
                           colour or COLOURS[len(self.lines) % len(COLOURS)], dash, markers))

    def level(self, name, y):
        self.levels.append((name, y))

    def bars(self, names, values):
        """Bars side by side at x = 0, 1, ...: values[x][name]."""
        self.groups = (names, values)

    # ---- geometry ----

    def extent(self):
        xs = [p[0] for l in self.lines for p in l[1]]
        ys = [p[1] + s * p[2] for l in self.lines for p in l[1] for s in (-1, 1)]
        if self.y_log:  # error bars that would reach below 0 are cut off
            ys = [y for y in ys if y > 0]
        ys += [y for _, y in self.levels]
        if self.groups:
            xs += [-0.5, len(self.groups[1]) - 0.5]
            ys += [0] + [v for row in self.groups[1] for v in row]
        x = self.x_range or (min(xs), max(xs))
        if x[0] == x[1]:  # a single place
            x = (x[0] / 2, x[0] * 2) if self.x_log else (x[0] - 1, x[0] + 1)
        if self.y_range:
            return x, self.y_range
        low, high = min(ys), max(ys)
        if low == high and not self.y_log:
            low, high = low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2
        if self.y_log:
            return x, (low / 1.2, high * 1.2)
        return x, (low if low == 0 else low - 0.04 * (high - low), high + 0.04 * (high - low))

    def scale(self):
        (x0, x1), (y0, y1) = self.extent()
        self.left, self.top = 76, 40
        self.right, self.bottom = self.width - self.legend, self.height - 52
        fx = math.log10 if self.x_log else float
        fy = math.log10 if self.y_log else float
        def place(v, f, a, b, low, high):
            return low + (f(v) - f(a)) / (f(b) - f(a)) * (high - low)
        pad = 0 if self.groups else 14
        self.px = lambda v: place(v, fx, x0, x1, self.left + pad, self.right - pad)
        self.py = lambda v: place(v, fy, y0, y1, self.bottom, self.top)
        self.xt = self.x_ticks or (ticks_log(x0, x1) if self.x_log else ticks_linear(x0, x1))
        self.yt = ticks_log(y0, y1) if self.y_log else ticks_linear(y0, y1)
        self.y0, self.y1 = y0, y1

    # ---- drawing ----

    def text(self, x, y, words, anchor="middle", size=12, more=""):
        self.out.append(f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" '
                        f'text-anchor="{anchor}" {more}>{escape(words)}</text>')

    def stroke(self, points, colour, width=1.5, dash=""):
        way = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dash = f' stroke-dasharray="{dash}"' if dash else ""
        self.out.append(f'<polyline points="{way}" fill="none" stroke="{colour}" '
                        f'stroke-width="{width}"{dash}/>')

    def axes(self):
        for t in self.yt:
            y = self.py(t)
            self.stroke([(self.left, y), (self.right, y)], "#dddddd", 1)
            self.text(self.left - 6, y + 4, label(t), "end")
        for t in self.xt:
            value, name = t if isinstance(t, tuple) else (t, label(t))
            x = self.px(value)
            self.stroke([(x, self.bottom), (x, self.bottom + 4)], "#000000", 1)
            self.text(x, self.bottom + 18, name)
        self.stroke([(self.left, self.top), (self.left, self.bottom), (self.right, self.bottom)],
                    "#000000", 1)
        self.text((self.left + self.right) / 2, self.height - 12, self.x_name)
        middle = (self.top + self.bottom) / 2
        self.text(16, middle, self.y_name, more=f'transform="rotate(-90 16 {middle:.1f})"')
        self.text(self.left, 22, self.title, "start", 14, 'font-weight="bold"')

    def clip(self, y):
        return min(max(y, self.y0), self.y1)

    def draw_line(self, points, colour, dash, markers):
        self.stroke([(self.px(x), self.py(self.clip(y))) for x, y, _ in points], colour, 1.8, dash)
        for x, y, error in points:
            at, mid = self.px(x), self.py(self.clip(y))
            if error:
                a, b = self.py(self.clip(y - error)), self.py(self.clip(y + error))
                self.stroke([(at, a), (at, b)], colour, 1)
                for end in (a, b):
                    self.stroke([(at - 3, end), (at + 3, end)], colour, 1)
            if markers:
                self.out.append(f'<circle cx="{at:.1f}" cy="{mid:.1f}" r="3" fill="{colour}"/>')

    def draw_bars(self):
        names, values = self.groups
        each = 0.8 / len(names)
        for i, row in enumerate(values):
            for n, v in enumerate(row):
                x0, x1 = self.px(i - 0.4 + n * each), self.px(i - 0.4 + (n + 1) * each)
                y = self.py(v)
                self.out.append(f'<rect x="{x0:.1f}" y="{y:.1f}" width="{x1 - x0 - 1:.1f}" '
                                f'height="{self.bottom - y:.1f}" fill="{COLOURS[n]}"/>')

    def draw_legend(self):
        entries = [(n, c, d) for n, _, c, d, _ in self.lines]
        entries += [(n, COLOURS[i], "") for i, n in enumerate(self.groups[0] if self.groups else [])]
        for i, (name, colour, dash) in enumerate(entries):
            y = self.top + 10 + 19 * i
            self.stroke([(self.right + 14, y), (self.right + 38, y)], colour, 3, dash)
            self.text(self.right + 44, y + 4, name, "start")

    def svg(self):
        self.out = []
        entries = len(self.lines) + len(self.groups[0] if self.groups else [])
        self.height = max(self.height, 60 + 19 * entries)  # all of the legend
        self.scale()
        self.axes()
        if self.groups:
            self.draw_bars()
        for name, y in self.levels:
            self.stroke([(self.left, self.py(y)), (self.right, self.py(y))], "#555555", 1.2, "5 4")
            self.text(self.right - 4, self.py(y) - 5, name, "end")
        for _, points, colour, dash, markers in self.lines:
            self.draw_line(points, colour, dash, markers)
        self.draw_legend()
        body = "\n".join(self.out)
        return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" '
                f'height="{self.height}" font-family="sans-serif">\n'
                f'<rect width="100%" height="100%" fill="#ffffff"/>\n{body}\n</svg>\n')

    def save(self, path):
        with open(path, "w", encoding="utf-8") as f:
            f.write(self.svg())
