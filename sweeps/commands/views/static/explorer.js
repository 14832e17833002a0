// The page: what the controls choose, and what follows from it.
"use strict";

let overview, every;
let latest = 0;

/** Dimensions of several values. */
const axes = Object.keys(about.dims).filter((dim) => about.dims[dim].values.length > 1);
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

/** Whose seeds can be picked: a theory may have none. */
const seeds = about.stores.map((store) => store.seeds).reduce((most, own) => (own.length > most.length ? own : most), []);

const RANGES = [
  ["robust", "robust: 2 to 98 %"],
  ["full", "all values"],
  ["steps", "all values of all steps"],
  ["hand", "by hand"],
];
const KINDS = [
  ["absolute", "absolute"],
  ["relative", "relative to the second"],
  ["decades", "ratio, in powers of ten"],
];
const DRAGS = [
  ["zoom", "zooms"],
  ["pan", "moves"],
  ["", "does nothing"],
];

function build() {
  byId("notes").append(...about.notes.map((note) => element("li", { textContent: note })));
  const runs = axes.filter((dim) => about.dims[dim].axis);
  const entries = axes.filter((dim) => !runs.includes(dim));
  const order = [...runs].sort((a, b) => {
    const rank = (dim) => canBeLog(about.dims[dim].values) + Math.min(about.dims[dim].values.length, 1e6);
    return rank(b) - rank(a);
  });
  const named = (dims) => dims.map((dim) => [dim, about.dims[dim].label]);
  const made = [
    choice("observable", "Quantity", about.observables.map((o) => [o.name, o.label]), region?.name ?? usual.name),
    choice("show", "Sweep", shows.map(({ text }, i) => [i, text])),
    choice("x", "Horizontal axis", named([...runs, ...entries]), order[0] ?? "", () => swap("x", "y")),
    choice("x-scale", "Horizontal scale", SCALES),
    choice("y", "Vertical axis", [["", "none: lines"], ...named([...runs, ...entries])], order[1] ?? "", () => swap("y", "x")),
    choice("y-scale", "Vertical scale", SCALES),
    choice("value-scale", "Scale of the quantity", SCALES),
    choice("time-scale", "Scale of steps in trajectories", SCALES, "linear"),
  ];
  const last = about.times.length - 1;
  if (shows.length > names.length) made.push(choice("kind", "Difference", KINDS));
  made.push(
    choice("range", "Range of values", RANGES, "robust", byHand),
    numberField("low", "Values from"),
    numberField("high", "Values to"),
    choice("drag", "Dragging the mouse", DRAGS, matchMedia("(pointer: coarse)").matches ? "" : "zoom"),
  );
  if (about.lines?.length) made.push(choice("lines", "Lines of theory", [["all", "shown"], ["", "hidden"]]));
  if (last > 0) {
    const stopped = () => {
      stop();
      redraw();
    };
    byId("steps").append(slider("time", "Step", about.times, last, stopped), button("Play", play));
    byId("steps").onsubmit = (event) => event.preventDefault();
    byId("steps").hidden = false;
  }
  const mean = [["mean", `mean of ${seeds.length}`]];
  if (seeds.length > 1)
    made.push(choice("seed", "Seed", [...mean, ...seeds.map((seed) => [seed, `seed ${seed}`])]));
  made.push(...axes.map(placeControl));
  byId("controls").append(...made);
  byId("controls").onsubmit = (event) => event.preventDefault();
  ["x", "y"].forEach(guessScale);
  overview = new Overview(byId("map"), describe, open, looked);
  every = new Every(openAt, remember);
  const zoomed = (factor) => () => overview.zoomBy(factor);
  byId("map-tools").append(
    button("Zoom in", zoomed(2)),
    button("Zoom out", zoomed(1 / 2)),
    button("Whole map", () => overview.zoomTo(null)),
    ...downloads(byId("map"), "map", mapRows),
    button("Copy the link to this view", () => copy(location.href)),
  );
  byId("curve-tools").append(...downloads(byId("curves"), "trajectories", () => runRows(drawn.stores)));
  byId("curve-tools").append(button("Pin this cell", () => pin(placesAt(cellNow()))));
  byId("pinned-tools").append(...downloads(byId("pinned-curves"), "pinned", () => runRows(pinned.stores)));
  byId("pinned-tools").append(button("Unpin", () => pin(null)));
  keepState();
  whenThemeChanges(redraw);
}

