"""Tables of PyTorch's profiler (`key_averages().table()`)."""
