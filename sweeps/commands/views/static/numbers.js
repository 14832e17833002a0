// What the page knows of sweeps, and slices of their arrays.
"use strict";

const about = JSON.parse(document.getElementById("about").textContent);

/** What text in base64 stands for, as an answer of `fetch`. */
const decoded = (text) => fetch(`data:application/octet-stream;base64,${text}`);

/** Run Plotly, which lies compressed in the page. */
async function loadPlotly() {
  const { body } = await decoded(document.getElementById("plotly").textContent);
  const script = document.createElement("script");
  script.textContent = await new Response(body.pipeThrough(new DecompressionStream("gzip"))).text();
  document.head.append(script);
}

/** Arrays that lie in the page, decoded when they are first read. */
class Embedded {
  constructor() {
    this.decoded = new Map();
  }

  array(key, name) {
    if (!this.decoded.has(key)) this.decoded.set(key, this.decode(key, name));
    return this.decoded.get(key);
  }

  async decode(key, name) {
    const kind = { status: Int8Array, time: Float64Array }[name] ?? Float32Array;
    const text = document.querySelector(`script[data-array="${key}"]`).textContent;
    return new kind(await (await decoded(text)).arrayBuffer());
  }

  /**
   * The part of an array along `free` dimensions, each [dimension, size], in their order, and at
   * `fixed` places, {dimension: place}, of all others. It repeats along dimensions that it lacks.
   */
  async slice(store, name, fixed, free) {
    const { dims, shape } = about.stores[store].arrays[name];
    const values = await this.array(`${store}/${name}`, name);
    const strides = {};
    let stride = 1;
    for (let i = dims.length - 1; i >= 0; i--) {
      strides[dims[i]] = stride;
      stride *= shape[i];
    }
    const held = dims.filter((dim) => dim in fixed && !free.some(([loose]) => loose === dim));
    const start = held.reduce((sum, dim) => sum + fixed[dim] * strides[dim], 0);
    let places = Uint32Array.of(start);
    for (const [dim, size] of free) {
      const step = strides[dim] ?? 0;
      const longer = new Uint32Array(places.length * size);
      for (let i = 0, k = 0; i < places.length; i++)
        for (let j = 0; j < size; j++, k++) longer[k] = places[i] + j * step;
      places = longer;
    }
    const found = new values.constructor(places.length);
    for (let i = 0; i < places.length; i++) found[i] = values[places[i]];
    return found;
  }
}

/** Where slices come from: anything with the function `slice` of `Embedded`. */
const source = about.live ? new Served() : new Embedded();

function sizeOf(store, name, dim) {
  const array = about.stores[store].arrays[name];
  const place = array?.dims.indexOf(dim) ?? -1;
  return place < 0 ? 1 : array.shape[place];
}

/** Code, name and colour of the regions that an observable tells apart; null for numbers. */
const regionsOf = (name) => about.observables.find((each) => each.name === name).region ?? null;

/** Dimensions that can be axes of a map: of several runs, or of the entries that a quantity has. */
const axesOf = (name) =>
  Object.keys(about.dims).filter((dim) => {
    const { axis, values } = about.dims[dim];
    return values.length > 1 && (axis || about.stores.some((_, store) => innerOf(store, name).includes(dim)));
  });

/** Dimensions of an array that are neither axes of runs nor its own seeds and times. */
function innerOf(store, name) {
  const dims = about.stores[store].arrays[name]?.dims ?? [];
  return dims.filter((dim) => about.dims[dim] && !about.dims[dim].axis);
}

/** What runs have that did not end well, and no others. */
const FAILED = "first_bad_step";

/** Whether a run of this status counts in the mean of a quantity. */
const isCounted = (name, code) => (name === FAILED ? code > 0 : code === 0);

const isTime = (dim) => dim === "time" || dim === "record";

/**
 * Means over seeds, and over inner dimensions that are averaged, at every place of some axes.
 *
 * Returns arrays with an entry for each cell: `mean` and `sd` over the runs that ended well, NaN
 * where there is none; `error`, the standard error of the mean, 0 of the single solution of a theory
 * and NaN where one training run tells none; `lost`, the mean over the others that have a value; how many runs
 * there are, `runs`, are `bad`, or `missing`. The step at which runs fail is that of those that did not end well. Of regions, `mean`
 * is the place in the legend of the most common one, of all runs that have one, and `sd` the number
 * of its runs.
 */
