package main

import (
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"strings"
	"text/tabwriter"

	"golang.org/x/term"

	"github.com/relavium/relavium-serve/inbound/text"
	"github.com/relavium/relavium-serve/secrets"
)

// A shell is what a command sees of the process around it.
type shell struct {
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
	env    map[string]string

	// scrubber knows the secrets of the environment and every one that was resolved.
	scrubber *secrets.Scrubber
}

func newShell(stdin io.Reader, stdout, stderr io.Writer, environ []string) *shell {
	env := make(map[string]string, len(environ))
	for _, pair := range environ {
		if name, value, ok := strings.Cut(pair, "="); ok {
			env[name] = value
		}
	}
	scrubber := new(secrets.Scrubber)
	scrubber.LearnEnviron(environ)
	return &shell{stdin: stdin, stdout: stdout, stderr: stderr, env: env, scrubber: scrubber}
}

// isTerminal reports whether a stream is a terminal.
func isTerminal(stream any) bool {
	file, ok := stream.(interface{ Fd() uintptr })
	return ok && term.IsTerminal(int(file.Fd()))
}

// color reports whether the stream shows colours: a terminal, and NO_COLOR unset
// or empty (no-color.org).
func (s *shell) color(stream any) bool {
	return isTerminal(stream) && s.env["NO_COLOR"] == "" && s.env["TERM"] != "dumb"
}

// screen is where a person can be asked: answers come from the standard input,
// which must be a terminal, and questions go to the standard error or, where
// that is not one, to the controlling terminal. The caller calls done.
func (s *shell) screen() (w io.Writer, done func(), ok bool) {
	if !isTerminal(s.stdin) {
		return nil, nil, false
	}
	if isTerminal(s.stderr) {
		return s.stderr, func() {}, true
	}
	tty, err := os.OpenFile("/dev/tty", os.O_WRONLY, 0)
	if err != nil {
		return nil, nil, false
	}
	return tty, func() { _ = tty.Close() }, true
}

// logger writes to the standard error only: the standard output may belong to a
// protocol.
func (s *shell) logger(level slog.Level) *slog.Logger {
	return slog.New(s.scrubber.Handler(slog.NewTextHandler(s.scrubber.Writer(s.stderr), &slog.HandlerOptions{Level: level})))
}

// logLevel reads a level from the flag, else from RELAVIUM_LOG, else takes the
// fallback.
func (s *shell) logLevel(flag string, fallback slog.Level) (slog.Level, error) {
	word, from := flag, "--log-level"
	if word == "" {
		word, from = s.env["RELAVIUM_LOG"], "RELAVIUM_LOG"
	}
	switch word {
	case "":
		return fallback, nil
	case "debug":
		return slog.LevelDebug, nil
	case "info":
		return slog.LevelInfo, nil
	case "warn":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	default:
		return 0, invalid("use debug, info, warn or error", "%s: not a log level", from)
	}
}

// plain makes text from a file, a caller or a model safe for a terminal and its
// columns: clean text in which a tab is a space.
func plain(s string) string { return strings.ReplaceAll(text.Clean(s), "\t", " ") }

// oneLine is plain text without line breaks, cut to at most limit characters.
func oneLine(s string, limit int) string {
	runes := []rune(strings.Join(strings.Fields(plain(s)), " "))
	if len(runes) > limit {
		return string(runes[:limit-1]) + "…"
	}
	return string(runes)
}

// table writes rows: aligned below a header on a terminal, else one line a row
// with tabs between the cells and no header, for cut and awk.
func (s *shell) table(header []string, rows [][]string) error {
	if !isTerminal(s.stdout) {
		for _, row := range rows {
			if _, err := io.WriteString(s.stdout, strings.Join(row, "\t")+"\n"); err != nil {
				return err
			}
		}
		return nil
	}
	w := tabwriter.NewWriter(s.stdout, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{header}, rows...) {
		if _, err := io.WriteString(w, strings.Join(row, "\t")+"\n"); err != nil {
			return err
		}
	}
	return w.Flush()
}

// json writes one value, indented.
func (s *shell) json(value any) error {
	enc := json.NewEncoder(s.stdout)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(value)
}
