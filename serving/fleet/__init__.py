"""The fleet's rules, as far as they need no process: routing, suspicion, swaps in turn, proof of a swap."""
