"""./ladder diff, and what all programs in Python ask of the ladder: registry, ledger, how a program ends."""
