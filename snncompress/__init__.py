"""Makes PyTorch image classifiers smaller with stochastic neural networks."""

__version__ = "0.1.0"
