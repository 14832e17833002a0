// Panels of curves over logarithmic time, as SVG, for the page "Play with it".

const lifeChart = (() => {
  "use strict";

  const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [360, 210, 44, 18, 8, 34];
  const SVG = "http://www.w3.org/2000/svg";
  // Viridis at equal distances: curves whose values have an order have these, as in our figures.
  const VIRIDIS = ["#440154", "#46327e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#a0da39", "#fde725"];
  const channels = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));

  function shade(share) {
    const at = share * (VIRIDIS.length - 1);
    const below = Math.min(Math.floor(at), VIRIDIS.length - 2);
    const [a, b] = [channels(VIRIDIS[below]), channels(VIRIDIS[below + 1])];
    return `rgb(${a.map((value, i) => Math.round(value + (b[i] - value) * (at - below)))})`;
  }

  // Colours of `number` curves from dark to light, away from the end that the background has.
  function shades(number) {
    const share = (i) => (number > 1 ? i / (number - 1) : 0.5);
    return Array.from(
      { length: number },
      (_, i) => `light-dark(${shade(0.9 * share(i))}, ${shade(0.25 + 0.75 * share(i))})`,
    );
  }

  function make(name, attributes, parent) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    parent?.append(made);
    return made;
  }

  // As many children of a kind as there are entries, those that are there used again.
  function each(parent, name, entries, update) {
    while (parent.childElementCount > entries.length) parent.lastElementChild.remove();
    while (parent.childElementCount < entries.length) make(name, {}, parent);
    entries.forEach((entry, i) => update(parent.children[i], entry));
  }

  // 1, 2 or 5 times a power of ten, so that about four of them fill a range.
  function spacing(range) {
    const power = 10 ** Math.floor(Math.log10(range / 4));
    return [1, 2, 5, 10].map((factor) => factor * power).find((step) => range / step <= 5);
  }

  // Ends and ticks of an axis that holds the values; ends are ticks, so that they seldom move.
  function scale(values, log) {
    if (log) {
      const logs = values.filter((value) => value > 0).map(Math.log10);
      const high = Math.ceil(Math.max(...logs, -300));
      const low = Math.max(Math.min(Math.floor(Math.min(...logs, 300)), high - 1), high - 8);
      const every = Math.ceil((high - low) / 4);
      const ticks = [];
      for (let power = high; power >= low; power -= every) ticks.push(10 ** power);
      return { ticks, share: (value) => (Math.log10(value) - low) / (high - low) };
    }
    const [least, most] = [Math.min(...values), Math.max(...values)];
    const step = spacing(Math.max(most - least, 0.02, 0.1 * Math.abs(most)));
    const [low, high] = [Math.floor(least / step), Math.floor(most / step) + 1];
    const ticks = Array.from({ length: high - low + 1 }, (_, i) => (low + i) * step);
    return { ticks, share: (value) => (value / step - low) / (high - low) };
  }

  function tick(value) {
    const power = Math.round(Math.log10(value));
    const small = value < 0.0099 || value > 9999;
    if (!(value > 0) || !small) return String(Number(value.toPrecision(3)));
    const raised = [...String(power)].map((digit) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(digit)]);
    return value === 10 ** power ? `10${raised.join("")}` : value.toExponential();
  }

  // A panel below `parent`: draw(times, curves, peak) with a style for each curve, look(step) for
  // the line at the step that is read, describe(text) for those who do not see it.
  function panel(parent, title, log) {
    const figure = document.createElement("figure");
    const caption = document.createElement("figcaption");
    caption.append(title);
    figure.append(caption);
    parent.append(figure);
    // Its name until the curves are there to be described.
    const label = { role: "img", "aria-label": caption.textContent };
    const svg = make("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, ...label });
    figure.append(svg);
    const [grid, labels, marks, lines] = ["grid", "labels", "marks", "lines"].map((kind) =>
      make("g", { class: kind }, svg),
    );
    const peakLine = make("line", { class: "peak", y1: TOP, y2: HEIGHT - BOTTOM }, marks);
    const lookLine = make("line", { class: "look", y1: TOP, y2: HEIGHT - BOTTOM }, marks);
    let last = 1;
    const x = (time) => LEFT + ((WIDTH - LEFT - RIGHT) * Math.log(time)) / Math.log(last);

    function place(line, time) {
      line.style.display = time >= 1 && time <= last ? "" : "none";
      if (time >= 1) line.setAttribute("x1", x(time));
      if (time >= 1) line.setAttribute("x2", x(time));
    }

    function draw(times, curves, peak) {
      last = times.at(-1);
      // The first time is step 0, which a logarithmic axis does not have.
      const values = curves.flatMap(({ values }) => values.slice(1).filter(Number.isFinite));
      const { ticks, share } = scale(values, log);
      const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - share(value));
      const decades = Array.from({ length: Math.floor(Math.log10(last) + 1e-9) + 1 }, (_, i) => 10 ** i);
      const bottom = HEIGHT - BOTTOM;
      const rules = [
        ...decades.map((time) => `M${x(time)} ${TOP}V${bottom}`),
        ...ticks.map((value) => `M${LEFT} ${y(value)}H${WIDTH - RIGHT}`),
      ];
      each(grid, "path", [rules.join("")], (path, d) => path.setAttribute("d", d));
      const words = [
        ...decades.map((time) => [x(time), bottom + 13, "middle", tick(time)]),
        ...ticks.map((value) => [LEFT - 5, y(value) + 4, "end", tick(value)]),
        [(LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4, "middle", "optimiser steps"],
      ];
      each(labels, "text", words, (text, [left, base, anchor, content]) => {
        text.setAttribute("x", left);
        text.setAttribute("y", base);
        text.setAttribute("text-anchor", anchor);
        if (text.textContent !== content) text.textContent = content;
      });
      each(lines, "path", curves, (path, { values, colour, dashed }) => {
        const seen = (k) => k > 0 && Number.isFinite(values[k]) && (!log || share(values[k]) >= 0);
        const point = (k) => `${seen(k - 1) ? "L" : "M"}${x(times[k]).toFixed(1)} ${y(values[k]).toFixed(1)}`;
        path.setAttribute("d", values.map((_, k) => (seen(k) ? point(k) : "")).join(""));
        path.style.stroke = colour;
        path.style.strokeDasharray = dashed ? "5 3" : "";
      });
      place(peakLine, peak);
    }
    const look = (step) => place(lookLine, step);
    const describe = (text) => svg.setAttribute("aria-label", text);
    return { caption, draw, look, describe };
  }

  return { panel, shades };
})();
