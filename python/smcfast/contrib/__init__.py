"""Adapters to other libraries. Each is imported by its user alone, and only where that library is installed."""
