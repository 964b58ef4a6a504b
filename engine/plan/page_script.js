/* SPDX-License-Identifier: Apache-2.0
 * The sliders of the page.  Every number they show is of a plan in the page's table, or interpolated
 * between such plans and called so. */
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("points").textContent);
  const root = document.getElementById("what-if");
  const STEPS = 8; /* of a slider, from one planned value to the next */
  const axes = data.axes;
  const asked = { variant: data.variant, at: axes.map((a) => a.asked) };
  const state = { variant: data.variant, at: [...asked.at], requests: data.requests,
    price: data.price?.per_hour || 0 };
  const currency = data.price?.currency;

  /* ---- text ---- */

  const digits = (x, n = 4) => String(Number(x.toPrecision(n)));
  const bytesText = (x) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let u = 0;
    for (; x >= 1024 && u < units.length - 1; u++) x /= 1024;
    return `${u ? x.toFixed(1) : x}\u00a0${units[u]}`;
  };
  const timeText = (s) => {
    const two = (x) => String(x).padStart(2, "0");
    const t = Math.floor(s + 0.5);
    if (s < 0.9995) return `${Math.round(s * 1000)} ms`;
    if (t < 60) return `${t} s`;
    if (t < 3600) return `${Math.floor(t / 60)} m ${two(t % 60)} s`;
    if (t < 86400) return `${Math.floor(t / 3600)} h ${two(Math.floor(t / 60) % 60)} m`;
    return `${Math.floor(t / 86400)} d ${two(Math.floor(t / 3600) % 24)} h`;
  };
  const moneyText = (x) => (x >= 1 || x === 0 ? x.toFixed(2) : String(Number(x.toPrecision(3)))); // as aq_money_text
  const rangeText = (low, high) => (low === high ? `${high}` : `${low}-${high}`);
  const levelText = (axis, v, spaced) => (axis.unit === "bytes" ? bytesText(v.high)
    : rangeText(v.low, v.high) + (spaced ? " tokens" : ""));

  /* ---- elements ---- */

  const make = (name, fields, ...children) => {
    const e = document.createElement(name);
    for (const [key, v] of Object.entries(fields || {})) {
      if (key in e && key !== "list") e[key] = v;
      else e.setAttribute(key, v);
    }
    e.append(...children);
    return e;
  };
  const svg = (name, fields) => {
    const e = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, v] of Object.entries(fields)) e.setAttribute(key, v);
    return e;
  };
  /* An option and its value stay on one line where there is room for them. */
  const setCommand = (pre, text) => {
    const words = text.split(/ (?=--)/);
    pre.replaceChildren(...words.flatMap((w, i) => [i ? " " : "", make("span", {}, w)]));
  };
  const copyButton = (pre) => {
    const button = make("button", { type: "button", className: "copy" }, "Copy");
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(pre.textContent);
        button.textContent = "Copied";
      } catch (e) { /* no right to: what is selected can be copied by hand */
        getSelection().selectAllChildren(pre);
        button.textContent = "Selected: press Ctrl+C";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 3000);
    });
    return button;
  };

  /* ---- the table of plans ---- */

  const perVariant = axes.reduce((n, a) => n * a.high.length, 1);
  const pointAt = (variant, levels) =>
    data.points[variant * perVariant + levels.reduce((i, l, k) => i * axes[k].high.length + l, 0)];

  /* Planned points around a place, with their shares: 2 for every axis that is between two values. */
  const corners = (variant, at) => {
    let all = [{ share: 1, levels: [] }];
    for (const x of at) {
      const low = Math.floor(x), t = x - low;
      const sides = t ? [[low, 1 - t], [low + 1, t]] : [[low, 1]];
      all = all.flatMap((c) => sides.map(([l, s]) => ({ share: c.share * s, levels: [...c.levels, l] })));
    }
    return all.map((c) => ({ share: c.share, point: pointAt(variant, c.levels) }));
  };

  /* Between values, rates are interpolated on a logarithmic scale, as the values are. */
  const lookUp = (variant, at) => {
    const around = corners(variant, at);
    if (around.length === 1) return { planned: true, point: around[0].point };
    const missing = around.find((c) => !c.point.feasible);
    if (missing) return { planned: false, point: missing.point };
    const mean = (f) => Math.exp(around.reduce((s, c) => s + c.share * Math.log(f(c.point)), 0));
    const rates = around.map((c) => c.point.predicted.gen_tok_s);
    return {
      planned: false, tok_s: mean((p) => p.predicted.gen_tok_s), gen: mean((p) => p.gen_mean),
      low: Math.min(...rates), high: Math.max(...rates),
    };
  };
  const rateOf = (found) => (found.tok_s || (found.planned && found.point.feasible
    ? found.point.predicted.gen_tok_s : 0));

  const valueAt = (axis, x) => {
    const low = Math.floor(x), t = x - low;
    const between = (list) => {
      if (!t) return list[low];
      const v = Math.exp((1 - t) * Math.log(list[low]) + t * Math.log(list[low + 1]));
      return axis.unit === "bytes" ? Math.round(v / 2 ** 20) * 2 ** 20 : Math.max(1, Math.round(v));
    };
    return { low: between(axis.low), high: between(axis.high) };
  };

  /* ---- controls ---- */

  const control = (id, name, input, ...more) => {
    const label = make("label", { htmlFor: id }, name);
    input.id = id;
    return make("div", { className: "control" }, make("div", { className: "top" }, label, ...more), input);
  };

  const sliders = axes.map((axis, k) => {
    if (axis.high.length < 2) return null;
    const id = `axis-${axis.key}`, last = axis.high.length - 1;
    const input = make("input", { type: "range", min: 0, max: last * STEPS, step: 1 });
    const output = make("output", { htmlFor: id });
    const shape = svg("svg", { viewBox: `0 0 ${last * STEPS} 20`, preserveAspectRatio: "none", "aria-hidden": "true" });
    const stops = axis.high.map((high, l) => {
      const text = levelText(axis, { low: axis.low[l], high });
      const button = make("button", { type: "button", "aria-label": `${axis.name} ${text}, planned` }, text);
      button.addEventListener("click", () => { state.at[k] = l; show(); });
      return button;
    });
    input.addEventListener("input", () => { state.at[k] = input.value / STEPS; show(); });
    const box = control(id, axis.name, input, output);
    box.insertBefore(shape, input);
    box.append(make("div", { className: "stops" }, ...stops));
    return { axis, k, input, output, shape, stops, box };
  }).filter(Boolean);

  const variant = make("select", {}, ...data.variants.map((v, i) => make("option", { value: i }, v.name)));
  variant.addEventListener("change", () => { state.variant = Number(variant.value); show(); });
  const positive = (input) => (input.value > 0 && Number.isFinite(Number(input.value)) ? Number(input.value) : 0);
  const requests = make("input", { type: "number", min: 1, step: 1, inputMode: "numeric" });
  const price = make("input", { type: "number", min: 0, step: "any", inputMode: "decimal" });
  requests.addEventListener("input", () => { state.requests = Math.round(positive(requests)) || null; show(); });
  price.addEventListener("input", () => { state.price = positive(price); show(); });

  /* What this slider alone would do, drawn above it: gaps do not fit, lines are plans. */
  const drawShape = (s) => {
    const last = s.axis.high.length - 1;
    const rates = Array.from({ length: last * STEPS + 1 }, (_, i) =>
      rateOf(lookUp(state.variant, state.at.map((x, k) => (k === s.k ? i / STEPS : x)))));
    const most = Math.max(...rates) || 1;
    let path = "";
    rates.forEach((r, i) => {
      if (r && !rates[i - 1]) path += `M${i} 20`;
      if (r) path += `L${i} ${20 - 19 * (r / most)}`;
      if (r && !rates[i + 1]) path += `L${i} 20Z`;
    });
    s.shape.replaceChildren(svg("path", { d: path }));
    rates.forEach((r, i) => {
      if (r && i % STEPS === 0)
        s.shape.append(svg("line", {
          x1: i, x2: i, y1: 20, y2: 20 - 19 * (r / most), "vector-effect": "non-scaling-stroke" }));
    });
  };

  /* ---- results ---- */

  const rate = make("p", { className: "big", id: "rate" });
  const badge = make("span", { id: "state" });
  const note = make("p", { className: "dim", id: "note" });
  const facts = make("dl", { id: "facts" });
  const commandTitle = make("p", { className: "dim" });
  const command = make("pre", { id: "what-if-command" });
  const commandBox = make("div", {}, commandTitle, command, copyButton(command));

  const put = (name, text) => facts.append(make("dt", {}, name), make("dd", {}, text));

  const putMoney = (tok_s, seconds) => {
    if (!state.price) return;
    const putAmount = (name, amount) => put(name, moneyText(amount) + (currency ? ` ${currency}` : ""));
    if (seconds) putAmount("Cost", seconds / 3600 * state.price);
    putAmount("Cost of a million generated tokens", 1e6 / tok_s / 3600 * state.price);
  };

  /* Time of the requests that are asked for, at the rate of the number that was planned. */
  const secondsOf = (found, tok_s) => {
    const point = found.planned ? found.point : null;
    const gen = point ? point.gen_mean : found.gen;
    if (!state.requests) return 0;
    if (point && state.requests === data.requests && point.predicted.total_s) return point.predicted.total_s;
    return state.requests * gen / tok_s;
  };

  const putPlan = (p) => {
    const plan = p.plan;
    const batches = plan.micro_batches > 1 ? `, in ${plan.micro_batches} micro-batches of ${plan.micro_batch}` : "";
    put("Bound by", p.bound_by);
    put("Running at once", `${plan.seats} sequences${batches}`);
    put("Memory", Object.entries(p.memory).map(([tier, m]) =>
      `${tier} ${bytesText(m.used)} of ${bytesText(m.budget)}`).join("; "));
    put("Placement", plan.placement);
    put("Attention", plan.attention);
    put("Formats", `weights ${plan.weight_format}, KV ${plan.kv_format}, compute ${plan.compute}, policy ${plan.policy}`);
    const band = p.range && p.range.gen_tok_s;
    if (band) put("Likely", `${digits(band[0], 3)} to ${digits(band[1], 3)} tok/s`);
  };

  const planCommand = () => {
    const words = ["aquifer plan" + data.plan_words + data.variants[state.variant].words];
    axes.forEach((a, k) => {
      const v = valueAt(a, state.at[k]);
      words.push(`--${a.key.replace("_", "-")} ${a.unit === "bytes" ? v.high : rangeText(v.low, v.high)}`);
    });
    if (state.requests && !/ --input /.test(data.plan_words)) words.push(`--requests ${state.requests}`);
    return words.join(" ");
  };

  const noteOf = (found, tok_s) => {
    const notes = [];
    if (!found.planned)
      notes.push(`The planned points around it are ${digits(found.low)} to ${digits(found.high)} tok/s; the number is interpolated on a logarithmic scale.`);
    if (state.requests && data.requests && state.requests !== data.requests)
      notes.push(`Planned for ${data.requests} requests; the time is scaled to ${state.requests}.`);
    else if (state.requests && !data.requests)
      notes.push("The time is the requests at the rate of a block that is always full.");
    if (found.planned && state.requests && state.requests < 3 * found.point.plan.seats)
      notes.push("So few requests fill the block for a part of the time only: that takes longer than shown.");
    const base = rateOf(lookUp(asked.variant, asked.at));
    if (base && Math.abs(tok_s / base - 1) > 0.0005)
      notes.push(`${digits(tok_s / base, 3)} times the ${digits(base)} tok/s of what was asked for.`);
    return notes.join(" ");
  };

  const showResult = () => {
    const found = lookUp(state.variant, state.at), tok_s = rateOf(found);
    facts.replaceChildren();
    badge.className = found.planned ? "planned" : "between";
    rate.dataset.tokS = tok_s || "";
    if (!tok_s) {
      rate.textContent = found.planned ? "does not fit" : "not known";
      badge.textContent = found.planned ? "planned" : "between planned points, of which one does not fit";
      note.textContent = found.point.reason;
    } else {
      rate.textContent = `${found.planned ? "" : "about "}${digits(tok_s)} tok/s`;
      badge.textContent = found.planned ? "planned" : "between planned points: interpolated";
      note.textContent = noteOf(found, tok_s);
      const seconds = secondsOf(found, tok_s);
      if (seconds) put(`Time of ${state.requests.toLocaleString("en")} requests`, timeText(seconds));
      putMoney(tok_s, seconds);
      if (found.planned) putPlan(found.point);
    }
    const runs = found.planned && found.point.feasible;
    commandTitle.textContent = runs ? "Runs this plan:" : "Plans just this:";
    setCommand(command, runs ? found.point.command : planCommand());
  };

  function show() {
    for (const s of sliders) {
      const x = state.at[s.k], text = levelText(s.axis, valueAt(s.axis, x), true);
      s.input.value = Math.round(x * STEPS);
      s.input.setAttribute("aria-valuetext", text);
      s.output.textContent = text;
      s.stops.forEach((b, l) => b.setAttribute("aria-pressed", String(l === x)));
      drawShape(s);
    }
    variant.value = state.variant;
    showResult();
  }

  /* ---- the page ---- */

  const fill = () => {
    requests.value = data.requests || "";
    price.value = data.price?.per_hour || "";
  };
  const reset = make("button", { type: "button" }, "Back to what was asked for");
  reset.addEventListener("click", () => {
    state.variant = asked.variant;
    state.at = [...asked.at];
    state.requests = data.requests;
    state.price = data.price?.per_hour || 0;
    fill();
    show();
  });
  fill();
  const controls = make("form", {},
    ...(data.variants.length > 1 ? [control("variant", "Formats and KV policy", variant)] : []),
    ...sliders.map((s) => s.box),
    make("div", { className: "pair" }, control("requests", "Requests", requests),
      control("price", "Price per hour" + (currency ? ` (${currency})` : ""), price)),
    reset);
  controls.addEventListener("submit", (e) => e.preventDefault());
  const result = make("div", {},
    make("div", { role: "status" }, rate, badge, note), facts, commandBox);
  root.append(
    make("p", { className: "dim" },
      `${data.points.length} points were planned ahead. Values between them are interpolated, and say so; the shape above a slider is the rate along it.`),
    make("div", { className: "both" }, controls, result));
  root.hidden = false;
  for (const pre of document.querySelectorAll("pre.command")) {
    setCommand(pre, pre.textContent);
    pre.after(copyButton(pre));
  }
  let opened = []; /* paper cannot unfold what is folded */
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const d of opened) d.open = true;
  });
  addEventListener("afterprint", () => { for (const d of opened) d.open = false; });
  show();
})();
