"""The idea of the package: the Jacobian of a release, and everything that only asks that Jacobian."""
