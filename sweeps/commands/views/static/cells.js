// A cell of the map: what it has in words and numbers, its trajectories, and one that is pinned.
"use strict";

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

/** Where the map has its lowest and its highest value, and how many other cells may have the same. */
function extremes({ mean, error }) {
  const [columns] = overview.drawn.shape;
  const last = (further) =>
    mean.reduce((found, value, cell) => (found < 0 ? !Number.isNaN(value) : further(value, mean[found])) ? cell : found, -1);
  const alike = (cell) =>
    mean.reduce((number, value, i) => number + (i !== cell && Math.abs(value - mean[cell]) <= CHANCE * Math.hypot(error[cell], error[i])), 0);
  const said = (cell) => {
    const number = alike(cell);
    const cells = number ? `${number} other cell${number > 1 ? "s" : ""}` : "no other cell";
    const others = error[cell] > 0 ? ` (${cells} within ${CHANCE} standard errors)` : "";
    return `${shown(mean[cell])} at ${settings(placesAt([cell % columns, Math.floor(cell / columns)]))}${others}`;
  };
  const [low, high] = [last((a, b) => a < b), last((a, b) => a > b)];
  return low < 0 ? "" : `Lowest: ${said(low)}. Highest: ${said(high)}.`;
}

/** Settings, value and status of a cell, in words. */
function describe([column, row]) {
  const { cells, view, shape, label, also } = overview.drawn;
  const cell = row * shape[0] + column;
  const sides = cells.sides ?? [cells];
  const ended = sides.map(({ status, runs }, side) => {
    const counts = {};
    for (const code of status.subarray(cell * runs, (cell + 1) * runs))
      counts[about.statuses[code]] = (counts[about.statuses[code]] ?? 0) + 1;
    // Of a band, cells have as many runs as they need.
    if (about.stores[view.of[side]].some && Object.keys(counts).length > 1) delete counts[about.statuses[-1]];
    const said = Object.entries(counts).map(([name, number]) => `${number} ${name}`).join(", ");
    return sides.length > 1 ? `${names[view.of[side]]}: ${said}` : said;
  });
  const told = [[label, view, cells]];
  if (also?.cells) told.push([about.observables.find(({ name }) => name === also.view.observable).label, also.view, also.cells]);
  const said = told.map(([what, of, there]) => {
    const spread = there.runs > 1 && !regionsOf(of.observable) ? ", mean ± sd over seeds" : "";
    return `${what}${stepOf(of)}${spread}: ${valueAt(there, cell, of.observable)}`;
  });
  return [settings(placesAt([column, row])), ...said, ended.join("; ")].join("\n");
}

/** What a cell has of an observable, of a difference also what each sweep has. */
function valueAt(cells, cell, name) {
  const regions = regionsOf(name);
  const said = ({ mean, sd, runs, missing }) => {
    if (!regions || Number.isNaN(mean[cell])) return quantity(mean[cell], sd[cell], runs);
    const there = runs - missing[cell];
    const share = there > 1 ? ` (${sd[cell]} of ${there} runs)` : "";
    return regions[mean[cell]][1] + (there ? share : " (inferred)");
  };
  if (!cells.sides) return said(cells);
  const both = cells.sides.map(said).join("; ");
  const whole = regions ? AGREEMENT[cells.mean[cell]]?.[1] ?? "no value" : quantity(cells.mean[cell], cells.sd[cell], cells.runs);
  const times = Math.abs(cells.mean[cell]) / cells.error[cell];
  const chance = mayBeChance(cells, cell) ? ", may be chance" : "";
  const errors = regions || !Number.isFinite(times) ? "" : `, ${shown(times)} standard errors${chance}`;
  return `${whole}${errors} (${both})`;
}

/** The map as rows below the names of columns: places, and of each sweep mean, spread and status. */
function mapRows() {
  const { axes: [x, y], cells, all, shape, view, label, regions } = overview.drawn;
  const sides = y ? cells.sides?.map((own, i) => [names[view.of[i]], own]) ?? [] : all.filter((each) => each.cells).map((each) => [each.name, each.cells]);
  const parts = y ? [[view.text, cells], ...sides] : sides;
  const columns = parts.flatMap(([name]) => [`${name}: mean`, `${name}: standard deviation`, `${name}: standard error`, `${name}: did not end well`, `${name}: not computed`]);
  const settled = Object.entries(view.places).filter(([dim, place]) => dim !== x && dim !== y && place !== "mean");
  const head = [x, ...(y ? [y] : []), ...settled.map(([dim]) => dim), "quantity", ...columns];
  const number = (value) => (Number.isNaN(value) ? "" : regions ? regions[value]?.[1] ?? value : value);
  const rows = Array.from({ length: shape[0] * shape[1] }, (_, cell) => [
    about.dims[x].values[cell % shape[0]],
    ...(y ? [about.dims[y].values[Math.floor(cell / shape[0])]] : []),
    ...settled.map(([dim, place]) => about.dims[dim].values[place]),
    `${label}${stepOf(view)}`,
    ...parts.flatMap(([, own]) => [number(own.mean[cell]), own.sd[cell], Number.isNaN(own.error[cell]) ? "" : own.error[cell], own.bad[cell], own.missing[cell]]),
  ]);
  return [head, ...rows];
}

