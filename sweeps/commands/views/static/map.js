// The map of a quantity over two axes, or its lines over one; its cursor, and the part that is seen.
"use strict";

/** How far a step of zoom goes, and how many cells keys with Shift move. */
const [CLOSER, LEAP] = [2, 10];
/** Pixels of a map below which its colour bar lies under it. */
const NARROW = 560;

/** The ends of the error bars of lines. */
const spreadOf = ({ mean, sd }) => Array.from(mean).flatMap((value, i) => [value - sd[i], value + sd[i]]);

class Overview {
  /** `describe` says what a cell has, `open` shows its runs, `looked` is told of cell and zoom. */
  constructor(element, describe, open, looked) {
    Object.assign(this, { element, describe, open, looked, cell: null, drawn: null, zoom: null });
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
    this.drawn = { ...found, x, y, shape: [x.at.length, y ? y.at.length : 1] };
    // A zoom is of axes and scales; over others it says nothing.
    this.of = [...found.axes, ...found.kinds, ...(y ? [] : [found.view.observable, found.log])].join();
    // One from the address has no axes yet: they are those that the address names as well.
    if (this.zoom && (this.zoom.of ?? this.of) !== this.of) this.zoom = null;
    if (this.zoom) this.zoom.of = this.of;
    this.entries = !y && !found.regions && !about.dims[found.axes[0]].axis && (x.counted || !!x.words);
    const heights = y ? [] : this.heights(found);
    const traces = y ? this.map(found, x, y) : this.lines(found, x, heights);
    const ends = (axis) => [axis.edges[0], axis.edges.at(-1)];
    const value = { title: found.label, kind: found.log ? "log" : "linear", range: heights };
    if (found.regions) {
      const names = found.regions.map(([, name]) => name);
      Object.assign(value, { words: names, at: [...names.keys()], range: [-0.5, names.length - 0.5] });
    }
    const layout = layoutOf({ ...x, range: ends(x) }, y ? { ...y, range: ends(y) } : value);
    this.whole = [layout.xaxis.range, layout.yaxis.range];
    if (this.zoom) [layout.xaxis.range, layout.yaxis.range] = this.zoom.ranges.map((range) => [...range]);
    layout.showlegend = y ? found.lines.length > 0 : traces.length > 1;
    layout.legend = { orientation: "h", y: 1.02, yanchor: "bottom" };
    // Lines have the same colours in the dark, where some of them could not be seen.
    if (y) Object.assign(layout.legend, { bgcolor: LIGHT, font: { color: DARK } });
    layout.dragmode = found.drag || false;
    this.element.style.setProperty("--lines", found.lines.length);
    this.extra = traces.length;
    // Of lines the cursor lies at the lower end of an axis, which is not known before.
    const cursor = this.cursor(y ? this.cell : null);
    await Plotly.react(this.element, [...traces, ...cursor], layout, LOOKS);
    if (this.cell && !y) await this.look(this.cell);
    if (!this.listens) this.listen();
  }

