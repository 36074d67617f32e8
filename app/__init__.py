"""Sfumato's web application: pages, durable runs, uploads. It never imports torch (see tests/architecture)."""
