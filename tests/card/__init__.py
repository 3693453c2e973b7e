"""The engine on a card that exists by name only, see ``tests/support/pretended_card``."""
