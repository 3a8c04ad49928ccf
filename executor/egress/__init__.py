"""The broker: what boxes reach outside, decided, resolved, dialled and counted on the host."""
