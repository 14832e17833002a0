"""The boundary between learning rates that train and those that do not."""
