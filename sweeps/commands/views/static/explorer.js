// The page: controls, what they choose, and what follows from it.
"use strict";

const byId = (id) => document.getElementById(id);
const controls = {};
let overview;
let latest = 0;

/** Dimensions that are axes of runs, those of several values first. */
const axes = Object.keys(about.dims).filter((dim) => about.dims[dim].values.length > 1);
const SCALES = [["linear", "linear"], ["log", "logarithmic"]];
const names = about.stores.map(({ name }) => name);

/** The regions of a phase diagram, if there are some, and what else is shown first. */
const region = about.observables?.find((each) => each.region);
const numbered = about.observables?.filter((each) => each !== region) ?? [];
const usual = numbered.find(({ name }) => name === "entropy" || name === "loss") ?? numbered[0] ?? region;

/** What the map can show: each sweep, and each minus those before it. */
const shows = [
  ...names.map((name, a) => ({ text: name, of: [a] })),
  ...names.flatMap((first, a) =>
    names.slice(a + 1).map((second, b) => ({ text: `${first} − ${second}`, of: [a, a + 1 + b] })),
  ),
];

function choice(id, text, options, value, changed = redraw) {
  const select = element("select", { id });
  select.append(...options.map(([key, words]) => element("option", { value: key, textContent: words })));
  if (value !== undefined) select.value = value;
  select.onchange = changed;
  const label = element("label", { htmlFor: id, textContent: text }, select);
  controls[id] = { label, input: select, value: () => select.value };
  return label;
}

