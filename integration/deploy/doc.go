// Package deploy checks the examples of the folder deploy as far as that can be done
// without a cluster or a system's first process. It has tests only; that of the compose
// file is in integration/containers, where there is an engine.
package deploy
