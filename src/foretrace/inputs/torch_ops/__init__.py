"""What PyTorch's ops and GPU kernels do, by their names and the shapes of their inputs."""
