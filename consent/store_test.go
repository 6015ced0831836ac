package consent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	writers   = 4
	perWriter = 60
)

// TestOtherProcess grants declarations of its own and revokes every third again, alone
// or as one of the processes of TestStoreConcurrent.
func TestOtherProcess(t *testing.T) {
	home, name := os.Getenv("CONSENT_TEST_HOME"), os.Getenv("CONSENT_TEST_NAME")
	if home == "" {
		home, name = filepath.Join(t.TempDir(), "home"), "alone"
	}
	s, err := Open(home, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range perWriter {
		digest := mustGrant(t, s, numbered(name, i))
		if i%3 != 0 {
			continue
		}
		if err := s.Revoke(t.Context(), digest); err != nil {
			t.Fatal(err)
		}
	}
}

func numbered(name string, i int) *Declaration {
	return &Declaration{Command: "/bin/" + name, Args: []string{strconv.Itoa(i)}, Env: map[string]string{"TOKEN": "{{secrets.t}}"}, Cwd: "/w"}
}

// newStore is a store in a home of its own, whose clock moves a second a call.
func newStore(t *testing.T) (s *Store, path string) {
	t.Helper()
	home := filepath.Join(t.TempDir(), "home")
	at := time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.FixedZone("x", 3600))
	s, err := Open(home, func() time.Time { at = at.Add(time.Second); return at })
	if err != nil {
		t.Fatal(err)
	}
	return s, filepath.Join(home, storeFile)
}

func mustGrant(t *testing.T, s *Store, d *Declaration) string {
	t.Helper()
	digest, err := s.Grant(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	return digest
}

func digests(t *testing.T, s *Store) []string {
	t.Helper()
	grants, err := s.Grants(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	list := []string{}
	for i := range grants {
		list = append(list, grants[i].Digest)
	}
	return list
}

func mustRead(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func mustWrite(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, data, 0o600)); err != nil {
		t.Fatal(err)
	}
}

func TestStoreGrantAndRevoke(t *testing.T) {
	t.Parallel()
	s, path := newStore(t)
	if got := digests(t, s); len(got) != 0 {
		t.Errorf("Grants of nothing = %v", got)
	}
	if _, err := os.Stat(filepath.Dir(path)); err == nil {
		t.Error("reading made the home folder")
	}
	d := &Declaration{Command: "/bin/x", Args: []string{"a\nb"}, Env: map[string]string{"Z": "hush-hush", "A": "{{secrets.k}}"}, Cwd: "/w"}
	digest := mustGrant(t, s, d)
	if want, _ := d.Digest(); digest != want {
		t.Errorf("Grant = %s, want %s", digest, want)
	}
	first := `{"v":1,"digest":"` + digest + `","command":"/bin/x","args":["a\nb"],"envNames":["A","Z"],"cwd":"/w","grantedAt":"2026-01-02T02:04:06.678Z"}` + "\n"
	if got := string(mustRead(t, path)); got != first {
		t.Errorf("the file is %q, want %q", got, first)
	}
	if runtime.GOOS != "windows" {
		for name, want := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): 0o700, filepath.Join(filepath.Dir(path), lockFile): 0o600} {
			about, err := os.Lstat(name)
			if err != nil {
				t.Fatal(err)
			}
			if got := about.Mode().Perm(); got != want {
				t.Errorf("mode of %s = %v, want %v", filepath.Base(name), got, want)
			}
		}
	}
	mustGrant(t, s, d) // is there already
	if got := string(mustRead(t, path)); got != first {
		t.Errorf("granting again wrote %q", got)
	}

	check := func(want bool) {
		t.Helper()
		again, err := Open(filepath.Dir(path), nil) // another process
		if err != nil {
			t.Fatal(err)
		}
		for _, store := range []*Store{s, again} {
			err := store.Check(t.Context(), digest)
			refused, ok := errors.AsType[*NotGrantedError](err)
			if want && err != nil || !want && (!ok || refused.Digest != digest || refused.Cause != nil) {
				t.Errorf("Check = %v, want granted %v", err, want)
			}
		}
	}
	check(true)
	for range 2 {
		if err := s.Revoke(t.Context(), digest); err != nil {
			t.Fatal(err)
		}
		check(false)
		if _, ok := errors.AsType[*NotGrantedError](s.Revoke(t.Context(), digest)); !ok {
			t.Error("Revoke of what is revoked: want *NotGrantedError")
		}
		mustGrant(t, s, d)
		check(true)
	}
	if err := s.Revoke(t.Context(), digest); err != nil {
		t.Fatal(err)
	}
	check(false)
	data := mustRead(t, path)
	if got := bytes.Count(data, []byte("\n")); got != 6 || !bytes.HasPrefix(data, []byte(first)) {
		t.Errorf("the file has %d lines or another beginning: %s", got, data)
	}
	if bytes.Contains(data, []byte("hush")) || bytes.Contains(data, []byte("secrets")) {
		t.Errorf("a value is in the file: %s", data)
	}
	if !bytes.HasSuffix(data, []byte(`{"v":1,"revokes":"`+digest+`","revokedAt":"2026-01-02T02:04:11.678Z"}`+"\n")) {
		t.Errorf("the last line is not the revocation: %s", data)
	}
}

