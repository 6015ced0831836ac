package inbound

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/relavium/relavium-serve/inbound/schema"
)

func TestAdmissions(t *testing.T) {
	t.Parallel()
	a := newAdmissions()
	good, bad := json.RawMessage(`{"type":"object","x":1}`), json.RawMessage(`{"type":"string"}`)
	first, report, err := a.admit(good)
	if err != nil {
		t.Fatal(err)
	}
	again, sameReport, err := a.admit(good)
	if again != first || err != nil || sameReport.Bytes != report.Bytes || len(sameReport.Ignored) != 1 {
		t.Errorf("admit again = %p, %+v, %v, want the first %p, %+v", again, sameReport, err, first, report)
	}
	if other, _, err := a.admit(json.RawMessage(`{"type":"object","x":2}`)); other == first || err != nil {
		t.Errorf("admit of another = %p, %v, want one of its own", other, err)
	}
	for range 2 {
		s, _, err := a.admit(bad)
		if refused, ok := errors.AsType[*schema.RefusedError](err); !ok || s != nil || refused.Reason != schema.Root {
			t.Errorf("admit of a bad one = %v, want %s", err, schema.Root)
		}
	}
	if len(a.kept) != 3 || len(a.order) != 3 || a.bytes != 2*len(good)+len(bad) {
		t.Errorf("%d kept, %d in order, %d bytes", len(a.kept), len(a.order), a.bytes)
	}
}

// What is kept stays within its bounds, also with many at once.
func TestAdmissionsBounds(t *testing.T) {
	t.Parallel()
	a := newAdmissions()
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range 40 {
				raw := json.RawMessage(fmt.Sprintf(`{"description":"%d-%d%s"}`, w, i%20, strings.Repeat("a", 8000)))
				if _, _, err := a.admit(raw); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for i := range 300 {
		a.keep([32]byte{1, byte(i), byte(i >> 8)}, admission{bytes: 10_000})
		if a.bytes > maxKeptBytes || len(a.kept) != len(a.order) {
			t.Fatalf("%d bytes, %d kept, %d in order", a.bytes, len(a.kept), len(a.order))
		}
	}
	for i := range maxKept + 10 {
		a.keep([32]byte{2, byte(i), byte(i >> 8)}, admission{bytes: 1})
	}
	if len(a.kept) != maxKept || len(a.order) != maxKept || a.bytes > maxKeptBytes {
		t.Errorf("%d kept, %d in order, %d bytes", len(a.kept), len(a.order), a.bytes)
	}
}
