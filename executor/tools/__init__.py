"""The canonical tools, one module a family. A tool is one function and one model."""
