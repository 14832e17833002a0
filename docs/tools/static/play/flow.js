// The symmetric reduction of one attention layer (docs/theory/symmetric.md) as a flow, for the page
// "Play with it". The same equations as `odes.symmetric`, in float64; tests compare the two.

const symmetricFlow = (() => {
  "use strict";

  // Dormand and Prince's pair of orders 5 and 4: weights of the stages, of which the last row is the
  // step itself, and of the error that is estimated from them.
  const STAGES = [
    [],
    [1 / 5],
    [3 / 40, 9 / 40],
    [44 / 45, -56 / 15, 32 / 9],
    [19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729],
    [9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656],
    [35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84],
  ];
  const ERROR = [71 / 57600, 0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40];
  const RTOL = 1e-7;
  const ATOL = 1e-9;
  // As many as `odes` takes: on a slow machine, the page stands still for a fraction of a second.
  const MOST_STEPS = 16384;

  // Probabilities of the D distinct tokens of a class, of weights from `rarest` to 1, and of each of
  // the C common tokens, of one `weight`. dynsim.syn has rarest = 0.1 and weight = 1.
  function profile({ D, C, rarest, weight }) {
    const share = (i) => (D > 1 ? rarest + ((1 - rarest) * i) / (D - 1) : rarest);
    const weights = Array.from({ length: D }, (_, i) => share(i));
    const total = weights.reduce((sum, w) => sum + w, C * weight);
    return { p: weights.map((w) => w / total), rho: C > 0 ? weight / total : 0 };
  }

  // Numbers of the state by place: D each of own, other, rest and z_distinct, then commonNext,
  // commonRest and z_common. All common tokens are alike, so one stands for C.
  function layer(task) {
    const { D, C, K, M, Q } = task;
    const { p, rho } = profile(task);
    const f = new Float64Array(D);
    const now = { f, common: 0, loss: 0, speed: 0, total: 0 };

    // Writes minus the gradient per full parameter into `out`, and what is observed into `now`.
    function direction(y, out) {
      const u = y[4 * D];
      const v = y[4 * D + 1];
      const zCommon = y[4 * D + 2];
      let largest = C > 0 ? zCommon : -Infinity;
      for (let i = 0; i < D; i++) largest = Math.max(largest, y[3 * D + i]);
      let common = rho > 0 ? rho * Math.exp(zCommon - largest) : 0;
      let total = C * common;
      let squares = C * common * common;
      for (let i = 0; i < D; i++) {
        f[i] = p[i] * Math.exp(y[3 * D + i] - largest);
        total += f[i];
        squares += f[i] * f[i];
      }
      const norm = Math.sqrt(squares);
      common /= norm;
      // Logits of another class's next token and of any other output, less the own one.
      let toOther = 0;
      let toRest = C * common * (v - u);
      for (let i = 0; i < D; i++) {
        f[i] /= norm;
        toOther += f[i] * (y[D + i] - y[i]);
        toRest += f[i] * (y[2 * D + i] - y[i]);
      }
      const top = Math.max(toOther, toRest);
      const others = K - 1;
      const rests = M - K;
      const wrong = others * Math.exp(toOther - top) + rests * Math.exp(toRest - top);
      const logit = top + Math.log(wrong);
      const loss = Math.max(logit, 0) + Math.log1p(Math.exp(-Math.abs(logit)));
      const other = Math.exp(toOther - loss);
      const rest = Math.exp(toRest - loss);
      // As a sum of wrong probabilities: nothing cancels late in a run.
      const residual = others * other + rests * rest;
      const gCommon = rests * rest * (u - v);
      let speed = C * common * gCommon;
      for (let i = 0; i < D; i++) {
        // g_i is kept in the place of its token until the speed is known.
        const g = residual * y[i] - others * other * y[D + i] - rests * rest * y[2 * D + i];
        out[3 * D + i] = g;
        speed += f[i] * g;
      }
      for (let i = 0; i < D; i++) {
        out[i] = (f[i] * residual) / K;
        out[D + i] = (-f[i] * other) / K;
        out[2 * D + i] = (-f[i] * rest) / K;
        out[3 * D + i] = (f[i] * (out[3 * D + i] - f[i] * speed)) / K;
      }
      out[4 * D] = (common * rests * rest) / K;
      out[4 * D + 1] = -common * rest;
      out[4 * D + 2] = (common * (gCommon - common * speed)) / Q;
      now.common = common;
      now.loss = loss;
      now.speed = speed;
      now.total = total / norm;
    }
    return { direction, now, size: 4 * D + 3 };
  }

  // The flow of SGD, or the matched flow of heavy-ball momentum: a velocity that decays over one
  // unit of time as over one step, read half a step later (docs/theory/flow.md).
  function field(task, optimizer) {
    const { direction, now, size } = layer(task);
    const { etaY, etaZ, momentum } = optimizer;
    const rate = (i) => (i >= 3 * task.D && i !== 4 * task.D && i !== 4 * task.D + 1 ? etaZ : etaY);
    const rates = Float64Array.from({ length: size }, (_, i) => rate(i));
    const pull = new Float64Array(size);
    const decay = -Math.log(momentum);
    function derivative(y, out) {
      direction(y, pull);
      for (let i = 0; i < size; i++) {
        if (momentum > 0) {
          out[i] = rates[i] * y[size + i];
          out[size + i] = decay * (pull[i] / (1 - momentum) - y[size + i]);
        } else {
          out[i] = rates[i] * pull[i];
        }
      }
    }
    return { derivative, now, size: momentum > 0 ? 2 * size : size, shift: momentum > 0 ? 0.5 : 0 };
  }

  function add(to, factor, values) {
    for (let i = 0; i < to.length; i++) to[i] += factor * values[i];
  }

  // Calls save(k) at each of the times, which increase; `derivative` was last called there. False
  // where the solver gives up.
  function integrate(derivative, size, times, save) {
    let y = new Float64Array(size);
    let next = new Float64Array(size);
    const off = new Float64Array(size);
    const slopes = STAGES.map(() => new Float64Array(size));
    let [t, step, taken] = [0, 1e-4, 0];
    derivative(y, slopes[0]);
    for (const [k, end] of times.entries()) {
      while (t < end) {
        if (++taken > MOST_STEPS) return false;
        const h = Math.min(step, end - t);
        for (let s = 1; s < STAGES.length; s++) {
          next.set(y);
          STAGES[s].forEach((weight, j) => add(next, h * weight, slopes[j]));
          derivative(next, slopes[s]);
        }
        off.fill(0);
        ERROR.forEach((weight, j) => add(off, h * weight, slopes[j]));
        let squares = 0;
        for (let i = 0; i < size; i++) {
          const scale = ATOL + RTOL * Math.max(Math.abs(y[i]), Math.abs(next[i]));
          squares += (off[i] / scale) ** 2;
        }
        const error = Math.sqrt(squares / size);
        const factor = Math.min(5, Math.max(0.2, 0.9 * error ** -0.2));
        if (!(error <= 1)) {
          step = h * (factor < 1 ? factor : 0.2);
          continue;
        }
        t = h < step ? end : t + h;
        // A step that was cut at a time says little about the next one.
        step = h < step ? Math.max(step, h * factor) : h * factor;
        [y, next] = [next, y];
        [slopes[0], slopes[6]] = [slopes[6], slopes[0]];
      }
      derivative(y, slopes[0]);
      save(k);
    }
    return true;
  }

  // Curves at the times (optimiser steps, increasing, from 0 on). `task` has D, C, rarest, weight, Q
  // queries, K classes and M outputs; `optimizer` has etaY, etaZ and momentum. Entries that the
  // solver did not reach are NaN.
  function solve(task, optimizer, times) {
    const { derivative, now, size, shift } = field(task, optimizer);
    const curve = () => new Array(times.length).fill(NaN);
    const found = { loss: curve(), speed: curve(), entropy: curve(), common: curve() };
    found.distinct = Array.from({ length: task.D }, curve);
    const at = times.map((time) => (time > 0 ? time + shift : 0));
    found.ok = integrate(derivative, size, at, (k) => {
      [found.loss[k], found.speed[k], found.common[k]] = [now.loss, now.speed, now.common / now.total];
      const mass = now.f.reduce((sum, f) => sum + f, 0);
      found.entropy[k] = -now.f.reduce((sum, f) => (f > 0 ? sum + (f / mass) * Math.log(f / mass) : sum), 0);
      now.f.forEach((f, i) => (found.distinct[i][k] = f / now.total));
    });
    return found;
  }

  return { solve, profile };
})();
