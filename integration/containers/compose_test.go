package containers

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	stdnet "net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// proxy is the image of the proxy in deploy/compose.yaml, made here.
const proxy = "relavium-haproxy:test"

// A composition is what deploy/compose.yaml starts, from a copy of the folder.
type composition struct {
	dir string
	env []string
}

func (c composition) try(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "docker-compose", args...)
	cmd.Dir, cmd.Env = c.dir, append(os.Environ(), c.env...)
	var out, diag bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &diag
	if err := cmd.Run(); err != nil {
		return out.String(), &commandError{strings.Join(args, " "), err, diag.String()}
	}
	return strings.TrimSpace(out.String()), nil
}

// A commandError is what a command said that went wrong.
type commandError struct {
	command string
	err     error
	said    string
}

// Error has all of it.
func (e *commandError) Error() string { return e.command + ": " + e.err.Error() + "\n" + e.said }

func (c composition) ok(t *testing.T, args ...string) string {
	t.Helper()
	out, err := c.try(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestContainersCompose starts the example: calls go through the proxy's TLS to whichever
// replica lives, no container may do more than it has to, and the service cannot change
// what the audit log says.
func TestContainersCompose(t *testing.T) {
	needEngine(t)
	t.Parallel()
	if out, err := exec.CommandContext(t.Context(), filepath.Join("..", "..", "scripts", "haproxy-image"), proxy).CombinedOutput(); err != nil {
		t.Fatalf("scripts/haproxy-image: %v\n%s", err, out)
	}
	c := composition{filepath.Join(t.TempDir(), "deploy"), []string{
		"RELAVIUM_IMAGE=" + product, "POSTGRES_IMAGE=" + database, "POSTGRES_UID=999:999", "HAPROXY_IMAGE=" + proxy, "RELAVIUM_PORT=8443", "COMPOSE_PROJECT_NAME=example",
	}}
	if err := os.CopyFS(c.dir, os.DirFS(filepath.Join("..", "..", "deploy"))); err != nil {
		t.Fatal(err)
	}
	secrets := filepath.Join(c.dir, "secrets")
	if err := os.RemoveAll(secrets); err != nil {
		t.Fatal(err)
	}
	prepare := exec.CommandContext(t.Context(), "bash", "secrets.sh", "secrets", "flows.example")
	prepare.Dir = c.dir
	if out, err := prepare.CombinedOutput(); err != nil {
		t.Fatalf("secrets.sh: %v\n%s", err, out)
	}
	config := filepath.Join(c.dir, "config", "config.toml")
	raw, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	put(t, config, strings.Replace(string(raw), "[gates]\n", "[gates]\naccept = [\"cli\", \"cli-noninteractive\"]\n", 1))
	workflows := filepath.Join(c.dir, "site", ".relavium")
	open(t, filepath.Join(c.dir, "site"), workflows)
	put(t, filepath.Join(workflows, "asking.relavium.yaml"), asking)

	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if t.Failed() {
			logs, err := c.try(ctx, "logs", "--no-color", "--tail", "200")
			t.Logf("the containers logged (%v):\n%s", err, ordinary.ReplaceAllString(logs, ""))
		}
		if out, err := c.try(ctx, "down", "--volumes"); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
	began := time.Now()
	c.ok(t, "up", "--detach")
	t.Logf("up in %v", time.Since(began))
	checkContainers(t, c)

	token := c.ok(t, "exec", "-T", "replica-1", "relavium-serve", "token", "create", "ci", "--scope", "relavium:run")
	web := c.browser(t)
	// A call that one replica has begun goes on when that one is killed.
	one := &call{workflow: "asking", key: "k", input: "tea", token: token}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		var err error
		for ctx.Err() == nil {
			var req *http.Request
			if req, err = one.request(ctx, "https://flows.example"); err != nil {
				break
			}
			if err = one.send(web, req); err == nil {
				break
			}
		}
		done <- err
	}()
	in := func(replica string, args ...string) string {
		return c.ok(t, append([]string{"exec", "-T", replica, "relavium-serve"}, args...)...)
	}
	until(t, patience, "the gate is open", func() bool { return len(parseGates(t, in("replica-2", "gate", "list", "--json"))) == 1 })
	c.ok(t, "kill", "-s", "KILL", "replica-1")
	in("replica-2", "gate", "approve", parseGates(t, in("replica-2", "gate", "list", "--json"))[0].Run, "--yes")
	if err := <-done; err != nil || !strings.Contains(one.result, "before tea, approved") {
		t.Errorf("the call = %q, %v; want before tea, approved", one.result, err)
	}

	for _, statement := range []string{"delete from relavium.audit", "update relavium.audit set principal='somebody'", "truncate relavium.audit", "drop table relavium.audit"} {
		out, err := c.try(t.Context(), "exec", "-T", "database", "psql", "-U", "relavium", "-d", "relavium", "-c", statement)
		if err == nil || !strings.Contains(err.Error(), "permission denied") && !strings.Contains(err.Error(), "must be owner") {
			t.Errorf("%s as the service = %s, %v; want that it may not", statement, out, err)
		}
	}
	if log := in("replica-2", "audit", "--json"); !strings.Contains(log, "token:ci") {
		t.Errorf("the audit log does not name the caller: %s", log)
	}
	for path, want := range map[string]int{"/healthz": 404, "/readyz": 404, "/metrics": 404, "/mcp": 401} {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://flows.example"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := web.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("GET %s from outside = %d, want %d", path, resp.StatusCode, want)
		}
	}
}

// checkContainers wants no container to be root, to write to its root, or to have or get
// any privilege.
func checkContainers(t *testing.T, c composition) {
	t.Helper()
	ids := strings.Fields(c.ok(t, "ps", "-q"))
	if len(ids) != 5 {
		t.Errorf("%d containers, want 5", len(ids))
	}
	for _, id := range ids {
		var got struct {
			Name   string
			Config struct{ User string }
			Host   struct {
				ReadonlyRootfs bool
				CapDrop        []string
				SecurityOpt    []string
				Privileged     bool
			} `json:"HostConfig"`
		}
		if err := json.Unmarshal([]byte(docker(t, "inspect", "--format", "{{json .}}", id)), &got); err != nil {
			t.Fatal(err)
		}
		user, _, _ := strings.Cut(got.Config.User, ":")
		if user == "" || user == "0" || user == "root" {
			t.Errorf("%s runs as %q, want a number that is not root's", got.Name, got.Config.User)
		}
		if h := got.Host; !h.ReadonlyRootfs || h.Privileged || strings.Join(h.CapDrop, " ") != "ALL" || !strings.Contains(strings.Join(h.SecurityOpt, " "), "no-new-privileges") {
			t.Errorf("%s: %+v, want it closed", got.Name, h)
		}
	}
}

// browser is a client that knows the example's certificate and finds its name here.
func (c composition) browser(t *testing.T) *http.Client {
	t.Helper()
	pem, err := os.ReadFile(filepath.Join(c.dir, "secrets", "site.pem"))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		t.Fatal("the certificate cannot be read")
	}
	var dialer stdnet.Dialer
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pool},
		DialContext: func(ctx context.Context, network, _ string) (stdnet.Conn, error) {
			return dialer.DialContext(ctx, network, "127.0.0.1:8443")
		},
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}
