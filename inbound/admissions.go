package inbound

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"sync"

	"github.com/relavium/relavium-serve/inbound/schema"
)

// Bounds of the schemas that are kept compiled. A compiled schema takes some twenty
// times its text.
const (
	maxKept      = 2048
	maxKeptBytes = 2 << 20 // of text
)

// admissions keep what became of the schemas of servers: each run connects its
// servers anew, and they offer the same tools. A schema is known by the digest of
// its compact text, so another text is another schema. It is safe for concurrent
// use; nil keeps nothing.
type admissions struct {
	mu    sync.Mutex
	kept  map[[sha256.Size]byte]admission
	order [][sha256.Size]byte // oldest first
	bytes int
}

type admission struct {
	schema  *schema.Schema
	report  schema.Report
	refused *schema.RefusedError
	bytes   int
}

func newAdmissions() *admissions {
	return &admissions{kept: make(map[[sha256.Size]byte]admission)}
}

// admit is schema.Admit, but for schemas that it has seen.
func (a *admissions) admit(compact json.RawMessage) (*schema.Schema, schema.Report, error) {
	if a == nil {
		return schema.Admit(compact)
	}
	key := sha256.Sum256(compact)
	if known, ok := a.look(key); ok {
		if known.refused != nil {
			return nil, known.report, known.refused
		}
		return known.schema, known.report, nil
	}
	admitted, report, err := schema.Admit(compact)
	made := admission{schema: admitted, report: report, bytes: len(compact)}
	if err != nil {
		refused, ok := errors.AsType[*schema.RefusedError](err)
		if !ok || refused.Reason == schema.Time {
			return nil, report, err // it may do better another time
		}
		made.refused = refused
	}
	a.keep(key, made)
	return admitted, report, err
}

func (a *admissions) look(key [sha256.Size]byte) (admission, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	known, ok := a.kept[key]
	return known, ok
}

// keep adds one, in the place of the oldest ones if there is no room.
func (a *admissions) keep(key [sha256.Size]byte, made admission) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, twice := a.kept[key]; twice {
		return
	}
	for len(a.order) > 0 && (len(a.order) >= maxKept || a.bytes+made.bytes > maxKeptBytes) {
		a.bytes -= a.kept[a.order[0]].bytes
		delete(a.kept, a.order[0])
		a.order = a.order[1:]
	}
	a.kept[key] = made
	a.order = append(a.order, key)
	a.bytes += made.bytes
}
