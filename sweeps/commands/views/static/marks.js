// Geometry of cells, hatching, colours and words: nothing here knows the page.
"use strict";

/** Text for Plotly, which reads some tags as markup. */
const plain = (text) =>
  String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

/** The same on lines of at most some characters, where words allow it. */
const wrapped = (text, characters = 42) =>
  plain(String(text).replace(new RegExp(`(.{1,${characters}})( |$)`, "g"), "$1\n").trim()).replaceAll("\n", "<br>");

function shown(value) {
  if (typeof value !== "number") return String(value);
  const rounded = Number(value.toPrecision(4));
  return Number.isFinite(rounded) && Math.abs(rounded) >= 1e7 ? rounded.toExponential() : String(rounded);
}

/** A value with its spread, or in words that there is none. */
const quantity = (mean, sd, runs) =>
  Number.isNaN(mean) ? "no value" : shown(mean) + (runs > 1 ? ` ± ${shown(sd)}` : "");

function canBeLog(values) {
  return values.every((value) => typeof value === "number" && value > 0);
}

/** Largest relative difference between a value of an axis and a number that means it, and digits of one
 * that was copied from a table. */
const [CLOSE, COPIED] = [1e-6, 6];

/**
 * The place of a value on an axis, by the rules of `sweeps.language.values`: that of the same value,
 * or else of the only one that differs by at most CLOSE of the smaller of both, or that is the same
 * when it is rounded to six digits; -1 for none.
 */
function placeOn(values, wanted) {
  const number = String(wanted).trim() === "" ? NaN : Number(wanted);
  const same = values.findIndex((value) => value === number || String(value) === String(wanted));
  if (same >= 0) return same;
  const near = values.flatMap((value, place) => {
    if (typeof value !== "number" || [value, number].every(Number.isSafeInteger)) return [];
    const close = Math.abs(value - number) <= CLOSE * Math.min(Math.abs(value), Math.abs(number));
    return close || Number(value.toPrecision(COPIED)) === number ? [place] : [];
  });
  return near.length === 1 ? near[0] : -1;
}

/** Of the largest value, how far apart the ends of an axis are at least: less is rounding. */
const FLOOR = 1e-4;

/** The ends of an axis for values, and whether they are further apart than these are. */
function spanOf(values, log) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values)
    if (Number.isFinite(value) && !(log && value <= 0))
      [low, high] = [Math.min(low, value), Math.max(high, value)];
  if (low > high) return { ends: [log ? 1 : 0, log ? 10 : 1], wider: true };
  const more = (FLOOR * Math.max(-low, high) || 1) - (high - low);
  return more > 0 ? { ends: [low - more / 2, high + more / 2], wider: true } : { ends: [low, high] };
}

/** The ends of an axis with a little room. */
function roomy([low, high], log) {
  const room = log ? (high / low) ** 0.04 : 0.04 * (high - low);
  return log ? [low / room, high * room] : [low - room, high + room];
}

/** The share `q` of the way through values in increasing order, between two where it lies there. */
function quantile(sorted, q) {
  const place = q * (sorted.length - 1);
  const [below, above] = [sorted[Math.floor(place)], sorted[Math.ceil(place)]];
  return below + (above - below) * (place - Math.floor(place));
}

/** Shares of the values between which colours lie, unless all of them take less than twice that. */
const ROBUST = [0.02, 0.98];

/**
 * Ends of the colours of a map, and how many values lie beyond them. `mode` is "robust", "full", or
 * "hand" for `low` and `high`, of which either may be missing; `around`: zero lies in the middle.
 */
function endsOf(values, { log, around, mode, low, high }) {
  const sorted = values.filter((value) => Number.isFinite(value) && !(log && value <= 0)).sort();
  let [first, last] = spanOf(sorted, log).ends;
  if (mode === "robust" && sorted.length) {
    const on = log ? Math.log10 : Number;
    const [from, to] = ROBUST.map((q) => on(quantile(sorted, q)));
    const far = on(last) - on(first) > 2 * (to - from) && to > from;
    if (far) [first, last] = log ? [10 ** from, 10 ** to] : [from, to];
  }
  if (around) [first, last] = [-1, 1].map((sign) => sign * Math.max(-first, last, 1e-30));
  if (mode === "hand") {
    const given = (value) => Number.isFinite(value) && !(log && value <= 0);
    [first, last] = [given(low) ? low : first, given(high) ? high : last];
    if (first > last) [first, last] = [last, first];
  }
  return { ends: [first, last], beyond: sorted.filter((value) => value < first || value > last).length };
}

/** Places of the values of an axis, in its own units, the borders between cells, and whether the values count cells. */
function geometry(values, kind) {
  const numbers = values.every((value) => typeof value === "number");
  const at = numbers ? values : values.map((_, place) => place);
  const to = kind === "log" ? Math.log : (value) => value;
  const back = kind === "log" ? Math.exp : (value) => value;
  const inside = at.map(to);
  const first = inside.length > 1 ? inside[1] - inside[0] : 1;
  const last = inside.length > 1 ? inside.at(-1) - inside.at(-2) : 1;
  const edges = [inside[0] - first / 2];
  for (let i = 1; i < inside.length; i++) edges.push((inside[i - 1] + inside[i]) / 2);
  edges.push(inside.at(-1) + last / 2);
  const counted = values.every((value, place) => value === place);
  return { at, edges: edges.map(back), inside: edges, back, words: numbers ? null : values, counted };
}

/** The cell between whose borders a place lies. */
function cellAt(edges, place) {
  let [low, high] = [0, edges.length - 2];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (edges[middle] <= place) low = middle;
    else high = middle - 1;
  }
  return low;
}

