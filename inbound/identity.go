package inbound

import "github.com/relavium/relavium-serve/workflows"

// Identify says what a declared server is known by, without starting or reaching
// anything. root is the absolute real path of the project that an inline server
// belongs to. The error is a *workflows.ToolError.
func (h *Host) Identify(ref *workflows.ServerRef, root string) (Identity, error) {
	d, err := h.declare(ref, root)
	if err != nil {
		return Identity{}, err
	}
	return d.identity(), nil
}

func (d *declared) identity() Identity {
	id := Identity{Server: d.name, Transport: d.ref.Transport, Digest: d.digest}
	if !d.stdio() {
		id.URL = d.ref.URL
	}
	return id
}
