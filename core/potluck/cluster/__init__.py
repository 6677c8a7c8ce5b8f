"""The cluster: nodes, membership, the master's plans, the worker's leases, and generation."""
