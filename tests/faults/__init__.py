"""A fault harness: real nodes on hosts of one machine, and what each fault does to their answers."""
