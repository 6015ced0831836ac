package integration

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/integration/issuer"
)

// newToken makes a static token.
func (p project) newToken(tb testing.TB, name string, scopes ...string) string {
	tb.Helper()
	args := []string{"token", "create", name}
	for _, scope := range scopes {
		args = append(args, "--scope", scope)
	}
	return strings.TrimSpace(p.ok(tb, args...))
}

// TestTypeScriptSDK2Token is the scenario over Streamable HTTP with a token: what
// is run belongs to its name.
func TestTypeScriptSDK2Token(t *testing.T) {
	t.Parallel()
	p := scenarioProject(t)
	token := p.newToken(t, "sdk", "relavium:run")
	node := clientRuntime(t)
	path, err := filepath.Abs(filepath.Join("clients", "sdk2.mjs"))
	if err != nil {
		t.Fatal(err)
	}
	server := p.serveHTTP(t, "--publish", "@mcp_call", "--auth", "token")
	checkScenario(t, p, startSteps(t, p, []string{node, path, "--http", server.url, token}), "2026-07-28", "waiting")
	p.ownedBy(t, "token:sdk")
}

// TestClaudeCodeToken lets the newer Claude Code call with a token.
func TestClaudeCodeToken(t *testing.T) {
	modules := agents(t)
	program := filepath.Join(modules, filepath.FromSlash("claude-code-2026/node_modules/@anthropic-ai/claude-code-linux-x64/claude"))
	p := scenarioProject(t)
	token := p.newToken(t, "claude", "relavium:run")
	wire := tap(t, p.serveHTTP(t, "--publish", "@mcp_call", "--auth", "token").url)
	driveClaude(t, p, program, map[string]any{
		"type": "http", "url": wire.url, "headers": map[string]string{"Authorization": "Bearer " + token},
	})
	checkRevision(t, wire.sent(), "2026-07-28")
	p.ownedBy(t, "token:claude")
}

// ownedBy checks that all runs are of the principal.
func (p project) ownedBy(t *testing.T, principal string) {
	t.Helper()
	var runs []struct{ ID, Principal string }
	if err := json.Unmarshal([]byte(p.ok(t, "runs", "list", "--json")), &runs); err != nil || len(runs) == 0 {
		t.Fatalf("runs list: %d runs, %v", len(runs), err)
	}
	for _, r := range runs {
		if r.Principal != principal {
			t.Errorf("run %s belongs to %s, want %s", r.ID, r.Principal, principal)
		}
	}
}

// A bearer calls an endpoint as 2026-07-28 does.
type bearer struct {
	t      *testing.T
	url    string
	token  string
	client *http.Client
}

// send calls a tool; meta are further members of _meta, with a comma after each. The
// caller closes the answer's body.
func (b bearer) send(ctx context.Context, method, name, params string, meta ...string) *http.Response {
	b.t.Helper()
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{%s"_meta":{%s"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"probe","version":"0"},"io.modelcontextprotocol/clientCapabilities":{}}}}`, method, params, strings.Join(meta, ""))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, b.url, strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	for key, value := range map[string]string{
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Authorization": "Bearer " + b.token,
		"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method, "Mcp-Name": name,
	} {
		req.Header.Set(key, value)
	}
	resp, err := b.client.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	return resp
}

func (b bearer) call(tool, arguments string) (status int, body string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), patience)
	defer cancel()
	resp := b.send(ctx, "tools/call", tool, fmt.Sprintf(`"name":%q,"arguments":%s,`, tool, arguments))
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return resp.StatusCode, string(raw)
}

