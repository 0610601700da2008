"""What is asked: the network, its loss, the clip, and the view of a record."""