/** What the address keeps besides the controls. */
function keepState() {
  const truth = (word) => word === "true";
  keep("cell", () => String(!!overview.cell), (word) => (overview.cell = truth(word) ? [0, 0] : null));
  keep("open", () => String(opened), (word) => (opened = truth(word)));
  const ranges = () => overview.zoom?.ranges.flat().map((at) => Number(at.toPrecision(7)));
  keep("zoom", () => (ranges() ?? []).join(), (text) => {
    const ends = text.split(",").map(Number);
    const four = text && ends.length === 4 && ends.every(Number.isFinite);
    overview.zoom = four ? { ranges: [ends.slice(0, 2), ends.slice(2)] } : null;
  });
  keep("pin", () => (pinned ? JSON.stringify(pinned.places) : ""), (text) => {
    pinned = null;
    try {
      const places = text && JSON.parse(text);
      if (arePlaces(places)) pinned = { places };
    } catch {
      // An address that was cut off pins nothing.
    }
  });
  noteFirst();
  restore();
  before = { x: controls.x.value(), y: controls.y.value() };
  addEventListener("hashchange", () => {
    if (fragment() === location.hash) return;
    restore();
    redraw();
  });
}

/** A cell was looked at, or the map moved: its place is that of the axes' controls. */
function looked() {
  const { axes: dims } = overview.drawn;
  if (overview.cell) dims.forEach((dim, i) => putPlace(dim, overview.cell[i]));
  remember();
}

/** Begin a range by hand at the one that is seen. */
function byHand() {
  if (controls.range.value() === "hand")
    ["low", "high"].forEach((id, i) => (controls[id].input.value = shown(overview.drawn?.ends?.[i] ?? "")));
  redraw();
}