func TestStoreRefusesBadDeclarations(t *testing.T) {
	t.Parallel()
	s, path := newStore(t)
	for _, d := range []*Declaration{
		{Command: "npx", Cwd: "/w"},
		{Command: "/bin/x", Cwd: "/w", Env: map[string]string{"node_options": "--require x"}},
		{Command: "/bin/x\xff", Cwd: "/w"},
	} {
		if digest, err := s.Grant(t.Context(), d); err == nil || digest != "" {
			t.Errorf("Grant(%+v) = %q, %v, want an error", d, digest, err)
		}
	}
	if _, ok := errors.AsType[*NotGrantedError](s.Revoke(t.Context(), "v2:00")); !ok {
		t.Error("Revoke of no digest: want *NotGrantedError")
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("a file was made")
	}
	if _, err := Open("home", nil); err == nil {
		t.Error("Open of a relative home: want an error")
	}
}

// A store cut at any byte yields the grants of its whole lines, or none and the
// number of the line that was cut: what a cut line revokes never comes back.
func TestStoreCutAnywhere(t *testing.T) {
	t.Parallel()
	s, path := newStore(t)
	one, two := mustGrant(t, s, numbered("é☃", 1)), mustGrant(t, s, numbered("b", 2))
	if err := s.Revoke(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	mustGrant(t, s, numbered("c", 3))
	if err := s.Revoke(t.Context(), two); err != nil {
		t.Fatal(err)
	}
	whole := mustRead(t, path)
	for end := range len(whole) + 1 {
		got := fold{}
		err := got.add(whole[:end], 1)
		lines := bytes.Count(whole[:end], []byte("\n"))
		start := bytes.LastIndexByte(whole[:end], '\n') + 1
		complete := end == start || end < len(whole) && whole[end] == '\n'
		broken, isFold := errors.AsType[*FoldError](err)
		if complete != (err == nil) || err != nil && (!isFold || broken.Line != lines+1) {
			t.Fatalf("cut at %d: %v, want complete %v, line %d", end, err, complete, lines+1)
		}
		if complete && end > start {
			lines++
		}
		if _, ok := got[one]; err == nil && ok != (lines == 1 || lines == 2) {
			t.Errorf("cut at %d: the first is granted: %v after %d lines", end, ok, lines)
		}
	}

	// The same through the store, at the byte that a crash would leave.
	mustWrite(t, path, whole[:len(whole)-30])
	grants, err := s.Grants(t.Context())
	broken, ok := errors.AsType[*FoldError](err)
	if !ok || broken.Line != 5 || grants != nil {
		t.Fatalf("Grants = %v, %v, want line 5", grants, err)
	}
	if want := "mcp-consent.ndjson:5: not one JSON value, or cut short; no grant counts while this line stands"; err.Error() != want {
		t.Errorf("Grants = %v, want %s", err, want)
	}
	checkErr := s.Check(t.Context(), two)
	if refused, ok := errors.AsType[*NotGrantedError](checkErr); !ok || !errors.Is(refused.Cause, broken) && refused.Cause.Error() != broken.Error() {
		t.Errorf("Check = %v, want not granted because of line 5", checkErr)
	}
	// A grant would not count and is not made; a revocation is kept.
	before := mustRead(t, path)
	if _, err := s.Grant(t.Context(), numbered("d", 4)); err == nil || err.Error() != broken.Error() {
		t.Errorf("Grant = %v, want %v", err, broken)
	}
	if got := mustRead(t, path); !bytes.Equal(got, before) {
		t.Errorf("a refused grant wrote %q", got[len(before):])
	}
	if err := s.Revoke(t.Context(), two); err == nil || err.Error() != broken.Error() {
		t.Errorf("Revoke = %v, want %v", err, broken)
	}
	after := mustRead(t, path)
	if !bytes.HasPrefix(after, before) || !bytes.HasPrefix(after[len(before):], []byte("\n{\"v\":1,\"revokes\":\""+two)) {
		t.Errorf("a revocation in a broken store wrote %q", after[len(before):])
	}
	if _, err := s.Grants(t.Context()); err == nil {
		t.Error("the store reads again although the cut line stands")
	}
}

// A last line that lacks only its end counts, and the next starts on a new one.
func TestStoreUnterminated(t *testing.T) {
	t.Parallel()
	s, path := newStore(t)
	one := mustGrant(t, s, numbered("a", 1))
	mustWrite(t, path, bytes.TrimSuffix(mustRead(t, path), []byte("\n")))
	if got := digests(t, s); !slices.Equal(got, []string{one}) {
		t.Errorf("Grants = %v, want %s", got, one)
	}
	two := mustGrant(t, s, numbered("a", 2))
	if got := digests(t, s); !slices.Equal(got, []string{one, two}) {
		t.Errorf("Grants = %v, want both", got)
	}
	if got := bytes.Count(mustRead(t, path), []byte("\n")); got != 2 {
		t.Errorf("%d lines, want 2", got)
	}
}

func TestFoldRefuses(t *testing.T) {
	t.Parallel()
	digest := "v1:" + strings.Repeat("0", 64)
	good := `{"v":1,"digest":"` + digest + `","command":"/x","args":[],"envNames":[],"cwd":"/w","grantedAt":"2026-01-02T03:04:05Z"}`
	revoke := `{"v":1,"revokes":"` + digest + `","revokedAt":"2026-01-02T03:04:05.1Z"}`
	f := fold{}
	if err := f.add([]byte(good+"\r\n "+revoke+"\n"+good), 1); err != nil || len(f) != 1 {
		t.Fatalf("fold of good lines = %v, %v", f, err)
	}
	swap := func(line, old, with string) string {
		t.Helper()
		if !strings.Contains(line, old) {
			t.Fatalf("no %s in %s", old, line)
		}
		return strings.Replace(line, old, with, 1)
	}
	for _, test := range []struct{ line, want string }{
		{"", "not one JSON value"},
		{"null", "not a JSON object"},
		{good + good, "not one JSON value"},
		{swap(good, `"v":1,`, ``), "v is missing"},
		{swap(good, `"v":1`, `"v":2`), "another version"},
		{swap(good, `"v":1`, `"v":"1"`), "another version"},
		{swap(good, `"v":1`, `"v":1.0`), "another version"},
		{swap(good, `"v":1`, `"V":1`), "v is missing"},
		{swap(good, `"cwd":"/w",`, ``), "cwd is missing"},
		{swap(good, `"args":[]`, `"args":null`), "args: expected"},
		{swap(good, `"v":1`, `"v":1,"x":1`), `unknown member "x"`},
		{swap(good, `"v":1`, `"v":1,"revokes":"`+digest+`"`), "revokedAt is missing"},
		{swap(revoke, `"v":1`, `"v":1,"digest":"`+digest+`"`), `unknown member "digest"`},
		{swap(good, `"v":1`, `"v":1,"digest":"`+digest+`"`), "stands twice"},
		{swap(good, "v1:0", "v1:A"), "expected a digest of v1:"},
		{swap(good, "v1:0", "v1:"), "expected a digest of v1:"},
		{swap(revoke, "v1:0", "v2:0"), "expected a digest of v1:"},
		{swap(revoke, "2026-01-02T", "2026-01-02 "), "expected a time"},
		{swap(good, `"/x"`, `"\ud800"`), "lone surrogate"},
		{swap(good, `/x`, "\xff"), "well-formed"},
		{swap(good, `/x`, strings.Repeat("x", maxReadLine)), "more than 1048576 bytes"},
	} {
		f := fold{}
		err := f.add([]byte(good+"\n"+test.line+"\n"+good+"\n"), 1)
		if broken, ok := errors.AsType[*FoldError](err); !ok || broken.Line != 2 || !strings.Contains(broken.Reason, test.want) {
			t.Errorf("fold of %.120q = %v, want line 2: %s", test.line, err, test.want)
		}
	}
}

func TestStoreUnsafe(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("permissions are access lists there")
	}
	for name, test := range map[string]struct {
		spoil func(home, path string) error
		want  string
	}{
		"a link":          {func(home, path string) error { return relink(path, home+".target") }, "is a link"},
		"a dangling link": {func(_, path string) error { return errors.Join(os.Remove(path), os.Symlink("absent", path)) }, "is a link"},
		"a folder":        {func(_, path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) }, "no regular file"},
		"two names":       {func(home, path string) error { return os.Link(path, home+".other") }, "more than one name"},
		"read by others":  {func(_, path string) error { return os.Chmod(path, 0o640) }, "mode must be 0600"},
		"world writable":  {func(_, path string) error { return os.Chmod(path, 0o602) }, "mode must be 0600"},
		"an open folder":  {func(home, _ string) error { return os.Chmod(home, 0o750) }, "the home folder is open"},
		"a linked folder": {func(home, _ string) error { return relink(home, home+".target") }, "the home folder is a link"},
		"a linked lock": {func(home, _ string) error {
			return relink(filepath.Join(home, lockFile), home+".target")
		}, "mcp-consent.lock is a link"},
		"too long": {func(_, path string) error { return os.Truncate(path, maxStoreBytes+1) }, "is longer than"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, path := newStore(t)
			digest := mustGrant(t, s, numbered("a", 1))
			if err := test.spoil(filepath.Dir(path), path); err != nil {
				t.Fatal(err)
			}
			unsafe := func(what string, err error) {
				t.Helper()
				if _, ok := errors.AsType[*UnsafeError](err); !ok || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), filepath.Dir(path)) {
					t.Errorf("%s = %v, want %s and no path", what, err, test.want)
				}
			}
			unsafe("Check", s.Check(t.Context(), digest))
			_, err := s.Grants(t.Context())
			unsafe("Grants", err)
			_, err = s.Grant(t.Context(), numbered("a", 2))
			unsafe("Grant", err)
			unsafe("Revoke", s.Revoke(t.Context(), digest))
			if name == "a link" {
				if got := bytes.Count(mustRead(t, filepath.Dir(path)+".target"), []byte("\n")); got != 1 {
					t.Errorf("%d lines behind the link, want 1: it was written through", got)
				}
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), "absent")); err == nil {
				t.Error("a file was made behind the link")
			}
		})
	}
}

