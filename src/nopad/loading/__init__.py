"""Loading: tokens by number, dealt to ranks in batches of equal cost."""
