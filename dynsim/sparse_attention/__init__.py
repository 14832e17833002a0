"""The emergence of sparse attention: task, model, observables, training."""
