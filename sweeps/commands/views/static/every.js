// All runs of a sweep at a time: which axis matters, parallel coordinates, and a table.
"use strict";

/** Rows of the table on the screen, and lines of runs that are drawn. */
const [ROWS, LINES] = [50, 1500];
const GOLDEN = (Math.sqrt(5) - 1) / 2;
/** Runs up to which other quantities stand next to the one that is shown, and how many of these. */
const [MANY, OTHERS] = [200_000, 3];

/** The runs of a sweep: its columns, which runs pass the filters, and in which order. */
class Every {
  constructor(openAt, changed) {
    Object.assign(this, { openAt, changed, filters: {}, status: "", sorted: null, page: 0 });
    this.canvas = byId("parallel");
    byId("every").addEventListener("toggle", () => this.show());
    this.canvas.addEventListener("pointerdown", (event) => this.brush(event));
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    keep("every", () => String(byId("every").open), (word) => (byId("every").open = word === "true"));
    keep("status", () => this.status, (word) => (this.status = word));
    const filters = () => Object.entries(this.filters).map(([name, ends]) => `${name}:${ends.map(word).join(":")}`);
    keep("filters", () => filters().join(";"), (text) => (this.filters = parsed(text)));
    const sorted = () => (this.sorted ? `${this.sorted.up ? "" : "-"}${this.sorted.name}` : "");
    keep("sorted", sorted, (text) => (this.sorted = text ? { name: text.replace(/^-/, ""), up: text[0] !== "-" } : null));
  }

  /** Show the runs of a view of a sweep, read again if it is another one. */
  async show(found = this.found) {
    this.found = found;
    if (!byId("every").open || !found) return;
    const { store, view, ends, log } = found;
    const { arrays } = about.stores[store];
    const runs = arrays.status.shape.reduce((product, size) => product * size, 1);
    const own = arrays[view.observable] ? [view.observable] : [];
    const more = numbered.map(({ name }) => name).filter((name) => arrays[name] && ![...own, FAILED].includes(name));
    const failed = arrays[FAILED] && !own.includes(FAILED) ? [FAILED] : [];
    const names = [...own, ...(runs > MANY ? more.slice(0, Number(!own.length)) : [...more.slice(0, OTHERS), ...failed])];
    const read = await everyRun(store, view, names);
    if (this.found !== found) return;
    Object.assign(this, { dims: read.dims, values: read.values, shown: own[0] ?? names[0], ends, log });
    this.codes = read.status;
    let stride = this.codes.length;
    const axes = read.dims.map(([dim, size, values]) => {
      stride /= size;
      const step = stride;
      const words = values.some((value) => typeof value !== "number");
      const at = (run) => Math.floor(run / step) % size;
      const end = (number) => values[placeOn(values, number)] ?? number;
      return { name: dim, title: dim, words: words && values, place: at, end: words ? Number : end, of: words ? at : (run) => values[at(run)] };
    });
    const some = this.codes.some((code) => code > 0);
    const observed = names.filter((name) => some || name !== FAILED || own.includes(name)).map((name) => {
      const words = regionsOf(name);
      const codes = words?.map(([code]) => code);
      const values = read.values[name];
      const failing = (run) => (this.codes[run] > 0 ? values[run] : NaN);
      const of = words ? (run) => codes.indexOf(values[run]) : name === FAILED ? failing : (run) => values[run];
      return { name, title: name, observed: true, end: Number, words: words?.map(([, text]) => text), of };
    });
    this.columns = [...axes, ...observed];
    this.select();
  }

  /** Find the runs that pass the filters, in order, and draw everything. */
  select() {
    const limits = this.columns.flatMap(({ name, of, end }) => (this.filters[name] ? [[of, ...this.filters[name].map(end)]] : []));
    const passing = [];
    for (let run = 0; run < this.codes.length; run++) {
      const code = this.codes[run];
      if (code < 0 || (this.status !== "" && code !== Number(this.status))) continue;
      if (limits.every(([of, low, high]) => of(run) >= low && of(run) <= high)) passing.push(run);
    }
    this.passing = Uint32Array.from(passing);
    const column = this.columns.find(({ name }) => name === this.sorted?.name);
    if (column) {
      const sign = this.sorted.up ? 1 : -1;
      const keys = Float64Array.from(this.passing, (run) => column.of(run));
      const order = Uint32Array.from(this.passing.keys());
      // What is no number comes last, whichever way the others run.
      order.sort((a, b) => Number.isNaN(keys[a]) - Number.isNaN(keys[b]) || sign * (keys[a] - keys[b]) || a - b);
      this.passing = order.map((place) => this.passing[place]);
    }
    this.page = 0;
    this.tell();
    this.table();
    this.draw();
    this.changed();
  }

