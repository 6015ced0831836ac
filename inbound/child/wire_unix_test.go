//go:build unix

package child

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestOrder(t *testing.T) {
	t.Parallel()
	for _, spec := range []Spec{
		{},
		{Path: "/bin/x", Dir: "/w", Args: []string{"", "-a", "ünïcode\n"}, Env: mustEnvironment(t, "A", "B_2")},
		{Path: "/" + strings.Repeat("p", 4095), Args: make([]string, maxArgs)},
	} {
		want := &order{path: spec.Path, dir: spec.Dir, grace: 3000, args: []string{}, env: []string{}}
		want.args = append(want.args, spec.Args...)
		for _, entry := range spec.Env.entries {
			want.env = append(want.env, string(entry))
		}
		b := appendOrder(nil, &spec, 3000)
		got, err := readOrder(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(order{})); diff != "" {
			t.Errorf("-want +got\n%s", diff)
		}
	}
}

// FuzzReadOrder reads anything: it is what was written, or an error.
func FuzzReadOrder(f *testing.F) {
	f.Add(appendOrder(nil, &Spec{Path: "/p", Dir: "/", Args: []string{"a", ""}}, 1))
	f.Add([]byte{4, 0, 0, 0, 1, 0, 0, 0})
	f.Add([]byte{255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := readOrder(bytes.NewReader(b))
		if err != nil {
			return
		}
		spec := Spec{Path: o.path, Dir: o.dir, Args: o.args}
		for _, entry := range o.env {
			spec.Env.entries = append(spec.Env.entries, []byte(entry))
		}
		n := binary.LittleEndian.Uint32(b) + 4
		if again := appendOrder(nil, &spec, o.grace); !bytes.Equal(again, b[:n]) {
			t.Errorf("%x was read as %x", b[:n], again)
		}
	})
}
