"""From the words behind a command to its settings."""
