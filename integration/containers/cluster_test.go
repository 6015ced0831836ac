package containers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/network"
	"github.com/testcontainers/testcontainers-go/wait"
)

// patience bounds what takes a moment; takeover is the time in which another replica
// has the runs of one that is gone: the lease of 10 s, and time to look.
const (
	patience = 60 * time.Second
	takeover = 45 * time.Second
)

// docker runs the engine's command line and returns what it printed.
func docker(t *testing.T, args ...string) string {
	t.Helper()
	out, err := tryDocker(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func tryDocker(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var out, diag bytes.Buffer
	cmd := exec.CommandContext(ctx, "docker", args...)
	cmd.Stdout, cmd.Stderr = &out, &diag
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("docker %s: %w\n%s", strings.Join(args, " "), err, diag.String())
	}
	return out.String(), nil
}

// A net is a network of containers. This process is at its gateway.
type net struct {
	*testcontainers.DockerNetwork
	gateway string
}

func newNet(t *testing.T, opts ...network.NetworkCustomizer) net {
	t.Helper()
	n, err := network.New(t.Context(), opts...)
	testcontainers.CleanupNetwork(t, n)
	if err != nil {
		t.Fatal(err)
	}
	gateway := docker(t, "network", "inspect", "--format", "{{(index .IPAM.Config 0).Gateway}}", n.Name)
	return net{n, strings.TrimSpace(gateway)}
}

// hard runs a container as the examples of deploy do: nothing of its root can be
// written, no capability is left.
func hard(tmpfs map[string]string, binds ...string) testcontainers.CustomizeRequestOption {
	return testcontainers.WithHostConfigModifier(func(h *container.HostConfig) {
		h.ReadonlyRootfs = true
		h.CapDrop = []string{"ALL"}
		h.SecurityOpt = []string{"no-new-privileges"}
		h.Tmpfs = tmpfs
		h.Binds = append(h.Binds, binds...)
	})
}

// run starts a container; what it logged is shown if the test fails.
func run(t *testing.T, image string, opts ...testcontainers.ContainerCustomizer) string {
	t.Helper()
	c, err := testcontainers.Run(t.Context(), image, opts...)
	testcontainers.CleanupContainer(t, c)
	if c != nil {
		id := c.GetContainerID()
		t.Cleanup(func() {
			if t.Failed() {
				logs, err := exec.Command("docker", "logs", "--tail", "1000", id).CombinedOutput()
				t.Logf("%s of %s logged (%v):\n%s", id[:12], image, err, ordinary.ReplaceAllString(string(logs), ""))
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return c.GetContainerID()
}

// ordinary is what a log has when nothing is wrong.
var ordinary = regexp.MustCompile(`(?m)^.* level=INFO .*\n`)

// volume makes a volume that ends with the test.
func volume(t *testing.T) string {
	t.Helper()
	name := strings.TrimSpace(docker(t, "volume", "create"))
	t.Cleanup(func() { _, _ = tryDocker(context.WithoutCancel(t.Context()), "volume", "rm", "--force", name) })
	return name
}

// startPostgres starts a PostgreSQL that is called db in the network.
func startPostgres(t *testing.T, in net) string {
	t.Helper()
	return run(t, database,
		network.WithNetwork([]string{"db"}, in.DockerNetwork),
		testcontainers.WithEnv(map[string]string{"POSTGRES_USER": "relavium", "POSTGRES_PASSWORD": "stand-in-password"}),
		hard(map[string]string{"/tmp": "", "/run/postgresql": "mode=1777"}, volume(t)+":/var/lib/postgresql"),
		testcontainers.WithWaitStrategyAndDeadline(patience, wait.ForLog("listening on IPv4 address"), wait.ForExec([]string{"pg_isready", "-h", "127.0.0.1"})),
	)
}

// A site is a folder of workflows and a configuration, the same for every replica.
type site struct {
	dir    string
	config string
}

// newSite writes both; the containers' user, which is nobody here, can read them.
func newSite(t *testing.T, config string, workflows map[string]string) site {
	t.Helper()
	dir := t.TempDir()
	s := site{filepath.Join(dir, "project"), filepath.Join(dir, "etc")}
	open(t, filepath.Join(s.dir, ".relavium"), s.config)
	put(t, filepath.Join(s.config, "config.toml"), config)
	for id, text := range workflows {
		put(t, filepath.Join(s.dir, ".relavium", id+".relavium.yaml"), text)
	}
	return s
}

// open makes folders that everybody may look into.
func open(t *testing.T, dirs ...string) {
	t.Helper()
	for _, dir := range dirs {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// A replica is one container of the product.
type replica struct {
	id    string
	front net
}

// configured is where every replica has its configuration.
const configured = "/etc/relavium/config.toml"

// startReplica starts a replica that clients reach by the front network.
func startReplica(t *testing.T, s site, front net, home string, opts ...testcontainers.ContainerCustomizer) replica {
	t.Helper()
	opts = append([]testcontainers.ContainerCustomizer{
		network.WithNetwork(nil, front.DockerNetwork),
		hard(nil, s.dir+":/srv/relavium:ro", s.config+":/etc/relavium:ro", home+":/var/lib/relavium"),
		testcontainers.WithCmd("serve", "--config", configured, "--transport", "http", "--listen", "0.0.0.0:7411",
			"--auth", "token", "--behind-proxy", "--public-url", "https://flows.example", "--publish", "@mcp_call"),
		testcontainers.WithWaitStrategyAndDeadline(patience, wait.ForLog("listening")),
	}, opts...)
	return replica{run(t, product, opts...), front}
}

// cli runs a command of the product inside the replica's container.
func (r replica) cli(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return tryDocker(t.Context(), slices.Concat([]string{"exec", r.id, "relavium-serve", "--config", configured}, args)...)
}

func (r replica) ok(t *testing.T, args ...string) string {
	t.Helper()
	out, err := r.cli(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// token makes a token that may start every run.
func (r replica) token(t *testing.T) string {
	t.Helper()
	return r.ok(t, "token", "create", "load", "--scope", "relavium:run")
}

// A runRecord is what runs list --json prints of one run.
type runRecord struct{ ID, Workflow, State, Reason string }

func (r replica) runs(t *testing.T) []runRecord {
	t.Helper()
	var list []runRecord
	if err := json.Unmarshal([]byte(r.ok(t, "runs", "list", "--limit", "1000", "--json")), &list); err != nil {
		t.Fatal(err)
	}
	return list
}

// A gateRecord is what gate list --json prints of one open gate.
type gateRecord struct{ ID, Run, Workflow, Reason, Message string }

func (r replica) gates(t *testing.T) []gateRecord {
	t.Helper()
	return parseGates(t, r.ok(t, "gate", "list", "--json"))
}

func parseGates(t *testing.T, raw string) []gateRecord {
	t.Helper()
	var list []gateRecord
	if err := json.Unmarshal([]byte(raw), &list); err != nil {
		t.Fatal(err)
	}
	return list
}

// base is the replica's URL; its address changes when it is started again.
func (r replica) base(ctx context.Context) (string, error) {
	address, err := tryDocker(ctx, "inspect", "--format", fmt.Sprintf("{{(index .NetworkSettings.Networks %q).IPAddress}}", r.front.Name), r.id)
	return "http://" + strings.TrimSpace(address) + ":7411", err
}

// get asks the replica for a path and returns the status, or 0 if it is not reached.
func (r replica) get(t *testing.T, path string) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	base, err := r.base(ctx)
	if err != nil {
		return 0
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+path, nil)
	if err != nil {
		return 0
	}
	req.Host = "flows.example" // no other name is answered
	resp, err := client(t).Do(req)
	if err != nil {
		return 0
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

// ready waits until the replica takes calls.
func (r replica) ready(t *testing.T) {
	t.Helper()
	until(t, patience, "the replica is ready", func() bool { return r.get(t, "/readyz") == http.StatusOK })
}

// kill ends a container as the loss of its machine would.
func kill(t *testing.T, id string) { t.Helper(); docker(t, "kill", "--signal", "KILL", id) }

// until waits for what holds at some time.
func until(t *testing.T, limit time.Duration, what string, holds func() bool) {
	t.Helper()
	began := time.Now()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		if time.Since(began) > limit {
			t.Fatalf("after %v it is not so that %s", limit, what)
		}
		select {
		case <-tick.C:
		case <-t.Context().Done():
			t.Fatal(errors.New("the test ended"))
		}
	}
}

func client(t *testing.T) *http.Client {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}