async function averaged(store, view, axes) {
  const name = view.observable;
  const known = about.stores[store];
  if (!known.arrays[name]) return null;
  const fixed = { ...view.places, time: known.at[view.time], record: known.at[view.time] };
  const inner = innerOf(store, name).filter((d) => view.places[d] === "mean" && !axes.includes(d));
  const seed = known.seeds.indexOf(view.seed);
  const seeds = seed < 0 ? sizeOf(store, "status", "seed") : 1;
  // One that is picked is a place; all others are gone through.
  const along = seed < 0 ? [["seed", seeds]] : [];
  if (seed >= 0) fixed.seed = seed;
  const cells = axes.map((dim) => [dim, about.dims[dim].values.length]);
  const number = cells.reduce((product, [, size]) => product * size, 1);
  const within = inner.map((dim) => [dim, sizeOf(store, name, dim)]);
  const parts = within.reduce((product, [, size]) => product * size, 1);
  const [values, status] = await Promise.all([
    source.slice(store, name, fixed, [...cells, ...along, ...within]),
    source.slice(store, "status", fixed, [...cells, ...along]),
  ]);
  const [mean, sd] = [new Float32Array(number).fill(NaN), new Float32Array(number).fill(NaN)];
  const [error, lost] = [new Float32Array(number).fill(NaN), new Float32Array(number).fill(NaN)];
  const [bad, missing] = [new Uint32Array(number), new Uint32Array(number)];
  const exact = sizeOf(store, "status", "seed") === 1 && known.theory !== "simulation";
  const regions = regionsOf(name)?.map(([code]) => code);
  for (let cell = 0; cell < number; cell++) {
    let [count, sum, squares, ended, total] = [0, 0, 0, 0, 0];
    for (let run = cell * seeds; run < (cell + 1) * seeds; run++) {
      missing[cell] += status[run] < 0;
      bad[cell] += status[run] > 0;
      let value = 0;
      for (let i = run * parts; i < (run + 1) * parts; i++) value += values[i] / parts;
      if (isCounted(name, status[run])) {
        // Welford's update, which loses nothing where the spread is small.
        const delta = value - sum;
        count++;
        sum += delta / count;
        squares += delta * (value - sum);
      } else if (status[run] > 0 && Number.isFinite(value)) {
        ended++;
        total += value;
      }
    }
    if (ended) lost[cell] = total / ended;
    if (regions) {
      const there = values.subarray(cell * seeds, (cell + 1) * seeds);
      const numbers = regions.map((code) => there.filter((each) => each === code).length);
      sd[cell] = Math.max(...numbers);
      if (sd[cell]) mean[cell] = numbers.indexOf(sd[cell]);
    } else if (count) {
      mean[cell] = sum;
      sd[cell] = count > 1 ? Math.sqrt(squares / (count - 1)) : 0;
      if (count > 1 || exact) error[cell] = sd[cell] / Math.sqrt(count);
    }
  }
  return { mean, sd, error, lost, bad, missing, status, runs: seeds };
}

/** How two numbers differ, and the spread of that by the spreads of both. */
const DIFFERENCES = {
  absolute: { of: (a, b) => a - b, sd: (a, b, s, t) => Math.hypot(s, t), words: "difference of" },
  relative: {
    of: (a, b) => (a - b) / Math.abs(b),
    sd: (a, b, s, t) => Math.hypot(s / b, (a * t) / b ** 2),
    words: "relative difference of",
  },
  decades: {
    of: (a, b) => Math.log10(a / b),
    sd: (a, b, s, t) => Math.hypot(s / a, t / b) / Math.LN10,
    words: "decades between values of",
  },
};

/**
 * Of two sweeps, the first minus the second, cell by cell; of regions, whether they differ. For a
 * logarithmic scale, `log`, it is the size of the difference.
 */
function minus(a, b, regions, kind, log) {
  if (!a || !b) return null;
  const { of, sd } = DIFFERENCES[kind];
  const value = (one, other) => {
    const found = of(one, other);
    return Number.isFinite(found) ? (log ? Math.abs(found) : found) : NaN;
  };
  const differ = (one, other) => (Number.isNaN(one - other) ? NaN : Number(one !== other));
  return {
    mean: a.mean.map((own, i) => (regions ? differ : value)(own, b.mean[i])),
    sd: a.sd.map((own, i) => sd(a.mean[i], b.mean[i], own, b.sd[i])),
    error: a.error.map((own, i) => sd(a.mean[i], b.mean[i], own, b.error[i])),
    lost: a.mean.map(() => NaN),
    bad: a.bad.map((own, i) => own + b.bad[i]),
    missing: a.missing.map((own, i) => own + b.missing[i]),
    runs: Math.max(a.runs, b.runs),
    sides: [a, b],
  };
}

