package workflows

// Mermaid draws the graph as a Mermaid flowchart.
func (w *Workflow) Mermaid() string { return "" }
