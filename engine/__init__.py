"""fedskew: a federated-learning simulation engine on Ray, for research on label skew."""

__version__ = "0.2.0"
