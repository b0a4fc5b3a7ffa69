"""What a person sees: the page and the pictures."""
