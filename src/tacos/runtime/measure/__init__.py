"""Measurements: algorithms on real data, and the network between the ranks."""
