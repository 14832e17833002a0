// The page "Play with it": sliders, curves that follow them, and what they show in words.

(() => {
  "use strict";

  const span = (first, last) => Array.from({ length: last - first + 1 }, (_, i) => first + i);
  const counts = [1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50, 100];
  // Twenty in each decade from 10 ** first up, with two digits.
  const rates = (first) =>
    span(0, 20 * (1 - first)).map((i) => Number((10 ** (first + i / 20)).toPrecision(2)));
  // What can be chosen, by the name of its setting: its words, its values, and the group it is in.
  const SLIDERS = {
    etaY: ["learning rate of Y", rates(-1), "Training"],
    etaZ: ["learning rate of Z", rates(-2), "Training"],
    momentum: ["momentum", [0, 0.9, 0.95, 0.99], "Training"],
    steps: ["steps", [10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5], "Training"],
    Q: ["queries", counts, "Task"],
    perQuery: ["classes per query", counts, "Task"],
    D: ["distinct tokens per class", span(1, 30), "Task"],
    rarest: ["weight of rarest distinct", span(1, 10).map((tenth) => tenth / 10), "Task"],
    C: ["common tokens", span(0, 30), "Task"],
    weight: ["weight of a common token", [0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10], "Task"],
    spare: ["vocabulary M", [1, 2, 3, 5, 10, 20, 50, 100, 1000], "Task"],
  };
  const START = { etaY: 1, etaZ: 1, momentum: 0, steps: 1000 };
  const SMALL = { Q: 2, perQuery: 1, D: 10, rarest: 0.1, C: 10, weight: 1, spare: 1 };
  const PRESETS = {
    "Syn-Small": { ...START, ...SMALL },
    "Syn-Medium": { ...START, ...SMALL, Q: 3, perQuery: 2 },
    "One common token": { ...START, ...SMALL, D: 5, C: 1, weight: 5, etaZ: 0.1 },
    "1000 classes": { ...START, ...SMALL, Q: 100, perQuery: 10, etaY: 10, steps: 1e5 },
  };
  const POINTS = 160;
  // Milliseconds without a move after which the words follow: a reader is told once, at the end.
  const PAUSE = 200;

  const root = document.getElementById("play");
  const inputs = {};
  const values = { ...PRESETS["Syn-Small"] };
  let found = null;
  let asked = 0;

  function add(parent, name, properties = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(properties)) {
      if (key in made) made[key] = value;
      else made.setAttribute(key, value);
    }
    made.append(...children);
    parent.append(made);
    return made;
  }

  function show(value) {
    if (!Number.isFinite(value)) return "not a number";
    const small = value !== 0 && Math.abs(value) < 1e-3;
    return small ? value.toExponential(1) : String(Number(value.toPrecision(3)));
  }

  function settings() {
    const { Q, D, C, rarest, weight, etaY, etaZ, momentum } = values;
    const K = Q * values.perQuery;
    // Contextual tokens, and ids of their own for queries and next tokens, as in dynsim.syn.
    const M = values.spare * (C + K * D + Q + K);
    return { task: { D, C, rarest, weight, Q, K, M }, optimizer: { etaY, etaZ, momentum } };
  }

  // Curves at step 0 and at POINTS + 1 steps from the first to the last.
  function solve() {
    const { task, optimizer } = settings();
    const times = [0, ...span(0, POINTS).map((i) => values.steps ** (i / POINTS))];
    found = { ...symmetricFlow.solve(task, optimizer, times), times, task };
    found.peak = found.speed.indexOf(Math.max(...found.speed.filter(Number.isFinite)));
  }

  root.replaceChildren();
  const presets = add(root, "p", { className: "presets" }, "Start from ");
  for (const [name, preset] of Object.entries(PRESETS)) {
    add(presets, "button", { type: "button", onclick: () => choose(preset) }, name);
  }
  const groups = {};
  for (const [name, [words, allowed, group]] of Object.entries(SLIDERS)) {
    groups[group] ??= add(root, "fieldset", {}, add(root, "legend", {}, group));
    inputs[name] = slider(groups[group], `play-${name}`, words, allowed.length - 1, (place) => {
      values[name] = allowed[place];
      ask();
    });
  }
  const says = add(root, "p", { className: "says", role: "status" });
  const panels = add(root, "div", { className: "panels" });
  const PANELS = {
    attention: ["Attention on a token", false],
    speed: ["Speed γ = f·g", true],
    entropy: ["Entropy of attention on distinct tokens (nat)", false],
    loss: ["Loss (nat)", true],
  };
  for (const [name, [title, log]] of Object.entries(PANELS)) {
    PANELS[name] = lifeChart.panel(panels, title, log);
    add(PANELS[name].caption, "span", { className: "value" });
  }
  const key = add(root, "p", { className: "key" });
  for (const [kind, words] of [
    ["distinct", "distinct tokens, from rare to frequent"],
    ["common", "each common token"],
    ["peak", "peak of the speed"],
    ["look", "the step that is read"],
  ]) {
    add(key, "span", { className: kind }, words);
  }
  const look = slider(root, "play-look", "read the curves at step", POINTS, () => read());
  look.value = POINTS;
  // What is wider than a small screen scrolls by itself, by keys too.
  function details(title, kind) {
    const body = add(root, "details", {}, add(root, "summary", {}, title));
    return add(body, kind, { tabIndex: 0, role: "region", ariaLabel: title });
  }
  const table = add(details("Numbers", "div"), "table");
  const code = details("The same in Python", "pre");

  function slider(parent, id, words, max, changed) {
    const row = add(parent, "div", { className: "slider" });
    add(row, "label", { htmlFor: id }, words);
    // No <output>, which would be announced on every move, next to the slider's own value.
    add(row, "span", { className: "value", ariaHidden: "true" });
    const input = add(row, "input", { type: "range", id, min: 0, max, step: 1 });
    input.addEventListener("input", () => changed(Number(input.value)));
    return input;
  }

  function write(input, text, announced = text) {
    input.previousElementSibling.textContent = text;
    input.setAttribute("aria-valuetext", announced);
  }

  function choose(preset) {
    Object.assign(values, preset);
    ask();
  }

  // At most one solve a frame, however fast a slider moves.
  function ask() {
    if (!asked) asked = requestAnimationFrame(draw);
  }

  function draw() {
    asked = 0;
    solve();
    const { task, times, peak } = found;
    for (const [name, [, allowed]] of Object.entries(SLIDERS)) {
      inputs[name].value = allowed.indexOf(values[name]);
      write(inputs[name], name === "spare" ? String(task.M) : String(values[name]));
    }
    const colours = lifeChart.shades(task.D);
    const attention = found.distinct.map((values, i) => ({ values, colour: colours[i] }));
    if (task.C) attention.push({ values: found.common, colour: "#D55E00", dashed: true });
    const curves = {
      attention,
      speed: [{ values: found.speed, colour: "#CC79A7" }],
      entropy: [{ values: found.entropy, colour: "#009E73" }],
      loss: [{ values: found.loss, colour: "#0072B2" }],
    };
    for (const [name, panel] of Object.entries(PANELS)) panel.draw(times, curves[name], times[peak]);
    read();
    clearTimeout(draw.words);
    draw.words = setTimeout(tell, PAUSE);
    document.body.dataset.drawn = Number(document.body.dataset.drawn ?? 0) + 1;
  }

  // Values at the step that is looked at, in the captions.
  function read() {
    const k = Number(look.value) + 1;
    const texts = {
      attention: found.task.C
        ? `${show(found.distinct.at(-1)[k])} most frequent, ${show(found.common[k])} common`
        : `${show(found.distinct.at(-1)[k])} most frequent`,
      speed: show(found.speed[k]),
      entropy: show(found.entropy[k]),
      loss: show(found.loss[k]),
    };
    const step = show(found.times[k]);
    const spoken = Object.entries(texts).map(([name, text]) => `${name} ${text}`);
    write(look, step, `${step}: ${spoken.join(", ")}`);
    for (const [name, panel] of Object.entries(PANELS)) {
      panel.look(found.times[k]);
      panel.caption.lastChild.textContent = texts[name];
    }
  }

  function tell() {
    says.textContent = playWords.regime(found, show);
    for (const [name, text] of Object.entries(playWords.curves(found, show))) PANELS[name].describe(text);
    playWords.fill(table, found, show);
    code.textContent = playWords.python(found.task, settings().optimizer, values.steps);
  }

  draw();
})();
