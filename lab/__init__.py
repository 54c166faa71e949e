"""Measuring and predicting: fake engine, load generator, simulator, planner."""
