"""Carriers: what moves the messages of a program between ranks."""
