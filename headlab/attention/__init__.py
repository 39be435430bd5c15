"""Pure torch: attention that knows its heads by name, layouts, and the removal of heads."""