func relink(path, target string) error {
	return errors.Join(os.Rename(path, target), os.Symlink(target, path))
}

func TestStoreBounds(t *testing.T) {
	t.Parallel()
	s, path := newStore(t)
	d := &Declaration{Command: "/" + strings.Repeat("é", maxText), Env: map[string]string{}, Cwd: "/" + strings.Repeat("\x01", maxText)}
	for i := range 200 {
		d.Args = append(d.Args, strings.Repeat("\x02", maxText+i))
		d.Env[fmt.Sprintf("N%0127d", i)] = "v"
	}
	digest := mustGrant(t, s, d)
	if got := len(mustRead(t, path)); got > maxWriteLine+1 {
		t.Errorf("the line has %d bytes, want at most %d", got, maxWriteLine)
	}
	grants, err := s.Grants(t.Context())
	if err != nil || len(grants) != 1 || grants[0].Digest != digest {
		t.Fatalf("Grants = %v, %v", grants, err)
	}
	if g := grants[0]; len(g.Command) > maxText || !strings.HasSuffix(g.Command, "é…") || len(g.EnvNames) != maxList || len(g.Args) >= maxList {
		t.Errorf("kept %d bytes of the command, %d names, %d arguments", len(g.Command), len(g.EnvNames), len(g.Args))
	}

	// Near its bound the store takes revocations only.
	line := append(grantLine(digest, d, s.now()), '\n')
	full := bytes.Repeat(line, int(maxStoreBytes-revokeRoom)/len(line))
	mustWrite(t, path, full)
	if _, err := s.Grant(t.Context(), &Declaration{Command: "/bin/x", Args: d.Args, Cwd: "/w"}); err == nil || !strings.Contains(err.Error(), "is full") {
		t.Errorf("Grant in a full store = %v", err)
	}
	if err := s.Revoke(t.Context(), digest); err != nil {
		t.Errorf("Revoke in a full store = %v", err)
	}
	if got := digests(t, s); len(got) != 0 {
		t.Errorf("Grants = %v, want none", got)
	}
}

