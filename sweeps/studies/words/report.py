"""Classes of a text, and how far predictions hold on them, as lines to print."""

import dynsim
from dynsim.classes.corpus import Estimate
from dynsim.classes.task import OverlapReport
from odes.yz import THEORIES
from sweeps.output import aligned
from sweeps.studies.words.fates import Fates
from sweeps.studies.words.rules import RULES


def table(
    estimate: Estimate, overlaps: OverlapReport, found: Fates, ordinary: Fates | None = None
) -> str:
    """What was estimated, and how often each rule is right at the end, as lines to print; of
    `ordinary` parameters too if they were trained."""
    task, status = estimate.task, dynsim.Status(found.status).name
    lines = [
        f"{task.K} classes of {task.num_queries} queries over {task.M} words, "
        f"{estimate.coverage:.1%} of the windows; contextual words left out: "
        f"{estimate.stop_mass.mean():.0%} as stop words, {estimate.rare_mass.mean():.0%} as rare",
        f"overlap f_n.f_n' of two classes: mean {overlaps.all.mean:.3f}, max "
        f"{overlaps.all.max:.3f}; largest eigenvalue of E {overlaps.spectral:.2f}; beta < 0: "
        f"{overlaps.negative:.0%}",
        f"words: {overlaps.distinct} distinct, {overlaps.common} common, of which "
        f"{overlaps.nearly_distinct} owned (share >= {overlaps.threshold:g}), "
        f"{overlaps.owned_mass.mean():.1%} of a class on average",
        f"training: loss {found.loss[-1]:.4g}, accuracy {found.accuracy[-1]:.3f}, {status}",
    ]
    lines += _scores(found, "top words of each class")
    lines += [f"{title(name)}: {reason}" for name, reason in found.missing.items()]
    rules = [n for n in ("owned", "eq10-start", "flow-start") if n in found.scores]
    rows: list[tuple[str, ...]] = [("right by class", "windows", *rules)]
    for n, (name, windows) in enumerate(zip(estimate.names, estimate.windows, strict=True)):
        shares = (f"{found.scores[rule].by_class[-1, n]:.3f}" for rule in rules)
        rows.append((name, str(windows), *shares))
    lines += ["", *aligned(rows, 28, 9, 12)]
    if ordinary is not None:
        status = dynsim.Status(ordinary.status).name
        lines += [
            "",
            f"training of U, W_Q, W_K, W_V: loss {ordinary.loss[-1]:.4g}, accuracy "
            f"{ordinary.accuracy[-1]:.3f}, {status}",
            *_scores(ordinary, "effective layer"),
        ]
    return "\n".join(lines)


def _scores(found: Fates, what: str) -> list[str]:
    rows: list[tuple[str, ...]] = [("", "speaks of", "right", "base", "weighted", "base")]
    for name, score in found.scores.items():
        over_time = (score.right, score.base, score.weighted, score.base_weighted)
        values = (score.spoken, *(each[-1] for each in over_time))
        rows.append((title(name), *(f"{value:.3f}" for value in values)))
    heading = f"signs of z after {int(found.times[-1])} steps, {what}:"
    return ["", heading, *aligned(rows, 48, 10, 8, 8, 10, 8)]


def title(name: str) -> str:
    """Of a rule or theory, for tables and legends."""
    titles = {theory.name: f"z(t) of the {theory.title}" for theory in THEORIES}
    return RULES.get(name) or titles[name]
