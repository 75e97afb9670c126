"""SimAI/AICB workload files."""
