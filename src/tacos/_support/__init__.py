"""What the other modules are built with: columns, tables, files."""
