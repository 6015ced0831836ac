package consent

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// maxListed bounds how many names of a folder are looked through.
const maxListed = 20000

// Warnings says what, beside the declaration, decides what will run: files in the
// folder that package runners and interpreters read, and a package without a fixed
// version. The texts hold names from the file system and the declaration: clean
// them before they are shown.
func (d *Declaration) Warnings() []string {
	tool := runner(d.Command)
	if tool == "" {
		return nil
	}
	var warnings []string
	if files := changers(d.Cwd); len(files) > 0 {
		warnings = append(warnings, "in its folder "+strings.Join(files, ", ")+" may change what runs")
	}
	if name := unpinned(tool, d.Args); name != "" {
		if len(name) > maxNameBytes {
			name = strings.ToValidUTF8(name[:maxNameBytes], "") + "…"
		}
		warnings = append(warnings, "package "+string(appendQuoted(nil, name))+" has no fixed version: whatever is newest runs")
	}
	return warnings
}

// runner is the name of the package runner or interpreter that a command is, ""
// if it is another program.
func runner(command string) string {
	name := strings.ToLower(filepath.Base(command))
	switch ext := filepath.Ext(name); ext {
	case ".exe", ".cmd", ".bat", ".ps1":
		name = strings.TrimSuffix(name, ext)
	}
	switch name {
	case "npx", "npm", "pnpm", "yarn", "bunx", "uvx", "uv", "pipx", "node", "deno", "python":
		return name
	case "nodejs":
		return "node"
	}
	if version, ok := strings.CutPrefix(name, "python"); ok && strings.Trim(version, "0123456789.") == "" {
		return "python"
	}
	return ""
}

// changers are the files of a folder that change what a runner starts, sorted.
func changers(folder string) []string {
	dir, err := os.Open(folder) //nolint:gosec // the folder that the person is asked about
	if err != nil {
		return nil
	}
	defer func() { _ = dir.Close() }()
	names, _ := dir.Readdirnames(maxListed) // what could be listed is better than nothing
	var found []string
	for _, name := range names {
		switch name {
		case ".npmrc", "node_modules", "bunfig.toml", "uv.toml", "pyproject.toml", "package.json":
			found = append(found, name)
		default:
			if (strings.HasPrefix(name, ".yarnrc") || strings.HasPrefix(name, ".pnp.")) && len(found) < 20 {
				found = append(found, name)
			}
		}
	}
	slices.Sort(found)
	return found
}

// unpinned is the package that a runner's arguments name without a version, "" if
// there is none.
func unpinned(tool string, args []string) string {
	python := tool == "uvx" || tool == "uv" || tool == "pipx"
	switch tool {
	case "npx", "bunx", "uvx":
	case "npm", "pnpm", "yarn", "uv", "pipx":
		if args = afterVerb(args); args == nil {
			return ""
		}
	case "deno":
		for _, arg := range args {
			name, ok := strings.CutPrefix(arg, "npm:")
			if !ok {
				name, ok = strings.CutPrefix(arg, "jsr:")
			}
			if ok && !fixedVersion(strings.TrimPrefix(name, "/")) {
				return arg
			}
		}
		return ""
	default:
		return ""
	}
	found := ""
	for i := 0; i < len(args); i++ {
		flag, value, joined := strings.Cut(args[i], "=")
		switch {
		case slices.Contains([]string{"-p", "--package", "--from", "--with", "--spec"}, flag):
			if !joined && i+1 < len(args) {
				i++
				value = args[i]
			}
			if !pinned(value, python) {
				return value
			}
			found = value // the word after it names a program of this package
		case args[i] == "--":
		case strings.HasPrefix(args[i], "-"):
			if !joined && takesValue(flag) {
				i++
			}
		case found != "" || pinned(args[i], python):
			return ""
		default:
			return args[i]
		}
	}
	return ""
}

// afterVerb is what follows the word that makes a package manager run a package,
// nil if there is none.
func afterVerb(args []string) []string {
	for i, arg := range args {
		switch arg {
		case "exec", "x", "dlx", "run":
			return args[i+1:]
		}
		if !strings.HasPrefix(arg, "-") && arg != "tool" {
			return nil
		}
	}
	return nil
}

// takesValue reports whether a flag of a runner is followed by its value.
func takesValue(flag string) bool {
	switch flag {
	case "-c", "--call", "--registry", "--prefix", "-w", "--workspace", "--userconfig", "--python", "--index-url", "-i", "--index",
		"--extra-index-url", "--directory", "--project", "--pip-args":
		return true
	}
	return false
}

// pinned reports whether a package argument fixes a version, or is a path.
func pinned(name string, python bool) bool {
	if strings.HasPrefix(name, ".") || filepath.IsAbs(name) || path.IsAbs(name) {
		return true
	}
	if python {
		if _, version, ok := strings.Cut(name, "=="); ok {
			return version != "" && !strings.Contains(version, "*")
		}
	}
	return fixedVersion(name)
}

// fixedVersion reports whether a name ends in @ and a whole version: a range or a
// tag such as @latest is whatever is newest.
func fixedVersion(name string) bool {
	at := strings.LastIndexByte(name, '@')
	if at <= 0 {
		return false
	}
	version, _, _ := strings.Cut(name[at+1:], "/")
	numbers := strings.SplitN(version, ".", 3)
	if len(numbers) != 3 {
		return false
	}
	for _, number := range numbers {
		if number == "" || number[0] < '0' || number[0] > '9' {
			return false
		}
	}
	return strings.Trim(numbers[0]+numbers[1], "0123456789") == "" && !strings.ContainsAny(version, "x*| <>^~")
}
