"""Sfumato's engine: models, tensors, attributions, memberships. It knows nothing of HTTP, SQL or HTML."""
