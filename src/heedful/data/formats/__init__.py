"""File formats: tables, CoNLL, SQuAD, idx, arrays."""
