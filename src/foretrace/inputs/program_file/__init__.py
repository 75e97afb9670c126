"""Program files of Foretrace, and programs built in Python."""
