package secrets

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"unicode/utf8"
)

// Bounds of a value in bytes.
const (
	MinBytes         = 8         // shorter ones are no secrets, and replacing them would garble texts
	MaxBytes         = 64 << 10  // of a value from a variable or a file
	MaxKeychainBytes = 2048      // what every system's keychain keeps
	maxAgeFileBytes  = 1 << 20   // encrypted
	maxKeyFileBytes  = 64 << 10  // age identities
	maxIndexBytes    = 256 << 10 // names kept in the keychain
)

// A Source is a place that values come from.
type Source string

// The sources, in the order in which they are asked.
const (
	Keychain   Source = "keychain"
	Variable   Source = "environment"
	File       Source = "file"       // named by the variable with _FILE appended
	Credential Source = "credential" // of the service supervisor, in $CREDENTIALS_DIRECTORY
	AgeFile    Source = "age file"
)

// Options say where a Store looks. Home is required.
type Options struct {
	// Home is the absolute path of the folder that holds secrets.age and age.key. It
	// need not exist before the first Set.
	Home string
	// Getenv reads a variable; nil means that there are none.
	Getenv func(name string) string
	// Keychain is used instead of the system's.
	Keychain Keyring
	// AgeFile and AgeIdentity replace secrets.age and age.key in Home. A relative path
	// is below Home.
	AgeFile, AgeIdentity string
	// Passphrase asks the person at the terminal for the passphrase of an age file; nil
	// means that there is no terminal. It is called at most once for a file.
	Passphrase func(ctx context.Context) ([]byte, error)
	// Scrubber learns every value that is resolved; nil learns none.
	Scrubber *Scrubber
}

// A Store finds, keeps and removes secrets. It is safe for concurrent use, also by
// other processes.
type Store struct {
	home     string
	getenv   func(string) string
	keychain *keychain
	age      *ageFile
	scrubber *Scrubber
	mu       sync.Mutex // one change at a time; other processes are kept out by a lock on the folder
}

// Open returns a store. It reads nothing and makes nothing.
func Open(opt Options) (*Store, error) {
	if !filepath.IsAbs(opt.Home) {
		return nil, errors.New("secrets: Options.Home is not an absolute path")
	}
	if opt.Getenv == nil {
		opt.Getenv = func(string) string { return "" }
	}
	below := func(path, name string) string {
		switch {
		case path == "":
			return filepath.Join(opt.Home, name)
		case filepath.IsAbs(path):
			return filepath.Clean(path)
		}
		return filepath.Join(opt.Home, path)
	}
	return &Store{
		home:     opt.Home,
		getenv:   opt.Getenv,
		keychain: newKeychain(opt.Keychain, opt.Getenv),
		age: &ageFile{
			path:       below(opt.AgeFile, "secrets.age"),
			identity:   below(opt.AgeIdentity, "age.key"),
			passphrase: opt.Passphrase,
		},
		scrubber: opt.Scrubber,
	}, nil
}

// A Resolver finds the secrets of one space and cannot read another. It is safe for
// concurrent use. The zero Resolver finds nothing.
type Resolver struct {
	store *Store
	name  func(id string) (Name, error)
}

// ProviderKeys resolves keys of model providers by the provider: openai.
func (s *Store) ProviderKeys() Resolver { return Resolver{s, providerName} }

// MCPSecrets resolves what {{secrets.NAME}} refers to, by NAME.
func (s *Store) MCPSecrets() Resolver { return Resolver{s, mcpName} }

// Inputs resolves the secret inputs of one workflow by the input's name.
func (s *Store) Inputs(workflow string) Resolver {
	return Resolver{s, func(input string) (Name, error) { return inputName(workflow, input) }}
}

// SearchKey resolves the key of the search engine; its id is "".
func (s *Store) SearchKey() Resolver {
	return Resolver{s, func(id string) (Name, error) {
		if id != "" {
			return Name{}, badName(id, "the search key has no other name")
		}
		return Name{space: searchSpace}, nil
	}}
}

