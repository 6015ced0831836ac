package consent

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Bounds of what a prompt shows of arguments and variables. The command is never
// cut.
const (
	maxShown      = 200
	maxShownBytes = 2000
	maxAnswer     = 1 << 10
)

// Conditions are what must hold before a person is asked. All four are needed:
// without them nobody is there, or what is there is a program.
type Conditions struct {
	TTYIn, TTYOut bool // standard input and output are terminals
	JSON          bool // --json was given
	CI            bool // as CI reports it
}

// Unmet names the conditions that do not hold, for a person; none means ask.
func (c Conditions) Unmet() []string {
	var unmet []string
	for _, condition := range []struct {
		fails bool
		what  string
	}{
		{!c.TTYIn, "the standard input is no terminal"},
		{!c.TTYOut, "the standard output is no terminal"},
		{c.JSON, "--json is given"},
		{c.CI, "CI is set"},
	} {
		if condition.fails {
			unmet = append(unmet, condition.what)
		}
	}
	return unmet
}

// CI reports whether a value of the variable CI means that no person is there:
// anything but empty, 0 and false.
func CI(value string) bool {
	return value != "" && value != "0" && !strings.EqualFold(value, "false")
}

// An UnaskedError says why nobody was asked.
type UnaskedError struct {
	Digest string
	Unmet  []string
}

func (e *UnaskedError) Error() string {
	return e.Digest + " is not granted and nobody can be asked: " + strings.Join(e.Unmet, ", ")
}

// A Question is one declaration that a person is asked about.
type Question struct {
	Server      string // its id in the files, "" if it has none
	Declaration Declaration
	Earlier     *Grant              // what was granted before for this server, if that is known
	Clean       func(string) string // makes text safe for a terminal: no control or bidirectional characters; required
}

// Ask shows the question and reports whether the answer is yes; any other answer,
// and none, is no. The answer is read up to its line's end and no further, at most
// 1 KiB. Under unmet conditions it asks nothing and returns an *UnaskedError. It
// records nothing.
func (q *Question) Ask(in io.Reader, out io.Writer, c Conditions) (bool, error) {
	digest, err := q.Declaration.Digest()
	if err != nil {
		return false, err
	}
	if unmet := c.Unmet(); len(unmet) > 0 {
		return false, &UnaskedError{Digest: digest, Unmet: unmet}
	}
	if err := q.Show(out); err != nil {
		return false, err
	}
	if _, err := io.WriteString(out, "Start this program whenever a workflow asks for it? Type yes to allow it: "); err != nil {
		return false, err
	}
	answer, err := readAnswer(in)
	return err == nil && strings.EqualFold(strings.TrimSpace(answer), "yes"), err
}

// readAnswer reads one line byte by byte. The end of the input is an empty answer.
func readAnswer(in io.Reader) (string, error) {
	var line []byte
	for one := make([]byte, 1); len(line) < maxAnswer; {
		n, err := in.Read(one)
		if n == 1 {
			if one[0] == '\n' {
				return string(line), nil
			}
			line = append(line, one[0])
		}
		if errors.Is(err, io.EOF) {
			return "", nil // nobody ended the line
		}
		if err != nil {
			return "", err
		}
	}
	return "", nil
}

// Show writes all that a person needs to judge the declaration: the program, every
// argument, every variable with its literal or the secret it is filled from, the
// folder, what in it may change what runs, and the digest.
func (q *Question) Show(out io.Writer) error {
	if q.Clean == nil {
		return errors.New("consent: Question.Clean is required")
	}
	d := &q.Declaration
	digest, err := d.Digest()
	if err != nil {
		return err
	}
	var b strings.Builder
	b.WriteString("\nA local program is to be started as an MCP server")
	if q.Server != "" {
		b.WriteString(": " + q.quoted(q.Server, maxShownBytes))
	}
	b.WriteString("\n  command    " + q.quoted(d.Command, len(d.Command)) + "\n")
	b.WriteString("  folder     " + q.quoted(d.Cwd, len(d.Cwd)) + "\n")
	q.showArgs(&b)
	q.showEnv(&b)
	for _, warning := range d.Warnings() {
		b.WriteString("  warning    " + q.line(warning) + "\n")
	}
	q.showEarlier(&b)
	b.WriteString("  digest     " + digest + "\n")
	_, err = io.WriteString(out, b.String())
	return err
}

