// The trajectories of a cell: curves, their numbers, and how to select or run the cell again.
"use strict";

/** Curves of all runs, a broken line for each sweep, and their means. */
function curves(stores, log) {
  return stores.flatMap(({ name, store, runs }) => {
    const colour = colourOf(store);
    const single = runs.every((run) => run.values.length === 1);
    const shared = { legendgroup: name, line: { color: colour, dash: dashOf(store) } };
    const broken = { x: [], y: [] };
    for (const run of runs) {
      run.values.forEach((value, i) => {
        broken.x.push(run.times[i]);
        broken.y.push(Number.isFinite(value) && (!log || value > 0) ? value : null);
      });
      broken.x.push(null);
      broken.y.push(null);
    }
    const mode = single ? "markers" : "lines";
    const hover = "step %{x}: %{y:.4g}<extra></extra>";
    const of = { ...shared, ...broken, mode, hovertemplate: hover, marker: { color: colour, size: 8 } };
    if (runs.length < 2) return [{ ...of, name: plain(name) }];
    const good = runs.filter((run) => run.status === 0);
    const mean = (i) => good.reduce((sum, run) => sum + run.values[i], 0) / good.length;
    return [
      { ...of, name: plain(name), opacity: 0.45, showlegend: false },
      {
        ...shared,
        x: runs[0].times,
        y: good.length ? runs[0].times.map((_, i) => mean(i)) : runs[0].times.map(() => null),
        mode,
        marker: { color: colour, size: 10, symbol: "diamond" },
        line: { ...shared.line, width: 3.5 },
        name: plain(`${name}, mean of ${good.length}`),
        hovertemplate: hover,
      },
    ];
  });
}

/** Draw the curves of a cell into a figure; `ends` of the values, where other figures share them. */
function drawCurves(figure, { stores, label, log, logTime, more, ends }) {
  const traces = [...curves(stores, log), ...more];
  const layout = layoutOf(
    { title: "step", kind: logTime ? "log" : "linear" },
    { title: label, kind: log ? "log" : "linear", ...(ends ? { range: ends } : rangeOf(valuesOf(traces), log)) },
  );
  layout.showlegend = true;
  layout.legend = { orientation: "h", y: 1.02, yanchor: "bottom" };
  layout.dragmode = controls.drag?.value() || false;
  return Plotly.react(figure, traces, layout, { ...LOOKS, doubleClick: "reset+autosize" });
}

const valuesOf = (traces) => traces.flatMap(({ y }) => Array.from(y)).filter((value) => value !== null);

/** Ends of an axis that figures share, with a little room. */
function sharedEnds(cells, log) {
  const { ends: [low, high] } = spanOf(valuesOf(cells.flatMap((stores) => curves(stores, log))), log);
  const room = log ? (high / low) ** 0.04 : 0.04 * (high - low);
  return log ? [low / room, high * room] : [low - room, high + room];
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
