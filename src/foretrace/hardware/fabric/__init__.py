"""What joins GPUs: devices, links and the ways through them."""
