"""Simulation: what a network makes of a schedule or a workload."""