  /** Filter a column between two ends; null for no filter. */
  filter(name, ends) {
    if (ends && (ends[0] > -Infinity || ends[1] < Infinity)) this.filters[name] = ends;
    else delete this.filters[name];
    this.select();
  }

  /** In numbers and bars how much of the variance each axis explains. */
  tell() {
    const { codes, passing, columns } = this;
    const all = codes.reduce((sum, code) => sum + (code >= 0), 0);
    byId("filtered").textContent = `${passing.length} of ${all} runs pass the filters.`;
    const only = (words) => {
      byId("explained-words").textContent = words;
      byId("explained").replaceChildren();
    };
    const shownColumn = columns.find(({ name }) => name === this.shown);
    if (!shownColumn || shownColumn.words) return only("Choose a quantity with numbers to see which axis matters most.");
    const raw = this.values[this.shown];
    const values = this.log ? raw.map(Math.log10) : raw;
    const good = passing.filter((run) => isCounted(this.shown, codes[run]) && Number.isFinite(values[run]));
    if (good.length < 2) return only("Fewer than two of these runs ended well.");
    const { shares, cells, total } = explained(this.dims, values, good);
    const of = `${this.log ? "the logarithm of " : ""}${this.shown}`;
    const words = `Of the variance of ${of} over ${good.length} runs that ended well, the share that the mean over each axis explains alone.`;
    if (!(total > 0)) return only(`${of} is the same in all of these runs.`);
    const axes = shares.filter(([dim]) => dim !== "seed");
    const together = axes.length > 1 ? [["all axes together", cells]] : [];
    const ordered = [...shares.sort((a, b) => b[1] - a[1]), ...together];
    const percent = (share) => `${(100 * share).toFixed(1)} %`;
    const rest = "What all axes together explain beyond the sum of their own shares is due to their interactions; the rest to seeds.";
    byId("explained-words").textContent = `${words}${together.length ? ` ${rest}` : ""}`;
    const table = tableOf([["axis", "share", ""], ...ordered.map(([dim, share]) => [dim, percent(share), ""])]);
    table.querySelectorAll("tbody tr").forEach((row, i) => {
      const bar = element("span", { className: "bar" });
      bar.style.width = `${Math.max(0, 12 * ordered[i][1])}rem`;
      bar.setAttribute("aria-hidden", "true");
      row.lastChild.append(bar);
    });
    table.querySelector("th:last-child").replaceWith(element("td"));
    byId("explained").replaceChildren(table);
  }

  text({ words, of }, run) {
    const value = of(run);
    return words ? shown(words[value] ?? "") : Number.isNaN(value) ? "" : shown(value);
  }

  /** Rows of all runs that pass, in order, below the names of the columns. */
  rows(runs = this.passing) {
    const names = [...this.columns.map(({ name }) => name), "status"];
    const exact = ({ words, of }, run) => (words ? words[of(run)] : of(run));
    return [names, ...Array.from(runs, (run) => [...this.columns.map((each) => exact(each, run)), about.statuses[this.codes[run]]])];
  }

  table() {
    const pages = Math.max(1, Math.ceil(this.passing.length / ROWS));
    const first = this.page * ROWS;
    const head = this.columns.map((column) => this.heading(column));
    const table = element(
      "table",
      {},
      element("thead", {}, element("tr", {}, ...head, this.statusHeading(), element("td"))),
      element("tbody", {}, ...Array.from(this.passing.subarray(first, first + ROWS), (run) => this.row(run))),
    );
    byId("every-table").replaceChildren(table);
    const turn = (by) => () => {
      this.page = Math.max(0, Math.min(pages - 1, this.page + by));
      this.table();
    };
    const clear = () => {
      Object.assign(this, { filters: {}, status: "" });
      this.select();
    };
    const where = element("span", { textContent: `Page ${this.page + 1} of ${pages}` });
    byId("every-tools").replaceChildren(
      button("Previous page", turn(-1)),
      where,
      button("Next page", turn(1)),
      button("Clear the filters", clear),
      ...downloads(this.canvas, "runs", () => this.rows()).slice(-1),
    );
  }

