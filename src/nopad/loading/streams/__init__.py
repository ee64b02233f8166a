"""Streams: texts or ids that never end, or are not tokenised yet, read, tokenised and packed while training runs."""
