"""The estimators that people fit."""
