"""What every training shares: the loop, its update rules and its checks."""
