"""Language servers: programs in the box that know what the names in a project stand for."""
