"""What theories of the attention layer require of their rule."""

from dynsim import checks
from dynsim.training.rule import Rule


def theory_rule(rule: Rule) -> Rule:
    """The rule of a theory with rates for Y and Z; raises `ValueError` for what is no rule, and for
    rates of other groups."""
    checks.kind("optimizer", rule, Rule)
    return rule.of_groups("Y", "Z")