func (q *Question) showArgs(b *strings.Builder) {
	args := q.Declaration.Args
	if len(args) == 0 {
		b.WriteString("  arguments  none\n")
		return
	}
	fmt.Fprintf(b, "  arguments  %d\n", len(args))
	for i, arg := range args[:min(len(args), maxShown)] {
		fmt.Fprintf(b, "    %3d  %s\n", i+1, q.quoted(arg, maxShownBytes))
	}
	if rest := len(args) - maxShown; rest > 0 {
		fmt.Fprintf(b, "    and %d more, not shown (all arguments: %s)\n", rest, sum(appendList(nil, args)))
	}
}

func (q *Question) showEnv(b *strings.Builder) {
	env := q.Declaration.Env
	if len(env) == 0 {
		b.WriteString("  variables  none\n")
		return
	}
	fmt.Fprintf(b, "  variables  %d\n", len(env))
	names := slices.SortedFunc(maps.Keys(env), compareUTF16)
	for _, name := range names[:min(len(names), maxShown)] {
		shown := name
		if _, denied := EnvDenied(name); denied {
			shown = q.quoted(name, maxNameBytes)
		}
		if secret, ok := SecretRef(env[name]); ok {
			fmt.Fprintf(b, "    %s ← secret %s\n", shown, secret)
			continue
		}
		fmt.Fprintf(b, "    %s = %s\n", shown, q.quoted(env[name], maxShownBytes))
		if HoldsSecretRef(env[name]) {
			b.WriteString("      warning: text around a secret reference: the program is given the text as it stands, not the secret\n")
		}
		if marked(name) {
			b.WriteString("      note: names a configuration file, a socket or a program\n")
		}
	}
	if rest := len(names) - maxShown; rest > 0 {
		fmt.Fprintf(b, "    and %d more, not shown (all names: %s)\n", rest, sum(appendList(nil, names)))
	}
}

// showEarlier says in what the declaration differs from the earlier grant.
func (q *Question) showEarlier(b *strings.Builder) {
	if q.Earlier == nil {
		return
	}
	d, g := &q.Declaration, q.Earlier
	var differ []string
	for _, part := range []struct {
		same bool
		what string
	}{
		{cut(d.Command) == g.Command, "command"},
		{cut(d.Cwd) == g.Cwd, "folder"},
		{slices.Equal(cutAll(d.Args), g.Args), "arguments"},
		{slices.Equal(cutAll(slices.Sorted(maps.Keys(d.Env))), g.EnvNames), "names of variables"},
	} {
		if !part.same {
			differ = append(differ, part.what)
		}
	}
	if differ == nil {
		differ = []string{"a value that was not kept"}
	}
	fmt.Fprintf(b, "  earlier    granted %s; different now: %s\n", g.Granted.UTC().Format(time.DateOnly), strings.Join(differ, ", "))
}

// quoted shows a text between quotes on one line, at most limit bytes of it. What
// is not shown as it is, cut or cleaned, is named by its length and SHA-256.
func (q *Question) quoted(text string, limit int) string {
	kept := text
	if len(kept) > limit {
		end := limit
		for end > 0 && !utf8.RuneStart(kept[end]) {
			end--
		}
		kept = kept[:end] + "…"
	}
	// Line breaks and tabs that the cleaner keeps are shown by their escapes.
	shown := q.Clean(kept)
	line := string(appendQuoted(nil, shown))
	switch {
	case len(text) > limit:
		line += fmt.Sprintf(" (cut; %d bytes, %s)", len(text), sum([]byte(text)))
	case shown != text:
		line += fmt.Sprintf(" (holds characters that cannot be shown; %d bytes, %s)", len(text), sum([]byte(text)))
	}
	return line
}

// line shows a text of ours that holds names from outside.
func (q *Question) line(text string) string {
	return strings.Join(strings.Fields(q.Clean(text)), " ")
}

func sum(text []byte) string {
	digest := sha256.Sum256(text)
	return "sha256 " + hex.EncodeToString(digest[:])
}

// marked reports whether a variable is no reason to refuse, yet leads a program to
// a file, a socket or another program.
func marked(name string) bool {
	switch strings.ToUpper(name) {
	case "KUBECONFIG", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "GOOGLE_APPLICATION_CREDENTIALS", "AZURE_CONFIG_DIR",
		"DOCKER_HOST", "DOCKER_CONFIG", "DOCKER_CONTEXT", "CONTAINER_HOST", "PGPASSFILE", "TMPDIR", "TMP", "TEMP", "DISPLAY",
		"XAUTHORITY", "WAYLAND_DISPLAY", "PUPPETEER_EXECUTABLE_PATH", "CHROME_PATH", "PLAYWRIGHT_BROWSERS_PATH", "LANG", "LC_ALL",
		"LC_CTYPE", "TZ":
		return true
	}
	return false
}
