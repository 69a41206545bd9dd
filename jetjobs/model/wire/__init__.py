"""The wire format: subjects, headers, ids and lenient parsing. No I/O."""
