"""Where the assumptions behind a prediction of `dynsim explain` break down."""

MOST_WEIGHTS = 300
"""Maximum number of weights for measuring sharpness, and for averages of squares if the mean is
known without: they need the gradients of all examples."""
