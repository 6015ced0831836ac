package secrets

import (
	"fmt"
	"slices"
	"strings"
)

// A Name names a secret: a space and what is meant in it. The zero Name names
// nothing.
type Name struct {
	space space
	id    string // in space input: <workflow>/<input>; in search: ""
}

// A space keeps the names of one purpose apart from those of another.
type space string

const (
	providerSpace space = "provider"
	mcpSpace      space = "mcp"
	inputSpace    space = "input"
	searchSpace   space = "search"
)

const maxNameBytes = 256

// A NameError says why a text is not the name of a secret.
type NameError struct {
	Text   string // as given, cut to 80 bytes
	Reason string
}

func (e *NameError) Error() string { return fmt.Sprintf("%q: %s", e.Text, e.Reason) }

// ParseName reads a name: provider/<provider>, mcp/<name>,
// input/<workflow>/<input>, or search, which nothing asks for yet. The error is a
// *NameError.
func ParseName(text string) (Name, error) {
	kind, rest, _ := strings.Cut(text, "/")
	switch space(kind) {
	case providerSpace:
		return providerName(rest)
	case mcpSpace:
		return mcpName(rest)
	case inputSpace:
		workflow, input, _ := strings.Cut(rest, "/")
		return inputName(workflow, input)
	case searchSpace:
		if text == string(searchSpace) {
			return Name{space: searchSpace}, nil
		}
	}
	return Name{}, badName(text, "not the name of a secret, expected provider/<provider>, mcp/<name> or input/<workflow>/<input>")
}

func badName(text, reason string) error {
	return &NameError{Text: text[:min(len(text), 80)], Reason: reason}
}

// Providers are the providers whose keys have a name.
func Providers() []string { return []string{"anthropic", "openai", "gemini", "deepseek"} }

func providerName(id string) (Name, error) {
	if !slices.Contains(Providers(), id) {
		return Name{}, badName("provider/"+id, "no such provider, expected one of "+strings.Join(Providers(), ", "))
	}
	return Name{providerSpace, id}, nil
}

func mcpName(id string) (Name, error) {
	if !isWord(id, "_.-") || len(id) > maxNameBytes {
		return Name{}, badName("mcp/"+id, "after mcp/ come 1 to 256 of A-Z, a-z, 0-9, _, . and -")
	}
	return Name{mcpSpace, id}, nil
}

func inputName(workflow, input string) (Name, error) {
	if !isWord(workflow, "-") || !isWord(input, "_-") || len(workflow)+len(input) > maxNameBytes {
		return Name{}, badName("input/"+workflow+"/"+input, "expected input/<workflow>/<input>, by their ids")
	}
	return Name{inputSpace, workflow + "/" + input}, nil
}

func isWord(text, marks string) bool {
	return text != "" && !strings.ContainsFunc(text, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune(marks, r)
	})
}

// String is the name as ParseName reads it.
func (n Name) String() string {
	if n.id == "" {
		return string(n.space)
	}
	return string(n.space) + "/" + n.id
}

// Env is the variable that may hold the value; with _FILE appended it may hold the
// path of a file that does. Letters become upper case, all but letters and digits
// an underscore, so that two names can have the same variable: see Clashes.
func (n Name) Env() string {
	switch n.space {
	case providerSpace:
		return "RELAVIUM_" + upper(n.id) + "_API_KEY"
	case mcpSpace:
		return "RELAVIUM_MCP_" + upper(n.id)
	case inputSpace:
		return "RELAVIUM_INPUT_" + upper(n.id)
	case searchSpace:
		return "RELAVIUM_SEARCH_API_KEY"
	}
	return ""
}

func (n Name) fileEnv() string { return n.Env() + "_FILE" }

func upper(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		}
		return '_'
	}, text)
}

// account is the name of the keychain's item (format 7). No account of one space is
// one of another: only names of mcp begin with mcp-secret:, only inputs with input:,
// and the providers are a closed list.
func (n Name) account() string {
	switch n.space {
	case providerSpace:
		return n.id + ":default"
	case mcpSpace:
		return "mcp-secret:" + n.id
	case inputSpace:
		return "input:" + n.id
	case searchSpace:
		return "search-provider"
	}
	return ""
}

// credential is the file in the supervisor's credentials directory, where names
// cannot hold a slash: mcp.github_token. It carries the space, so that a name of one
// cannot read a credential that was meant for another.
func (n Name) credential() string { return strings.ReplaceAll(n.String(), "/", ".") }

// A Clash is a variable that two names would be read from.
type Clash struct {
	Variable string
	Names    [2]Name
}

func (c Clash) String() string {
	return fmt.Sprintf("%s and %s are both read from %s", c.Names[0], c.Names[1], c.Variable)
}

// Clashes finds the variables that more than one of the names is read from, by
// itself or as the path of a file, once for each pair. A name may stand in the list
// more than once.
func Clashes(names []Name) []Clash {
	first := make(map[string]Name)
	var clashes []Clash
	for _, n := range names {
		for _, variable := range []string{n.Env(), n.fileEnv()} {
			other, taken := first[variable]
			if !taken {
				first[variable] = n
				continue
			}
			if pair := [2]Name{other, n}; other != n && !slices.ContainsFunc(clashes, func(c Clash) bool { return c.Names == pair }) {
				clashes = append(clashes, Clash{variable, pair})
			}
		}
	}
	return clashes
}