// Name returns the whole name of an id in the resolver's space, or a *NameError.
func (r Resolver) Name(id string) (Name, error) {
	if r.name == nil {
		return Name{}, badName(id, "no such space")
	}
	return r.name(id)
}

// Resolve returns the value of the first source that has one. The error is a
// *NotFoundError, a *RefusedError, a *NameError or that of ctx; none holds a value.
func (r Resolver) Resolve(ctx context.Context, id string) (Secret, error) {
	name, err := r.Name(id)
	if err != nil {
		return Secret{}, err
	}
	found, _, err := r.store.resolve(ctx, name)
	return found, err
}

// Has returns the source that answers for an id; the errors are those of Resolve.
func (r Resolver) Has(ctx context.Context, id string) (Source, error) {
	name, err := r.Name(id)
	if err != nil {
		return "", err
	}
	return r.store.Source(ctx, name)
}

// A NotFoundError says that no source has a value.
type NotFoundError struct {
	Name  Name
	Tried []Answer // every source, in order
}

func (e *NotFoundError) Error() string {
	tried := make([]string, len(e.Tried))
	for i, a := range e.Tried {
		tried[i] = a.Where + " (" + a.Detail + ")"
	}
	return fmt.Sprintf("secret %s: no value in %s", e.Name, strings.Join(tried, ", "))
}

// Remedy says how to supply the value.
func (e *NotFoundError) Remedy() string {
	return fmt.Sprintf("relavium-serve secrets set %s, or set %s or %s", e.Name, e.Name.Env(), e.Name.fileEnv())
}

// A RefusedError says that a source is there but cannot be used. Sources after it
// are not asked, because what was put in first place is meant.
type RefusedError struct {
	Name   Name
	Source Source
	Where  string // as Answer.Where; "" for a value that nothing would take
	Reason string
}

func (e *RefusedError) Error() string {
	if e.Where == "" {
		return fmt.Sprintf("secret %s: %s", e.Name, e.Reason)
	}
	return fmt.Sprintf("secret %s: %s: %s", e.Name, e.Where, e.Reason)
}

// A State is what a source says to a name.
type State string

// The states of an Answer.
const (
	Answers State = "answers" // its value is used
	Hidden  State = "hidden"  // it has a value that an earlier source hides
	Absent  State = "absent"
	Offline State = "unavailable" // the source cannot be asked; the next one is
	Refused State = "refused"     // see RefusedError
)

// An Answer is what one source says to a name, never the value.
type Answer struct {
	Source Source
	Where  string // the variable, the credential or the kind of file: no path, no value
	State  State
	Detail string // why there is no value, or ""
}

// probe asks one source.
type probe struct {
	source Source
	where  string
	read   func(ctx context.Context) ([]byte, error)
}

// An absence is why a source has no value; the next source is asked.
type absence struct {
	state  State // Absent or Offline
	detail string
}

func (a absence) Error() string { return a.detail }

// refusal is why a source that has something cannot be used.
type refusal string

func (r refusal) Error() string { return string(r) }

func (s *Store) probes(name Name) []probe {
	return []probe{
		{Keychain, "keychain", func(ctx context.Context) ([]byte, error) { return s.keychain.get(ctx, name.account()) }},
		{Variable, name.Env(), func(context.Context) ([]byte, error) { return s.variable(name.Env()) }},
		{File, name.fileEnv(), func(context.Context) ([]byte, error) { return s.fileOf(s.getenv(name.fileEnv())) }},
		{Credential, "credential " + name.credential(), func(context.Context) ([]byte, error) { return s.supervised(name) }},
		{AgeFile, "age file", func(ctx context.Context) ([]byte, error) { return s.age.get(ctx, name) }},
	}
}

func (s *Store) variable(name string) ([]byte, error) {
	value := s.getenv(name)
	if value == "" {
		return nil, absence{Absent, "not set"}
	}
	return []byte(value), nil
}

