"""A Flower project with two clients, for the tests."""
