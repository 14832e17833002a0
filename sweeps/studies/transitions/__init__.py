"""When attention snaps: transition times against their closed forms."""
