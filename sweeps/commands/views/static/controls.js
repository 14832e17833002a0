// Controls, what they say, and the address of the page, which keeps it.
"use strict";

const byId = (id) => document.getElementById(id);

const element = (name, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
};

const SCALES = [["linear", "linear"], ["log", "logarithmic"]];
const controls = {};

/**
 * What the address keeps, by name: each has `read`, which gives text, and `write`, which takes it.
 * Only what is not as it was at first is written there.
 */
const kept = new Map();
const atFirst = new Map();

const keep = (name, read, write) => kept.set(name, { read, write });

/** Note how everything is, before an address changes it. */
const noteFirst = () => kept.forEach(({ read }, name) => atFirst.set(name, read()));

/** The part of the address behind the # that shows what is shown here. */
function fragment() {
  const words = new URLSearchParams();
  for (const [name, { read }] of kept) {
    const text = read();
    if (text !== atFirst.get(name)) words.set(name, text);
  }
  return `#${words}`;
}

/** Write the address, without a place in the history for each movement of a slider. */
function remember() {
  // Browsers allow few changes of an address in a second.
  if (playing) return;
  const wanted = fragment();
  if (wanted === (location.hash || "#")) return;
  try {
    history.replaceState(null, "", wanted);
  } catch {
    // A notebook shows the page in a frame that has no address of its own.
  }
}

/** Put everything as the address says, and all else as it was at first. */
function restore() {
  const words = new URLSearchParams(location.hash.slice(1));
  for (const [name, { write }] of kept) write(words.get(name) ?? atFirst.get(name));
}

function choice(id, text, options, value, changed = redraw) {
  const select = element("select", { id });
  select.append(...options.map(([key, words]) => element("option", { value: key, textContent: words })));
  if (value !== undefined) select.value = value;
  select.onchange = changed;
  const label = element("label", { htmlFor: id, textContent: text }, select);
  controls[id] = { label, input: select, value: () => select.value };
  const known = (word) => options.some(([key]) => String(key) === word);
  keep(id, () => select.value, (word) => known(word) && (select.value = word));
  return label;
}

function slider(id, text, values, start, changed = redraw) {
  const input = element("input", { id, type: "range", min: 0, max: values.length - 1, value: start });
  const output = element("output", { htmlFor: id });
  const tell = () => {
    output.textContent = ` ${shown(values[input.value])}`;
    input.setAttribute("aria-valuetext", shown(values[input.value]));
  };
  const put = (place) => {
    input.value = place;
    tell();
  };
  input.oninput = () => {
    tell();
    changed();
  };
  tell();
  const label = element("label", { htmlFor: id }, element("span", {}, text, output), input);
  controls[id] = { label, input, value: () => Number(input.value), put };
  const write = (word) => {
    const place = placeOn(values, word);
    if (place >= 0) put(place);
  };
  keep(id, () => String(values[input.value]), write);
  return label;
}

function numberField(id, text, changed = redraw) {
  const input = element("input", { id, type: "number", step: "any", onchange: changed });
  const label = element("label", { htmlFor: id, textContent: text }, input);
  const value = () => (input.value === "" ? NaN : Number(input.value));
  controls[id] = { label, input, value };
  keep(id, () => input.value, (word) => (input.value = word));
  return label;
}

/** A control for a place along a dimension; inner ones can be averaged as well. */
function placeControl(dim) {
  const { values, axis, label } = about.dims[dim];
  const words = values.some((value) => typeof value !== "number");
  if (axis && !words) return slider(`at-${dim}`, label, values, values.length >> 1);
  const options = values.map((value, place) => [place, shown(value)]);
  if (!axis) options.unshift(["mean", `mean of ${values.length}`]);
  return choice(`at-${dim}`, label, options);
}

const placeOf = (dim) => Number(controls[`at-${dim}`]?.value() ?? 0) || 0;

/** Put an axis at a place, whether its control is seen or the map runs along it. */
function putPlace(dim, place) {
  const { input, put } = controls[`at-${dim}`];
  if (put) put(place);
  else input.value = place;
}

/** Copy text, or select the element that has it where the browser does not let us. */
async function copy(text, shownIn) {
  const done = await navigator.clipboard?.writeText(text).then(() => true, () => false);
  if (!done && shownIn) getSelection().selectAllChildren(shownIn);
  byId("copied").textContent = done ? "Copied." : "Selected: copy it with Ctrl+C.";
}

const button = (textContent, onclick) => element("button", { type: "button", textContent, onclick });

/** The playback of steps that goes on, and the longest playback and frame, in milliseconds. */
let playing = null;
const [WHOLE, FRAME] = [8000, 400];

/** Show one step after the other, from the one that is shown, or from the first one after the last, on axes that all
 * steps share; or stop that. */
async function play() {
  if (playing) return stop();
  const own = (playing = {});
  byId("steps").querySelector("button").textContent = "Pause";
  controls.range.input.value = "steps";
  const last = about.times.length - 1;
  for (let time = controls.time.value() % last; time <= last; time++) {
    const due = new Promise((resolve) => setTimeout(resolve, Math.min(FRAME, WHOLE / about.times.length)));
    controls.time.put(time);
    await redraw();
    await due;
    if (playing !== own) return;
  }
  stop();
}

function stop() {
  playing = null;
  byId("steps").querySelector("button").textContent = "Play";
  remember();
}

/** Hand a file to the reader. */
function download(name, type, text) {
  const link = element("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** Rows as text with commas between their entries. */
function csv(rows) {
  const entry = (value) => {
    const text = String(value ?? "");
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => `${row.map(entry).join(",")}\n`).join("");
}

/** Buttons that download a figure as a picture, and its numbers, `rows()`. */
function downloads(figure, name, rows) {
  const picture = (format) =>
    button(format.toUpperCase(), () => {
      const { width, height } = figure.getBoundingClientRect();
      return Plotly.downloadImage(figure, { format, filename: name, width, height, scale: 2 });
    });
  const numbers = button("CSV", () => download(`${name}.csv`, "text/csv", csv(rows())));
  const made = [picture("png"), picture("svg"), numbers];
  made.forEach((each) => each.setAttribute("aria-label", `Download ${name} as ${each.textContent}`));
  return [element("span", { textContent: "Download:" }), ...made];
}
