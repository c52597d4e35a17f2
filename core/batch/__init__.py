"""Durable jobs: OpenAI batches that survive whatever happens, on the capacity that is left."""
