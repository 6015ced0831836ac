// Command vuln runs govulncheck against a database that it builds from the
// golang.org/x/vulndb module, so that it needs nothing but the module proxy, and
// fails on every reachable finding in a module that is not on the allow list.
// Findings in the standard library are reported only: a newer toolchain is what
// ends them.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// database names the version of the vulnerability records; raise it now and then.
const database = "golang.org/x/vulndb@v0.0.0-20261105234957-e22db6528018"

func main() {
	scanner := flag.String("scanner", "govulncheck", "the govulncheck binary")
	allow := flag.String("allow", "", "file of accepted ids, each with its reason")
	dir := flag.String("dir", ".", "the module to scan")
	fetch := flag.Bool("fetch", false, "only download the records")
	flag.Parse()
	if err := run(*scanner, *allow, *dir, *fetch); err != nil {
		fmt.Fprintln(os.Stderr, "vuln:", err)
		os.Exit(1)
	}
}

func run(scanner, allow, dir string, fetch bool) error {
	records, err := download()
	if err != nil || fetch {
		return err
	}
	accepted, err := readAllowed(allow)
	if err != nil {
		return err
	}
	db, err := os.MkdirTemp("", "vulndb-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(db)
	if err := build(records, db); err != nil {
		return err
	}
	bin, err := filepath.Abs(scanner)
	if err != nil {
		return err
	}
	// With -format json govulncheck exits 0 whatever it found.
	cmd := exec.Command(bin, "-db", "file://"+filepath.ToSlash(db), "-format", "json", "./...")
	cmd.Dir = dir
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("govulncheck: %w", err)
	}
	return judge(out, accepted, os.Stdout)
}

// download fetches the records through the module proxy and returns their folder.
func download() (string, error) {
	cmd := exec.Command("go", "mod", "download", "-json", database)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go mod download %s: %w", database, err)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(out, &module); err != nil {
		return "", err
	}
	return filepath.Join(module.Dir, "data", "osv"), nil
}

// entry is what the index needs of one OSV record.
type entry struct {
	ID       string   `json:"id"`
	Modified string   `json:"modified"`
	Aliases  []string `json:"aliases,omitempty"`
	Affected []struct {
		Package struct {
			Name string `json:"name"`
		} `json:"package"`
		Ranges []struct {
			Events []struct {
				Fixed string `json:"fixed"`
			} `json:"events"`
		} `json:"ranges"`
	} `json:"affected,omitempty"`
}

type moduleVuln struct {
	ID       string `json:"id"`
	Modified string `json:"modified"`
	Fixed    string `json:"fixed,omitempty"`
}

// build writes the layout that govulncheck reads from a file:// database: one
// file a record under ID/, and the three index files.
func build(records, db string) error {
	files, err := filepath.Glob(filepath.Join(records, "GO-*.json"))
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return fmt.Errorf("no records in %s", records)
	}
	for _, d := range []string{"ID", "index"} {
		if err := os.MkdirAll(filepath.Join(db, d), 0o755); err != nil {
			return err
		}
	}
	newest := ""
	var vulns []entry
	modules := map[string][]moduleVuln{}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var e entry
		if err := json.Unmarshal(raw, &e); err != nil {
			return fmt.Errorf("%s: %w", filepath.Base(file), err)
		}
		if err := os.WriteFile(filepath.Join(db, "ID", e.ID+".json"), raw, 0o600); err != nil {
			return err
		}
		newest = max(newest, e.Modified)
		for _, a := range e.Affected {
			v := moduleVuln{ID: e.ID, Modified: e.Modified}
			for _, r := range a.Ranges {
				for _, ev := range r.Events {
					if ev.Fixed != "" {
						v.Fixed = ev.Fixed
					}
				}
			}
			name := a.Package.Name
			if !slices.ContainsFunc(modules[name], func(o moduleVuln) bool { return o.ID == v.ID }) {
				modules[name] = append(modules[name], v)
			}
		}
		e.Affected = nil
		vulns = append(vulns, e)
	}
	type module struct {
		Path  string       `json:"path"`
		Vulns []moduleVuln `json:"vulns"`
	}
	var index []module
	for path, list := range modules {
		index = append(index, module{path, list})
	}
	slices.SortFunc(index, func(a, b module) int { return strings.Compare(a.Path, b.Path) })
	for name, value := range map[string]any{
		"db": map[string]string{"modified": newest}, "modules": index, "vulns": vulns,
	} {
		raw, err := json.Marshal(value)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(db, "index", name+".json"), raw, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// readAllowed reads "ID reason" lines; an id without a reason is refused.
func readAllowed(path string) (map[string]string, error) {
	accepted := map[string]string{}
	if path == "" {
		return accepted, nil
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(raw)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		id, reason, ok := strings.Cut(line, " ")
		if !ok {
			return nil, fmt.Errorf("%s: %s has no reason", path, id)
		}
		accepted[id] = strings.TrimSpace(reason)
	}
	return accepted, nil
}

// judge reads govulncheck's message stream and keeps what is called, not merely
// imported: a finding whose first frame names a function.
func judge(stream []byte, accepted map[string]string, w io.Writer) error {
	dec := json.NewDecoder(bytes.NewReader(stream))
	found := map[string]string{} // id -> where
	library := map[string]string{}
	for {
		var m struct {
			Finding *struct {
				OSV   string `json:"osv"`
				Fixed string `json:"fixed_version"`
				Trace []struct {
					Module   string `json:"module"`
					Version  string `json:"version"`
					Package  string `json:"package"`
					Function string `json:"function"`
				} `json:"trace"`
			} `json:"finding"`
		}
		err := dec.Decode(&m)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("govulncheck output: %w", err)
		}
		if m.Finding == nil || len(m.Finding.Trace) == 0 || m.Finding.Trace[0].Function == "" {
			continue
		}
		top := m.Finding.Trace[0]
		where := fmt.Sprintf("%s@%s %s.%s, fixed in %q", top.Module, top.Version, top.Package, top.Function, m.Finding.Fixed)
		if top.Module == "stdlib" {
			library[m.Finding.OSV] = where
		} else {
			found[m.Finding.OSV] = where
		}
	}
	report := func(word string, m map[string]string, keep func(string) bool) (n int) {
		ids := make([]string, 0, len(m))
		for id := range m {
			if keep(id) {
				ids = append(ids, id)
			}
		}
		slices.Sort(ids)
		for _, id := range ids {
			fmt.Fprintf(w, "%s %s %s\n", word, id, m[id])
		}
		return len(ids)
	}
	isAccepted := func(id string) bool { _, ok := accepted[id]; return ok }
	report("toolchain", library, func(string) bool { return true })
	report("accepted ", found, isAccepted)
	bad := report("REACHABLE", found, func(id string) bool { return !isAccepted(id) })
	fmt.Fprintf(w, "vuln: %d reachable in modules, %d accepted, %d in the standard library\n",
		bad, len(found)-bad, len(library))
	if bad > 0 {
		return fmt.Errorf("%d reachable vulnerabilities", bad)
	}
	return nil
}