func plainClient(t *testing.T, config *tls.Config) *http.Client {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: config}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// TestTokenRevoked ends a token at the command line while its call waits: the
// stream ends, the run waits on, and a new token of the name has it.
func TestTokenRevoked(t *testing.T) {
	t.Parallel()
	p := scenarioProject(t)
	var made struct{ ID, Token string }
	if err := json.Unmarshal([]byte(p.ok(t, "token", "create", "bot", "--scope", "relavium:run", "--json")), &made); err != nil {
		t.Fatal(err)
	}
	server := p.serveHTTP(t, "--publish", "@mcp_call", "--auth", "token")
	client := plainClient(t, nil)
	bot := bearer{t, server.url, made.Token, client}
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	resp := bot.send(ctx, "tools/call", "relavium_deploy", `"name":"relavium_deploy","arguments":{"version":"1.4.2"},`)
	defer resp.Body.Close()
	run := p.awaitWaiting(t)
	p.ok(t, "token", "revoke", made.ID)
	rest, err := io.ReadAll(resp.Body)
	if bytes.Contains(rest, []byte(`"result"`)) || err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("the stream brought %s, %v; want its end alone", rest, err)
	}
	if status, _ := bot.call("relavium_greet", `{"name":"Ada"}`); status != http.StatusUnauthorized {
		t.Errorf("a call with a revoked token = %d, want 401", status)
	}
	other := bearer{t, server.url, p.newToken(t, "other", "relavium:run"), client}
	if _, body := other.call("relavium_run_status", fmt.Sprintf(`{"run":%q}`, run)); !strings.Contains(body, "no run") {
		t.Errorf("relavium_run_status by another = %s, want that there is none", body)
	}
	again := bearer{t, server.url, p.newToken(t, "bot", "relavium:run"), client}
	if _, body := again.call("relavium_run_status", fmt.Sprintf(`{"run":%q}`, run)); !strings.Contains(body, `"status":"waiting"`) {
		t.Errorf("relavium_run_status by a new token of the name = %s, want the run", body)
	}
	p.approve(t, run)
	if _, body := again.call("relavium_run_wait", fmt.Sprintf(`{"run":%q}`, run)); !strings.Contains(body, "1.4.2") {
		t.Errorf("relavium_run_wait = %s, want the result", body)
	}
}

