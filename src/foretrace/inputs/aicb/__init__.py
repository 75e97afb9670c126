"""SimAI/AICB workload files as an input."""
