"""What the Python tests share: event loops with a guard, addresses, child processes, seeds."""
