// The map of a quantity over two axes, or its lines over one; the cell that is looked at.
"use strict";

/** The ends of the error bars of lines. */
const beyond = ({ y, error_y: bars }) =>
  bars ? y.flatMap((value, i) => [value - bars.array[i], value + bars.array[i]]) : [];

class Overview {
  constructor(element, describe, open) {
    Object.assign(this, { element, describe, open, cell: null, drawn: null });
    element.addEventListener("keydown", (event) => this.key(event));
    // Not by a click: drawing the cursor would take it from under the mouse.
    const byKeys = () => this.drawn && element.matches(":focus-visible");
    element.addEventListener("focus", () => byKeys() && this.look(this.cell ?? [0, 0]));
  }

  /** Draw what `explorer.js` found: axes, cells of the sweep or difference, cells of all sweeps. */
  async draw(found) {
    const axes = found.axes.map((dim, i) => ({
      ...geometry(about.dims[dim].values, found.kinds[i]),
      title: about.dims[dim].label,
      kind: found.kinds[i],
    }));
    const [x, y] = axes;
    const traces = y ? this.map(found, x, y) : this.lines(found, x);
    const ends = (axis) => [axis.edges[0], axis.edges.at(-1)];
    const heights = y ? [] : traces.flatMap((trace) => [...trace.y, ...beyond(trace)]);
    const value = { title: found.label, kind: found.log ? "log" : "linear", ...rangeOf(heights, found.log) };
    if (found.regions) {
      const names = found.regions.map(([, name]) => name);
      Object.assign(value, { words: names, at: [...names.keys()], range: [-0.5, names.length - 0.5] });
    }
    const layout = layoutOf({ ...x, range: ends(x) }, y ? { ...y, range: ends(y) } : value);
    layout.showlegend = !y && traces.length > 1;
    layout.legend = { orientation: "h", y: 1.02, yanchor: "bottom" };
    this.drawn = { ...found, x, y, shape: [x.at.length, y ? y.at.length : 1] };
    const fits = this.cell && this.cell.every((place, i) => place < this.drawn.shape[i]);
    this.cell = fits ? this.cell : null;
    this.extra = traces.length;
    // Of lines the cursor lies at the lower end of an axis, which is not known before.
    await Plotly.react(this.element, [...traces, this.cursor(y ? this.cell : null)], layout, LOOKS);
    if (this.cell && !y) await this.look(this.cell);
    if (!this.listens) this.listen();
  }

  map(found, x, y) {
    const { cells, log, difference, regions } = found;
    const columns = x.at.length;
    const values = log ? cells.mean.map(Math.log10) : cells.mean;
    const rows = y.at.map((_, row) => values.subarray(row * columns, (row + 1) * columns));
    let [low, high] = spanOf(cells.mean, log).ends.map(log ? Math.log10 : Number);
    if (regions) [low, high] = [-0.5, regions.length - 0.5];
    else if (difference) [low, high] = [-1, 1].map((sign) => sign * Math.max(-low, high, 1e-30));
    const numbers = { colorscale: scaleOf(difference), colorbar: log && logTicks(low, high) };
    const looks = regions ? stepsOf(regions) : numbers;
    const hatched = (marked, falling) => ({
      ...hatching(x, y, marked, falling),
      type: "scatter",
      mode: "lines",
      hoverinfo: "skip",
      line: { color: themed().text, width: 1.2 },
    });
    return [
      {
        type: "heatmap",
        x: x.edges,
        y: y.edges,
        z: rows,
        zmin: low,
        zmax: high,
        colorscale: looks.colorscale,
        hoverinfo: "none",
        colorbar: {
          title: { text: regions ? "" : plain(found.label), side: "right" },
          thickness: 14,
          exponentformat: "power",
          ...looks.colorbar,
        },
      },
      hatched((cell) => cells.bad[cell] > 0, false),
      hatched((cell) => cells.bad[cell] > 0 && Number.isNaN(cells.mean[cell]), true),
    ];
  }