// Several processes write at once, and several goroutines of this one.
func TestStoreConcurrent(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s, path := newStore(t)
	children := make([]*exec.Cmd, writers)
	for i := range children {
		children[i] = exec.CommandContext(t.Context(), self, "-test.run=^TestOtherProcess$")
		children[i].Env = append(os.Environ(), "CONSENT_TEST_HOME="+filepath.Dir(path), "CONSENT_TEST_NAME=p"+strconv.Itoa(i))
		children[i].Stdout = os.Stderr
		if err := children[i].Start(); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan error, 2)
	for i := range cap(done) {
		go func() {
			var err error
			for n := range 20 {
				_, grantErr := s.Grant(t.Context(), numbered("g"+strconv.Itoa(i), n))
				_, readErr := s.Grants(t.Context())
				err = errors.Join(err, grantErr, readErr)
			}
			done <- err
		}()
	}
	for range cap(done) {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	for _, child := range children {
		if err := child.Wait(); err != nil {
			t.Error(err)
		}
	}
	var want []string
	for i := range writers {
		for n := range perWriter {
			if n%3 != 0 {
				digest, _ := numbered("p"+strconv.Itoa(i), n).Digest()
				want = append(want, digest)
			}
		}
	}
	for i := range cap(done) {
		for n := range 20 {
			digest, _ := numbered("g"+strconv.Itoa(i), n).Digest()
			want = append(want, digest)
		}
	}
	got := digests(t, s)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%d grants, want %d", len(got), len(want))
	}
	if lines := bytes.Count(mustRead(t, path), []byte("\n")); lines != writers*(perWriter+(perWriter+2)/3)+40 {
		t.Errorf("%d lines, want %d", lines, writers*(perWriter+(perWriter+2)/3)+40)
	}
}