// TestOAuthOverTLS serves TLS to callers with JWTs of an issuer.
func TestOAuthOverTLS(t *testing.T) {
	t.Parallel()
	p := scenarioProject(t)
	i := issuer.Start(t)
	pool := p.certificate(t)
	write(t, filepath.Join(p.home, "config.toml"), "[auth]\nissuer = \""+i.URL+"\"\nallow_local_endpoint = true\n[serve]\ntls_cert = \"cert.pem\"\ntls_key = \"key.pem\"\n")
	server := p.serveHTTP(t, "--publish", "greet", "--auth", "oauth", "--public-url", "https://flows.example")
	if !strings.HasPrefix(server.url, "https://") {
		t.Fatalf("it listens on %s, want https", server.url)
	}
	client := plainClient(t, &tls.Config{RootCAs: pool})
	token := func(scope string) string {
		return i.Token(t, i.Claims("https://flows.example/mcp", "ada", scope), issuer.Shape{Alg: "ES256"})
	}
	if status, body := (bearer{t, server.url, token("relavium:run:greet"), client}).call("relavium_greet", `{"name":"Ada"}`); status != http.StatusOK || !strings.Contains(body, "Hello Ada") {
		t.Errorf("a call = %d %s", status, body)
	}
	if status, _ := (bearer{t, server.url, token("relavium:run:other"), client}).call("relavium_greet", `{"name":"Ada"}`); status != http.StatusForbidden {
		t.Errorf("a call without its scope = %d, want 403", status)
	}
	p.ownedBy(t, "oauth:"+i.URL+"#ada")
	resp, err := client.Get(strings.TrimSuffix(server.url, "/mcp") + "/.well-known/oauth-protected-resource/mcp")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var metadata struct {
		Resource string
		Servers  []string `json:"authorization_servers"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&metadata); err != nil || metadata.Resource != "https://flows.example/mcp" || len(metadata.Servers) != 1 || metadata.Servers[0] != i.URL {
		t.Errorf("metadata = %+v, %v", metadata, err)
	}
	// Plain HTTP gets nowhere.
	plain, err := plainClient(t, nil).Get("http://" + strings.TrimPrefix(server.url, "https://"))
	if err == nil {
		defer plain.Body.Close()
		if plain.StatusCode != http.StatusBadRequest {
			t.Errorf("plain HTTP = %d, want 400", plain.StatusCode)
		}
	}
}

// certificate makes one for loopback in the home, and returns who vouches for it.
func (p project) certificate(t *testing.T) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	about := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, about, about, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(p.home, "cert.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	write(t, filepath.Join(p.home, "key.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})))
	pool := x509.NewCertPool()
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool.AddCert(cert)
	return pool
}

// guest logs in to the console of a server with a token.
func guest(t *testing.T, endpoint, token string) *visitor {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	v := &visitor{t: t, client: &http.Client{Jar: jar, Timeout: patience}, base: strings.TrimSuffix(endpoint, "/mcp")}
	if page := v.send("/console/login", "/console/login", url.Values{"token": {token}}); !strings.Contains(page, "Waiting for you") {
		t.Fatalf("after the login:\n%s", page)
	}
	return v
}

// TestApproverIsAnother has a gate that whoever called may not decide: not with
// the same token at the console, while another's holder may, if it allows it.
func TestApproverIsAnother(t *testing.T) {
	t.Parallel()
	p := install(t, "[serve.workflow.deploy]\napprover_not_requester = true\n").project(t, "project", testdata(t, "greet", "deploy"))
	ann, lead := p.newToken(t, "ann", "relavium:run", "relavium:gate"), p.newToken(t, "lead", "relavium:gate:deploy")
	greeter, runner := p.newToken(t, "greeter", "relavium:gate:greet"), p.newToken(t, "runner", "relavium:run")
	server := p.serveHTTP(t, "--publish", "@mcp_call", "--auth", "token")
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	resp := bearer{t, server.url, ann, plainClient(t, nil)}.send(ctx, "tools/call", "relavium_deploy", `"name":"relavium_deploy","arguments":{"version":"1.4.2"},`)
	defer resp.Body.Close()
	run := p.awaitWaiting(t)
	gate := "/console/gates/" + p.openGate(t, run)
	own := guest(t, server.url, ann)
	if page := own.get(gate); !strings.Contains(page, "not decided by whoever started the run") || strings.Contains(page, `name="decision"`) {
		t.Errorf("the gate of one's own run:\n%s", page)
	}
	if page := own.send("/console/runs", gate, url.Values{"decision": {"approve"}}); strings.Contains(page, "You approved") {
		t.Errorf("the requester approved:\n%s", page)
	}
	if page := guest(t, server.url, greeter).get(gate); !strings.Contains(page, "There is no such gate") {
		t.Errorf("the gate of a workflow that the token does not allow:\n%s", page)
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	stranger := &visitor{t: t, client: &http.Client{Timeout: patience, Jar: jar}, base: own.base}
	if page := stranger.send("/console/login", "/console/login", url.Values{"token": {runner}}); strings.Contains(page, "Waiting for you") {
		t.Errorf("a token that allows no gate came in:\n%s", page)
	}
	if page := guest(t, server.url, lead).send(gate, gate, url.Values{"decision": {"approve"}}); !strings.Contains(page, "You approved this gate") {
		t.Errorf("the lead's decision:\n%s", page)
	}
	rest, err := io.ReadAll(resp.Body)
	if err != nil || !strings.Contains(string(rest), "approved") {
		t.Errorf("the call got %s, %v; want the approved version", rest, err)
	}
	var shown []struct{ DecidedBy, Via string }
	if err := json.Unmarshal([]byte(p.ok(t, "gate", "list", "--all", "--run", run, "--json")), &shown); err != nil || len(shown) != 1 || shown[0].DecidedBy != "token:lead" || shown[0].Via != "console" {
		t.Errorf("gates = %+v, %v, want the decision of token:lead via console", shown, err)
	}
}

// TestStopWithTokens stops a server while the call of a token's holder waits: it
// is answered still, and the run waits on.
func TestStopWithTokens(t *testing.T) {
	t.Parallel()
	p := scenarioProject(t)
	server := p.serveHTTP(t, "--publish", "@mcp_call", "--auth", "token")
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	bot := bearer{t, server.url, p.newToken(t, "bot", "relavium:run"), plainClient(t, nil)}
	resp := bot.send(ctx, "tools/call", "relavium_deploy", `"name":"relavium_deploy","arguments":{"version":"1.4.2"},`)
	defer resp.Body.Close()
	run := p.awaitWaiting(t)
	server.end(os.Interrupt)
	rest, err := io.ReadAll(resp.Body)
	if err != nil || !strings.Contains(string(rest), `"result"`) || !strings.Contains(string(rest), run) {
		t.Errorf("the call of a server that stops brought %s, %v; want an answer that names run %s", rest, err, run)
	}
	if runs := p.runs(t); len(runs) != 1 || runs[0].State != "waiting" {
		t.Errorf("runs = %+v, want the one, waiting", runs)
	}
}
