"""One file per data set, and how papers prepare them."""