  row(run) {
    const cells = this.columns.map((column) => element("td", { textContent: this.text(column, run) }));
    const places = Object.fromEntries(this.dims.flatMap(([dim], i) => (dim === "seed" ? [] : [[dim, this.columns[i].place(run)]])));
    const open = button("Open", () => this.openAt(places));
    open.setAttribute("aria-label", `Open the cell of ${cells.map((each) => each.textContent).join(", ")}`);
    return element("tr", {}, ...cells, element("td", { textContent: about.statuses[this.codes[run]] }), element("td", {}, open));
  }

  /** The name of a column, which sorts by it, and fields for the ends of its filter. */
  heading(column) {
    const { name, words } = column;
    const up = this.sorted?.name === name && this.sorted.up;
    const sorted = this.sorted?.name === name ? (up ? " ▲" : " ▼") : "";
    const sort = button(`${name}${sorted}`, () => {
      this.sorted = { name, up: !up };
      this.select();
      byId("every-table").querySelector(`[data-sort="${CSS.escape(name)}"]`)?.focus();
    });
    sort.dataset.sort = name;
    const made = element("th", { scope: "col" }, sort);
    if (sorted) made.setAttribute("aria-sort", up ? "ascending" : "descending");
    const ends = this.filters[name] ?? [-Infinity, Infinity];
    if (words) {
      const options = [["", "all"], ...words.map((value, place) => [place, shown(value)])];
      const one = ends[0] === ends[1] ? String(ends[0]) : "";
      const pick = choiceIn(options, one, (value) => this.filter(name, value === "" ? null : [Number(value), Number(value)]));
      pick.setAttribute("aria-label", `${name}: only`);
      made.append(element("br"), pick);
      return made;
    }
    const field = (i, what, none) => {
      const value = Number.isFinite(ends[i]) ? ends[i] : "";
      const input = element("input", { type: "number", step: "any", value, placeholder: what });
      input.setAttribute("aria-label", `${name}: ${what}`);
      input.onchange = () => {
        const given = [...(this.filters[name] ?? [-Infinity, Infinity])];
        given[i] = input.value === "" ? none : Number(input.value);
        this.filter(name, given);
      };
      return input;
    };
    made.append(element("br"), field(0, "from", -Infinity), field(1, "to", Infinity));
    return made;
  }

  statusHeading() {
    const there = [...new Set(this.codes)].filter((code) => code >= 0);
    const pick = choiceIn([["", "all"], ...there.map((code) => [code, about.statuses[code]])], this.status, (value) => {
      this.status = value;
      this.select();
    });
    pick.setAttribute("aria-label", "status: only");
    return element("th", { scope: "col" }, "status", element("br"), pick);
  }

  /** Where values of a column lie on its line: from 0 below to 1, and back. */
  scale(column) {
    const [low, high] = this.span(column);
    const log = !column.words && low > 0 && high / low >= 10 && (!column.observed || this.log || high / low >= 100);
    const to = log ? Math.log10 : Number;
    const width = to(high) - to(low) || 1;
    const back = (at) => (log ? 10 ** (to(low) + at * width) : low + at * width);
    return { low, high, at: (value) => (to(value) - to(low)) / width, back };
  }

  span(column) {
    if (column.words) return [0, Math.max(1, column.words.length - 1)];
    if (!column.observed) {
      const [, , values] = this.dims.find(([dim]) => dim === column.name);
      return [Math.min(...values), Math.max(...values)];
    }
    column.ends ??= endsOf(this.values[column.name].filter((_, run) => isCounted(column.name, this.codes[run])), { mode: "robust" }).ends;
    return column.ends;
  }

