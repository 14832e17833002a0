"""In-context regression by linear attention: task, models, sampling, observables, training."""