function slider(id, text, values, start) {
  const input = element("input", { id, type: "range", min: 0, max: values.length - 1, value: start });
  const output = element("output", { htmlFor: id });
  const tell = () => {
    output.textContent = ` ${shown(values[input.value])}`;
    input.setAttribute("aria-valuetext", shown(values[input.value]));
  };
  input.oninput = () => {
    tell();
    redraw();
  };
  tell();
  const label = element("label", { htmlFor: id }, element("span", {}, text, output), input);
  controls[id] = { label, input, value: () => Number(input.value) };
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

function build() {
  byId("notes").append(...about.notes.map((note) => element("li", { textContent: note })));
  const runs = axes.filter((dim) => about.dims[dim].axis);
  const order = [...runs].sort((a, b) => {
    const rank = (dim) => canBeLog(about.dims[dim].values) + Math.min(about.dims[dim].values.length, 1e6);
    return rank(b) - rank(a);
  });
  const named = (dims) => dims.map((dim) => [dim, about.dims[dim].label]);
  const made = [
    choice("observable", "Quantity", about.observables.map((o) => [o.name, o.label]), region?.name ?? usual.name),
    choice("show", "Sweep", shows.map(({ text }, i) => [i, text])),
    choice("x", "Horizontal axis", named(runs), order[0], () => swap("x", "y")),
    choice("x-scale", "Horizontal scale", SCALES),
    choice("y", "Vertical axis", [["", "none: lines"], ...named(runs)], order[1] ?? "", () => swap("y", "x")),
    choice("y-scale", "Vertical scale", SCALES),
    choice("value-scale", "Scale of the quantity", SCALES),
    choice("time-scale", "Scale of steps in trajectories", SCALES, "linear"),
  ];
  const last = about.times.length - 1;
  if (last > 0) made.push(slider("time", "Step", about.times, last));
  const seeds = about.stores[0].seeds;
  const mean = [["mean", `mean of ${seeds.length}`]];
  if (seeds.length > 1)
    made.push(choice("seed", "Seed", [...mean, ...seeds.map((seed) => [seed, `seed ${seed}`])]));
  made.push(...axes.map(placeControl));
  byId("controls").append(...made);
  byId("controls").onsubmit = (event) => event.preventDefault();
  ["x", "y"].forEach(guessScale);
  overview = new Overview(byId("map"), describe, open);
  whenThemeChanges(redraw);
}

const whenThemeChanges = (draw) =>
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

/** Logarithmic where an axis spans a factor of ten. */
function guessScale(axis) {
  const values = about.dims[controls[axis].value()]?.values ?? [];
  const log = values.length > 2 && canBeLog(values) && values.at(-1) / values[0] >= 10;
  controls[`${axis}-scale`].input.value = log ? "log" : "linear";
}

let before = {};

/** An axis that is chosen twice changes places with the other one. */
function swap(changed, other) {
  if (controls[changed].value() === controls[other].value())
    controls[other].input.value = before[changed] ?? "";
  ["x", "y"].forEach(guessScale);
  redraw();
}

/** What the controls say. */
function chosen() {
  const places = {};
  for (const dim of Object.keys(about.dims)) {
    const value = controls[`at-${dim}`]?.value() ?? (about.dims[dim].axis ? 0 : "mean");
    places[dim] = value === "mean" ? value : Number(value);
  }
  const seed = controls.seed?.value() ?? "mean";
  return {
    observable: controls.observable.value(),
    of: shows[controls.show.value()].of,
    text: shows[controls.show.value()].text,
    time: controls.time?.value() ?? 0,
    seed: seed === "mean" ? seed : Number(seed),
    places,
  };
}

async function redraw() {
  const turn = ++latest;
  const view = chosen();
  const [x, y] = [controls.x.value(), controls.y.value()];
  before = { x, y };
  const regions = regionsOf(view.observable);
  const log = !regions && controls["value-scale"].value() === "log";
  const has = (dim) => about.stores.some((_, store) => innerOf(store, view.observable).includes(dim));
  for (const dim of axes)
    controls[`at-${dim}`].label.hidden = dim === x || dim === y || !(about.dims[dim].axis || has(dim));
  controls["y-scale"].label.hidden = !y;
  for (const [axis, dim] of [["x", x], ["y", y]]) {
    const allowed = dim && canBeLog(about.dims[dim].values);
    controls[`${axis}-scale`].input.disabled = !allowed;
    if (!allowed) controls[`${axis}-scale`].input.value = "linear";
  }
  if (!x) return alone(view);
  // Rows of the map are along the vertical axis.
  const dims = y ? [y, x] : [x];
  const wanted = y ? view.of : names.map((_, store) => store);
  // The region is read with any quantity, and some quantity with the region.
  const also = { ...view, observable: (regions ? usual : region)?.name ?? view.observable };
  const all = (of) =>
    Promise.all(
      names.map((_, store) =>
        wanted.includes(store) || view.of.includes(store) ? averaged(store, of, dims) : null,
      ),
    );
  const [cells, beside] = await Promise.all([all(view), region ? all(also) : null]);
  if (turn !== latest) return;
  const difference = view.of.length > 1;
  const label = about.observables.find(({ name }) => name === view.observable).label;
  const one = (found, name) =>
    difference ? minus(...view.of.map((store) => found[store]), regionsOf(name)) : found[view.of[0]];
  const own = one(cells, view.observable);
  byId("overview-title").textContent = `${label}: ${view.text}${stepOf(view)}`;
  if (!own) {
    byId("readout").textContent = `${view.text} has not recorded ${label}.`;
    Plotly.purge(byId("map"));
    overview.listens = overview.drawn = false;
    return;
  }
  await overview.draw({
    axes: y ? [x, y] : [x],
    kinds: ["x", "y"].map((axis) => controls[`${axis}-scale`].value()),
    cells: own,
    all: cells.map((each, store) => ({ cells: each, name: names[store] })),
    name: view.text,
    label: difference && !regions ? `difference of ${label}` : label,
    log: log && !difference,
    difference,
    view,
    regions: regions && (difference ? AGREEMENT : regions),
    also: beside && also.observable !== view.observable && { cells: one(beside, also.observable), view: also },
  });
  byId("readout").textContent = overview.cell ? describe(overview.cell) : "Point at a cell.";
  if (opened) await open(opened.cell, false);
  document.body.dataset.drawn = turn;
}

function stepOf(view) {
  const timed = view.of.some((store) => about.stores[store].arrays[view.observable]?.dims.some(isTime));
  return timed && about.times.length > 1 ? `, step ${shown(about.times[view.time])}` : "";
}

/** Places of all dimensions at a cell of the map. */
function placesAt([column, row]) {
  const { view, axes: [x, y] } = overview.drawn;
  return { ...view.places, [x]: column, ...(y && { [y]: row }) };
}

function settings(places) {
  const told = Object.entries(places).flatMap(([dim, place]) => {
    if (place === "mean") return [];
    const { values, together } = about.dims[dim];
    const also = Object.entries(together).map(([name, own]) => `${name} = ${shown(own[place])}`);
    return [`${dim} = ${shown(values[place])}`, ...also];
  });
  return told.join(", ");
}

/** Settings, value and status of a cell, in words. */
function describe([column, row]) {
  const { cells, view, shape, label, also } = overview.drawn;
  const cell = row * shape[0] + column;
  const sides = cells.sides ?? [cells];
  const counts = {};
  for (const { status, runs } of sides)
    for (const code of status.subarray(cell * runs, (cell + 1) * runs))
      counts[about.statuses[code]] = (counts[about.statuses[code]] ?? 0) + 1;
  const ended = Object.entries(counts).map(([name, number]) => `${number} ${name}`);
  const told = [`${label}${stepOf(view)}: ${valueAt(cells, cell, view.observable)}`];
  if (also?.cells) {
    const { label: beside } = about.observables.find(({ name }) => name === also.view.observable);
    told.push(`${beside}${stepOf(also.view)}: ${valueAt(also.cells, cell, also.view.observable)}`);
  }
  return [settings(placesAt([column, row])), ...told, ended.join(", ")].join("\n");
}

/** What a cell has of an observable, of a difference also what each sweep has. */
function valueAt(cells, cell, name) {
  const regions = regionsOf(name);
  const said = ({ mean, sd, runs }) => {
    if (!regions || Number.isNaN(mean[cell])) return quantity(mean[cell], sd[cell], runs);
    return regions[mean[cell]][1] + (runs > 1 ? ` (${sd[cell]} of ${runs} runs)` : "");
  };
  if (!cells.sides) return said(cells);
  const both = cells.sides.map(said).join("; ");
  const whole = regions ? AGREEMENT[cells.mean[cell]]?.[1] ?? "no value" : quantity(cells.mean[cell], 0, 1);
  return `${whole} (${both})`;
}

let opened = null;

/** Show the trajectories of a cell, of all sweeps. */
async function open(cell, move = true) {
  const within = cell.every((place, i) => place < overview.drawn.shape[i]);
  await showRuns(overview.drawn.view, placesAt(within ? cell : [0, 0]));
  opened = { cell };
  if (move) byId("runs-title").focus({ preventScroll: innerWidth >= 1000 });
}

/** What is opened, as `drawCurves` takes it. */
let drawn = null;

/** Draw the trajectories that are opened, and theory over them. */
function drawOpened() {
  const { stores, name, label } = drawn;
  const [log, logTime] = ["value-scale", "time-scale"].map((id) => controls[id].value() === "log");
  return drawCurves(stores, label, log, logTime, live?.traces(name) ?? []);
}

const live = about.live ? new Live(drawOpened) : null;

/** Values of axes at some places, as the server knows them. */
function valuesAt(places) {
  const along = Object.entries(places).filter(([dim]) => about.dims[dim].axis);
  const all = along.flatMap(([dim, place]) => {
    const { values, together } = about.dims[dim];
    return [[dim, values[place]], ...Object.entries(together).map(([name, own]) => [name, own[place]])];
  });
  return Object.fromEntries(all);
}

async function showRuns(view, places) {
  const began = performance.now();
  if (regionsOf(view.observable)) view = { ...view, observable: usual.name };
  const name = view.observable;
  const { label } = about.observables.find((each) => each.name === name);
  const runs = await Promise.all(names.map((_, store) => trajectories(store, view, places)));
  const stores = names.map((name, store) => ({ name, store, runs: runs[store] }));
  byId("runs").hidden = false;
  document.querySelector("main").classList.add("open");
  byId("runs-title").textContent = `Trajectories at ${settings(places) || "the only setting"}`;
  drawn = { stores: stores.filter((each) => each.runs.length), name, label };
  await drawOpened();
  fillTable(stores);
  showCommands(stores, places);
  if (overview.drawn) Plotly.Plots.resize(byId("map"));
  byId("runs").dataset.milliseconds = (performance.now() - began).toFixed(1);
  live?.open(valuesAt(places));
}

/** A sweep without an axis but the seed: there is no map, only trajectories. */
async function alone(view) {
  for (const id of ["map", "keys", "legend"]) byId(id).hidden = true;
  byId("readout").textContent = "One setting: its trajectories are below.";
  byId("overview-title").textContent = view.text;
  await showRuns(view, view.places);
  document.body.dataset.drawn = latest;
}

/** Theory without a sweep: a quantity over the steps. */
async function theoryAlone() {
  const { curves } = about.live;
  for (const id of ["overview", "stored"]) byId(id).hidden = true;
  byId("runs").hidden = false;
  document.querySelector("main").classList.add("alone");
  byId("runs-title").textContent = "Theory over steps";
  const redrawn = () => {
    const name = controls.observable.value();
    drawn = { stores: [], name, label: curves.find((each) => each.name === name).label };
    return drawOpened();
  };
  byId("controls").append(
    choice("observable", "Quantity", curves.map((each) => [each.name, each.label]), undefined, redrawn),
    choice("value-scale", "Scale of the quantity", SCALES, undefined, redrawn),
    choice("time-scale", "Scale of steps", SCALES, undefined, redrawn),
  );
  whenThemeChanges(redrawn);
  await redrawn();
  await live.open({});
}

async function start() {
  if (!about.stores.length) return theoryAlone();
  build();
  await redraw();
  if (about.live?.unfinished) follow(redraw, about.live.done);
}

start().then(() => {
  performance.mark("drawn");
  document.body.dataset.drawn ??= "theory";
});
