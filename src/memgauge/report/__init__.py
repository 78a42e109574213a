"""Accounts and comparisons for people and programs: text and JSON."""
