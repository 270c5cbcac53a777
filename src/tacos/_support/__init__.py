"""Helpers for the other modules: columns, tables, files, the linear solver."""
