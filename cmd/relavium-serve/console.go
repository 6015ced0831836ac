package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/gates/console"
	"github.com/relavium/relavium-serve/publish/access"
)

const (
	consoleListen = "127.0.0.1:7412"
	consolePrefix = "/console" // beside /mcp
)

func (a *app) consoleCommand() *cobra.Command {
	var listen string
	var login bool
	cmd := &cobra.Command{
		Use:   "console",
		Short: "Serve the web page where gates are decided and runs are looked at",
		Long: "Serve the web page where a person decides the gates that wait and looks at runs.\n\n" +
			"The console executes nothing. It needs a token to log in: on a terminal a start makes a new\n" +
			"one and shows it once; --login does the same without serving, also while a console runs.",
		Example: "  relavium-serve console\n  relavium-serve console --listen 127.0.0.1:8080\n  relavium-serve console --login",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			at, err := a.open(slog.LevelInfo)
			if err != nil {
				return err
			}
			if login {
				if cmd.Flags().Changed("listen") {
					return invalid("relavium-serve console --login", "--login serves nothing, so --listen has no meaning with it")
				}
				return a.newToken(at, "")
			}
			return a.console(cmd.Context(), at, listen)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&listen, "listen", consoleListen, "loopback address to serve on")
	flags.BoolVar(&login, "login", false, "make a new token, show it and end; needs a terminal")
	return cmd
}

// newToken makes a new start token and shows it, on a terminal only: what a
// program reads from a pipe may be what a model reads.
func (a *app) newToken(at *site, base string) error {
	if !isTerminal(a.stdout) {
		return invalid("run relavium-serve console --login in a terminal", "the console's token is shown on a terminal only, and the standard output is none")
	}
	if _, err := prepareHome(at.place); err != nil {
		return err
	}
	token, err := console.StartToken{Home: at.home}.Renew()
	if err != nil {
		return err
	}
	var b strings.Builder
	if base == "" {
		base, _ = console.Address(at.home)
	}
	if base != "" {
		fmt.Fprintf(&b, "console  %s\n", base)
	}
	fmt.Fprintf(&b, "token    %s\n", token)
	b.WriteString("It is shown this once and replaces the one before. Whoever has it decides gates in your name.\n")
	_, err = io.WriteString(a.stdout, b.String())
	return err
}

func (a *app) console(ctx context.Context, at *site, listen string) error {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return invalid("", "--listen: expected HOST:PORT, such as %s", consoleListen)
	}
	if !loopbackHost(host) {
		return consoleOpen()
	}
	return a.withStore(ctx, at, func(eng *engine.Engine) error {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
		if err != nil {
			return &fault{code: exitFailed, err: fmt.Errorf("listen: %w", err), hint: "another program has the address: choose one with --listen 127.0.0.1:PORT"}
		}
		defer func() { _ = l.Close() }()
		if bound, ok := l.Addr().(*net.TCPAddr); !ok || !bound.IP.IsLoopback() {
			return consoleOpen()
		}
		return a.serveConsole(ctx, at, eng, l)
	})
}

func consoleOpen() error {
	return invalid("listen on 127.0.0.1 or [::1]; over a network reach it through a tunnel, such as ssh -L 7412:127.0.0.1:7412",
		"--listen: the console is for this machine only, and the address is not loopback")
}

// serveConsole answers on l until ctx ends, and lets servers of the home know
// the address while it does.
func (a *app) serveConsole(ctx context.Context, at *site, eng *engine.Engine, l net.Listener) error {
	alone := &entrance{}
	who, err := at.access(alone)
	if err != nil {
		return err
	}
	page, err := a.consoleOf(ctx, at, eng, at.doors(who, true), alone, "")
	if err != nil {
		return err
	}
	base := "http://" + l.Addr().String()
	withdraw, err := console.Announce(ctx, at.home, base)
	if running, ok := errors.AsType[*console.RunningError](err); ok {
		return &fault{code: exitFault, err: running, hint: "open that one, or end it first"}
	}
	if err != nil {
		return err
	}
	defer withdraw()
	if isTerminal(a.stdout) {
		if err := a.newToken(at, base); err != nil {
			return err
		}
	}
	at.log.InfoContext(ctx, "console is listening", "url", base)
	if !isTerminal(a.stdout) {
		sayToken(ctx, at)
	}
	return page.Serve(ctx, l)
}

// sayToken tells where the token is to be had when it cannot be shown.
func sayToken(ctx context.Context, at *site) {
	if (console.StartToken{Home: at.home}).Exists() {
		at.log.InfoContext(ctx, "log in with the token of the last relavium-serve console --login, or make a new one on a terminal")
		return
	}
	if at.tokenOpens(ctx) {
		at.log.InfoContext(ctx, "log in with a token that allows gates, or with the one that relavium-serve console --login makes")
		return
	}
	at.log.WarnContext(ctx, "nobody can log in to the console yet: make a token with relavium-serve console --login on a terminal")
}

// tokenOpens reports whether a static token is there that opens the console.
func (at *site) tokenOpens(ctx context.Context) bool {
	all, err := at.tokens().Tokens(ctx)
	if err != nil {
		return false // whoever asks for a token is told
	}
	return slices.ContainsFunc(all, func(t access.Token) bool {
		scopes, err := access.ParseScopes(t.Scopes)
		return err == nil && t.Live(time.Now()) && (scopes.AnyGate() || scopes.Ops())
	})
}

// gatePage returns the address of a gate's page: on the console that is served
// on l, else on one that runs beside; "" when there is none.
func (at *site) gatePage(l net.Listener, e *entrance) func(gate string) string {
	own := ""
	switch {
	case l == nil:
	case e.public != nil && (e.known() || loopbackListener(l)):
		own = e.public.String() + consolePrefix
	case loopbackListener(l) || e.known() && e.host != "" && !strings.HasPrefix(e.host, "0.0.0.0") && e.host != "::":
		own = e.base(l) + consolePrefix
	}
	return func(gate string) string {
		base := own
		if base == "" {
			base, _ = console.Address(at.home)
		}
		if base == "" {
			return ""
		}
		return console.GatePage(base, gate)
	}
}

// consoleOf makes the console of the home's store, to be served below prefix to
// those whom login lets in by the entrance.
func (a *app) consoleOf(ctx context.Context, at *site, eng *engine.Engine, login console.Login, e *entrance, prefix string) (*console.Console, error) {
	var seals console.Seals
	if at.shared != nil {
		keys, err := at.gateKeys(ctx)
		if err != nil {
			return nil, err
		}
		seals = keys
	}
	return console.New(console.Options{
		Engine: eng,
		Seals:  seals,
		Login:  login,
		Logger: at.log,
		Prefix: prefix,
		Hosts:  e.hosts,
		Secure: e.public != nil && e.public.Scheme == "https",
		Refused: func(_ context.Context, r *engine.Run, by engine.Principal) error {
			own, err := a.siteOf(at, r)
			if err != nil {
				return err
			}
			return decisionRefused(own.settings, r.Workflow, by == r.Principal, engine.ViaConsole)
		},
	})
}
