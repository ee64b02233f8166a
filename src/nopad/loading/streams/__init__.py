"""Streams: texts or ids that are read, tokenised and packed while training runs; they may never end."""
