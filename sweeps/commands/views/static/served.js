// What a page asks its server for: slices of arrays, how far sweeps are, and theory at sliders.
"use strict";

/** What the server answers; what is wrong is said on the page. */
async function ask(route, asked) {
  const problem = document.getElementById("problem");
  let answer;
  try {
    answer = await fetch(route, { method: "POST", body: JSON.stringify(asked) });
  } catch {
    problem.textContent = "The server does not answer. Run the command again, and open its new address.";
    throw new Error(problem.textContent);
  }
  if (answer.ok) {
    problem.textContent = "";
    return answer;
  }
  const { error } = await answer.json();
  problem.textContent = error;
  throw new Error(error);
}

/** Arrays that the server reads from the store when they are needed. */
class Served {
  async slice(store, name, fixed, free) {
    const kind = { status: Int8Array, time: Float64Array }[name] ?? Float32Array;
    const answer = await ask("slice", { array: `${store}/${name}`, fixed, free });
    return new kind(await answer.arrayBuffer());
  }
}

/** Ask how far sweeps are as long as they are running, and call `changed` where there is more. */
async function follow(changed, before) {
  const { notes, done, unfinished } = await (await ask("progress", {})).json();
  const items = notes.map((note) => element("li", { textContent: note }));
  document.getElementById("notes").replaceChildren(...items);
  if (done !== before) changed();
  if (unfinished) setTimeout(() => follow(changed, done), about.live.refresh);
}

/** Milliseconds after which the page says why there is no curve yet. */
const SLOW = 150;

/** Theory at the places of some sliders. */
class Live {
  /** `redraw` draws the figure again, with what `traces` says. */
  constructor(redraw) {
    this.redraw = redraw;
    this.form = document.getElementById("sliders");
    this.words = document.getElementById("words");
    this.form.onsubmit = (event) => event.preventDefault();
    document.getElementById("live").hidden = false;
    this.asking = this.late = false;
  }

  /** Begin at the settings of a cell; sliders that were dragged stay as long as it is the same. */
  async open(chosen) {
    const key = JSON.stringify(chosen);
    if (this.key === key) return;
    this.key = key;
    this.chosen = chosen;
    this.found = null;
    this.form.replaceChildren();
    try {
      const { sliders } = await (await ask("sliders", { chosen })).json();
      if (this.key !== key) return;
      this.values = Object.fromEntries(sliders.map(({ name, value }) => [name, value]));
      this.form.replaceChildren(...sliders.map((each) => this.slider(each)));
    } catch (error) {
      this.say([error.message]);
      return;
    }
    await this.solve();
  }

  slider({ name, label, values, value }) {
    const start = values.indexOf(value);
    const input = element("input", { id: `live-${name}`, type: "range", min: 0, max: values.length - 1 });
    input.value = start;
    const output = element("output", { htmlFor: input.id });
    const tell = () => {
      const text = values[input.value] === null ? "smallest" : shown(values[input.value]);
      output.textContent = ` ${text}`;
      input.setAttribute("aria-valuetext", text);
    };
    input.oninput = () => {
      tell();
      this.values[name] = values[input.value];
      this.solve();
    };
    tell();
    return element("label", { htmlFor: input.id }, element("span", {}, label, output), input);
  }

  /** Ask for the curve; of what is asked meanwhile only the newest is asked next. */
  async solve() {
    if (this.asking) {
      this.late = true;
      return;
    }
    this.asking = true;
    const began = performance.now();
    const slow = setTimeout(() => this.busy("Compiling the theory for this kind of run, which takes seconds."), SLOW);
    const { key, chosen, values } = this;
    try {
      const found = await (await ask("theory", { chosen, values })).json();
      if (key === this.key) {
        this.found = found;
        this.say(found.words);
      }
    } catch (error) {
      this.found = null;
      this.say([error.message]);
    }
    clearTimeout(slow);
    this.busy("");
    await this.redraw();
    this.asking = false;
    const { dataset } = document.getElementById("live");
    dataset.milliseconds = (performance.now() - began).toFixed(1);
    if (this.late) {
      this.late = false;
      await this.solve();
    } else dataset.answers = Number(dataset.answers ?? 0) + 1;
  }

  busy(words) {
    document.getElementById("busy").textContent = words;
  }

  /** Whether a quantity changes by more than rounding. */
  moves(observable) {
    const values = (this.found?.curves[observable] ?? []).filter((value) => value !== null);
    return values.length > 1 && !spanOf(values).wider;
  }

  /** The curves as rows below the names of their columns. */
  rows() {
    const { times = [], curves = {} } = this.found ?? {};
    const named = Object.entries(curves);
    return [["step", ...named.map(([name]) => name)], ...times.map((time, i) => [time, ...named.map(([, own]) => own[i])])];
  }

  say(words) {
    this.words.replaceChildren(...words.map((text) => element("li", { textContent: text })));
  }

  /** The curve of an observable; none where theory has none. */
  traces(observable) {
    const values = this.found?.curves[observable];
    if (!values) return [];
    const line = { color: themed().text, width: 3, dash: "dot" };
    const hover = "step %{x:.4g}: %{y:.4g}<extra>theory, live</extra>";
    return [{ x: this.found.times, y: values, mode: "lines", line, name: "theory, live", hovertemplate: hover }];
  }
}
