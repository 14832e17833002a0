"""What theories of the attention layer require of their rule."""

from dynsim.training.rule import Rule
from dynsim.training.rules import check_known


def theory_rule(rule: Rule) -> Rule:
    """The rule of a theory with rates for Y and Z; raises `ValueError` for anything but a rule, and
    for rates of other groups."""
    check_known(rule)
    return rule.of_groups("Y", "Z")
