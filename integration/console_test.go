package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/relavium/relavium-serve/gates/console"
)

// A browserTab is one tab of a real browser.
type browserTab struct {
	tb  testing.TB
	ctx context.Context //nolint:containedctx // chromedp keeps the tab in it
}

// openBrowser starts a browser of its own, with nothing of the machine's.
func openBrowser(tb testing.TB) *browserTab {
	tb.Helper()
	path := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		missing := tb.Skip
		if os.Getenv("CI") != "" {
			missing = tb.Fatal
		}
		missing("no chromium found: the tests of the console's pages need one (Debian: apt-get install chromium)")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.WSURLReadTimeout(patience), chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-dev-shm-usage", true))
	ctx, cancel := chromedp.NewExecAllocator(context.WithoutCancel(tb.Context()), options...)
	tb.Cleanup(cancel)
	return (&browserTab{tb: tb, ctx: ctx}).tab()
}

// tab opens another tab of the same browser.
func (b *browserTab) tab() *browserTab {
	b.tb.Helper()
	ctx, cancel := chromedp.NewContext(b.ctx)
	b.tb.Cleanup(cancel)
	t := &browserTab{tb: b.tb, ctx: ctx}
	if err := chromedp.Do(ctx, chromedp.EmulateViewport(1180, 860)); err != nil {
		b.tb.Fatal(err)
	}
	return t
}

func (b *browserTab) do(steps ...chromedp.Action[chromedp.Void]) {
	b.tb.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		b.tb.Fatalf("the browser: %v\n%s", err, b.text())
	}
}

// text is what the page says.
func (b *browserTab) text() string {
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	text, err := chromedp.Run(ctx, chromedp.Evaluate[string](`document.body ? document.body.innerText : ""`))
	if err != nil {
		return err.Error()
	}
	return text
}

// shows waits until the page says something.
func (b *browserTab) shows(text string) {
	b.tb.Helper()
	want, err := json.Marshal(text)
	if err != nil {
		b.tb.Fatal(err)
	}
	tick, timer := time.NewTicker(50*time.Millisecond), time.NewTimer(patience)
	defer tick.Stop()
	defer timer.Stop()
	for {
		found, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool](`document.readyState === "complete" && document.body.innerText.includes(`+string(want)+`)`))
		if err == nil && found { // an error is that of a page on its way to the next
			return
		}
		select {
		case <-tick.C:
		case <-timer.C:
			b.tb.Fatalf("the page never says %q (%v):\n%s", text, err, b.text())
		}
	}
}

// click presses the first element of the kind whose text begins with what is given.
func (b *browserTab) click(kind, text string) {
	b.tb.Helper()
	b.do(chromedp.Click(fmt.Sprintf(`//%s[starts-with(normalize-space(.), %q)]`, kind, text)))
}

func (b *browserTab) dark(on bool) {
	b.tb.Helper()
	scheme := map[bool]string{true: "dark", false: "light"}[on]
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	})
	if err != nil {
		b.tb.Fatal(err)
	}
}

// screenshot keeps what the page looks like in out/console, and checks that
// nothing is cut off to the right.
func (b *browserTab) screenshot(name string) {
	b.tb.Helper()
	wide, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool](`document.documentElement.scrollWidth > document.documentElement.clientWidth`))
	if err != nil || wide {
		b.tb.Errorf("%s: the page has to be scrolled to the right: %v, %v", name, wide, err)
	}
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	picture, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
	if err != nil {
		b.tb.Fatal(err)
	}
	dir := filepath.Join("..", "out", "console")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		b.tb.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), picture, 0o644); err != nil {
		b.tb.Fatal(err)
	}
}

// parked starts a run that comes to a gate and leaves it there.
func (p project) parked(tb testing.TB, args ...string) string {
	tb.Helper()
	stdout, stderr, code := p.cli(tb, append([]string{"run", "--json"}, args...)...)
	var first struct {
		Run string `json:"runId"`
	}
	line, _, _ := strings.Cut(stdout, "\n")
	if err := json.Unmarshal([]byte(line), &first); err != nil || code != 3 {
		tb.Fatalf("run %v: exit %d, want 3 at a gate (%v)\n%s%s", args, code, err, stdout, stderr)
	}
	return first.Run
}

func consoleProject(t *testing.T) (project, string) {
	t.Helper()
	p := install(t, "").project(t, "shop", testdata(t, "shipment", "name-it"))
	token, err := console.StartToken{Home: p.home}.Renew()
	if err != nil {
		t.Fatal(err)
	}
	return p, token
}

