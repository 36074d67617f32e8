"""Builds the contexts of app/contexts.py from rows: pure functions, one module a part of the page."""
