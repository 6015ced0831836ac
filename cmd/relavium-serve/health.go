package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/relavium/relavium-serve/egress"
)

// healthLimit bounds the question whether a server lives.
const healthLimit = 5 * time.Second

func (a *app) healthCommand() *cobra.Command {
	var ready bool
	cmd := &cobra.Command{
		Use:   "health [URL]",
		Short: "Ask a server on this machine whether it lives",
		Long: `Ask a server on this machine whether it lives, for supervisors and containers:
exit code 0 if it does, 1 if not. URL is where it listens, by default that of
[serve] listen. With --ready, whether it takes new calls.`,
		Example: "  relavium-serve health\n  relavium-serve health http://127.0.0.1:7411 --ready",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			at, err := a.open(slog.LevelWarn)
			if err != nil {
				return err
			}
			base := "http://" + reachable(value(at.Serve.Listen))
			if len(args) == 1 {
				base = args[0]
			}
			path := "/healthz"
			if ready {
				path = "/readyz"
			}
			return a.askHealth(cmd.Context(), base, path)
		},
	}
	cmd.Flags().BoolVar(&ready, "ready", false, "ask whether it takes new calls")
	return cmd
}

// reachable is the address by which this machine reaches a listener: one that listens
// everywhere is reached on loopback.
func reachable(listen string) string {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return listen
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}

func (a *app) askHealth(ctx context.Context, base, path string) error {
	u, err := url.Parse(base)
	if err != nil || u.Host == "" {
		return invalid("relavium-serve health http://127.0.0.1:7411", "%q is no URL", oneLine(base, 100))
	}
	target, err := egress.ParseTarget(u.Scheme+"://"+u.Host+path, true)
	if err != nil {
		return invalid("health asks a server on this machine", "%w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, healthLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.Scheme+"://"+u.Host+path, nil)
	if err != nil {
		return err
	}
	client := egress.Client(target, egress.Options{})
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	if err != nil {
		return &fault{code: exitFailed, err: err, hint: "is relavium-serve serve --transport http running there? One over stdio has no address"}
	}
	defer func() { _ = resp.Body.Close() }()
	said, err := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
	if err != nil {
		return &fault{code: exitFailed, err: err}
	}
	if resp.StatusCode == http.StatusNotFound {
		return &fault{
			code: exitFailed, err: fmt.Errorf("what listens at %s has no %s: it is no relavium-serve serve", u.Host, path),
			hint: "name the address of a server over HTTP; relavium-serve console has none of this",
		}
	}
	if resp.StatusCode != http.StatusOK {
		return &fault{code: exitFailed, err: fmt.Errorf("%s: %d %s", path, resp.StatusCode, oneLine(string(said), 100))}
	}
	_, err = io.WriteString(a.stdout, strings.TrimSpace(string(said))+"\n")
	return err
}
