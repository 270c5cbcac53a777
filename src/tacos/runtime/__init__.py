"""Running algorithms on real networks."""
