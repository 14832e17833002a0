"""Transition times of attention compared with their closed forms."""
