"""What every layer and both ends of a model do for one microbatch on one rank, under a plan and a software stack."""

from foretrace.workload.layers.works import embedding_work, head_work, layer_work, mtp_work

__all__ = ["embedding_work", "head_work", "layer_work", "mtp_work"]