let opened = false;

/** Show the trajectories of a cell, of all sweeps. */
async function open(cell, move = true) {
  await showRuns(overview.drawn.view, placesAt(cell));
  opened = true;
  remember();
  if (move) byId("runs-title").focus({ preventScroll: innerWidth >= 1000 });
}

/** What is opened, as `drawCurves` takes it, and the cell that is pinned next to it. */
let drawn = null;
let pinned = null;

/** Whether these are places of a cell on the axes of this page: an address can have anything. */
const arePlaces = (places) =>
  places instanceof Object &&
  Object.entries(places).every(
    ([dim, place]) => Object.hasOwn(about.dims, dim) && (place === "mean" || about.dims[dim].values[place] !== undefined),
  );

/** Draw the trajectories that are opened, and theory over them; a pinned cell has the same axes. */
async function drawOpened() {
  const { stores, name, label } = drawn;
  const [log, logTime] = ["value-scale", "time-scale"].map((id) => controls[id].value() === "log");
  const more = live?.traces(name) ?? [];
  const ends = endsOfCurves(pinned?.stores ? [stores, pinned.stores] : [stores], more, log);
  // Runs with times of their own share no step.
  const shared = !about.stores.some(({ arrays }) => Object.values(arrays).some(({ dims }) => dims.includes("record")));
  const step = controls.time && shared ? about.times[controls.time.value()] : undefined;
  const axes = { label, log, logTime, ends, step };
  await drawCurves(byId("curves"), { ...axes, stores, more });
  if (!pinned?.stores) return;
  await drawCurves(byId("pinned-curves"), { ...axes, stores: pinned.stores, more: [] });
  byId("pinned-words").textContent = besidePinned().join("\n");
}

/** 97.5 % quantiles of Student's distribution for 1 to 9 degrees of freedom; of more, at most 2.23. */
const STUDENT = [12.7, 4.3, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26];

/** By how much the opened cell differs from the pinned one at the step that is shown, in words: of each
 * sweep the mean over the seeds that ended well in both, which compares runs of the same data. */
function besidePinned() {
  const view = numbersOf(chosen());
  return drawn.stores.map(({ name, store, runs }) => {
    const there = pinned.stores.find((each) => each.store === store)?.runs ?? [];
    const value = ({ values }) => values[Math.min(about.stores[store].at[view.time], values.length - 1)];
    const differences = runs.flatMap((run) => {
      const other = there.find(({ seed }) => seed === run.seed);
      const both = other && [run, other].every(({ status }) => isCounted(view.observable, status));
      return both ? [value(run) - value(other)] : [];
    });
    const number = differences.length;
    if (!number) return `${name}: no run ended well in both cells.`;
    const mean = differences.reduce((sum, each) => sum + each, 0) / number;
    const told = `${name}${stepOf({ ...view, of: [store] })}: this cell − pinned = ${shown(mean)}`;
    if (number < 2) return `${told}.`;
    const error = Math.sqrt(differences.reduce((sum, each) => sum + (each - mean) ** 2, 0) / (number * (number - 1)));
    const chance = Math.abs(mean) <= (STUDENT[number - 2] ?? 2.23) * error ? ", which may be chance" : "";
    return `${told} ± ${shown(error)} (standard error over ${number} seeds)${chance}.`;
  });
}

/** Keep a cell next to those that are opened; null for none. */
async function pin(places) {
  pinned = places && { places };
  await showPinned();
  await drawOpened();
  remember();
}

async function showPinned() {
  byId("pinned-words").hidden = byId("pinned").hidden = !pinned;
  document.querySelector("main").classList.toggle("paired", !!pinned);
  if (pinned) {
    const view = numbersOf(chosen());
    const found = await runsOf(view, pinned.places);
    if (!pinned) return;
    pinned.stores = found.filter((each) => each.runs.length);
    byId("pinned-title").textContent = `Pinned: ${settings(pinned.places) || "the only setting"}`;
  }
  for (const id of ["map", "curves"]) if (byId(id).data) Plotly.Plots.resize(byId(id));
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

/** A view of numbers: regions have no trajectories. */
const numbersOf = (view) => (regionsOf(view.observable) ? { ...view, observable: usual.name } : view);

async function runsOf(view, places) {
  const runs = await Promise.all(names.map((_, store) => trajectories(store, view, places)));
  return names.map((name, store) => ({ name, store, runs: runs[store] }));
}

async function showRuns(seen, places) {
  const began = performance.now();
  const view = numbersOf(seen);
  const name = view.observable;
  const { label } = about.observables.find((each) => each.name === name);
  const stores = await runsOf(view, places);
  byId("runs").hidden = false;
  document.querySelector("main").classList.add("open");
  byId("runs-title").textContent = `Trajectories at ${settings(places) || "the only setting"}`;
  drawn = { stores: stores.filter((each) => each.runs.length), name, label };
  await drawOpened();
  fillTable(stores);
  showCommands(stores, view, places);
  if (overview.drawn) Plotly.Plots.resize(byId("map"));
  byId("runs").dataset.milliseconds = (performance.now() - began).toFixed(1);
  live?.open(valuesAt(places));
}
