"""What the tests with applications share."""
