"""Commands that show a stored sweep to the eye."""