// A lock that another holds is waited for, until the caller no longer wants to.
func TestStoreLocked(t *testing.T) {
	t.Parallel()
	s, path := newStore(t)
	digest := mustGrant(t, s, numbered("a", 1))
	other, err := Open(filepath.Dir(path), nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	inside := make(chan struct{})
	go func() {
		<-inside
		cancel()
	}()
	err = other.write(t.Context(), maxStoreBytes, func(fold, error) ([]byte, error) {
		close(inside)
		if err := s.Check(ctx, digest); !errors.Is(err, context.Canceled) {
			t.Errorf("Check under a lock = %v, want canceled", err)
		}
		return nil, nil
	})
	if err != nil {
		t.Error(err)
	}
	if err := s.Check(t.Context(), digest); err != nil {
		t.Errorf("Check after the lock = %v", err)
	}
}

// Another file in the place of the known one is read from its start.
func TestStoreReplaced(t *testing.T) {
	t.Parallel()
	s, path := newStore(t)
	one := mustGrant(t, s, numbered("a", 1))
	mustGrant(t, s, numbered("a", 2))
	if err := os.Rename(path, path+".old"); err != nil {
		t.Fatal(err)
	}
	mustWrite(t, path, []byte("broken\n"))
	if _, err := s.Grant(t.Context(), numbered("a", 1)); err == nil {
		t.Error("Grant in a broken file that replaced a good one: want an error")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if got := mustGrant(t, s, numbered("a", 1)); got != one || !slices.Equal(digests(t, s), []string{one}) {
		t.Errorf("Grants = %v, want %s", digests(t, s), one)
	}
}

func FuzzFold(f *testing.F) {
	d := numbered("a", 1)
	digest, err := d.Digest()
	if err != nil {
		f.Fatal(err)
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	lines := string(grantLine(digest, d, at)) + "\n" + string(revocationLine(digest, at)) + "\n"
	f.Add([]byte(lines), uint16(10))
	f.Add([]byte(lines+lines[:100]), uint16(300))
	f.Add([]byte("{\"v\":1}\n\n"), uint16(1))
	f.Add([]byte(`{"v":1,"digest":"\ud83d\ude00","a":[{}]}`), uint16(7))
	f.Fuzz(func(t *testing.T, data []byte, split uint16) {
		whole := fold{}
		err := whole.add(data, 1)
		if broken, ok := errors.AsType[*FoldError](err); err != nil && (!ok || broken.Line < 1 || broken.Line > bytes.Count(data, []byte("\n"))+1) {
			t.Fatalf("fold = %v", err)
		}
		for key, g := range whole {
			if key != g.Digest || !IsDigest(key) {
				t.Errorf("a grant of %q", key)
			}
		}
		// In two steps at a line's start it comes out the same.
		cut := bytes.LastIndexByte(data[:min(int(split), len(data))], '\n') + 1
		parts := fold{}
		partErr := parts.add(data[:cut], 1)
		if partErr == nil {
			partErr = parts.add(data[cut:], bytes.Count(data[:cut], []byte("\n"))+1)
		}
		if (err == nil) != (partErr == nil) || err != nil && err.Error() != partErr.Error() || err == nil && len(parts) != len(whole) {
			t.Errorf("in parts %v, %v; whole %v, %v", parts, partErr, whole, err)
		}
		// What reads back, writes the same fold: a revocation after it removes it.
		for key := range whole {
			after := append(bytes.TrimSuffix(bytes.Clone(data), []byte("\n")), '\n')
			again := fold{}
			if err := again.add(append(after, revocationLine(key, at)...), 1); err == nil && again[key] != nil {
				t.Errorf("%s stands after its revocation", key)
			}
		}
	})
}