// TestConsole is a person with a browser: they log in, look at what waits,
// decide, and see the runs go on and end.
func TestConsole(t *testing.T) {
	t.Parallel()
	b := openBrowser(t)
	p, token := consoleProject(t)
	changes := "Retries of failed payments are spread over an hour.\nThe receipt page shows the delivery window.\n<script>document.title = 'gone'</script>"
	approved := p.parked(t, "shipment", "--input", "version=1.4.0", "--input", "changes="+changes)
	rejected := p.parked(t, "shipment", "--input", "version=1.5.0-rc.1")
	named := p.parked(t, "name-it")
	server := p.serveHTTP(t, "--publish", "shipment")
	base := strings.TrimSuffix(server.url, "/mcp") + "/console"

	b.do(chromedp.Navigate(base))
	b.shows("Log in")
	b.screenshot("login")
	b.do(chromedp.SendKeys(chromedp.CSS("#token"), "not the token\r"))
	b.shows("That is not a token that may come in here.")
	b.do(chromedp.SendKeys(chromedp.CSS("#token"), token+"\r"))
	b.shows("3 gates wait for a person")
	b.shows("release managers")
	b.screenshot("inbox")
	b.dark(true)
	b.screenshot("inbox-dark")
	b.dark(false)

	// One tab watches the run, the other decides.
	watching := b.tab()
	watching.do(chromedp.Navigate(base + "/runs/" + approved))
	watching.shows("sign-off waits for approval")
	watching.screenshot("run-waiting")
	watching.dark(true)
	watching.screenshot("run-waiting-dark")
	watching.dark(false)
	b.do(chromedp.Navigate(base + "/gates/" + approved)) // not a gate
	b.shows("There is no such gate")
	watching.click("a", "Decide")
	watching.shows("What the run has done so far")
	watching.shows("<script>document.title")
	watching.screenshot("gate")
	watching.dark(true)
	watching.screenshot("gate-dark")
	watching.dark(false)
	if title, err := chromedp.Run(watching.ctx, chromedp.Title()); err != nil || title == "gone" {
		t.Errorf("the title is %q, %v: the workflow's text was run", title, err)
	}
	b.do(chromedp.Navigate(base + "/runs/" + approved))
	b.shows("sign-off waits for approval")
	watching.do(chromedp.SendKeys(chromedp.CSS("#comment"), "Looks right. Watch the error rate."))
	watching.click("button", "Approve")
	watching.shows("You approved this gate")
	b.shows("run completed") // live
	b.shows("approved by local via the console: “Looks right. Watch the error rate.”")
	b.screenshot("run-completed")
	watching.screenshot("gate-approved")

	// Rejected without a mouse.
	b.do(chromedp.Navigate(base))
	b.shows("2 gates wait")
	b.click("a", "shipment")
	b.shows("1.5.0-rc.1")
	b.do(chromedp.Focus(chromedp.CSS("button.reject")), chromedp.KeyEvent("\r"))
	b.shows("You rejected this gate")

	// Answered on a page that learns meanwhile what others do.
	b.do(chromedp.Navigate(base))
	b.shows("1 gate waits")
	late := b.tab()
	b.click("a", "name-it")
	b.shows("Your answer")
	b.screenshot("gate-input")
	where, err := chromedp.Run(b.ctx, chromedp.Location())
	if err != nil {
		t.Fatal(err)
	}
	late.do(chromedp.Navigate(where))
	late.shows("Your answer")
	late.do(chromedp.SendKeys(chromedp.CSS("#value"), "Stork"))
	b.do(chromedp.SendKeys(chromedp.CSS("#value"), "Grey heron"))
	b.click("button", "Send answer")
	b.shows("You answered this gate")
	late.shows("Already decided: answered") // live, and the form is gone
	late.screenshot("gate-late")

	for id, want := range map[string]string{approved: "completed", rejected: "completed", named: "completed"} {
		if got := p.settled(t, id); got != want {
			t.Errorf("run %s is %s, want %s", id, got, want)
		}
	}
	b.do(chromedp.Navigate(base + "/runs"))
	b.shows("took")
	b.screenshot("runs")

	cancelled := p.parked(t, "shipment", "--input", "version=2.0.0")
	b.shows("waiting") // live
	b.do(chromedp.Navigate(base + "/runs/" + cancelled))
	b.shows("sign-off waits for approval")
	b.click("a", "Cancel…")
	b.shows("Cancel this run?")
	b.screenshot("cancel")
	b.click("button", "Cancel the run")
	b.shows("run cancelled")

	// A phone, in the light and in the dark, down to 360 px.
	again := p.parked(t, "shipment", "--input", "version=2.1.0", "--input", "changes="+changes)
	gate := p.openGate(t, again)
	for _, at := range []struct {
		page, path string
		width      int64
		dark       bool
	}{
		{"inbox", "", 390, false},
		{"inbox-dark", "", 390, true},
		{"gate", "/gates/" + gate, 390, false},
		{"gate-dark", "/gates/" + gate, 390, true},
		{"run", "/runs/" + again, 390, false},
		{"run-dark", "/runs/" + approved, 390, true},
		{"runs", "/runs", 390, false},
		{"gate-360", "/gates/" + gate, 360, false},
		{"run-360", "/runs/" + approved, 360, false},
		{"inbox-360", "", 360, false},
	} {
		b.do(chromedp.EmulateViewport(at.width, 844, chromedp.EmulateMobile))
		b.dark(at.dark)
		b.do(chromedp.Navigate(base + at.path))
		b.shows("Waiting")
		b.screenshot("phone-" + at.page)
	}
}

// openGate is the gate at which a run waits.
func (p project) openGate(tb testing.TB, run string) string {
	tb.Helper()
	var gates []struct {
		ID string `json:"id"`
	}
	out := p.ok(tb, "gate", "list", "--run", run, "--json")
	if err := json.Unmarshal([]byte(out), &gates); err != nil || len(gates) != 1 {
		tb.Fatalf("gate list --run %s = %s, want one gate", run, out)
	}
	return gates[0].ID
}

// settled waits for the end of a run and returns its state.
func (p project) settled(tb testing.TB, id string) string {
	tb.Helper()
	var r struct {
		State string `json:"state"`
		Ended string `json:"ended"`
	}
	tick, timer := time.NewTicker(100*time.Millisecond), time.NewTimer(patience)
	defer tick.Stop()
	defer timer.Stop()
	for {
		if err := json.Unmarshal([]byte(p.ok(tb, "runs", "show", id, "--json")), &r); err != nil {
			tb.Fatal(err)
		}
		if r.Ended != "" {
			return r.State
		}
		select {
		case <-tick.C:
		case <-timer.C:
			tb.Fatalf("run %s does not end: it is %s", id, r.State)
		}
	}
}