/** Open the cell at places of axes, which the map goes to. */
async function openAt(places) {
  for (const [dim, place] of Object.entries(places)) if (controls[`at-${dim}`]) putPlace(dim, place);
  overview.cell = [0, 0];
  await redraw();
  await open(cellNow());
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

/** Values of all steps of the map that is shown. */
let pooled = {};

/** The cell of the map that the controls of its axes name. */
const cellNow = () => [placeOf(controls.x.value()), controls.y.value() ? placeOf(controls.y.value()) : 0];

/** Show the controls that say something, and only these. */
function arrange(view, x, y, difference, regions) {
  for (const dim of axes)
    controls[`at-${dim}`].label.hidden = dim === x || dim === y || !axesOf(view.observable).includes(dim);
  for (const id of ["x", "x-scale", "y"]) controls[id].label.hidden = !x;
  controls["y-scale"].label.hidden = !y;
  byId("steps").querySelector("button")?.toggleAttribute("disabled", !stepOf(view));
  for (const [axis, dim] of [["x", x], ["y", y]]) {
    const allowed = dim && canBeLog(about.dims[dim].values);
    controls[`${axis}-scale`].input.disabled = !allowed;
    if (!allowed) controls[`${axis}-scale`].input.value = "linear";
  }
  const hand = controls.range.value() === "hand";
  controls.range.label.hidden = !!regions;
  for (const id of ["low", "high"]) controls[id].label.hidden = !hand || !!regions;
  if (controls.kind) controls.kind.label.hidden = !difference || !!regions;
  if (controls.lines) controls.lines.label.hidden = !linesOver(x, y).length;
}

/** The axes of the map; one that the quantity does not have gives way to one that it has. */
function axesNow(observable) {
  const allowed = axesOf(observable);
  for (const { input } of [controls.x, controls.y])
    for (const option of input.options) option.disabled = option.value !== "" && !allowed.includes(option.value);
  if (!allowed.includes(controls.y.value())) controls.y.input.value = "";
  const y = controls.y.value();
  if (!allowed.includes(controls.x.value())) controls.x.input.value = allowed.find((dim) => dim !== y) ?? "";
  return [controls.x.value(), y];
}

async function redraw() {
  const turn = ++latest;
  const view = chosen();
  const [x, y] = axesNow(view.observable);
  before = { x, y };
  const regions = regionsOf(view.observable);
  const difference = view.of.length > 1;
  const kind = controls.kind?.value();
  // A ratio in powers of ten is a logarithm already.
  const log = !regions && controls["value-scale"].value() === "log" && !(difference && kind === "decades");
  arrange(view, x, y, difference, regions);
  for (const id of ["map", "map-tools", "keys", "legend"]) byId(id).hidden = !x;
  document.querySelector("main").classList.toggle("alone", !x);
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
  const label = about.observables.find(({ name }) => name === view.observable).label;
  const one = (found, name, logs) =>
    difference
      ? minus(...view.of.map((store) => found[store]), regionsOf(name), kind, logs)
      : found[view.of[0]];
  const mode = controls.range.value();
  const ofSteps = () =>
    Promise.all(
      about.times.map(async (_, time) => {
        const found = await all({ ...view, time });
        const sides = y || difference ? [one(found, view.observable, log)] : found;
        return sides.filter(Boolean).flatMap(y ? ({ mean }) => Array.from(mean) : spreadOf);
      }),
    );
  const key = JSON.stringify([{ ...view, time: null }, x, y, kind, log]);
  if (mode === "steps" && pooled.key !== key) pooled = { key, values: ofSteps() };
  const [cells, beside, steps] = await Promise.all([all(view), region ? all(also) : null, mode === "steps" ? pooled.values : []]);
  if (turn !== latest) return;
  const own = one(cells, view.observable, log);
  byId("overview-title").textContent = `${label}: ${view.text}${stepOf(view)}`;
  if (!own) {
    byId("readout").textContent = `${view.text} has not recorded ${label}.`;
    Plotly.purge(byId("map"));
    overview.listens = overview.drawn = false;
    return;
  }
  const colours = endsOf(mode === "steps" ? steps.flat() : own.mean, {
    log,
    around: difference && !log,
    mode,
    low: controls.low.value(),
    high: controls.high.value(),
  });
  tellBeyond(y && !regions ? colours : null);
  byId("chance").hidden = !(y && difference) || !!regions;
  byId("hatched").hidden = !y;
  byId("crossed").hidden = !!y || !!regions;
  byId("spread").hidden = own.runs < 2 || !!regions;
  if (overview.cell) overview.cell = cellNow();
  const compared = log ? `size of the ${DIFFERENCES[kind]?.words}` : DIFFERENCES[kind]?.words;
  await overview.draw({
    axes: y ? [x, y] : [x],
    kinds: ["x", "y"].map((axis) => controls[`${axis}-scale`].value()),
    cells: own,
    all: cells.map((each, store) => ({ cells: each, name: names[store] })),
    name: view.text,
    label: difference && !regions ? `${compared} ${label}` : label,
    log,
    difference,
    view,
    ends: colours.ends,
    mode,
    drag: controls.drag.value(),
    // Theory draws them for the last step.
    lines: y && controls.lines?.value() && (!stepOf(view) || view.time === about.times.length - 1) ? linesOver(x, y) : [],
    regions: regions && (difference ? AGREEMENT : regions),
    also: beside && also.observable !== view.observable && { cells: one(beside, also.observable), view: also },
  });
  const failing = view.observable === FAILED ? "Means over the runs that did not end well; cells without one are empty. " : "";
  byId("extremes").textContent = regions ? "" : `${failing}${extremes(own)}`;
  byId("readout").textContent = overview.cell ? describe(overview.cell) : "Point at a cell.";
  if (pinned) await showPinned();
  if (opened) await open(cellNow(), false);
  await every.show({ store: view.of[0], view, ends: colours.ends, log });
  remember();
  document.body.dataset.drawn = turn;
}

/** Say which values have the colours of the ends without being there. */
function tellBeyond(colours) {
  if (!colours) return (byId("beyond").textContent = "");
  const { ends, beyond: number } = colours;
  const cells = number === 1 ? "1 cell lies" : `${number} cells lie`;
  byId("beyond").textContent = number ? `Colours go from ${shown(ends[0])} to ${shown(ends[1])}; ${cells} beyond.` : "";
}

/** Lines of a phase diagram over these axes, as traces. */
function linesOver(x, y) {
  return (about.lines ?? []).flatMap((each) => {
    const turned = each.axes[0] === y && each.axes[1] === x;
    if (!turned && (each.axes[0] !== x || each.axes[1] !== y)) return [];
    const [across, up] = turned ? [each.y, each.x] : [each.x, each.y];
    const line = { color: each.colour, dash: each.dash, width: each.width };
    return [{ type: "scatter", mode: "lines", hoverinfo: "skip", x: across, y: up, name: plain(each.name), line }];
  });
}

function stepOf(view) {
  const timed = view.of.some((store) => about.stores[store].arrays[view.observable]?.dims.some(isTime));
  return timed && about.times.length > 1 ? `, step ${shown(about.times[view.time])}` : "";
}

/** A sweep without an axis but the seed: there is no map, only trajectories. */
async function alone(view) {
  byId("readout").textContent = "One setting: its trajectories are below.";
  byId("overview-title").textContent = view.text;
  await showRuns(view, view.places);
  await every.show({ store: view.of[0], view, log: controls["value-scale"].value() === "log" });
  document.body.dataset.drawn = latest;
}

/** Theory without a sweep: a quantity over the steps. */
async function theoryAlone() {
  const { curves } = about.live;
  for (const id of ["overview", "stored", "every"]) byId(id).hidden = true;
  byId("runs").hidden = false;
  document.querySelector("main").classList.add("alone");
  byId("runs-title").textContent = "Theory over steps";
  const redrawn = () => {
    const name = controls.observable.value();
    drawn = { stores: [], name, label: curves.find((each) => each.name === name).label };
    remember();
    return drawOpened();
  };
  byId("controls").append(
    choice("observable", "Quantity", curves.map((each) => [each.name, each.label]), undefined, redrawn),
    choice("value-scale", "Scale of the quantity", SCALES, undefined, redrawn),
    choice("time-scale", "Scale of steps", SCALES, undefined, redrawn),
    choice("drag", "Dragging the mouse", DRAGS, "zoom", redrawn),
  );
  byId("curve-tools").append(...downloads(byId("curves"), "theory", () => live.rows()));
  noteFirst();
  restore();
  whenThemeChanges(redrawn);
  await redrawn();
  await live.open({});
  // Some tasks keep a quantity as it is: begin with one that changes.
  const name = controls.observable.value();
  const moving = curves.find((each) => live.moves(each.name));
  if (!location.hash.includes("observable=") && moving && !live.moves(name)) {
    controls.observable.input.value = moving.name;
    atFirst.set("observable", moving.name);
    await redrawn();
  }
}

async function start() {
  await loadPlotly();
  if (!about.stores.length) return theoryAlone();
  build();
  await redraw();
  if (!about.live?.unfinished) return;
  const changed = () => {
    pooled = {};
    redraw();
  };
  follow(changed, about.live.done);
}

start().then(() => {
  performance.mark("drawn");
  document.body.dataset.drawn ??= "theory";
});
