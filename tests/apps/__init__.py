"""Applications of others on smcfast: `make test-apps`."""
