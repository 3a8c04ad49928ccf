"""Toolsets: names and schemas under which the canonical tools are shown to a model."""
