package transport

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
)

// open reads base64, so that what is behind the seal is reached.
func open(sealed string) ([]byte, bool) {
	plain, err := base64.RawURLEncoding.DecodeString(sealed)
	return plain, err == nil
}

func seal(plain []byte) string { return base64.RawURLEncoding.EncodeToString(plain) }

// A session's id says what initialize settled, as far as it matters.
func TestSessionID(t *testing.T) {
	t.Parallel()
	e := &endpoint{http: &HTTP{Shared: &Shared{Seal: seal, Open: open}}}
	form, none := &struct{}{}, (*struct{})(nil)
	for name, asked := range map[string]*mcp.ElicitationCapability{
		"cannot be asked": nil, "may be asked": {}, "forms": {Form: form}, "pages": {URL: form}, "both": {Form: form, URL: form}, "neither": {Form: none},
	} {
		s := newSession("token:ann")
		s.Settle("2025-11-25", mcp.Implementation{Name: strings.Repeat("é", 100), Version: "1"}, mcp.ClientCapabilities{Elicitation: asked})
		if err := e.name(s); err != nil {
			t.Fatal(err)
		}
		if other := e.http.Shared.opened(s.id, "token:bob"); other != nil {
			t.Errorf("%s: opened for another principal", name)
		}
		got := e.http.Shared.opened(s.id, "token:ann")
		if got == nil || got.Key() != s.Key() || got.Key() == "" || got.issued.UnixMilli() != s.issued.UnixMilli() {
			t.Fatalf("%s: opened = %+v, want the session again", name, got)
		}
		version, client, capabilities := got.Settled()
		if want := strings.Repeat("é", 64); version != "2025-11-25" || client.Name != want {
			t.Errorf("%s: settled %s %q, want 2025-11-25 %q", name, version, client.Name, want)
		}
		c := capabilities.Elicitation
		if (c == nil) != (asked == nil) || c != nil && ((c.Form == nil) != (asked.Form == nil) || (c.URL == nil) != (asked.URL == nil)) {
			t.Errorf("%s: elicitation is %+v, want %+v", name, c, asked)
		}
	}
}

// Requests that bring a session of another process at the same time are of one session.
func TestAdoptTogether(t *testing.T) {
	t.Parallel()
	const requests, rounds = 8, 500
	for range rounds {
		var meet, all sync.WaitGroup
		meet.Add(requests)
		e := &endpoint{sessions: map[string]*httpSession{}, http: &HTTP{Shared: &Shared{
			Seal: seal, Open: open,
			Seen: func(context.Context, string) (time.Time, bool, error) {
				meet.Done()
				meet.Wait() // nobody has found it when the last one looks
				return time.Time{}, false, nil
			},
		}}}
		made := newSession("token:ann")
		made.Settle("2025-11-25", mcp.Implementation{Name: "c"}, mcp.ClientCapabilities{})
		if err := e.name(made); err != nil {
			t.Fatal(err)
		}
		got := make([]*httpSession, requests)
		for i := range got {
			all.Go(func() {
				var err error
				if got[i], err = e.adopt(t.Context(), made.id, &Caller{Principal: "token:ann"}); err != nil || got[i] == nil {
					t.Errorf("adopt = %v, %v, want the session", got[i], err)
				}
			})
		}
		all.Wait()
		for _, s := range got {
			if s != got[0] {
				t.Fatal("one id is two sessions")
			}
		}
	}
}

// FuzzSessionID opens whatever keys might have sealed.
func FuzzSessionID(f *testing.F) {
	shared := &Shared{Seal: seal, Open: open}
	for _, seed := range []string{
		`{"p":"x","v":"2025-11-25","t":1}`, `{"p":"` + digest("local") + `","v":"2025-11-25","n":"c","e":"-fu","t":1764460000000}`, `{"p":"` + digest("local") + `","v":"x","t":9e99}`, `null`, `[]`, `"`,
	} {
		f.Add(seal([]byte(seed)))
	}
	f.Add("...")
	f.Fuzz(func(t *testing.T, id string) {
		s := shared.opened(id, "local")
		if s == nil {
			return
		}
		if version, _, _ := s.Settled(); version == "" || s.Key() == "" || len(id) > maxSessionID {
			t.Errorf("opened(%q) is a session of revision %q", id, version)
		}
	})
}

// An event id leads back to its call, in its session alone.
func TestMark(t *testing.T) {
	t.Parallel()
	e := &endpoint{http: &HTTP{Shared: &Shared{Seal: seal, Open: open}}}
	s, other := newSession("local"), newSession("local")
	for i, s := range []*httpSession{s, other} {
		s.issued = time.UnixMilli(int64(i + 1))
		if err := e.name(s); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []*call{{id: []byte("7")}, {id: []byte(`"a.b"`), token: []byte("1")}, {id: []byte(`"é"`), token: []byte(`"."`)}} {
		at, ok := place("run.3" + s.mark("run", want))
		if !ok || at.run != "run" || at.n != 3 {
			t.Fatalf("place = %+v, %t", at, ok)
		}
		got := s.marked(&at)
		if got == nil || string(got.id) != string(want.id) || string(got.token) != string(want.token) {
			t.Errorf("marked = %+v, want %s %s", got, want.id, want.token)
		}
		if got := other.marked(&at); got != nil {
			t.Errorf("marked in another session = %s, want nothing", got.id)
		}
		elsewhere := at
		elsewhere.run = "nur"
		if got := s.marked(&elsewhere); got != nil {
			t.Errorf("marked with another run = %s, want nothing", got.id)
		}
	}
	if got := s.mark("run", &call{id: []byte(strings.Repeat("1", maxMark+1))}); got != "" {
		t.Errorf("mark of a long id has %d bytes, want none", len(got))
	}
}

// FuzzEventID reads any Last-Event-ID.
func FuzzEventID(f *testing.F) {
	s := newSession("local")
	s.id, s.key = "id", "key"
	for _, seed := range []string{"run.1" + s.mark("run", &call{id: []byte("7")}), "run.1.." + s.seal("run", "."), "run.1." + s.seal("run", ""), "run.1.end", "....", "a.1.b.c"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, id string) {
		at, ok := place(id)
		if !ok {
			return
		}
		if c := s.marked(&at); c != nil && at.run == "" {
			t.Errorf("marked(%q) is call %s of no run", id, c.id)
		}
	})
}

// A cancel that comes after the answer waits for no other process to heed it; one of a
// request that is not known here may be for another.
func TestCancelOfAnswered(t *testing.T) {
	t.Parallel()
	e, s, by := &endpoint{http: &HTTP{}}, newSession("local"), &Caller{Principal: "local"}
	heeded := func(id string) bool {
		return e.cancelled(t.Context(), by, s, json.RawMessage(id), "", time.Time{})
	}
	if heeded("7") {
		t.Error("a cancel of what was never asked is heeded")
	}
	s.finish(json.RawMessage("7"), s.begin(json.RawMessage("7"), func(error) {}))
	for id, want := range map[string]bool{"7": true, `"7"`: false, "8": false} {
		if got := heeded(id); got != want {
			t.Errorf("a cancel of %s after the answer to 7 is heeded: %t, want %t", id, got, want)
		}
	}
	for i := range maxCalls {
		id := json.RawMessage(strconv.Itoa(100 + i))
		s.finish(id, s.begin(id, func(error) {}))
	}
	if heeded("7") || !heeded("100") || len(s.ended) != maxCalls {
		t.Errorf("%d answered requests are known, want the last %d", len(s.ended), maxCalls)
	}
}
