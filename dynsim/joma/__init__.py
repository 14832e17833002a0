"""Joint dynamics of an MLP layer and attention (JoMA): model, observables, training."""
