// The trajectories of a cell: curves, their numbers, and how to select or run the cell again.
"use strict";

/** Curves of all runs, a broken line for each sweep, and their means; a cross where a run that did not end well has its
 * last value. */
function curves(stores, log, [low, high]) {
  return stores.flatMap(({ name, store, runs }) => {
    const colour = colourOf(store);
    const single = runs.every((run) => run.values.length === 1);
    const shared = { legendgroup: name, line: { color: colour, dash: dashOf(store) } };
    const broken = { x: [], y: [] };
    const crosses = { x: [], y: [] };
    for (const run of runs) {
      const drawable = (value) => Number.isFinite(value) && (!log || value > 0);
      run.values.forEach((value, i) => {
        broken.x.push(run.times[i]);
        broken.y.push(drawable(value) ? value : null);
      });
      const last = run.values.findLastIndex(drawable);
      if (run.status > 0 && last >= 0) {
        crosses.x.push(run.times[last]);
        crosses.y.push(Math.max(low, Math.min(high, run.values[last])));
      }
      broken.x.push(null);
      broken.y.push(null);
    }
    const mode = single ? "markers" : "lines";
    const hover = "step %{x}: %{y:.4g}<extra></extra>";
    const of = { ...shared, ...broken, mode, hovertemplate: hover, marker: { color: colour, size: 8 } };
    const marker = { symbol: "x", size: 11, color: colour };
    const ended = { ...shared, ...crosses, mode: "markers", marker, name: failedOf(name), cliponaxis: false, hoverinfo: "skip" };
    const failed = crosses.x.length ? [ended] : [];
    const good = runs.filter((run) => run.status === 0);
    if (runs.length < 2 || !good.length) return [{ ...of, name: plain(name) }, ...failed];
    const mean = (i) => good.reduce((sum, run) => sum + run.values[i], 0) / good.length;
    return [
      { ...of, name: plain(name), opacity: 0.45, showlegend: false },
      {
        ...shared,
        x: runs[0].times,
        y: runs[0].times.map((_, i) => mean(i)),
        mode,
        marker: { color: colour, size: 10, symbol: "diamond" },
        line: { ...shared.line, width: 3.5 },
        name: plain(`${name}, mean of ${good.length}`),
        hovertemplate: hover,
      },
      ...failed,
    ];
  });
}

/** What a legend calls the crosses of runs that did not end well. */
const failedOf = (name) => plain(`${name}: did not end well`);

/** Draw the curves of a cell into a figure; `ends` of the values, which other figures may share. */
function drawCurves(figure, { stores, label, log, logTime, more, ends, step }) {
  const traces = [...curves(stores, log, ends), ...more];
  const layout = layoutOf(
    { title: "step", kind: logTime ? "log" : "linear" },
    { title: label, kind: log ? "log" : "linear", range: ends },
  );
  layout.showlegend = true;
  layout.legend = { orientation: "h", y: 1.02, yanchor: "bottom" };
  layout.dragmode = controls.drag?.value() || false;
  const line = { color: themed().soft, width: 1, dash: "dot" };
  if (logTime ? step > 0 : step !== undefined)
    layout.shapes = [{ type: "line", x0: step, x1: step, yref: "paper", y0: 0, y1: 1, line }];
  return Plotly.react(figure, traces, layout, { ...LOOKS, doubleClick: "reset+autosize" });
}

/** Ends of the values of cells' curves, and of `more`: runs that diverge would hide the others. */
function endsOfCurves(cells, more, log) {
  const runs = cells.flat().flatMap((each) => each.runs);
  const good = runs.filter(({ status }) => status === 0).map(({ values }) => values);
  const shown = [...good, ...more.map(({ y }) => y)];
  return roomy(spanOf((shown.length ? shown : runs.map(({ values }) => values)).flat(), log).ends, log);
}

/** Numbers of trajectories, a row for each value below the names of the columns. */
const runRows = (stores) => [
  ["sweep", "seed", "status", "step", "value"],
  ...stores.flatMap(({ name, runs }) =>
    runs.flatMap(({ seed, status, times, values }) =>
      Array.from(values, (value, i) => [name, seed ?? "", about.statuses[status], times[i], value.toPrecision(7)]),
    ),
  ),
];

