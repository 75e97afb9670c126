"""The ways that traffic takes through a fabric."""
