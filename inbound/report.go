package inbound

import (
	"maps"
	"slices"

	"github.com/relavium/relavium-serve/inbound/text"
)

// A ServerReport is what connecting one server of a run came to. All of it is safe to
// show.
type ServerReport struct {
	Server    string // its id or ref
	Transport string
	Digest    string // of a program; empty for a network server
	Revision  string // of the protocol that was settled on
	Name      string // as the server calls itself
	Version   string
	Discovered
	Took Timing
}

// Reports tells what the connections of an open run came to, in the order in which the
// agents declare them. The tools that an agent's own list leaves out are among the
// dropped ones.
func (h *Host) Reports(runID string) []ServerReport {
	r := h.lookup(runID)
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.phase != open {
		return nil
	}
	out := make([]ServerReport, 0, len(r.conns))
	for _, c := range r.conns {
		report := ServerReport{
			Server: c.name, Transport: c.ref.Transport, Digest: c.digest, Revision: c.session.version,
			Name: text.Line(c.session.named.Name, maxNamed), Version: text.Line(c.session.named.Version, maxNamed),
			Discovered: c.found, Took: c.took,
		}
		for _, agent := range slices.Sorted(maps.Keys(r.tables)) {
			report.Dropped = slices.Concat(report.Dropped, r.tables[agent].dropped[c.name])
		}
		out = append(out, report)
	}
	return out
}

// maxNamed bounds what is shown of a server's name for itself.
const maxNamed = 128
