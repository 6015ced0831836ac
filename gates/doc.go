// Package gates brings a waiting gate to the person who may answer it and takes
// the answer back. It builds the form of a gate, tells an answer from what only
// looks like one, seals the requestState that travels through a client, and
// drives the rungs of one waiting call: an input_required result for clients of
// 2026-07-28, an elicitation request for those of 2025.
//
// Its one invariant: a gate is approved only because a valid answer of the
// run's own principal said so. A cancel, an error, silence, a reflex or a state
// that was seen before never decides anything.
package gates
