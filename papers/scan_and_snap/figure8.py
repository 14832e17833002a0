"""Fig. 8: the decoder h*, which moves in discrete steps, stays close to its continuous limit h.

h* obeys the recursion of Lemma 5, h the differential equation of Lemma 6, in closed form. By
Lemma 7 their difference is at most 2 eta_Y / M; we draw its share of that bound below the curves.
"""

import jax
import numpy as np

import odes
import sweeps
from sweeps import drawing

RATES = {50: (0.1, 0.2, 0.5, 1.0, 2.0), 1000: (0.2, 0.5, 1.0, 2.0, 4.0)}
"""Learning rates of Y, by M."""
VISITS = {50: 80, 1000: 70}


class Figure8(sweeps.Figure):
    """Decoder h* by discrete steps and h by the flow, with Lemma 7's bound on the difference."""

    NAME = "fig8"

    def draw(self, data):
        arrays, text = {}, []
        figure, axes = drawing.panels(2, 2, width=4, sharex="col")
        for (above, below), (M, rates) in zip(axes.T, RATES.items(), strict=True):
            s, eta_y = np.arange(VISITS[M] + 1), np.array(rates)
            with jax.enable_x64(True):
                flow = np.asarray(odes.decoder.h(s[None], eta_y[:, None], M))  # Lemma 6
                discrete = np.asarray(odes.decoder.h_star(eta_y, M, VISITS[M])).T  # Lemma 5
            share = (discrete - flow) * M / (2 * eta_y[:, None])  # Lemma 7
            for i, colour in enumerate(drawing.shades(len(rates))):
                style = {"color": colour, "label": rf"$\eta_Y = {rates[i]:g}$"}
                above.plot(s, M * flow[i], **style)
                above.plot(s, M * discrete[i], ".", ms=4, color=colour)
                below.plot(s, share[i], **style)
            below.axhline(0, color="grey", lw=0.8)
            drawing.finished(above, {}, ylabel="$M h$ (line), $M h^*$ (dots)", title=f"M = {M}")
            label = r"$(h^* - h)\,/\,(2\eta_Y/M)$"
            drawing.finished(below, xlabel="visits to the class $s$", ylabel=label)
            arrays[f"M{M}"] = {"eta_y": eta_y, "s": s, "h": flow, "h_star": discrete}
            text.append(f"M = {M}: h* - h is {share.min():.3g} to {share.max():.3g} of 2 eta_Y / M")
        return sweeps.Picture(figure, arrays, "\n".join(text))
