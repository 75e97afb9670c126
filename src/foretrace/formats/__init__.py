"""File formats: bytes to records and back, no more. What records mean is said in `foretrace.lower`."""