/** Standard errors of a difference within which seeds may have made it: 95 % of them are below. */
const CHANCE = 1.96;

/** Whether a difference, as `minus` returns them, may be chance in a cell. */
const mayBeChance = ({ mean, error }, cell) =>
  error[cell] > 0 && Math.abs(mean[cell]) <= CHANCE * error[cell];

/**
 * Every run of a sweep at a time: `dims` are its axes and seeds, [dimension, size, values], the last
 * of which changes fastest from run to run; `values` by observable, averaged over inner dimensions.
 */
async function everyRun(store, view, observables) {
  const known = about.stores[store];
  const runs = known.arrays.status.dims.filter((dim) => sizeOf(store, "status", dim) > 1);
  const ordered = [...runs.filter((dim) => dim !== "seed"), ...runs.filter((dim) => dim === "seed")];
  const free = ordered.map((dim) => [dim, sizeOf(store, "status", dim)]);
  const fixed = { ...view.places, time: known.at[view.time], record: known.at[view.time] };
  const status = await source.slice(store, "status", fixed, free);
  const values = {};
  for (const name of observables) {
    const inner = innerOf(store, name).filter((dim) => view.places[dim] === "mean");
    const within = inner.map((dim) => [dim, sizeOf(store, name, dim)]);
    const parts = within.reduce((product, [, size]) => product * size, 1);
    const all = await source.slice(store, name, fixed, [...free, ...within]);
    values[name] = parts === 1 ? all : new Float32Array(status.length);
    if (parts > 1) all.forEach((value, i) => (values[name][Math.floor(i / parts)] += value / parts));
  }
  const valuesOf = (dim) => (dim === "seed" ? known.seeds : about.dims[dim].values);
  return { dims: free.map(([dim, size]) => [dim, size, valuesOf(dim)]), status, values };
}

/**
 * The share of the variance of some runs' values that the means over each dimension explain, and
 * that of all of the cells of axes, whose seeds are then what is left.
 */
function explained(dims, values, runs) {
  const count = runs.length;
  const mean = runs.reduce((sum, run) => sum + values[run], 0) / count;
  const total = runs.reduce((sum, run) => sum + (values[run] - mean) ** 2, 0);
  const between = (groupOf, groups) => {
    const [sums, sizes] = [new Float64Array(groups), new Uint32Array(groups)];
    for (const run of runs) {
      sums[groupOf(run)] += values[run] - mean;
      sizes[groupOf(run)]++;
    }
    return sums.reduce((sum, own, i) => sum + (sizes[i] ? own ** 2 / sizes[i] : 0), 0) / total;
  };
  const seeds = dims.at(-1)?.[0] === "seed" ? dims.at(-1)[1] : 1;
  let stride = values.length;
  const shares = dims.map(([dim, size]) => {
    stride /= size;
    const step = stride;
    return [dim, between((run) => Math.floor(run / step) % size, size)];
  });
  return { shares, cells: between((run) => Math.floor(run / seeds), values.length / seeds), total };
}

/** Every run of a cell over time: its seed, its status, and its values at `times`. */
async function trajectories(store, view, places) {
  const name = view.observable;
  const known = about.stores[store];
  if (!known.arrays[name]) return [];
  const along = known.arrays[name].dims.find(isTime);
  const [seeds, steps] = [sizeOf(store, name, "seed"), along ? sizeOf(store, name, along) : 1];
  const inner = innerOf(store, name).filter((dim) => places[dim] === "mean");
  const within = inner.map((dim) => [dim, sizeOf(store, name, dim)]);
  const parts = within.reduce((product, [, size]) => product * size, 1);
  const [values, status] = await Promise.all([
    source.slice(store, name, places, [["seed", seeds], [along, steps], ...within]),
    source.slice(store, "status", places, [["seed", seeds]]),
  ]);
  const times = known.arrays.time
    ? Array.from(await source.slice(store, "time", places, [[along, steps]]))
    : Array.from({ length: steps }, (_, step) => step);
  return Array.from({ length: seeds }, (_, seed) => ({
    seed: known.seeds[seed],
    status: status[seed],
    times,
    values: Array.from({ length: steps }, (_, step) => {
      const first = (seed * steps + step) * parts;
      return values.subarray(first, first + parts).reduce((sum, each) => sum + each, 0) / parts;
    }),
  }));
}
