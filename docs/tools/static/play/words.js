// What the curves of the page "Play with it" show: in words, as a table, and as Python.

const playWords = (() => {
  "use strict";

  const top = ({ distinct }) => distinct.at(-1);
  const shares = ({ distinct }, k) => distinct.reduce((sum, values) => sum + values[k], 0);

  // First of the times by which a curve has made half of its way from its first to its last value.
  function halfWay(curve, times) {
    const [first, last] = [curve[0], curve.at(-1)];
    if (Math.abs(last - first) < 1e-4 * Math.abs(first)) return null;
    return times[curve.findIndex((value) => Math.abs(value - first) >= Math.abs(last - first) / 2)];
  }

  function movement(found, show) {
    const { times, peak } = found;
    const end = times.length - 1;
    const half = halfWay(top(found), times);
    if (half === null) return `Attention hardly moves until step ${times[end]}. `;
    const moved = `the most frequent distinct token has made half of its way by step ${show(half)}. `;
    if (peak === end) {
      return `Attention is still scanning at step ${times[end]}: the speed γ is ${show(found.speed[end])} and rising; ${moved}`;
    }
    const when = peak <= 1 ? "within the first step" : `at step ${show(times[peak])}`;
    return `The speed γ peaks ${when}, at ${show(found.speed[peak])}: attention scans before and snaps after; ${moved}`;
  }

  // The regime of a run in a few sentences.
  function regime(found, show) {
    const { times, task, entropy, loss, ok } = found;
    if (!ok) return "The solver gave up at these settings: choose fewer steps or less momentum.";
    const end = times.length - 1;
    const percent = (share) => `${show(100 * share)} %`;
    const lowest = entropy.indexOf(Math.min(...entropy));
    const dip = entropy[end] - entropy[lowest] > 0.01 ? `, after ${show(entropy[lowest])} at step ${show(times[lowest])}` : "";
    return (
      movement(found, show) +
      `At step ${times[end]} the distinct tokens of a class have ${percent(shares(found, end))} of the attention ` +
      `(${percent(shares(found, 0))} at the start), the most frequent of them ${percent(top(found)[end])} ` +
      `(${percent(top(found)[0])}). The entropy goes from ${show(entropy[0])} to ${show(entropy[end])} nat${dip}, ` +
      `as of ${show(Math.exp(entropy[end]))} equal tokens out of ${task.D}. The loss goes from ${show(loss[0])} to ${show(loss[end])} nat.`
    );
  }

  // One sentence for each panel, in place of its curves.
  function curves(found, show) {
    const { times, task, peak } = found;
    const course = (values) => `from ${show(values[1])} at step 1 to ${show(values.at(-1))} at step ${times.at(-1)}`;
    const common = task.C ? `; of each common token ${course(found.common)}` : "";
    return {
      attention:
        `Attention over steps: of the most frequent of ${task.D} distinct tokens ${course(top(found))}, ` +
        `of the rarest ${course(found.distinct[0])}${common}.`,
      speed: `Speed over steps: ${course(found.speed)}, largest ${show(found.speed[peak])} at step ${show(times[peak])}.`,
      entropy: `Entropy of attention on distinct tokens over steps: ${course(found.entropy)}.`,
      loss: `Loss over steps: ${course(found.loss)}.`,
    };
  }

  // Rows at step 0 and at every sixteenth of the other times.
  function fill(table, found, show) {
    const { times, task } = found;
    const columns = { step: times, loss: found.loss, speed: found.speed, entropy: found.entropy };
    columns["most frequent distinct token"] = top(found);
    columns["rarest distinct token"] = found.distinct[0];
    if (task.C) columns["each common token"] = found.common;
    table.replaceChildren();
    const head = table.createTHead().insertRow();
    for (const name of Object.keys(columns)) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.textContent = name;
      head.append(cell);
    }
    const body = table.createTBody();
    times.forEach((_, k) => {
      if (k > 0 && k % 16 !== 1) return;
      const row = body.insertRow();
      for (const values of Object.values(columns)) row.insertCell().textContent = show(values[k]);
    });
  }

  // A program that solves the same flow.
  function python(task, { etaY, etaZ, momentum }, steps) {
    const rule = momentum ? `momentum(${etaY}, ${etaZ}, ${momentum})` : `sgd(${etaY}, ${etaZ})`;
    return [
      "import numpy as np",
      "import dynsim",
      "from odes import symmetric",
      "",
      `p, rho = np.linspace(${task.rarest}, 1, ${task.D}), np.full(${task.C}, ${task.weight})`,
      "total = p.sum() + rho.sum()",
      "task = symmetric.symmetric_profiles(",
      `    p / total, rho / total, K=${task.K}, M=${task.M}, num_queries=${task.Q}`,
      ")",
      'record = ["loss", "speed", "entropy", "attention_distinct", "attention_common"]',
      `run = symmetric.solve(task, dynsim.${rule}, dynsim.log_times(${steps}), record=record)`,
      "print(run)",
    ].join("\n");
  }

  return { regime, curves, fill, python };
})();
