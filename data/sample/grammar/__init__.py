"""A small trilingual grammar: sentences as trees, spelled out in English, German and French."""
