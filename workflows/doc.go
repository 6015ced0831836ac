// Package workflows reads *.relavium.yaml and *.agent.yaml files into checked
// values: nodes, edges, templates, inputs and schemas. It reports every problem
// of a file at once, with line, column and remedy, and never echoes the file's
// text. It is a pure leaf: it opens files only where a caller names a folder,
// and it imports nothing of this module.
package workflows