/** Rows as a table, the first of which are the names of its columns. */
function tableOf([names, ...rows]) {
  const head = names.map((textContent) => element("th", { scope: "col", textContent }));
  const body = rows.map((row) => element("tr", {}, ...row.map((textContent) => element("td", { textContent }))));
  return element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body));
}

/** The numbers of all trajectories, made when somebody opens them. */
function fillTable(stores) {
  const details = byId("numbers");
  details.ontoggle = () => details.open && byId("table").replaceChildren(tableOf(runRows(stores)));
  details.ontoggle();
}

/** A value of an axis in Python. */
function python(value) {
  if (["inf", "-inf", "nan"].includes(value)) return `float("${value}")`;
  return typeof value === "string" ? JSON.stringify(value) : String(value);
}

/** Python that selects what a sweep has of a cell with xarray, and prints it as the page shows it. */
function snippetOf(store, view, places) {
  const { python: opening, seeds, arrays, at } = about.stores[store];
  const { dims } = arrays[view.observable];
  const given = (pairs) => pairs.map(([dim, value]) => `${dim}=${python(value)}`).join(", ");
  const runs = arrays.status.dims.filter((dim) => about.dims[dim]).map((dim) => [dim, about.dims[dim].values[places[dim]]]);
  if (dims.includes("seed") && seeds.includes(view.seed)) runs.push(["seed", view.seed]);
  const inner = innerOf(store, view.observable);
  const picked = inner.filter((dim) => places[dim] !== "mean");
  const among = [...(dims.includes("time") ? [["time", about.times[view.time]]] : []), ...picked.map((dim) => [dim, about.dims[dim].values[places[dim]]])];
  const averages = inner.filter((dim) => places[dim] === "mean");
  const lines = [...opening, runs.length ? `cell = runs.sel(${given(runs)})` : "cell = runs"];
  lines.push(`values = cell[${python(view.observable)}].where(cell["status"] ${view.observable === FAILED ? ">" : "=="} 0)`);
  if (averages.length) lines.push(`values = values.mean(${JSON.stringify(averages)}, skipna=False)`);
  lines.push(`print(values.to_series())`);
  const last = [among.length && `.sel(${given(among)})`, dims.includes("record") && `.isel(record=${at[view.time]})`];
  lines.push(`shown = values${last.filter(Boolean).join("")}`);
  lines.push("print(float(shown.mean()), float(shown.std(ddof=1)))");
  return lines.join("\n");
}

/** What to type to run a cell of a sweep again, with all of its seeds. */
function commandOf(store, places) {
  const { recipe, seeds } = about.stores[store];
  if (!recipe) return null;
  const axes = Object.entries(recipe.axes).map(([name, { dim, values }]) => {
    const chosen = dim === "seed" ? values.slice(0, seeds.length) : [values[dim ? places[dim] : 0]];
    return `${name} = [${chosen.join(", ")}]`;
  });
  const groups = recipe.zip.length ? [`zip = ${JSON.stringify(recipe.zip)}`] : [];
  const file = [...recipe.head, ...groups, "", "[axes]", ...axes, "", ...recipe.run];
  return [
    "cat > cell.toml <<'END'",
    ...file,
    "END",
    `dynsim sweep cell.toml --out runs/cell-${store + 1}`,
  ].join("\n");
}

/** Text to copy, with its button, below what it is for. */
function copyable(text, what) {
  const code = element("code", { textContent: text });
  const block = element("pre", { tabIndex: 0, className: "command" }, code);
  block.setAttribute("aria-label", what);
  block.setAttribute("role", "region");
  return [block, button(`Copy the ${what[0].toLowerCase()}${what.slice(1)}`, () => copy(text, code))];
}

function showCommands(stores, view, places) {
  const commands = stores.flatMap(({ name, store }) => {
    const command = commandOf(store, places);
    if (command) return copyable(command, `Command for ${name}`);
    const why = "was made in Python; no sweep file describes it.";
    return [element("p", { textContent: `${name} ${why}` })];
  });
  const snippets = stores
    .filter(({ store }) => about.stores[store].arrays[view.observable])
    .flatMap(({ name, store }) => copyable(snippetOf(store, view, places), `Python for ${name}`));
  byId("copied").textContent = "";
  byId("commands").replaceChildren(...commands);
  byId("snippets").replaceChildren(...snippets);
}
