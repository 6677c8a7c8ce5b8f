"""What `potluck serve` puts in front of its node: `/v1`, which stays when the node is lost."""
