"""What a modeler reads: findings, numbers, charts and exhibits, as a page, as JSON and as text."""
