// The trajectories of a cell: curves, their numbers, and how to run the cell again.
"use strict";

const element = (name, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
};

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

function drawCurves(stores, label, log, logTime, more) {
  const traces = [...curves(stores, log), ...more];
  const layout = layoutOf(
    { title: "step", kind: logTime ? "log" : "linear" },
    { title: label, kind: log ? "log" : "linear", ...rangeOf(traces.flatMap(({ y }) => y), log) },
  );
  layout.showlegend = true;
  layout.legend = { orientation: "h", y: 1.02, yanchor: "bottom" };
  return Plotly.react(document.getElementById("curves"), traces, layout, LOOKS);
}

/** The numbers of all trajectories, made when somebody opens them. */
function fillTable(stores) {
  const details = document.getElementById("numbers");
  const fill = () => {
    if (!details.open) return;
    const head = ["sweep", "seed", "status", "step", "value"].map((text) =>
      element("th", { scope: "col", textContent: text }),
    );
    const rows = stores.flatMap(({ name, runs }) =>
      runs.flatMap(({ seed, status, times, values }) =>
        Array.from(values, (value, i) => {
          const cells = [name, seed ?? "", about.statuses[status], times[i], value.toPrecision(7)];
          return element("tr", {}, ...cells.map((text) => element("td", { textContent: text })));
        }),
      ),
    );
    const body = element("tbody", {}, ...rows);
    const table = element("table", {}, element("thead", {}, element("tr", {}, ...head)), body);
    document.getElementById("table").replaceChildren(table);
  };
  details.ontoggle = fill;
  fill();
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

function showCommands(stores, places) {
  const copied = document.getElementById("copied");
  const blocks = stores.flatMap(({ name, store }) => {
    const command = commandOf(store, places);
    if (!command) {
      const why = "was made in Python; no sweep file describes it.";
      return [element("p", { textContent: `${name} ${why}` })];
    }
    const code = element("code", { textContent: command });
    const block = element("pre", { tabIndex: 0, className: "command" }, code);
    block.setAttribute("aria-label", `Command for ${name}`);
    block.setAttribute("role", "region");
    const button = element("button", { type: "button", textContent: `Copy the command for ${name}` });
    button.onclick = async () => {
      const done = await navigator.clipboard?.writeText(command).then(() => true, () => false);
      if (!done) getSelection().selectAllChildren(code);
      copied.textContent = done ? "Copied." : "Selected: copy it with Ctrl+C.";
    };
    return [block, button];
  });
  copied.textContent = "";
  document.getElementById("commands").replaceChildren(...blocks);
}
