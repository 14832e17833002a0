"""In-context regression with linear attention: task, models, sampling and observables."""