func (s *Store) fileOf(path string) ([]byte, error) {
	if path == "" {
		return nil, absence{Absent, "not set"}
	}
	value, err := readFile(path, MaxBytes, anyOwner)
	if errors.Is(err, errNoFile) {
		return nil, refusal("no such file")
	}
	return trimLine(value), err
}

func (s *Store) supervised(name Name) ([]byte, error) {
	dir := s.getenv("CREDENTIALS_DIRECTORY")
	if dir == "" {
		return nil, absence{Absent, "no credentials directory"}
	}
	value, err := readFile(filepath.Join(dir, name.credential()), MaxBytes, anyOwner)
	if errors.Is(err, errNoFile) {
		return nil, absence{Absent, "not there"}
	}
	return trimLine(value), err
}

// trimLine cuts the line break that editors and echo leave at the end.
func trimLine(value []byte) []byte {
	if n := len(value); n > 0 && value[n-1] == '\n' {
		value = value[:n-1]
	}
	if n := len(value); n > 0 && value[n-1] == '\r' {
		value = value[:n-1]
	}
	return value
}

// checkValue says why a value cannot be a secret, or "".
func checkValue(value []byte) string {
	switch {
	case len(value) < MinBytes:
		return fmt.Sprintf("is shorter than %d bytes", MinBytes)
	case len(value) > MaxBytes:
		return fmt.Sprintf("is longer than %d bytes", MaxBytes)
	case !utf8.Valid(value):
		return "is not UTF-8"
	case strings.ContainsRune(string(value), 0):
		return "holds a NUL"
	}
	return ""
}

// ask asks one source; the error is an absence, a *RefusedError or that of ctx.
func (p *probe) ask(ctx context.Context, name Name) ([]byte, error) {
	value, err := p.read(ctx)
	if err == nil {
		if why := checkValue(value); why != "" {
			clear(value)
			err = refusal("the value " + why)
		}
	}
	var missing absence
	switch {
	case err == nil:
		return value, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.As(err, &missing):
		return nil, missing
	}
	return nil, &RefusedError{Name: name, Source: p.source, Where: p.where, Reason: err.Error()}
}

func (s *Store) resolve(ctx context.Context, name Name) (Secret, Source, error) {
	missing := &NotFoundError{Name: name}
	for _, p := range s.probes(name) {
		value, err := p.ask(ctx, name)
		if absent, ok := errors.AsType[absence](err); ok {
			missing.Tried = append(missing.Tried, Answer{p.source, p.where, absent.state, absent.detail})
			continue
		}
		if err != nil {
			return Secret{}, "", err
		}
		s.scrubber.Learn(name, string(value))
		return newSecret(name, value), p.source, nil
	}
	return Secret{}, "", missing
}

// Source returns the source that answers for a name; the errors are those of
// Resolve. No value is kept.
func (s *Store) Source(ctx context.Context, name Name) (Source, error) {
	found, source, err := s.resolve(ctx, name)
	found.Wipe()
	return source, err
}

// Explain asks every source, in order, and tells what each says. The error is that
// of ctx alone.
func (s *Store) Explain(ctx context.Context, name Name) ([]Answer, error) {
	var answers []Answer
	settled := false
	for _, p := range s.probes(name) {
		value, err := p.ask(ctx, name)
		clear(value)
		a := Answer{Source: p.source, Where: p.where, State: Answers}
		var refused *RefusedError
		var missing absence
		switch {
		case errors.As(err, &missing):
			a.State, a.Detail = missing.state, missing.detail
		case errors.As(err, &refused):
			a.State, a.Detail = Refused, refused.Reason
		case err != nil:
			return nil, err
		}
		if a.State == Answers && settled {
			a.State = Hidden
		}
		settled = settled || a.State == Answers || a.State == Refused
		answers = append(answers, a)
	}
	return answers, nil
}
