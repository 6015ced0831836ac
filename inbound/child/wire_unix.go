//go:build unix

package child

import (
	"encoding/binary"
	"errors"
	"io"
)

// What host and supervisor say to each other. The host writes one order to start, then
// single bytes; the end of its pipe is the order to kill. The supervisor writes records
// of five bytes.
const (
	orderTerminate = 'T'

	recordHello   = 'h' // a supervisor is there
	recordStarted = 's' // the program runs; its number
	recordFailed  = 'f' // it could not be executed; an error number
	recordExited  = 'x' // it ended; its wait status

	recordBytes   = 5
	maxOrderBytes = 4 << 20
)

var errOrder = errors.New("not an order to start")

// An order is what a supervisor starts.
type order struct {
	path, dir string
	grace     uint32 // milliseconds between SIGTERM and SIGKILL if the supervisor is asked to end
	args      []string
	env       []string
}

// appendOrder writes a start: length of the rest, grace, path, dir, arguments, variables.
func appendOrder(b []byte, spec *Spec, grace uint32) []byte {
	at := len(b)
	b = append(b, 0, 0, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, grace)
	b = appendText(b, spec.Path)
	b = appendText(b, spec.Dir)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(spec.Args))) //nolint:gosec // G115: a Spec has 4,096 at most
	for _, arg := range spec.Args {
		b = appendText(b, arg)
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(len(spec.Env.entries))) //nolint:gosec // G115: bounded by bytes
	for _, entry := range spec.Env.entries {
		b = appendText(b, entry)
	}
	binary.LittleEndian.PutUint32(b[at:], uint32(len(b)-at-4)) //nolint:gosec // G115: the parts are bounded
	return b
}

func appendText[T string | []byte](b []byte, s T) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(s))) //nolint:gosec // G115: the parts are bounded
	return append(b, s...)
}

// readOrder reads a start and clears what it was read from.
func readOrder(r io.Reader) (*order, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n > maxOrderBytes {
		return nil, errOrder
	}
	buf := make([]byte, n)
	defer clear(buf)
	if _, err := io.ReadFull(r, buf); err != nil {
		return nil, err
	}
	d := decoder{rest: buf}
	o := &order{grace: d.number(), path: d.text(), dir: d.text(), args: d.texts(), env: d.texts()}
	if d.bad || len(d.rest) > 0 {
		return nil, errOrder
	}
	return o, nil
}

type decoder struct {
	rest []byte
	bad  bool
}

func (d *decoder) number() uint32 {
	if len(d.rest) < 4 {
		d.bad, d.rest = true, nil
		return 0
	}
	n := binary.LittleEndian.Uint32(d.rest)
	d.rest = d.rest[4:]
	return n
}

func (d *decoder) text() string {
	n := d.number()
	if uint64(n) > uint64(len(d.rest)) {
		d.bad, d.rest = true, nil
		return ""
	}
	s := string(d.rest[:n])
	d.rest = d.rest[n:]
	return s
}

func (d *decoder) texts() []string {
	all := []string{}
	for n := d.number(); n > 0 && !d.bad; n-- {
		all = append(all, d.text())
	}
	return all
}

// A record is one thing that a supervisor says.
type record struct {
	kind  byte
	value uint32
}

func writeRecord(w io.Writer, r record) error {
	_, err := w.Write(binary.LittleEndian.AppendUint32([]byte{r.kind}, r.value))
	return err
}

func readRecord(r io.Reader) (record, error) {
	var b [recordBytes]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return record{}, err
	}
	return record{kind: b[0], value: binary.LittleEndian.Uint32(b[1:])}, nil
}
