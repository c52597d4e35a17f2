"""Webhooks: what is told to tenants' own servers when a batch ends, signed as Standard Webhooks asks."""