  lines(found, x) {
    const sides = found.difference ? [found] : found.all;
    return sides.flatMap(({ cells, name }, store) => {
      if (!cells) return [];
      const colour = colourOf(store);
      const bad = x.at.filter((_, place) => cells.bad[place] > 0);
      const lowest = cells.mean.reduce((low, value) => (value < low ? value : low), Infinity);
      return [
        {
          x: x.at,
          y: Array.from(cells.mean),
          error_y: { array: Array.from(cells.sd), color: colour, thickness: 1.3, visible: !found.regions },
          name: plain(name),
          mode: x.words || found.regions ? "markers" : "lines+markers",
          line: { color: colour, dash: dashOf(store) },
          // Of regions, which often are the same, each sweep's mark lies within those before it.
          marker: { size: found.regions ? Math.max(14 - 5 * store, 4) : 6 },
          hoverinfo: "none",
        },
        {
          x: bad,
          y: bad.map((place) => {
            const mean = cells.mean[x.at.indexOf(place)];
            return Number.isNaN(mean) ? lowest : mean;
          }),
          name: plain(`${name}: not all runs ended well`),
          mode: "markers",
          marker: { symbol: "x", size: 11, color: colour },
          hoverinfo: "none",
          visible: bad.length > 0,
        },
      ];
    });
  }

  cursor(cell = this.cell) {
    const looks = { type: "scatter", mode: "lines", hoverinfo: "skip", showlegend: false };
    const line = { color: themed().accent, width: 3 };
    if (!cell) return { ...looks, x: [], y: [] };
    const { x, y } = this.drawn;
    if (y) return { ...looks, line, ...outline(x, y, cell) };
    // Over one axis, a mark below the place.
    const at = x.at[cell[0]];
    const marker = { symbol: "triangle-up", size: 14, color: themed().accent };
    const low = this.element.layout?.yaxis?.range?.[0] ?? 0;
    const mark = { ...looks, mode: "markers", marker, x: [at] };
    return { ...mark, y: [this.drawn.log ? 10 ** low : low], cliponaxis: false };
  }

  listen() {
    this.listens = true;
    const tip = document.getElementById("tip");
    const cellOf = ({ points: [point] }) => {
      if (!this.drawn.y) return [this.drawn.x.at.indexOf(point.x), 0];
      return Array.isArray(point.pointNumber) ? [...point.pointNumber].reverse() : null;
    };
    this.element.on("plotly_hover", (data) => {
      const cell = cellOf(data);
      if (!cell) return;
      tip.textContent = document.getElementById("readout").textContent = this.describe(cell);
      const { clientX, clientY } = data.event;
      tip.hidden = false;
      tip.style.left = `${Math.min(clientX + 14, innerWidth - tip.offsetWidth - 6)}px`;
      tip.style.top = `${Math.min(clientY + 14, innerHeight - tip.offsetHeight - 6)}px`;
    });
    this.element.on("plotly_unhover", () => (tip.hidden = true));
    this.element.on("plotly_click", (data) => {
      const cell = cellOf(data);
      if (cell) this.look(cell).then(() => this.open(cell));
    });
  }

  /** Put the cursor on a cell, and say what is there. */
  async look(cell) {
    this.cell = cell;
    document.getElementById("readout").textContent = this.describe(cell);
    const { x, y, ...style } = this.cursor();
    const { xaxis, yaxis } = this.element.layout;
    // Plotly would make room for the cursor.
    const kept = { "xaxis.range": [...xaxis.range], "yaxis.range": [...yaxis.range] };
    await Plotly.update(this.element, { ...style, x: [x], y: [y] }, kept, [this.extra]);
  }

  key(event) {
    if (!this.drawn) return;
    const [columns, rows] = this.drawn.shape;
    const [column, row] = this.cell ?? [0, 0];
    const moves = {
      ArrowLeft: [column - 1, row],
      ArrowRight: [column + 1, row],
      ArrowUp: [column, row + 1],
      ArrowDown: [column, row - 1],
      Home: [0, row],
      End: [columns - 1, row],
    };
    if (event.key === "Enter") this.open([column, row]);
    else if (event.key in moves) {
      const within = (place, size) => Math.max(0, Math.min(size - 1, place));
      const [to, up] = moves[event.key];
      this.look([within(to, columns), within(up, rows)]);
    } else return;
    event.preventDefault();
  }
}
