"""The boundary of what can be trained."""
