"""What Megatron's rank traces mean: a real run replayed, or a whole job foretold from one GPU's traces."""

from foretrace.lower.megatron_trace.lower import lower_traces, read_recording, run_notes
from foretrace.lower.megatron_trace.recording import Recording
from foretrace.lower.megatron_trace.replay import recorded_times, replay

__all__ = ["Recording", "lower_traces", "read_recording", "recorded_times", "replay", "run_notes"]
