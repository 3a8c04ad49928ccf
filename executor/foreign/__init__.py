"""MCP servers of others as a source of tools: strangers, of whom nothing is believed."""