  map(found, x, y) {
    const { cells, log, difference, regions } = found;
    const columns = x.at.length;
    const values = log ? cells.mean.map(Math.log10) : cells.mean;
    const rows = y.at.map((_, row) => values.subarray(row * columns, (row + 1) * columns));
    const [low, high] = regions ? [-0.5, regions.length - 0.5] : found.ends.map(log ? Math.log10 : Number);
    const numbers = { colorscale: scaleOf(difference && !log), colorbar: log && logTicks(low, high) };
    const looks = regions ? stepsOf(regions) : numbers;
    const narrow = this.element.clientWidth < NARROW;
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
          title: { text: regions ? "" : wrapped(found.label, narrow ? 32 : 42), side: narrow ? "top" : "right" },
          thickness: 14,
          // Next to the map it would take half of a phone.
          ...(narrow && { orientation: "h", y: -0.2, yanchor: "top" }),
          exponentformat: "power",
          ...looks.colorbar,
        },
      },
      ...this.hatches(),
      ...this.chance(),
      ...found.lines.flatMap(haloed),
    ];
  }

  /** Lines over cells with runs that did not end well, and across them where none did. */
  hatches() {
    const { cells, view, x, y } = this.drawn;
    // When runs failed, all that has a colour would be hatched.
    const failed = (cell) => view.observable !== FAILED && cells.bad[cell] > 0;
    const inside = (axis, range) => (axis.kind === "log" ? range.map((at) => at * Math.LN10) : range);
    const part = this.zoom?.ranges.map((range, i) => inside([x, y][i], range));
    const hatched = (marked, falling) => ({
      ...hatching(x, y, marked, falling, part),
      type: "scatter",
      mode: "lines",
      hoverinfo: "skip",
      showlegend: false,
      line: { color: DARK, width: 1.2 },
    });
    const some = haloed(hatched(failed, false));
    const none = haloed(hatched((cell) => failed(cell) && Number.isNaN(cells.mean[cell]), true));
    return [some[0], none[0], some[1], none[1]];
  }

  /** Dots along cells whose difference may be chance. */
  chance() {
    const { cells, difference, regions, x, y } = this.drawn;
    if (!difference || regions) return [];
    const looks = { type: "scatter", mode: "lines", hoverinfo: "skip", showlegend: false };
    const at = ruled(x, y, (cell) => mayBeChance(cells, cell));
    return haloed({ ...looks, ...at, line: { color: DARK, width: 1.6, dash: "2px,5px" } });
  }

  /** Ends of the values of lines: those that all steps share, or of these means and error bars; bars begin at zero. */
  heights({ cells: own, all, difference, log, mode, ends }) {
    if (mode === "hand") return ends;
    const sides = (difference ? [own] : all.map(({ cells }) => cells)).filter(Boolean);
    const means = sides.flatMap(spreadOf);
    const values = means.some(Number.isFinite) ? means : sides.flatMap(({ lost }) => Array.from(lost));
    const [low, high] = mode === "steps" ? ends : spanOf(values, log).ends;
    const room = roomy([low, high], log);
    return this.entries && !log ? [low < 0 ? room[0] : 0, high > 0 ? room[1] : 0] : room;
  }

  /** A line for each sweep; entries of a quantity are bars of the first, and marks on them of the others. */
  lines(found, x, [low, high]) {
    const sides = found.difference ? [found] : found.all;
    return sides.flatMap(({ cells, name }, store) => {
      if (!cells) return [];
      const colour = colourOf(store);
      const crossed = found.regions || found.view.observable === FAILED ? [] : x.at.filter((_, place) => cells.bad[place] > 0);
      const trace = {
        x: x.at,
        y: Array.from(cells.mean),
        error_y: { array: Array.from(cells.sd), color: colour, thickness: 1.3, visible: !found.regions && cells.runs > 1 },
        name: plain(name),
        hoverinfo: "none",
      };
      const looks = {
        mode: x.words || found.regions ? "markers" : "lines+markers",
        line: { color: colour, dash: dashOf(store) },
        // Of regions, which often are the same, each sweep's mark lies within those before it.
        marker: { size: found.regions ? Math.max(14 - 5 * store, 4) : 6, color: colour },
      };
      const bars = { type: "bar", marker: { color: colour, opacity: 0.6 } };
      const marks = {
        mode: "markers",
        marker: { symbol: "line-ew", size: 6, line: { color: colour, width: 3 } },
        error_x: { type: "constant", value: 0.35, color: colour, thickness: 3, width: 0 },
      };
      return [
        { ...trace, ...(!this.entries ? looks : store ? marks : bars) },
        {
          x: crossed,
          // Values of runs that diverge would hide those of the others.
          y: crossed.map((at) => {
            const value = cells.lost[x.at.indexOf(at)];
            return Number.isNaN(value) ? high : Math.max(low, Math.min(high, value));
          }),
          name: failedOf(name),
          mode: "markers",
          marker: { symbol: "x", size: 11, color: colour },
          cliponaxis: false,
          hoverinfo: "none",
          visible: crossed.length > 0,
        },
      ];
    });
  }

  /** The mark of a cell: its border, or over one axis a triangle below the place. */
  cursor(cell = this.cell) {
    const looks = { type: "scatter", mode: "lines", hoverinfo: "skip", showlegend: false };
    const { x, y } = this.drawn;
    if (y) {
      const border = cell ? outline(x, y, cell) : { x: [], y: [] };
      return haloed({ ...looks, ...border, line: { color: DARK, width: 3 } });
    }
    const marker = { symbol: "triangle-up", size: 14, color: themed().accent };
    const low = this.element.layout?.yaxis?.range?.[0] ?? 0;
    const place = cell ? { x: [x.at[cell[0]]], y: [this.drawn.log ? 10 ** low : low] } : { x: [], y: [] };
    return [{ ...looks, ...place, mode: "markers", marker, cliponaxis: false }];
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
    // By the mouse: a box, or a map that was moved.
    this.element.on("plotly_relayout", (changes) => {
      if (Object.keys(changes).some((name) => name.includes(".range["))) this.zoomTo(this.ranges());
    });
    this.element.on("plotly_doubleclick", () => this.zoomTo(null));
  }

  /** The ends of both axes on the screen, of logarithmic ones their logarithms. */
  ranges() {
    const { xaxis, yaxis } = this.element.layout;
    return [xaxis.range.map(Number), yaxis.range.map(Number)];
  }

  /** Show a part of the map, or with null all of it. */
  async zoomTo(ranges) {
    if (!this.drawn) return;
    this.zoom = ranges && { of: this.of, ranges };
    const [x, y] = (ranges ?? this.whole) || [];
    const layout = { "xaxis.range": x && [...x], "yaxis.range": y && [...y] };
    if (!y) layout["yaxis.autorange"] = true;
    if (this.drawn.y) {
      const hatches = this.hatches();
      const [xs, ys] = ["x", "y"].map((name) => hatches.map((each) => each[name]));
      await Plotly.update(this.element, { x: xs, y: ys }, layout, [1, 2, 3, 4]);
    } else await Plotly.relayout(this.element, layout);
    if (this.cell && !this.drawn.y) await this.look(this.cell);
    this.looked();
  }

  /** Go closer to the cursor by a factor, or with one below 1 away, to all of the map at most. */
  zoomBy(factor) {
    const { x, y } = this.drawn;
    const centre = this.cell?.map((place, i) => {
      const axis = [x, y][i];
      if (!axis) return null;
      const [low, high] = [axis.edges[place], axis.edges[place + 1]].map(axis.kind === "log" ? Math.log10 : Number);
      return (low + high) / 2;
    });
    const closer = this.ranges().map(([low, high], i) => {
      const width = (high - low) / factor;
      const whole = this.whole[i];
      if (whole && width >= whole[1] - whole[0]) return whole;
      const middle = centre?.[i] ?? (low + high) / 2;
      const start = middle - width / 2;
      const from = whole ? Math.max(whole[0], Math.min(start, whole[1] - width)) : start;
      return [from, from + width];
    });
    const all = closer.every((range, i) => range === this.whole[i]);
    return this.zoomTo(all ? null : closer);
  }

  /** Put the cursor on a cell, and say what is there; a cell beyond the part that is seen is moved
   * into it. */
  async look(cell) {
    this.cell = cell;
    document.getElementById("readout").textContent = this.describe(cell);
    const { x, y } = this.drawn;
    // Plotly would make room for the cursor.
    const ranges = this.ranges().map((range, i) => {
      const axis = [x, y][i];
      if (!axis || !this.zoom) return range;
      const ends = [axis.edges[cell[i]], axis.edges[cell[i] + 1]].map(axis.kind === "log" ? Math.log10 : Number);
      const by = Math.min(0, ends[0] - range[0]) || Math.max(0, ends[1] - range[1]);
      return range.map((at) => at + by);
    });
    const moved = this.zoom && String(ranges) !== String(this.zoom.ranges);
    const marks = this.cursor();
    const places = { x: marks.map((mark) => mark.x), y: marks.map((mark) => mark.y) };
    const layout = { "xaxis.range": ranges[0], "yaxis.range": ranges[1] };
    await Plotly.update(this.element, places, layout, marks.map((_, i) => this.extra + i));
    if (moved) await this.zoomTo(ranges);
    this.looked();
  }

  key(event) {
    if (!this.drawn || event.ctrlKey || event.metaKey || event.altKey) return;
    const [columns, rows] = this.drawn.shape;
    const [column, row] = this.cell ?? [0, 0];
    const step = event.shiftKey ? LEAP : 1;
    const moves = {
      ArrowLeft: [column - step, row],
      ArrowRight: [column + step, row],
      ArrowUp: [column, row + step],
      ArrowDown: [column, row - step],
      Home: [0, row],
      End: [columns - 1, row],
    };
    const zooms = { "+": CLOSER, "=": CLOSER, "-": 1 / CLOSER };
    if (event.key === "Enter") this.open([column, row]);
    else if (event.key === "0") this.zoomTo(null);
    else if (event.key in zooms) this.zoomBy(zooms[event.key]);
    else if (event.key in moves) {
      const within = (place, size) => Math.max(0, Math.min(size - 1, place));
      const [to, up] = moves[event.key];
      this.look([within(to, columns), within(up, rows)]);
    } else return;
    event.preventDefault();
  }
}
