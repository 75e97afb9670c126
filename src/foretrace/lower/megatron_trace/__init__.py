"""What Megatron's rank traces mean: a real run replayed, or a whole job predicted from one GPU's traces."""

from foretrace.lower.megatron_trace.lower import lower_runs, recording_of, run_notes
from foretrace.lower.megatron_trace.recording import Recording
from foretrace.lower.megatron_trace.replay import recorded_times, replay

__all__ = ["Recording", "lower_runs", "recorded_times", "recording_of", "replay", "run_notes"]
