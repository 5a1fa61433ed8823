"""Generate sentences as trees from a small grammar and spell them in English, German and French."""
