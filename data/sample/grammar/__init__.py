"""Generate English sentences with their constituency trees."""