/**
 * Diagonal lines through all marked cells of the `part` of the map that is on the screen, [x, y]
 * with the ends of each inside its axis, as one broken line. They are as far from each other
 * whatever the size of cells, so that a million cells are hatched as well as ten.
 */
function hatching(x, y, marked, falling, part, lines = 40, steps = 240) {
  const columns = x.at.length;
  const [[left, width], [bottom, height]] = [x, y].map(({ inside }, i) => {
    const [first, last] = part?.[i] ?? [inside[0], inside.at(-1)];
    const [low, high] = [Math.max(first, inside[0]), Math.min(last, inside.at(-1))];
    return [low, high - low];
  });
  const found = { x: [], y: [] };
  for (let line = -lines; line < lines; line++) {
    let open = false;
    for (let step = 0; step < steps; step++) {
      // Not at its ends, where the borders of cells are.
      const across = (step + 0.5) / steps;
      const up = across - (line + 0.5) / lines;
      if (up < 0 || up > 1) continue;
      const place = [left + across * width, bottom + (falling ? 1 - up : up) * height];
      const cell = cellAt(y.inside, place[1]) * columns + cellAt(x.inside, place[0]);
      if (marked(cell)) {
        found.x.push(x.back(place[0]));
        found.y.push(y.back(place[1]));
      } else if (open) {
        found.x.push(null);
        found.y.push(null);
      }
      open = marked(cell);
    }
    found.x.push(null);
    found.y.push(null);
  }
  return found;
}

/** Level lines through the middle of all marked cells, as one broken line. */
function ruled(x, y, marked) {
  const [columns, found] = [x.at.length, { x: [], y: [] }];
  y.at.forEach((_, row) => {
    const middle = y.back((y.inside[row] + y.inside[row + 1]) / 2);
    for (let column = 0; column < columns; column++) {
      const first = column;
      while (column < columns && marked(row * columns + column)) column++;
      if (column === first) continue;
      found.x.push(x.edges[first], x.edges[column], null);
      found.y.push(middle, middle, null);
    }
  });
  return found;
}

/** Border of a cell as a line. */
function outline(x, y, [column, row]) {
  const [l, r, b, t] = [x.edges[column], x.edges[column + 1], y.edges[row], y.edges[row + 1]];
  return { x: [l, r, r, l, l], y: [b, b, t, t, b] };
}

/** Two lines, the lower one white and wider: any colour of a map is far from one of them. */
function haloed({ line, ...trace }) {
  const below = { color: LIGHT, width: line.width + 2.4, dash: line.dash };
  return [{ ...trace, line: below, showlegend: false, name: "" }, { ...trace, line }];
}

const [LIGHT, DARK] = ["#ffffff", "#101216"];

/** Colours of the page by name, in the theme that is on. */
function themed() {
  const style = getComputedStyle(document.documentElement);
  const names = ["back", "text", "soft", "grid", "accent"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

/** Colour of a sweep's curves; black of our figures is white in the dark. */
function colourOf(store) {
  const colour = about.palette[store % about.palette.length];
  return colour === "#000000" ? themed().text : colour;
}

const dashOf = (store) => ["solid", "dash", "dot", "dashdot", "longdash"][store % 5];

const DIVERGING = [[0, "#b35806"], [0.25, "#fdb863"], [0.5, "#f7f7f7"], [0.75, "#b2abd2"], [1, "#542788"]];

function scaleOf(difference) {
  if (difference) return DIVERGING;
  return about.scale.map((colour, i) => [i / (about.scale.length - 1), colour]);
}

/** Where two sweeps have the same region, as `regionsOf`; the colours are those of our figures. */
const AGREEMENT = [[0, "same", "#f0f0f0"], [1, "different", "#d95f02"]];

/** Colours of regions, each a step, and a colour bar that has their names. */
function stepsOf(regions) {
  const steps = regions.flatMap(([, , colour], i) => [i, i + 1].map((end) => [end / regions.length, colour]));
  const names = regions.map(([, name]) => plain(name));
  return { colorscale: steps, colorbar: { tickvals: regions.map((_, i) => i), ticktext: names } };
}

/** Labels of a logarithmic colour bar from `low` to `high`, which are logarithms. */
function logTicks(low, high) {
  const several = high - low > 1.5;
  const tickvals = Array.from({ length: several ? 0 : 5 }, (_, i) => low + ((high - low) * i) / 4);
  for (let power = Math.ceil(low); several && power <= high; power++) tickvals.push(power);
  return { tickvals, ticktext: tickvals.map((value) => shown(10 ** value)) };
}

/** What axes and text of a figure look like. */
function layoutOf(x, y) {
  const colours = themed();
  const axis = ({ title, kind, words, at, range, counted }) => ({
    title: { text: wrapped(title), standoff: 8 },
    type: kind === "log" ? "log" : "linear",
    automargin: true,
    gridcolor: colours.grid,
    zeroline: false,
    linecolor: colours.soft,
    exponentformat: "power",
    ...(range && { range: kind === "log" ? range.map(Math.log10) : range }),
    ...(words && { tickvals: at, ticktext: words.map(plain) }),
    ...(counted && { tick0: 0, dtick: Math.ceil(at.length / 10) }),
  });
  return {
    xaxis: axis(x),
    yaxis: axis(y),
    font: { color: colours.text, size: 13 },
    paper_bgcolor: colours.back,
    plot_bgcolor: colours.back,
    margin: { l: 55, r: 15, t: 12, b: 50 },
    showlegend: false,
    hovermode: "closest",
    dragmode: false,
  };
}

const LOOKS = { displayModeBar: false, responsive: true, doubleClick: false };
