"""How jobs are spelled on the wire: subjects, headers, ids and lenient parsing. No I/O."""
