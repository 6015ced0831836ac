// Command serve runs the fake model provider on loopback until it is interrupted.
// Its first line on stdout is its address, such as http://127.0.0.1:4010; a base
// URL is that plus /anthropic, /openai/v1, /deepseek, /gemini or /local/v1.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/relavium/relavium-serve/integration/fakemodel"
)

func main() {
	//nolint:forbidigo // this is main
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "fakemodel:", err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

func run(ctx context.Context) error {
	script := flag.String("script", "", "`file` of the script, in JSON")
	journal := flag.String("journal", "", "`file` that each request is appended to, in lines of JSON")
	listen := flag.String("listen", "127.0.0.1:0", "`address` to listen on")
	key := flag.String("key", "", "the only key that is accepted (default: any)")
	flag.Parse()
	opt := fakemodel.Options{Key: *key}
	if *script != "" {
		f, err := os.Open(*script)
		if err != nil {
			return err
		}
		opt.Script, err = fakemodel.ReadScript(f)
		if err = firstOf(err, f.Close()); err != nil {
			return err
		}
	}
	if *journal != "" {
		f, err := os.OpenFile(*journal, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		defer f.Close() //nolint:errcheck // each line was written when it was
		opt.Journal = f
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", *listen)
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: fakemodel.New(opt), ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(l) }()
	//nolint:forbidigo // the line that a parent reads
	if _, err = fmt.Fprintf(os.Stdout, "http://%s\n", l.Addr()); err != nil {
		return firstOf(err, srv.Close())
	}
	select {
	case err = <-ended:
		return err
	case <-ctx.Done():
	}
	if err = firstOf(srv.Close(), <-ended); errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

func firstOf(a, b error) error {
	if a != nil {
		return a
	}
	return b
}
