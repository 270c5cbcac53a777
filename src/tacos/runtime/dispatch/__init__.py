"""Dispatch: which algorithm serves a call, and which NPU a rank is."""
