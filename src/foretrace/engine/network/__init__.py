"""Messages on links: who sends what to whom after what, and how the links divide it."""
