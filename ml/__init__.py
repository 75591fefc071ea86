"""The anomaly model of page load times: features, training, the model file, its registry, and scoring in SQL."""
