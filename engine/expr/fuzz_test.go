package expr

import (
	"encoding/json"
	"errors"
	"testing"
	"time"
)

// FuzzEval: no source ends the process, takes long, or yields anything but JSON or
// an *Error.
func FuzzEval(f *testing.F) {
	for _, a := range attacks() {
		if len(a.source) < 1000 {
			f.Add(a.source)
		}
	}
	for _, source := range []string{`{a: inputs.bird, b: run.outputs["a-second"].list.map(x => x.n)}`, `1))})();(()=>{((2`, "`${1}`"} {
		f.Add(source)
	}
	s := New(0)
	f.Cleanup(s.Close)
	s.timeout = 100 * time.Millisecond
	f.Fuzz(func(t *testing.T, source string) {
		start, used := time.Now(), cpuTime()
		value, err := s.Eval(t.Context(), source, sample())
		// On a busy machine the work done counts.
		if took, most := time.Since(start), slowdown*5*time.Second; took > most && cpuTime()-used > most {
			t.Errorf("Eval took %v and %v of a processor, want %v at most", took, cpuTime()-used, most)
		}
		if _, ok := errors.AsType[*Error](err); err != nil && !ok {
			t.Errorf("Eval = %v, want *Error", err)
		}
		if err == nil && (!json.Valid(value) || len(value) > maxResult) {
			t.Errorf("Eval = %.100q, want JSON of at most %d bytes", value, maxResult)
		}
		if compiled := Compile(source); err == nil && compiled != nil {
			t.Errorf("Compile = %v for what Eval takes", compiled)
		}
	})
}
