"""One module a resource; functions, each a few lines: read the request, call a use case, render what it left."""
