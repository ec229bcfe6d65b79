"""What one rank does with a candidate: build the mesh and the model, train, report the cost."""
