"""Predictions of theory for the words of a text, with classes estimated from it."""