  /** Runs as lines over a line for each column; those that pass the filters have the map's colours. */
  draw() {
    const { canvas, columns } = this;
    const { width, height } = canvas.getBoundingClientRect();
    if (!columns || !width || columns.length < 2) return;
    Object.assign(canvas, { width: width * devicePixelRatio, height: height * devicePixelRatio });
    const pen = canvas.getContext("2d");
    pen.scale(devicePixelRatio, devicePixelRatio);
    const colours = themed();
    const [top, bottom] = [44, height - 26];
    const across = (i) => 50 + (i * (width - 100)) / (columns.length - 1);
    const scales = columns.map((column) => this.scale(column));
    const up = (at) => bottom - Math.max(0, Math.min(1, at)) * (bottom - top);
    this.drawn = { scales, across, top, bottom };
    const line = (run) => {
      pen.beginPath();
      let begun = false;
      columns.forEach((column, i) => {
        const at = scales[i].at(column.of(run));
        if (!Number.isFinite(at)) begun = false;
        else if (begun) pen.lineTo(across(i), up(at));
        else pen.moveTo(across(i), up(at));
        begun = Number.isFinite(at) || begun;
      });
      pen.stroke();
    };
    // Evenly spread, but in no step that the sizes of axes share, which would miss some values.
    const sample = (number) => {
      if (number <= LINES) return Array.from({ length: number }, (_, i) => i);
      return Array.from({ length: LINES }, (_, i) => Math.floor(number * ((i * GOLDEN) % 1)));
    };
    pen.globalAlpha = 0.35;
    pen.strokeStyle = colours.grid;
    sample(this.codes.length).forEach((run) => this.codes[run] >= 0 && line(run));
    const value = columns.find(({ name }) => name === this.shown);
    const scale = scales[columns.indexOf(value)];
    pen.globalAlpha = Math.max(0.12, Math.min(0.8, 150 / Math.min(LINES, this.passing.length)));
    const drawn = sample(this.passing.length).map((place) => this.passing[place]);
    for (const run of drawn) {
      const place = Math.max(0, Math.min(1, scale.at(value.of(run))));
      pen.strokeStyle = this.codes[run] ? colours.text : about.scale[Math.round(place * (about.scale.length - 1)) || 0];
      line(run);
    }
    pen.globalAlpha = 1;
    pen.font = `13px ${getComputedStyle(document.body).fontFamily}`;
    pen.textAlign = "center";
    columns.forEach((column, i) => {
      const x = across(i);
      pen.strokeStyle = pen.fillStyle = colours.text;
      pen.lineWidth = 1;
      pen.strokeRect(x, top, 0, bottom - top);
      const ends = column.words ? [column.words[0], column.words.at(-1)] : [scales[i].low, scales[i].high];
      const room = (width - 100) / (columns.length - 1);
      pen.fillText(column.name, x, i % 2 && room < 120 ? 12 : 26, 2 * room);
      pen.fillText(shown(ends[1]), x, top - 5, room);
      pen.fillText(shown(ends[0]), x, bottom + 16, room);
      const filter = this.filters[column.name];
      if (!filter) return;
      const [low, high] = filter.map((end, j) => up(Number.isFinite(end) ? scales[i].at(end) : j));
      pen.globalAlpha = 0.45;
      pen.fillStyle = colours.accent;
      pen.fillRect(x - 7, high - 2, 14, low - high + 4);
      pen.globalAlpha = 1;
    });
    const some = this.passing.length > drawn.length ? ` ${drawn.length} of ${this.passing.length} are drawn.` : "";
    byId("parallel-words").textContent = `Drag along a line to keep the runs that pass there; click it to clear that. Black or white: runs that did not end well.${some}`;
  }

  /** Take what the mouse is drawn along as the filter of the nearest line. */
  brush(event) {
    const { scales, across, top, bottom } = this.drawn;
    const box = this.canvas.getBoundingClientRect();
    const distances = this.columns.map((_, i) => Math.abs(event.clientX - box.left - across(i)));
    const place = distances.indexOf(Math.min(...distances));
    if (distances[place] > 30) return;
    const at = (each) => Math.max(0, Math.min(1, (bottom - (each.clientY - box.top)) / (bottom - top)));
    const first = at(event);
    const { name } = this.columns[place];
    this.canvas.setPointerCapture(event.pointerId);
    this.canvas.onpointerup = (end) => {
      this.canvas.onpointerup = null;
      const [low, high] = [first, at(end)].sort((a, b) => a - b);
      if (high - low < 0.02) this.filter(name, null);
      else this.filter(name, [low ? scales[place].back(low) : -Infinity, high < 1 ? scales[place].back(high) : Infinity]);
    };
  }
}

/** A filter's end as the address has it. */
const word = (end) => (Number.isFinite(end) ? String(end) : "");

function parsed(text) {
  const pairs = text.split(";").filter(Boolean).map((each) => each.split(":"));
  const end = (word, none) => (word && Number.isFinite(Number(word)) ? Number(word) : none);
  return Object.fromEntries(pairs.map(([name, low, high]) => [name, [end(low, -Infinity), end(high, Infinity)]]));
}

/** A list to choose from that no address keeps. */
function choiceIn(options, value, changed) {
  const select = element("select");
  select.append(...options.map(([key, textContent]) => element("option", { value: key, textContent })));
  select.value = value;
  select.onchange = () => changed(select.value);
  return select;
}
